"""A driver root of WSL 2, where Windows brings the driver: no versioned libraries, one node for all GPUs.

Windows mounts the libraries' front ends at ``/usr/lib/wsl/lib`` and its driver store, which they open by
path, at ``/usr/lib/wsl/drivers``.
"""

from __future__ import annotations

import platform
from pathlib import Path, PurePosixPath

from cdi.devicenodes import optional_node_edits
from cdi.driverfiles import file_mount, program_mounts
from cdi.driverroot import DriverRoot
from cdi.hooks import HookTool
from cdi.libraries import loader_folders
from cdi.spec import ContainerEdits

_LIBRARIES = PurePosixPath("usr/lib/wsl/lib")
_DRIVER_STORE = PurePosixPath("usr/lib/wsl/drivers")
_NODE = "/dev/dxg"


def is_wsl(root: DriverRoot) -> bool:
    """Whether the driver below this root is that of WSL 2."""
    return root.resolve_file(_LIBRARIES / "libdxcore.so") is not None


def wsl_edits(root: DriverRoot, dev_root: Path, host_dev_root: str, hooks: HookTool | None) -> ContainerEdits:
    """Both folders, the programs, and ``/dev/dxg``; then the loader's way to them, as on other hosts."""
    mounts = [
        file_mount(root, source, root.in_container(folder))
        for folder in (_LIBRARIES, _DRIVER_STORE)
        if (source := root.resolve(folder)) is not None
    ]
    mounts += program_mounts(root)
    edits = ContainerEdits(mounts=tuple(mounts)) + optional_node_edits(dev_root, host_dev_root, _NODE)
    if hooks is not None:
        return edits + ContainerEdits(hooks=(hooks.update_ldcache([root.in_container(_LIBRARIES)]),))
    names = [
        (name, source)
        for name in root.names(_LIBRARIES)
        if ".so" in name and (source := root.resolve_file(_LIBRARIES / name)) is not None
    ]
    return edits + ContainerEdits(
        mounts=tuple(
            file_mount(root, source, f"{folder}/{name}")
            for folder in loader_folders(platform.machine())
            for name, source in names
        )
    )
