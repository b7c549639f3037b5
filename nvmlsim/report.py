"""`nvmlsim show` for people."""

from collections.abc import Iterator
from typing import Any


def report(shown: dict[str, Any]) -> Iterator[str]:
    """Lines that tell what a node consists of, from SimulatedNode.show."""
    state = "" if shown["driver_loaded"] else ", not loaded"
    if shown["driver_version"] != shown["kernel_version"]:
        state = f", kernel module {shown['kernel_version']}"
    cuda = f"{shown['cuda_version'] // 1000}.{shown['cuda_version'] % 1000 // 10}"
    yield f"{shown['machine']}: driver {shown['driver_version']}{state}, CUDA {cuda}"
    for gpu in shown["gpus"]:
        yield from _gpu_lines(gpu)
    for process in shown["processes"]:
        place = "" if process["gi"] < 0 else f" GI {process['gi']} CI {process['ci']}"
        yield f"process {process['pid']} on GPU {process['gpu']}{place}, {process['memory_mib']} MiB"


def _gpu_lines(gpu: dict[str, Any]) -> Iterator[str]:
    place = f"GPU {gpu['gpu']:2d}  {gpu['pci_bus_id']}"
    if not gpu["present"]:
        yield f"{place}  unplugged"
        return
    notes = ["lost"] if gpu["lost"] else []
    if gpu["mig_mode"] or gpu["mig_pending"]:
        mode = "on" if gpu["mig_mode"] else "off"
        pending = "on" if gpu["mig_pending"] else "off"
        notes.append(f"MIG {mode}" if mode == pending else f"MIG {mode}, pending {pending}")
    active = sum(link["active"] for link in gpu["nvlinks"])
    notes += [f"{active} NVLinks"] if gpu["nvlinks"] else []
    yield f"{place}  minor {gpu['minor']:<2d} NUMA {gpu['numa_node']}  {gpu['uuid']}  {gpu['name']}"
    if notes:
        yield f"        {', '.join(notes)}"
    for gi in gpu["gpu_instances"]:
        yield f"        GI {gi['id']:2d}  {gi['profile']} at {gi['start']}:{gi['size']}"
        for ci in gi["compute_instances"]:
            yield f"          CI {ci['id']}  {ci['profile']} at {ci['start']}:{ci['slices']}  {ci['uuid']}"
