"""Driver roots as distributions lay them out, made of empty files, links and small ELF headers."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

VERSION = "570.86.15"

# Name, DT_SONAME, further links as the driver's installer makes them.
LIBRARIES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (f"libcuda.so.{VERSION}", "libcuda.so.1", ("libcuda.so.1", "libcuda.so")),
    (f"libnvidia-ml.so.{VERSION}", "libnvidia-ml.so.1", ("libnvidia-ml.so.1",)),
    (
        f"libnvidia-ptxjitcompiler.so.{VERSION}",
        "libnvidia-ptxjitcompiler.so.1",
        ("libnvidia-ptxjitcompiler.so.1",),
    ),
    (f"libnvidia-eglcore.so.{VERSION}", f"libnvidia-eglcore.so.{VERSION}", ()),
    (f"libnvidia-glcore.so.{VERSION}", f"libnvidia-glcore.so.{VERSION}", ()),
    (f"libnvidia-glsi.so.{VERSION}", f"libnvidia-glsi.so.{VERSION}", ()),
    (f"libnvidia-tls.so.{VERSION}", f"libnvidia-tls.so.{VERSION}", ()),
    (f"libGLX_nvidia.so.{VERSION}", "libGLX_nvidia.so.0", ("libGLX_nvidia.so.0",)),
    (f"libnvidia-allocator.so.{VERSION}", "libnvidia-allocator.so.1", ("libnvidia-allocator.so.1",)),
    ("libnvidia-nvvm70.so.4", "libnvidia-nvvm70.so.4", ()),
    ("libnvidia-egl-wayland.so.1.1.18", "libnvidia-egl-wayland.so.1", ("libnvidia-egl-wayland.so.1",)),
)


def elf(soname: str, *, machine: int = 62) -> bytes:
    """A 64-bit shared object with one loaded segment, a dynamic section and this DT_SONAME."""
    strings = b"\0" + soname.encode() + b"\0"
    headers_end = 64 + 2 * 56
    dynamic = struct.pack("<qQqQqQ", 5, 0x10000 + headers_end + 48, 14, 1, 0, 0)
    size = headers_end + len(dynamic) + len(strings)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x10000, 0x10000, size, size, 0x1000)
    dynamic_segment = struct.pack(
        "<IIQQQQQQ", 2, 6, headers_end, 0x10000 + headers_end, 0, len(dynamic), len(dynamic), 8
    )
    return header + load + dynamic_segment + dynamic + strings


def write(path: Path, content: bytes = b"", *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def install_libraries(root: Path, folder: str, names: Iterable[str] | None = None) -> None:
    """The driver's libraries with their links in one folder; only these names when given."""
    for name, soname, links in LIBRARIES:
        if names is not None and name not in names:
            continue
        write(root / folder / name, elf(soname))
        for link_name in links:
            link(root / folder / link_name, name if link_name == soname else soname)


def install_programs(root: Path, folder: str) -> None:
    for name in ("nvidia-smi", "nvidia-persistenced", "nvidia-cuda-mps-control"):
        write(root / folder / name, b"#!", mode=0o755)


