"""The file of ``--classes``: what an administrator wants of the DeviceClasses, checked field by field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from controller.deviceclasses.desired import ClassSetting, may_be_made
from driver import configuration
from driver.claim import DRIVER_NAME
from driver.configuration import ConfigurationError
from driver.strictmodel import Strict, problems, shown
from kube.names import SUBDOMAIN_RULE, is_subdomain
from kube.plainyaml import PlainYamlError, load
from kube.resources import Object


class ClassSettingsError(ValueError):
    """The settings cannot be used; the text names the field, the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class ClassSettings:
    """Whether the controller looks after DeviceClasses at all, and what differs from the standard."""

    create: bool = True
    classes: tuple[ClassSetting, ...] = ()


class _Cel(Strict):
    expression: str


class _Selector(Strict):
    cel: _Cel


class _Opaque(Strict):
    driver: str
    parameters: dict[str, Any]


class _Config(Strict):
    opaque: _Opaque


class _Class(Strict):
    name: str
    enabled: bool = True
    selectors: list[_Selector] | None = Field(default=None, max_length=32)
    config: list[_Config] | None = Field(default=None, max_length=32)
    extended_resource_name: str | None = None


class _Document(Strict):
    create: bool = True
    classes: list[_Class] = Field(default_factory=list)


def read(path: Path) -> ClassSettings:
    """The settings in a YAML file.

    Raises:
        ClassSettingsError: it cannot be read, or says something that is not allowed.
    """
    try:
        return parse(load(path.read_bytes()))
    except OSError as error:
        raise ClassSettingsError(f"{path} cannot be read: {error}") from error
    except PlainYamlError as error:
        raise ClassSettingsError(f"{path} is no YAML document: {error}") from None
    except ClassSettingsError as error:
        raise ClassSettingsError(f"{path}: {error}") from None


def parse(document: object) -> ClassSettings:
    """The settings in a document; an empty one changes nothing.

    Raises:
        ClassSettingsError: wrong field, type or value.
    """
    if document is None:
        return ClassSettings()
    if not isinstance(document, Mapping):
        raise ClassSettingsError(f"must be an object with create and classes, not {shown(document)}")
    try:
        parsed = _Document.model_validate(dict(document))
    except ValidationError as error:
        raise ClassSettingsError(problems(_Document, document, error)) from None
    _refuse_doubles("name", [each.name for each in parsed.classes])
    _refuse_doubles("extendedResourceName", [each.extended_resource_name or "" for each in parsed.classes])
    return ClassSettings(
        parsed.create,
        tuple(_setting(f"classes.{index}", each) for index, each in enumerate(parsed.classes)),
    )


def _setting(path: str, given: _Class) -> ClassSetting:
    if not is_subdomain(given.name):
        raise ClassSettingsError(
            f"field {path}.name: {given.name!r} cannot be the name of a DeviceClass: {SUBDOMAIN_RULE}"
        )
    if given.selectors == [] or (given.selectors is None and given.enabled and not may_be_made(given.name)):
        raise ClassSettingsError(
            f"field {path}.selectors is empty, so DeviceClass {given.name} would have every device of every "
            f'driver; begin with cel.expression: device.driver == "{DRIVER_NAME}"'
        )
    for index, each in enumerate(given.config or ()):
        if each.opaque.driver == DRIVER_NAME:
            try:
                configuration.parse(each.opaque.parameters)
            except ConfigurationError as error:
                raise ClassSettingsError(f"field {path}.config.{index}.opaque.parameters: {error}") from None
    return ClassSetting(
        given.name,
        given.enabled,
        None
        if given.selectors is None
        else tuple(each.model_dump(by_alias=True) for each in given.selectors),
        None if given.config is None else tuple(each.model_dump(by_alias=True) for each in given.config),
        given.extended_resource_name,
    )


def _as_api(given: Sequence[Strict] | None) -> tuple[Object, ...] | None:
    return None if given is None else tuple(each.model_dump(by_alias=True) for each in given)


def _refuse_doubles(field: str, values: list[str]) -> None:
    for value, count in Counter(values).items():
        if value and count > 1:
            raise ClassSettingsError(f"field classes: {count} of them have {field} {value!r}; one may")
