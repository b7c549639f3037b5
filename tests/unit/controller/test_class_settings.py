"""The file of ``--classes``: what is wrong is named, with what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.deviceclasses.settingsfile import ClassSettings, ClassSettingsError, parse, read

CEL = [{"cel": {"expression": 'device.driver == "gpu.nvidia.com"'}}]


def opaque(parameters: dict[str, Any], driver: str = "gpu.nvidia.com") -> list[dict[str, Any]]:
    return [{"opaque": {"driver": driver, "parameters": parameters}}]


@pytest.mark.parametrize("document", [None, {}, {"create": True, "classes": []}])
def test_an_empty_document_changes_nothing(document: object) -> None:
    assert parse(document) == ClassSettings()


def test_a_class_with_everything() -> None:
    config = opaque({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"})
    entry = {"name": "mine", "selectors": CEL, "config": config, "extendedResourceName": "a.com/b"}
    (setting,) = parse({"classes": [entry]}).classes
    assert (setting.name, setting.enabled, setting.extended_resource) == ("mine", True, "a.com/b")
    assert (setting.selectors, setting.config) == (tuple(CEL), tuple(config))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (["x"], "must be an object"),
        ({"klasses": []}, "field klasses is unknown; allowed here: create, classes"),
        ({"classes": [{"name": "A B", "selectors": CEL}]}, "classes.0.name: 'A B'"),
        ({"classes": [{"name": "mine"}]}, "classes.0.selectors is empty"),
        ({"classes": [{"name": "gpu.nvidia.com", "selectors": []}]}, "classes.0.selectors is empty"),
        ({"classes": [{"name": "mig.nvidia.com"}] * 2}, "2 of them have name 'mig.nvidia.com'"),
        (
            {
                "classes": [
                    {"name": name, "selectors": CEL, "extendedResourceName": "a.com/b"} for name in ("a", "b")
                ]
            },
            "2 of them have extendedResourceName 'a.com/b'",
        ),
        (
            {"classes": [{"name": "mig.nvidia.com", "config": opaque({"apiVersion": "x"})}]},
            "classes.0.config.0.opaque.parameters: field apiVersion: 'x' is not known",
        ),
        ({"classes": [{"name": "mig.nvidia.com", "enabled": "no"}]}, "enabled"),
    ],
)
def test_what_is_wrong_is_named(document: object, words: str) -> None:
    with pytest.raises(ClassSettingsError) as error:
        parse(document)
    assert words in str(error.value)


def test_what_is_meant_for_another_driver_is_not_judged() -> None:
    assert parse({"classes": [{"name": "mig.nvidia.com", "config": opaque({"a": 1}, "x.com")}]}).classes


def test_a_file_is_named_in_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "classes.yaml"
    with pytest.raises(ClassSettingsError, match="cannot be read"):
        read(path)
    path.write_text("classes: [")
    with pytest.raises(ClassSettingsError, match="is no YAML document"):
        read(path)
    path.write_text("create: false")
    assert not read(path).create
