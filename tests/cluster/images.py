"""Container images made on the spot, without a registry: one layer in an OCI image layout, in a tar."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BUSYBOX = "gpu-dra.test/busybox:1"
# Sleeps, and ends at once on SIGTERM, which a plain `sleep` as process 1 would ignore.
SLEEP = ("sh", "-c", "trap 'exit 0' TERM; sleep 86400 & wait")
ELF_INTERPRETER = 3


def is_static(program: Path) -> bool:
    """Whether a 64-bit ELF program needs no dynamic loader."""
    with program.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:5] != b"\x7fELF\x02":
            return False
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        file.seek(offset)
        table = file.read(size * count)
    return all(struct.unpack_from("<I", table, size * index)[0] != ELF_INTERPRETER for index in range(count))


def find_busybox() -> Path | None:
    """A statically linked busybox on this machine."""
    found = shutil.which("busybox", path="/bin:/usr/bin:/sbin:/usr/sbin")
    return Path(found) if found and is_static(Path(found)) else None


def busybox_layer(busybox: Path) -> bytes:
    """A root file system with busybox as every command it knows, as an uncompressed tar."""
    listed = subprocess.run(
        [str(busybox), "--list"], capture_output=True, text=True, timeout=10, check=True
    ).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("root", 0o700)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            layer.addfile(entry)
        _add_file(layer, "bin/busybox", busybox.read_bytes(), 0o755)
        _add_file(layer, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", 0o644)
        for command in listed:
            if command != "busybox":
                entry = tarfile.TarInfo(f"bin/{command}")
                entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
                layer.addfile(entry)
    return buffer.getvalue()


def _add_file(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def image_archive(name: str, layer: bytes, command: Sequence[str]) -> bytes:
    """An image of one uncompressed layer as the tar of an OCI image layout (OCI image specification 1.1).

    `name` is the full reference (`host/repository:tag`) that containerd stores it under.
    """
    layer_digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        "history": [{"created_by": "gpu-dra-driver tests"}],
    }
    blobs: dict[str, bytes] = {layer_digest: layer}

    def blob(content: Any, media_type: str) -> dict[str, Any]:
        data = json.dumps(content).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        blobs[digest] = data
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(config, "application/vnd.oci.image.config.v1+json"),
        "layers": [
            {
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": layer_digest,
                "size": len(layer),
            }
        ],
    }
    entry = blob(manifest, "application/vnd.oci.image.manifest.v1+json")
    index = {"schemaVersion": 2, "manifests": [{**entry, "annotations": {"io.containerd.image.name": name}}]}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _add_file(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}', 0o644)
        _add_file(archive, "index.json", json.dumps(index).encode(), 0o644)
        for digest, data in blobs.items():
            _add_file(archive, f"blobs/sha256/{digest.removeprefix('sha256:')}", data, 0o644)
    return buffer.getvalue()


def _architecture() -> str:
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
