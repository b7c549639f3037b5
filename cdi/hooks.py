"""OCI hooks by NVIDIA's hook program, ``nvidia-cdi-hook`` or, before toolkit 1.16, ``nvidia-ctk hook``.

Hooks run on the host before the container's root is entered, so a program of the host is needed; without one,
:mod:`cdi.drivermounts` does with mounts. All hooks are of stage createContainer. The program ignores a hook
name it does not know, so a name of a later version is harmless on an older host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from cdi.driverroot import PROGRAM_FOLDERS, DriverRoot
from cdi.spec import Hook

# The GPU operator installs its toolkit there, Talos its extension under usr/local/bin.
HOOK_FOLDERS = (*PROGRAM_FOLDERS, "usr/local/nvidia/toolkit")
_PROGRAMS = ("nvidia-cdi-hook", "nvidia-ctk")
# Ubuntu's /sbin/ldconfig is a shell script, which cannot run with the container's root.
_LDCONFIG = ("sbin/ldconfig.real", "usr/sbin/ldconfig.real", "sbin/ldconfig", "usr/sbin/ldconfig")


@dataclass(frozen=True, slots=True)
class HookTool:
    """A hook program of the host: its path there, how its command line begins, the host's ldconfig."""

    path: str
    prefix: tuple[str, ...]
    ldconfig: str | None = None

    @staticmethod
    def at(path: str) -> HookTool:
        """The program at this host path, ``nvidia-ctk`` or one that is called as ``nvidia-cdi-hook``."""
        is_toolkit = PurePosixPath(path).name == "nvidia-ctk"
        return HookTool(path, ("nvidia-ctk", "hook") if is_toolkit else ("nvidia-cdi-hook",))

    def create_symlinks(self, links: Iterable[tuple[str, str]]) -> Hook:
        """Make links in the container, each given as (target as written in the link, path of the link)."""
        arguments: list[str] = []
        for target, link in links:
            arguments += ["--link", f"{target}::{link}"]
        return self._hook("create-symlinks", *arguments)

    def update_ldcache(self, folders: Iterable[str]) -> Hook:
        """Put folders of the container into its ``/etc/ld.so.cache``."""
        arguments: list[str] = [] if self.ldconfig is None else ["--ldconfig-path", self.ldconfig]
        for folder in folders:
            arguments += ["--folder", folder]
        return self._hook("update-ldcache", *arguments)

    def enable_cuda_compat(self, driver_version: str) -> Hook:
        """Use the image's CUDA compatibility libraries when they are newer than the driver."""
        return self._hook("enable-cuda-compat", f"--host-driver-version={driver_version}")

    def disable_device_node_modification(self) -> Hook:
        """Keep the driver in the container from making device nodes by itself."""
        return self._hook("disable-device-node-modification")

    def _hook(self, name: str, *arguments: str) -> Hook:
        return Hook(
            hook_name="createContainer",
            path=self.path,
            args=(*self.prefix, name, *arguments),
            env=("NVIDIA_CTK_DEBUG=false",),
        )


def find_hook_tool(roots: Sequence[DriverRoot]) -> HookTool | None:
    """The first hook program below these roots (the host's and the driver's), None when there is none."""
    for program in _PROGRAMS:
        for root in roots:
            for folder in HOOK_FOLDERS:
                position = PurePosixPath(folder, program)
                resolved = root.resolve_file(position)
                if resolved is not None and (root.path / resolved).stat().st_mode & 0o111:
                    # A link's own name tells which program it is, its target's may not.
                    prefix = HookTool.at(program).prefix
                    return HookTool(root.on_host(resolved), prefix, _find_ldconfig(root))
    return None


def _find_ldconfig(root: DriverRoot) -> str | None:
    for name in _LDCONFIG:
        resolved = root.resolve_file(PurePosixPath(name))
        if resolved is not None:
            return root.on_host(resolved)
    return None
