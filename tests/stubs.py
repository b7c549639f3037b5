"""The generated gRPC stubs: ``write`` regenerates them from ``proto/``, ``check`` fails when they are old."""

from __future__ import annotations

import filecmp
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = Path("kubeletplugin/api")


def generate(target: Path) -> list[Path]:
    """Generate all stubs below ``target``; returns their paths relative to it."""
    programs = Path(sys.executable).parent
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--plugin=protoc-gen-mypy={programs / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={programs / 'protoc-gen-mypy_grpc'}",
            "-I",
            "proto",
            f"--python_out={target}",
            f"--grpc_python_out={target}",
            f"--mypy_out=quiet:{target}",
            f"--mypy_grpc_out=quiet:{target}",
            *sorted(
                str(Path("proto") / FOLDER / path.name) for path in (REPOSITORY / "proto" / FOLDER).iterdir()
            ),
        ],
        cwd=REPOSITORY,
        check=True,
    )
    return sorted(path.relative_to(target) for path in (target / FOLDER).glob("*_pb2*"))


def differences() -> list[str]:
    """Names of stubs that are not what ``proto/`` makes today."""
    with tempfile.TemporaryDirectory() as folder:
        made = generate(Path(folder))
        present = {path.relative_to(REPOSITORY) for path in (REPOSITORY / FOLDER).glob("*_pb2*")}
        old = [
            path
            for path in made
            if path not in present or not filecmp.cmp(Path(folder) / path, REPOSITORY / path, shallow=False)
        ]
        return sorted(str(path) for path in (*old, *(present - set(made))))


def main(command: str) -> int:
    if command == "write":
        generate(REPOSITORY)
        return 0
    old = differences()
    for name in old:
        print(f"{name} is not what proto/ makes: run make proto", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
