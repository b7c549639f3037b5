"""Opaque configuration: what is accepted, and what the errors say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.configuration import ConfigurationError, GpuConfig, MigDeviceConfig, parse
from driver.timeslicing import Interval

VERSION = "resource.nvidia.com/v1beta1"


def config(kind: str = "GpuConfig", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": kind, **fields}


def test_kinds_without_fields_are_accepted() -> None:
    assert isinstance(parse(config()), GpuConfig)
    assert isinstance(parse(config("MigDeviceConfig")), MigDeviceConfig)
    assert parse(config(sharing=None)).sharing is None


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (None, ["must be an object", "None"]),
        ([], ["must be an object"]),
        ("GpuConfig", ["must be an object"]),
        ({}, ["apiVersion", VERSION]),
        ({"apiVersion": VERSION}, ["kind", "GpuConfig, MigDeviceConfig"]),
        (config("GpuConfiguration"), ["kind", "'GpuConfiguration'", "GpuConfig, MigDeviceConfig"]),
        (config(["GpuConfig"]), ["kind", "GpuConfig, MigDeviceConfig"]),  # type: ignore[arg-type]
        ({**config(), "apiVersion": "gpu.nvidia.com/v1alpha1"}, ["apiVersion", "v1alpha1", VERSION]),
        (config(sharign={}), ["sharign", "unknown", "sharing"]),
        (config(sharing=3), ["sharing", "3", "object"]),
        (config(sharing={"strategy": "Shared"}), ["sharing.strategy", "'Shared'", "TimeSlicing", "MPS"]),
        (
            config(sharing={"mpsConfig": {"defaultActiveThreadPercentage": "50"}}),
            ["sharing.mpsConfig.defaultActiveThreadPercentage", "'50'", "integer"],
        ),
        (
            config(sharing={"mpsConfig": {"defaultActiveThreadPercentage": 101}}),
            ["sharing.mpsConfig.defaultActiveThreadPercentage", "101", "100"],
        ),
        (
            config("MigDeviceConfig", sharing={"timeSlicingConfig": {"interval": "Long"}}),
            ["sharing.timeSlicingConfig", "unknown", "strategy, mpsConfig"],
        ),
    ],
)
def test_what_is_wrong_is_named(parameters: object, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse(parameters)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        (None, ""),
        ({}, ".apiVersion"),
        ({"apiVersion": VERSION}, ".kind"),
        (config(sharign={}), ".sharign"),
        (config(sharing={"strategy": "Shared"}), ".sharing.strategy"),
        (config(sharing={"strategy": "MPS"}), ".sharing.strategy"),
        (config(sharing={"mpsConfig": {}}), ".sharing.mpsConfig"),
    ],
)
def test_with_a_place_the_field_is_named_by_its_full_path(parameters: object, field: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse(parameters, "spec.devices.config[2].opaque.parameters")
    assert str(raised.value).startswith(f"field spec.devices.config[2].opaque.parameters{field}")


def test_b042_unknown_field_is_named_by_its_path() -> None:
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"intervall": "Short"}}
    with pytest.raises(
        ConfigurationError, match=r"sharing\.timeSlicingConfig\.intervall is unknown.*interval"
    ):
        parse(config(sharing=sharing))


@pytest.mark.parametrize(
    ("sharing", "interval"),
    [
        ({}, Interval.DEFAULT),
        ({"strategy": "TimeSlicing"}, Interval.DEFAULT),
        ({"strategy": "TimeSlicing", "timeSlicingConfig": None}, Interval.DEFAULT),
        ({"strategy": "TimeSlicing", "timeSlicingConfig": {}}, Interval.DEFAULT),
        ({"timeSlicingConfig": {"interval": None}}, Interval.DEFAULT),
        *(({"timeSlicingConfig": {"interval": str(one)}}, one) for one in Interval),
        ({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}, "mpsConfig": None}, "Long"),
    ],
)
def test_b040_an_absent_or_empty_configuration_of_time_slicing_means_the_default(
    sharing: dict[str, Any], interval: Interval
) -> None:
    assert parse(config(sharing=sharing)).interval == interval


def test_without_sharing_no_interval_is_asked_for() -> None:
    assert parse(config()).interval is None
    assert parse(config(sharing=None)).interval is None


@pytest.mark.parametrize("sharing", [{}, {"strategy": "TimeSlicing"}, {"mpsConfig": None}])
def test_b044_time_slicing_of_a_mig_device_is_accepted_and_sets_nothing(sharing: dict[str, Any]) -> None:
    assert parse(config("MigDeviceConfig", sharing=sharing)).interval is None


@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig"])
def test_mps_is_understood_and_refused_for_now(kind: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"sharing\.strategy: 'MPS' is not supported yet; allowed: TimeSlicing"
    ):
        parse(config(kind, sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}))


MPS = {"defaultActiveThreadPercentage": 50}


@pytest.mark.parametrize(
    ("sharing", "words"),
    [
        (
            {"strategy": "MPS", "timeSlicingConfig": {"interval": "Short"}},
            ["sharing.timeSlicingConfig", "{'interval': 'Short'}", "sharing.strategy TimeSlicing", "is MPS"],
        ),
        (
            {"strategy": "TimeSlicing", "mpsConfig": MPS},
            ["sharing.mpsConfig", str(MPS), "sharing.strategy MPS", "is TimeSlicing"],
        ),
        ({"mpsConfig": MPS}, ["sharing.mpsConfig", str(MPS), "sharing.strategy MPS", "is TimeSlicing"]),
        (
            {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Forever"}},
            ["sharing.timeSlicingConfig.interval", "'Forever'", "'Default', 'Short', 'Medium' or 'Long'"],
        ),
        (
            {"timeSlicingConfig": {"interval": 1}},
            ["sharing.timeSlicingConfig.interval", "1 is wrong", "'Default', 'Short', 'Medium' or 'Long'"],
        ),
        ({"strategy": "Shared"}, ["sharing.strategy", "'Shared'", "'TimeSlicing' or 'MPS'"]),
        ({"timeSlicingConfig": "Short"}, ["sharing.timeSlicingConfig", "'Short'", "must be an object"]),
    ],
)
def test_b043_a_wrong_combination_is_refused_naming_field_value_and_what_is_allowed(
    sharing: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse(config(sharing=sharing))
    for word in words:
        assert word in str(raised.value)


def test_b043_configuration_of_mps_does_not_fit_time_slicing_on_a_mig_device_either() -> None:
    with pytest.raises(ConfigurationError, match=r"sharing\.mpsConfig.* only with sharing\.strategy MPS"):
        parse(config("MigDeviceConfig", sharing={"strategy": "TimeSlicing", "mpsConfig": MPS}))


def test_b044_a_time_slice_for_a_mig_device_is_refused_as_an_unknown_field() -> None:
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    with pytest.raises(
        ConfigurationError, match=r"sharing\.timeSlicingConfig is unknown.*strategy, mpsConfig"
    ):
        parse(config("MigDeviceConfig", sharing=sharing))


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [1, 50, 900])
def test_b041_deep_nesting_is_an_error_like_any_other(depth: int) -> None:
    for parameters in (config(sharing=nested(depth)), config(nested(depth)), nested(depth)):
        with pytest.raises(ConfigurationError):
            parse(parameters)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
FIELDS = st.sampled_from(
    ["apiVersion", "kind", "sharing", "strategy", "timeSlicingConfig", "mpsConfig", "interval"]
)
VALUES = st.sampled_from([VERSION, "GpuConfig", "MigDeviceConfig", "TimeSlicing", "MPS"]) | JSON
NEARLY = st.recursive(VALUES, lambda inner: st.dictionaries(FIELDS, inner, max_size=5), max_leaves=15)


@given(NEARLY | JSON)
def test_b041_fuzzed_parameters_give_a_configuration_or_an_error_that_fits_an_event(parameters: Any) -> None:
    try:
        parsed = parse(parameters)
    except ConfigurationError as error:
        assert str(error)
    else:
        assert parsed.interval in (None, *Interval)


@given(st.dictionaries(FIELDS | st.text(max_size=8), NEARLY, max_size=6))
def test_b041_fuzzed_fields_of_a_known_kind(fields: dict[str, Any]) -> None:
    parameters = json.loads(json.dumps({**fields, **config()}))
    try:
        parse(parameters)
    except ConfigurationError as error:
        assert "field" in str(error)
