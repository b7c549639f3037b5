"""What is known of GPU models and their MIG geometry (data/*.json), as lines of the library's language.

Where the data has no measured value, its estimate is used; tests must not assert those (see `conventions`).
"""

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from nvmlsim.library import line

JsonObject = dict[str, Any]

# CUDA cores of a streaming multiprocessor by compute capability (CUDA programming guide).
_CORES_PER_SM = {"7.5": 64, "8.0": 64}
_CORES_PER_NEWER_SM = 128
_C2C_LINKS = 10
_IN_PLACEMENT_ORDER, _SWAPPED_HALVES = 0, 1


@cache
def _data(name: str) -> JsonObject:
    parsed: JsonObject = json.loads(files("nvmlsim").joinpath("data", name).read_text())
    return parsed


@cache
def models() -> dict[str, JsonObject]:
    """Every GPU model by its key, as in gpu-models.json."""
    return {model["key"]: model for model in _data("gpu-models.json")["models"]}


@cache
def boards() -> dict[str, JsonObject]:
    """Every board with MIG by its key, as in mig-profiles.json."""
    return {board["key"]: board for board in _data("mig-profiles.json")["gpus"]}


def _measured(profile: JsonObject, key: str, estimate: int) -> int:
    value = profile.get(key)
    if value is None:
        value = profile.get(f"{key}_estimate")
    return estimate if value is None else int(value)


def _ci_line(ci: JsonObject, sm: int) -> str:
    starts = ",".join(str(start) for start in ci["placements"]["starts"])
    words = {"id": ci["id"], "slices": ci["slices"], "max_instances": ci["max_instances"]}
    return line("ci_profile", {**words, "sm": _measured(ci, "sm", sm), "starts": starts})


def _profile_lines(profile: JsonObject, board: JsonObject, model: JsonObject) -> Iterator[str]:
    geometry, pool = board["geometry"], board["engine_pool"]
    slices = profile["slice_count"]
    share = slices / geometry["compute_slices"]
    sm = _measured(profile, "sm", int(model["sm_count"] * share))

    def engines(key: str) -> int:
        return _measured(profile, key, int(pool[key] * share))

    words = {
        "name": profile["name"],
        "number": profile["gi_enum"],
        "id": profile["id"],
        "slices": slices,
        "size": profile["placements"]["size"],
        "max_instances": profile["max_instances"],
        "graphics": "+gfx" in profile["name"],
        "sm": sm,
        "copy_engines": engines("copy_engines"),
        "decoders": engines("decoders"),
        "encoders": engines("encoders"),
        "jpeg": engines("jpeg"),
        "ofa": engines("ofa"),
        "memory_mib": _measured(profile, "memory_mib", int(model["memory_total_mib"] * share)),
        "starts": ",".join(str(start) for start in profile["placements"]["starts"]),
    }
    yield line("gi_profile", words)
    for ci in profile["ci_profiles"]:
        yield _ci_line(ci, int(sm * ci["slices"] / slices))


def model_lines(key: str) -> Iterator[str]:
    """The lines that make a model known to a node."""
    model = models()[key]
    board = boards()[model["mig_profile_key"]] if model["mig_profile_key"] else None
    geometry: JsonObject = board["geometry"] if board else {}
    pool: JsonObject = board["engine_pool"] if board else {}
    major, minor = model["compute_capability"].split(".")
    nvlink = model["nvlink"]
    rule = geometry.get("gi_instance_id", {}).get("rule")
    words = {
        "key": key,
        "name": model["product_name"],
        "part_number": model.get("board_part_number_example"),
        "architecture": model["nvml_architecture"],
        "cc_major": major,
        "cc_minor": minor,
        "brand": model["nvml_brand"],
        "pci_device_id": int(model["pci"]["nvml_pciDeviceId"], 16),
        "pci_subsystem_id": _subsystem_id(model),
        "memory_mib": model["memory_total_mib"],
        "bar1_mib": model.get("bar1_total_mib"),
        "sm": model["sm_count"],
        "cores_per_sm": _CORES_PER_SM.get(model["compute_capability"], _CORES_PER_NEWER_SM),
        "links": nvlink["links"],
        "link_version": nvlink["nvml_version_enum"],
        "link_speed": nvlink.get("link_speed_mb_s_per_direction"),
        "c2c_links": _C2C_LINKS if nvlink.get("c2c") else 0,
        "mig_capable": model["mig_capable"],
        "placement_units": geometry.get("placement_units"),
        "max_mig_devices": geometry.get("max_mig_devices"),
        "gi_id_rule": _SWAPPED_HALVES if rule == "a100" else _IN_PLACEMENT_ORDER,
        "decoders": pool.get("decoders"),
        "encoders": pool.get("encoders"),
        "jpeg": pool.get("jpeg"),
        "ofa": pool.get("ofa"),
    }
    yield line("model", words)
    for profile in board["profiles"] if board else []:
        yield from _profile_lines(profile, board or {}, model)
    yield line("model_end", {})


def _subsystem_id(model: JsonObject) -> int:
    vendor, device = model["pci"]["subsystems"][0].split()
    return int(device, 16) << 16 | int(vendor, 16)
