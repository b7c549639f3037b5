"""What a simulated machine consists of: the built-in ones and those described in a short YAML file.

A machine file:

    driver_version: "580.95.05"
    gpus:
      - {model: h100-sxm5-80gb, count: 8}      # or one entry a GPU, with pci, numa_node, minor, uuid …
    nvlink_islands: [[0, 1, 2, 3], [4, 5, 6, 7]]  # default: as the models are usually built
    mig: {0: [1g.10gb, 1g.10gb, 3g.40gb]}      # GPU instances that exist from the start
"""

import uuid
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nvmlsim.models import models

_UUID_NAMESPACE = uuid.UUID("5d4e7b58-0f0c-5c6e-9a55-6f2d3a1c7e10")
_PCI = r"^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.0$"
PciAddress = Annotated[str, Field(pattern=_PCI)]
MAX_GPUS = 32


class MachineError(ValueError):
    """A machine is unknown, or its file is wrong; the message says where."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Gpu(_Strict):
    """One entry of `gpus`; what is left out is made up from the model and the position."""

    model: str
    count: int = Field(default=1, ge=1, le=MAX_GPUS)
    pci: PciAddress | None = None
    numa_node: int | None = None
    pcie_root: str | None = None
    pcie_switch: int = 0
    minor: int | None = Field(default=None, ge=0, lt=MAX_GPUS)
    module_id: int | None = None
    uuid: str | None = None
    name: str | None = None
    cpu_affinity: str = ""
    mig_mode: bool = False


class Fabric(_Strict):
    """NVLink fabric of a rack: state 1 not started, 2 in progress, 3 completed."""

    cluster_uuid: str = "00000000-0000-0000-0000-000000000000"
    clique: int = 0
    state: int = 3


class Machine(_Strict):
    """A whole machine; `gpus` in PCI order after `load`, one entry a GPU, every field filled."""

    name: str
    driver_version: str = "580.95.05"
    cuda_version: str = "13.0"
    gpus: tuple[Gpu, ...]
    nvlink_islands: tuple[tuple[int, ...], ...] | None = None
    nvswitches: tuple[PciAddress, ...] = ()
    links_per_nvswitch: tuple[int, ...] = ()
    fabric: Fabric | None = None
    mig: dict[int, tuple[str, ...]] = Field(default_factory=dict)
    mig_uuids: Literal["fresh", "derived"] = "fresh"


def built_in() -> tuple[str, ...]:
    """Names of the machines that come with nvmlsim."""
    folder = files("nvmlsim").joinpath("data", "machines")
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir()))


def load(machine: str | Path, **overrides: object) -> Machine:
    """A built-in machine by name, or a YAML file by path; overrides replace its top-level fields.

    Raises MachineError.
    """
    name, text = _read(machine)
    try:
        fields = yaml.safe_load(text)
        if not isinstance(fields, dict):
            raise MachineError(f"machine {name}: the file holds no mapping")
        parsed = Machine.model_validate({"name": name, **fields, **overrides})
    except (yaml.YAMLError, ValidationError) as error:
        raise MachineError(f"machine {name}: {error}") from error
    return parsed.model_copy(update={"gpus": tuple(_filled(parsed))})


def _read(machine: str | Path) -> tuple[str, str]:
    if str(machine) in built_in():
        source = files("nvmlsim").joinpath("data", "machines", f"{machine}.yaml")
        return str(machine), source.read_text()
    path = Path(machine)
    if path.suffix not in (".yaml", ".yml", ".json") or not path.is_file():
        known = ", ".join(built_in())
        raise MachineError(f"unknown machine {str(machine)!r}: give a .yaml file or one of {known}")
    return path.stem, path.read_text()


def _filled(machine: Machine) -> Iterator[Gpu]:
    entries = [entry for entry in machine.gpus for _ in range(entry.count)]
    if len(entries) > MAX_GPUS:
        raise MachineError(f"machine {machine.name}: {len(entries)} GPUs; a node holds at most {MAX_GPUS}")
    for position, entry in enumerate(entries):
        if entry.model not in models():
            known = ", ".join(models())
            raise MachineError(f"machine {machine.name}: unknown model {entry.model!r}; known: {known}")
        yield filled(entry, machine.name, position, len(entries))


def filled(entry: Gpu, machine_name: str, position: int, total: int) -> Gpu:
    """One GPU with every field: `position` of `total` decides what the entry leaves open."""
    model = models()[entry.model]
    pci = (entry.pci or f"0000:{0x11 + 6 * position:02x}:00.0").lower()
    domain, bus, _ = pci.split(":")
    module_id = position % 8 + 1 if model["form_factor"].startswith("SXM") else 0
    return entry.model_copy(
        update={
            "count": 1,
            "pci": pci,
            "numa_node": entry.numa_node if entry.numa_node is not None else 2 * position // total,
            "pcie_root": entry.pcie_root or f"pci{domain[-4:]}:{int(bus, 16) & 0xFE:02x}",
            "minor": entry.minor if entry.minor is not None else position,
            "module_id": entry.module_id if entry.module_id is not None else module_id,
            "uuid": entry.uuid or f"GPU-{uuid.uuid5(_UUID_NAMESPACE, f'{machine_name}/{pci}')}",
            "name": entry.name or model["product_name"],
        }
    )
