"""Turns a machine into the lines from which the library makes a node's state."""

import hashlib
from collections.abc import Iterator, Sequence

from nvmlsim.library import line
from nvmlsim.machine import Gpu, Machine
from nvmlsim.models import JsonObject, model_lines, models

_REMOTE_GPU, _REMOTE_SWITCH = 0, 2
_HOPPER = 9
_ADDRESSING_NONE, _ADDRESSING_ATS = 0, 2
# On coherent systems each GPU's memory is a NUMA node, with room for MIG instances before the next GPU's.
_FIRST_GPU_MEMORY_NODE, _MEMORY_NODES_A_GPU = 2, 8


def machine_lines(machine: Machine) -> Iterator[str]:
    """Everything a new node knows, static MIG instances included."""
    major, minor = machine.cuda_version.split(".")
    node = {
        "machine": machine.name,
        "driver_version": machine.driver_version,
        "kernel_version": machine.driver_version,
        "nvml_version": f"{major}.{machine.driver_version}",
        "cuda_version": int(major) * 1000 + int(minor) * 10,
        "derived_uuids": machine.mig_uuids == "derived",
        "driver_loaded": 1,
    }
    yield line("node", node)
    for key in dict.fromkeys(gpu.model for gpu in machine.gpus):
        yield from model_lines(key)
    for position, gpu in enumerate(machine.gpus):
        yield gpu_line(machine, gpu, bool(machine.mig.get(position)))
    for position, links in enumerate(_links(machine)):
        for number, (remote_type, remote) in enumerate(links):
            yield link_line(position, number, remote_type, remote)
    for position, profiles in machine.mig.items():
        for profile in profiles:
            yield mig_line(position, profile)


def mig_line(gpu: int, profile: str, start: int | None = None) -> str:
    """A GPU instance with compute instances: `3g.40gb` has one of full size, `1c.3g.40gb` as many as fit."""
    prefix, _, rest = profile.partition("c.")
    if not rest or not prefix.isdigit():
        return line("mig_create", {"gpu": gpu, "profile": profile, "start": start})
    slices = int(rest.partition("g.")[0])
    compute = ",".join([prefix] * max(1, slices // max(1, int(prefix))))
    return line("mig_create", {"gpu": gpu, "profile": rest, "start": start, "ci": compute})


def pci_words(address: str) -> dict[str, int]:
    domain, bus, device = address.split(":")
    return {"domain": int(domain, 16), "bus": int(bus, 16), "device": int(device.partition(".")[0], 16)}


def gpu_line(machine: Machine, gpu: Gpu, has_mig: bool) -> str:
    """One GPU, whose fields must be filled (see machine.filled)."""
    model = models()[gpu.model]
    coherent = model["nvlink"].get("c2c", False)
    memory_node = _FIRST_GPU_MEMORY_NODE + _MEMORY_NODES_A_GPU * (gpu.minor or 0)
    fabric = _has_fabric(model["nvml_architecture"], model["nvlink"]["topology"])
    words: dict[str, object] = {
        "model": gpu.model,
        "name": gpu.name,
        "uuid": gpu.uuid,
        "serial": str(int(hashlib.sha256(str(gpu.uuid).encode()).hexdigest(), 16) % 10**13).zfill(13),
        "minor": gpu.minor,
        "pcie_root": gpu.pcie_root,
        "pcie_switch": gpu.pcie_switch,
        "module_id": gpu.module_id,
        "numa_node": gpu.numa_node,
        "memory_numa_node": memory_node if coherent else None,
        "addressing_mode": _ADDRESSING_ATS if coherent else _ADDRESSING_NONE,
        "cpu_affinity": gpu.cpu_affinity,
        "mig_mode": gpu.mig_mode or has_mig,
        "fabric": fabric,
    }
    if fabric and machine.fabric is not None:
        words |= {
            "fabric_cluster": machine.fabric.cluster_uuid,
            "fabric_clique": machine.fabric.clique,
            "fabric_state": machine.fabric.state,
        }
    return line("gpu", words | pci_words(str(gpu.pci)))


def _has_fabric(architecture: int, topology: str) -> bool:
    return architecture >= _HOPPER and topology in ("nvswitch", "nvswitch-rack")


def link_line(gpu: int, number: int, remote_type: int, remote: str) -> str:
    return line("link", {"gpu": gpu, "link": number, "remote_type": remote_type, **pci_words(remote)})


def repeated_links(shown: Sequence[JsonObject], number: int, gpu: Gpu) -> Iterator[str]:
    """The NVLinks of the unplugged GPU of this model at this address, for its successor."""
    for former in shown:
        if former["present"] or former["pci_bus_id"] != gpu.pci or former["model"] != gpu.model:
            continue
        for link in former["nvlinks"]:
            yield link_line(number, link["link"], link["remote_type"], link["remote"])
        return


Link = tuple[int, str]


def _islands(machine: Machine) -> Sequence[Sequence[int]]:
    """Groups of GPUs joined by NVLink: given, or all behind switches together and bridged ones in groups."""
    if machine.nvlink_islands is not None:
        return machine.nvlink_islands
    switched: list[int] = []
    bridged: list[list[int]] = []
    for position, gpu in enumerate(machine.gpus):
        nvlink = models()[gpu.model]["nvlink"]
        if nvlink["topology"].startswith("nvswitch"):
            switched.append(position)
        elif nvlink["topology"] == "bridge":
            group = nvlink["bridge_group"]
            size = max(group) if isinstance(group, list) else group
            if bridged and len(bridged[-1]) < size and machine.gpus[bridged[-1][0]].model == gpu.model:
                bridged[-1].append(position)
            else:
                bridged.append([position])
    return [switched, *bridged]


def _links(machine: Machine) -> list[list[Link]]:
    links: list[list[Link]] = [[] for _ in machine.gpus]
    for number, island in enumerate(_islands(machine)):
        for position in island:
            nvlink = models()[machine.gpus[position].model]["nvlink"]
            if nvlink["topology"] == "bridge":
                links[position] = _bridge_links(machine, island, position, nvlink["links"])
            else:
                links[position] = _switch_links(machine, number, nvlink["links"])
    return links


def _bridge_links(machine: Machine, island: Sequence[int], position: int, count: int) -> list[Link]:
    peers = [str(machine.gpus[other].pci) for other in island if other != position]
    if not peers:
        return []
    return [(_REMOTE_GPU, peer) for peer in peers for _ in range(count // len(peers))]


def _switch_links(machine: Machine, island: int, count: int) -> list[Link]:
    """Islands behind switches use switches of their own."""
    switches = machine.nvswitches or ("0000:05:00.0", "0000:06:00.0")
    shares = machine.links_per_nvswitch or (count // len(switches),) * len(switches)
    renamed = [f"{address[:-4]}{island:02x}.0" for address in switches]
    remotes = [switch for switch, share in zip(renamed, shares, strict=True) for _ in range(share)]
    return [(_REMOTE_SWITCH, remote) for remote in remotes]