def ubuntu(root: Path) -> None:
    """Usr-merged, libraries in the multiarch folder, GSP firmware, Vulkan and EGL files."""
    (root / "usr/lib").mkdir(parents=True)
    link(root / "lib", "usr/lib")
    link(root / "bin", "usr/bin")
    install_libraries(root, "usr/lib/x86_64-linux-gnu")
    write(root / f"usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.{VERSION}", elf("libvdpau_nvidia.so.1"))
    link(root / "usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.1", f"libvdpau_nvidia.so.{VERSION}")
    link(root / "usr/lib/x86_64-linux-gnu/gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1")
    install_programs(root, "usr/bin")
    write(root / f"usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    write(root / f"usr/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin")
    write(root / "usr/share/vulkan/icd.d/nvidia_icd.json")
    write(root / "usr/share/glvnd/egl_vendor.d/10_nvidia.json")
    write(root / "usr/share/glvnd/egl_vendor.d/50_mesa.json")
    write(root / "usr/lib/i386-linux-gnu/libcuda.so.1", b"\x7fELF\x01\x01")
    write(root / f"usr/lib/i386-linux-gnu/libcuda.so.{VERSION}", b"\x7fELF\x01\x01")


def debian(root: Path) -> None:
    """Core libraries under nvidia/current, reached by absolute links of the alternatives system."""
    (root / "usr/lib").mkdir(parents=True)
    link(root / "lib", "usr/lib")
    core = {f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}", f"libGLX_nvidia.so.{VERSION}"}
    install_libraries(root, "usr/lib/x86_64-linux-gnu/nvidia/current", core)
    install_libraries(root, "usr/lib/x86_64-linux-gnu", {name for name, _, _ in LIBRARIES} - core)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        link(
            root / f"etc/alternatives/nvidia--{name}-x86_64-linux-gnu",
            f"/usr/lib/x86_64-linux-gnu/nvidia/current/{name}",
        )
        link(root / f"usr/lib/x86_64-linux-gnu/{name}", f"/etc/alternatives/nvidia--{name}-x86_64-linux-gnu")
    install_programs(root, "usr/lib/nvidia/current")
    for name in ("nvidia-smi", "nvidia-persistenced"):
        link(root / f"etc/alternatives/nvidia--{name}", f"/usr/lib/nvidia/current/{name}")
        link(root / f"usr/bin/{name}", f"/etc/alternatives/nvidia--{name}")


def rhel(root: Path) -> None:
    """Usr-merged with lib64; a 32-bit driver beside it in usr/lib."""
    (root / "usr/lib64").mkdir(parents=True)
    link(root / "lib64", "usr/lib64")
    (root / "usr/lib").mkdir()
    link(root / "lib", "usr/lib")
    install_libraries(root, "usr/lib64")
    write(root / f"usr/lib/libcuda.so.{VERSION}", b"\x7fELF\x01\x01")
    install_programs(root, "usr/bin")
    write(root / f"usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")


def cos(root: Path) -> None:
    """GKE's Container-Optimized OS: the root is the installer's folder, with lib64 and bin only."""
    install_libraries(root, "lib64")
    install_programs(root, "bin")
    write(root / f"firmware/nvidia/{VERSION}/gsp_ga10x.bin")


def talos(root: Path) -> None:
    """Talos' system extension: libraries of a glibc prefix, programs in usr/local/bin."""
    install_libraries(root, "usr/local/glibc/usr/lib")
    install_programs(root, "usr/local/bin")


def wsl(root: Path) -> None:
    """WSL 2: Windows' driver in two folders, without versioned names."""
    for name in ("libcuda.so.1.1", "libnvidia-ml.so.1", "libdxcore.so", "libd3d12.so"):
        write(root / "usr/lib/wsl/lib" / name, elf(name))
    link(root / "usr/lib/wsl/lib/libcuda.so.1", "libcuda.so.1.1")
    link(root / "usr/lib/wsl/lib/libcuda.so", "libcuda.so.1.1")
    write(root / "usr/lib/wsl/lib/nvidia-smi", mode=0o755)
    link(root / "dev/dxg", "/dev/null")
    write(root / "usr/lib/wsl/drivers/nv_dispi.inf_amd64_1/libcuda.so.1.1")


PROC_DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
234 nvidia-caps
235 nvidia-caps-imex-channels
508 nvidia-uvm

Block devices:
  7 loop
"""


def node_files(root: Path, *, gpus: int = 1, without: Iterable[str] = ()) -> None:
    """Plain files for the device nodes below ``dev``, and ``proc/devices``."""
    names = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"} | {
        f"nvidia{i}" for i in range(gpus)
    }
    for name in names - set(without):
        write(root / "dev" / name)
    write(root / "proc/devices", PROC_DEVICES.encode())


def mig_instance(root: Path, minor: int, gi: int, gi_minor: int, ci: int, ci_minor: int) -> None:
    """The access files of one GPU instance and one of its compute instances below ``proc``."""
    folder = root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gi}"
    for path, capability in ((folder / "access", gi_minor), (folder / f"ci{ci}/access", ci_minor)):
        write(path, f"DeviceFileMinor: {capability}\nDeviceFileMode: 292\nDeviceFileModify: 1\n".encode())
