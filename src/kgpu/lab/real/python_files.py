"""Which files of this machine make kgpu's own image: the interpreter, its library, kgpu and what it depends on.

Nothing is copied here: the result says which file goes where, so that a change of any of them can be seen before an
image is made. Left out is what only a developer needs: tests, headers, IDLE, Tk, pip, compiled files.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import kgpu
from kgpu.base.errors import LabError

PREFIX: Final = "usr/local"
HOME: Final = "opt/kgpu"
"""A virtual environment: every build of Python finds its packages there, whatever its distribution has changed."""
VERSION: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"
STDLIB: Final = f"{PREFIX}/{sys.platlibdir}/{VERSION}"
SITE: Final = f"{HOME}/lib/{VERSION}/site-packages"

# Of Python's own library.
_NOT_RUN: Final = frozenset({
    "test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "distutils", "pydoc_data", "site-packages",
    "dist-packages", "unittest", "venv",
})  # fmt: skip
_NOT_RUN_PREFIXES: Final = ("config-", "_test", "_ctypes_test", "_tkinter", "xxlimited", "_xx")
# Of any package.
_NOT_RUN_ANYWHERE: Final = frozenset({"__pycache__", "tests"})
_NOT_RUN_SUFFIXES: Final = (".pyc", ".pyi", ".pyx", ".pxd", ".c", ".h", ".a", ".o", ".exe", ".bat")
# Of a package's metadata: what says how it was installed on this machine.
_INSTALLATION: Final = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})


@dataclass(frozen=True, slots=True, order=True)
class CopiedFile:
    """One file: ``path`` in the image, without a leading slash, and ``file`` on this machine."""

    path: str
    file: str


def interpreter() -> CopiedFile:
    """The interpreter itself, not the virtual environment's link to it."""
    program = getattr(sys, "_base_executable", None) or sys.executable
    return CopiedFile(f"{PREFIX}/bin/{VERSION}", os.path.realpath(program))


def _wanted(name: str) -> bool:
    return name not in _NOT_RUN_ANYWHERE and not name.endswith(_NOT_RUN_SUFFIXES)


def _wanted_of_python(name: str) -> bool:
    return _wanted(name) and name not in _NOT_RUN and not name.startswith(_NOT_RUN_PREFIXES)


def _tree(folder: Path, target: str, wanted: Callable[[str], bool]) -> Iterator[CopiedFile]:
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if wanted(name))
        within = os.path.relpath(where, folder)
        base = target if within == "." else f"{target}/{within}"
        yield from (CopiedFile(f"{base}/{name}", os.path.join(where, name)) for name in files if wanted(name))


def standard_library() -> list[CopiedFile]:
    """Python's own modules, with the compiled ones."""
    return sorted(_tree(Path(os.path.dirname(os.__file__)), STDLIB, _wanted_of_python))


def own_package() -> list[CopiedFile]:
    """The package kgpu, from where it is imported."""
    # Its folders have names of their own: nothing is left out but compiled files.
    package = Path(kgpu.__file__).parent
    return sorted(
        _tree(package, f"{SITE}/kgpu", lambda name: name not in {"__pycache__", "_native"} and name[-4:] != ".pyc")
    )


def dependencies(names: Iterable[str] = ("kgpu",)) -> dict[str, importlib.metadata.Distribution]:
    """What ``names`` need at run time, directly or not, without themselves; extras and what is not here don't count."""
    distributions: dict[str, importlib.metadata.Distribution] = {}
    open_names, known_names = list(names), set(map(_normal, names))
    while open_names:
        for line in importlib.metadata.distribution(open_names.pop()).requires or []:
            requirement, _, marker = line.partition(";")
            hit = re.match(r"[\w.-]+", requirement.strip())
            if hit is None or "extra" in marker or _normal(hit.group()) in known_names:
                continue
            known_names.add(_normal(hit.group()))
            try:
                distributions[_normal(hit.group())] = importlib.metadata.distribution(hit.group())
            except importlib.metadata.PackageNotFoundError:
                continue  # for another system or another Python
            open_names.append(hit.group())
    return distributions


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def packages() -> list[CopiedFile]:
    """The files of every dependency, with their licences."""
    files: set[CopiedFile] = set()
    for name, distribution in sorted(dependencies().items()):
        if distribution.files is None:
            raise LabError(
                f"the package {name} does not say which files it has",
                "packages that were installed with pip or uv",
                f"pip install --force-reinstall {name}",
            )
        for file in distribution.files:
            parts = file.parts
            if ".." in parts or not all(map(_wanted, parts)):
                continue
            if parts[0].endswith(".dist-info") and parts[-1] in _INSTALLATION:
                continue
            if os.path.isfile(where := str(file.locate())):
                files.add(CopiedFile(f"{SITE}/{file.as_posix()}", where))
    return sorted(files)


def is_program(file: str) -> bool:
    """Whether it is an ELF file."""
    with open(file, "rb") as opened:
        return opened.read(4) == b"\x7fELF"


def shared_libraries(programs: Iterable[str]) -> dict[str, str]:
    """Every shared library that ``programs`` load: its name -> file. Raises LabError when one is missing."""
    files = sorted(programs)
    done = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False)
    missing = re.findall(r"^\s+(\S+) => not found", done.stdout, re.MULTILINE)
    if missing:
        raise LabError(
            f"this Python can't find its own libraries: {', '.join(sorted(set(missing)))}",
            "a Python whose compiled modules load",
            "install the packages that those libraries are from",
        )
    return dict(re.findall(r"^\s+(\S+) => (/\S+) \(", done.stdout, re.MULTILINE))
