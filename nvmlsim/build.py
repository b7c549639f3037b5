"""Compiles the simulated NVML library and nvidia-smi, once for each state of their sources.

The results lie in `$XDG_CACHE_HOME/nvmlsim/<hash>` (default `~/.cache`); `NVMLSIM_CC` names another compiler
than `cc`.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra")
COMPILE_SECONDS = 120


class BuildError(RuntimeError):
    """The C compiler is missing or refused the sources."""


@dataclass(frozen=True)
class Build:
    """The compiled parts: `library` (libnvidia-ml) and `nvidia_smi`, and what the compiler warned of.

    `folder` also keeps stub libraries.
    """

    folder: Path

    @property
    def library(self) -> Path:
        return self.folder / "libnvidia-ml.so"

    @property
    def nvidia_smi(self) -> Path:
        return self.folder / "nvidia-smi"

    @property
    def warnings(self) -> Path:
        return self.folder / "warnings.txt"


def compiler() -> str:
    """The C compiler's path. Raises BuildError when there is none."""
    name = os.environ.get("NVMLSIM_CC", "cc")
    found = shutil.which(name)
    if found is None:
        raise BuildError(f"no C compiler: {name!r} is not on PATH; install gcc (Debian: gcc, libc6-dev)")
    return found


def compile_with(arguments: list[str]) -> str:
    """Runs the compiler and returns its warnings. Raises BuildError with its output when it fails."""
    command = [compiler(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stderr


def _sources(folder: str, suffix: str) -> list[Path]:
    return sorted((SOURCES / folder).glob(f"*{suffix}"))


def _key() -> str:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for folder in ("library", "nvidia_smi"):
        for source in _sources(folder, ".c") + _sources(folder, ".h"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nvmlsim"


def build() -> Build:
    """Compiles what is not compiled yet (about two seconds) and says where it is. Raises BuildError."""
    target = cache_folder() / _key()
    if target.is_dir():
        return Build(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="build-", dir=target.parent))
    try:
        _compile_into(Build(work))
        work.rename(target)
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Build(target)


def _compile_into(result: Build) -> None:
    """Both parts share the library's objects, except for how each finds out where it lies."""
    sources = _sources("library", ".c") + _sources("nvidia_smi", ".c")
    objects = {source: result.folder / f"{source.parent.name}-{source.stem}.o" for source in sources}

    def compile_one(source: Path) -> str:
        options = ["-fPIC", "-fvisibility=hidden", f"-I{SOURCES / 'library'}"]
        return compile_with([*FLAGS, *options, "-c", str(source), "-o", str(objects[source])])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings = list(pool.map(compile_one, sources))
    library = {str(made) for source, made in objects.items() if source.parent.name == "library"}
    program = {str(made) for made in objects.values()} - {str(objects[SOURCES / "library/location.c"])}
    shared = ["-shared", "-Wl,-Bsymbolic", "-Wl,-soname,libnvidia-ml.so.1"]
    warnings.append(compile_with([*shared, "-o", str(result.library), *sorted(library), "-lpthread"]))
    warnings.append(compile_with(["-static", "-o", str(result.nvidia_smi), *sorted(program), "-lpthread"]))
    result.warnings.write_text("".join(warnings))
    for made in objects.values():
        made.unlink()


def stub_library(folder: Path, soname: str) -> Path:
    """A shared library with nothing in it but its name, for the libraries that only have to be mounted."""
    path = folder / f"stub-{soname}"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / "stub"
            shared = ["-shared", "-nostdlib", f"-Wl,-soname,{soname}"]
            compile_with([*shared, "-x", "c", os.devnull, "-o", str(made)])
            made.rename(path)
    return path
