"""Builds the simulated driver's native parts once, and says where they are.

`native_dir()` compiles `native/` into a cache folder named after the content of the sources, the flags and the
compiler, so a second call returns at once and two versions never mix. The folder appears whole or not at all. Without
a C compiler, or when the sources don't compile, it raises an HwError that says what to do.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.errors import HwError

COMPILERS: Final = ("cc", "gcc", "clang")
FLAGS: Final = ("-O2", "-Wall", "-Wextra", "-Werror", "-std=c11")
COMPILE_TIMEOUT_S: Final = 300
_LIBRARY: Final = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-z,defs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One file to build from `sources` (globs under native/); a target without sources is left out."""

    output: str
    sources: str
    flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ("-lpthread", "-ldl")


# nodelete: programs load and unload NVML at will; what other libraries of the process hold on the state must survive.
TARGETS: Final = (
    Target(
        output="libnvidia-ml.so.1",
        sources="nvml/*.c",
        flags=(*_LIBRARY, "-Wl,-soname,libnvidia-ml.so.1", "-Wl,-z,nodelete"),
    ),
    Target(
        output="libcuda.so.1",
        sources="cuda/*.c",
        flags=(*_LIBRARY, "-Wl,-soname,libcuda.so.1", "-Wl,-z,nodelete"),
        libraries=("-lpthread", "-ldl", "-lm"),
    ),
    Target(output="libhlml.so", sources="hlml/*.c", flags=(*_LIBRARY, "-Wl,-soname,libhlml.so")),
    Target(output="nvidia-smi", sources="smi/*.c"),
    Target(output="nvidia-cuda-mps-control", sources="mps/control/*.c"),
    Target(output="nvidia-cuda-mps-server", sources="mps/server/*.c"),
    Target(output="vectoradd", sources="cuda/sample/vectoradd.c", libraries=("-lpthread", "-ldl", "-lm")),
    Target(output="gpu-load", sources="cuda/sample/gpuload.c"),
)


def source_dir() -> Path:
    """The folder with the C sources: inside an installed package, or beside `src` in a source tree."""
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "_native", package.parents[1] / "native"):
        if (folder / "include" / "kgpu_state.h").is_file():
            return folder
    raise HwError(
        "the sources of the simulated driver are missing",
        f"a folder {package / '_native'}",
        "install kgpu again; its package carries these sources",
    )


def cache_dir() -> Path:
    """Where builds are kept: XDG_CACHE_HOME, else ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kgpu" / "native"


def find_compiler() -> str:
    """The C compiler: $CC, else the first of COMPILERS that is installed."""
    wanted = os.environ.get("CC")
    for name in (wanted,) if wanted else COMPILERS:
        path = shutil.which(name)
        if path:
            return path
    raise HwError(
        "the simulated driver can't be built: there is no C compiler",
        f"one of {', '.join(COMPILERS)} on PATH, or its path in CC",
        "install one, e.g. `apt-get install gcc libc6-dev`",
    )


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in {".c", ".h"})


@functools.cache
def _compiler_version(compiler: str) -> bytes:
    return subprocess.run([compiler, "--version"], capture_output=True, check=False, timeout=60).stdout


def content_key(folder: Path, compiler: str) -> str:
    """Names a build: a hash of every source, the targets and the compiler's version."""
    digest = hashlib.sha256(repr((FLAGS, TARGETS)).encode())
    digest.update(_compiler_version(compiler))
    for path in _sources(folder):
        digest.update(f"\0{path.relative_to(folder)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def command(target: Target, folder: Path, out: Path, compiler: str) -> list[str] | None:
    """The compiler call for a target; None when it has no sources."""
    files = sorted(str(path) for path in folder.glob(target.sources))
    if not files:
        return None
    include = f"-I{folder / 'include'}"
    return [compiler, *FLAGS, *target.flags, include, *files, "-o", str(out / target.output), *target.libraries]


def _compile(call: list[str]) -> None:
    try:
        done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=COMPILE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HwError(
            f"the simulated driver can't be built: {error}",
            "a C compiler that works",
            "try it by hand: " + " ".join(call),
        ) from error
    if done.returncode:
        raise HwError(
            f"the simulated driver can't be built: {done.stderr.strip()[-1500:] or 'the compiler failed'}",
            "sources that this compiler accepts (it needs C11 and the Linux headers)",
            "install a newer compiler and libc headers, or choose another one with CC",
        )


def native_dir() -> Path:
    """Build if needed; the folder with the simulated libraries and programs of ``TARGETS``."""
    folder = source_dir()
    compiler = find_compiler()
    target = cache_dir() / content_key(folder, compiler)
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        out = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise HwError(
            f"the simulated driver can't be built: {error.filename} can't be written: {error.strerror}",
            "a cache folder that this user may write",
            "set XDG_CACHE_HOME to one",
        ) from error
    try:
        calls = [call for build_target in TARGETS if (call := command(build_target, folder, out, compiler))]
        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(_compile, calls))
        out.chmod(0o755)
        try:
            out.rename(target)
        except OSError:
            if not target.is_dir():  # else: another process built the same at the same time
                raise
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return target
