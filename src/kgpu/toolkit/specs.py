"""CDI specs as they lie on a node: reading files and folders within bounds, and the facts that they are held against.

Promises: a pipe, a device or a huge file in a spec folder never blocks or fills this process; a file that can't be
read or isn't a spec is a result with its reason, not an exception. ``FakeNode`` stands beside the real facts.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from kgpu.base.boot import boot_id
from kgpu.base.errors import UserError
from kgpu.formats.cdi import Spec, parse_spec, qualified_name
from kgpu.host.bounded import read_regular
from kgpu.host.dev_files import read_facts
from kgpu.host.dev_nodes import Numbers
from kgpu.host.root import Tree, read_some
from kgpu.toolkit.model import DeviceListing, ListedSpec
from kgpu.toolkit.plan import resolve_names

MAX_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of a spec; far more than 16 GPUs need, all in slices with three names each."""
SUFFIXES: Final = (".yaml", ".json")
"""The extensions that runtimes read; they ignore ``.yml``."""

_VERSION: Final = re.compile(r"\b([0-9]{3,4}\.[0-9]+(?:\.[0-9]+)?)\b")
_KINDS: Final = {
    stat.S_IFCHR: "char", stat.S_IFBLK: "block", stat.S_IFDIR: "folder", stat.S_IFREG: "file", stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "pipe",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSpec:
    """One file of a spec folder. Exactly one of ``spec`` and ``problem`` is there; later folders have more priority.

    ``open_to_all``: every user may change the file or its folder. ``ignored``: runtimes don't read a file of this name.
    """

    path: str
    priority: int = 0
    spec: Spec | None = None
    problem: UserError | None = None
    open_to_all: bool = False
    ignored: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The qualified device names that it brings."""
        if self.spec is None or self.ignored:
            return ()
        return tuple(qualified_name(self.spec.kind, device.name) for device in self.spec.devices)


class SpecFacts(Protocol):
    """What a spec is held against. Paths are the host's; links are followed inside the host's root."""

    def kind(self, path: str) -> str:
        """``char``, ``block``, ``file``, ``folder``, ``socket`` or ``pipe``; "" when nothing is there."""

    def numbers(self, path: str) -> Numbers | None:
        """A device node's numbers."""

    def executable(self, path: str) -> bool:
        """Whether it is a program."""

    def majors(self) -> Mapping[str, int]:
        """Character drivers of the running kernel; empty when that can't be known."""

    def driver_version(self) -> str:
        """The version of the driver that runs; "" when that can't be known."""

    def boot_id(self) -> str:
        """Tells this boot from others; "" when the kernel doesn't say."""


class RealNode:
    """Facts of this node: ``host_root`` is where its ``/`` is seen, ``driver_root`` (seen here) whose driver runs."""

    def __init__(self, host_root: Path | str = "/", driver_root: Path | str = "/") -> None:
        self._tree = Tree.at(host_root, "/")
        self._driver = Path(driver_root)

    def kind(self, path: str) -> str:
        found = self._stat(path)
        return "" if found is None else _KINDS.get(stat.S_IFMT(found.st_mode), "")

    def numbers(self, path: str) -> Numbers | None:
        found = self._stat(path)
        if found is None or not (stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)):
            return None
        return Numbers(os.major(found.st_rdev), os.minor(found.st_rdev))

    def executable(self, path: str) -> bool:
        found = self._stat(path)
        return found is not None and stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)

    def majors(self) -> Mapping[str, int]:
        return read_facts(self._driver).majors

    def driver_version(self) -> str:
        own = self._driver / "proc/driver/nvidia/version"
        for path in (own, Path("/proc/driver/nvidia/version"), Path("/sys/module/nvidia/version")):
            match = _VERSION.search(read_some(path, 4096).decode("utf-8", "replace"))
            if match:
                return match[1]
        return ""

    def boot_id(self) -> str:
        return boot_id()

    def _stat(self, path: str) -> os.stat_result | None:
        resolved = self._tree.resolve(path)
        try:
            return None if resolved is None else self._tree.local(resolved).lstat()
        except OSError:
            return None


@dataclass(slots=True)
class FakeNode:
    """In memory: kinds by path (``program`` is an executable file), numbers of devices, majors, version, boot."""

    kinds: dict[str, str] = field(default_factory=dict)
    devices: dict[str, Numbers] = field(default_factory=dict)
    drivers: dict[str, int] = field(default_factory=dict)
    version: str = ""
    boot: str = ""

    def kind(self, path: str) -> str:
        found = self.kinds.get(path, "char" if path in self.devices else "")
        return "file" if found == "program" else found

    def numbers(self, path: str) -> Numbers | None:
        return self.devices.get(path)

    def executable(self, path: str) -> bool:
        return self.kinds.get(path) == "program"

    def majors(self) -> Mapping[str, int]:
        return self.drivers

    def driver_version(self) -> str:
        return self.version

    def boot_id(self) -> str:
        return self.boot


def read_spec(path: Path | str, priority: int = 0) -> FoundSpec:
    """Read one file, whatever it turns out to be."""
    file = Path(path)
    ignored = file.suffix not in SUFFIXES
    try:
        text, open_to_all = _read(file)
        spec = parse_spec(text, source=str(file))
    except UserError as error:
        return FoundSpec(path=str(file), priority=priority, problem=error, ignored=ignored)
    return FoundSpec(path=str(file), priority=priority, spec=spec, open_to_all=open_to_all, ignored=ignored)


def read_folders(folders: Sequence[Path | str], *, known: Mapping[str, Spec] | None = None) -> tuple[FoundSpec, ...]:
    """Every spec of the folders, lowest priority first; a folder that isn't there has none.

    ``known``: specs by real path, which are not read again. A dot at a name's beginning hides no file from runtimes.
    """
    specs: list[FoundSpec] = []
    for priority, folder in enumerate(folders):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for path in (Path(folder, name) for name in names):
            spec = known.get(os.path.realpath(path)) if known else None
            if spec is not None:
                specs.append(FoundSpec(path=str(path), priority=priority, spec=spec))
            elif path.suffix in SUFFIXES or (path.suffix == ".yml" and not path.name.startswith(".")):
                specs.append(read_spec(path, priority))
    return tuple(specs)


def list_found(found: Sequence[FoundSpec]) -> DeviceListing:
    """The names that a runtime can resolve, in order, and what is wrong with the rest."""
    broken = tuple(spec.problem.one_line() for spec in found if spec.problem is not None)
    unread = tuple(f"{spec.path} is not read by runtimes: its name must end in .yaml" for spec in found if spec.ignored)
    listing = resolve_names(ListedSpec(spec.path, spec.priority, spec.names) for spec in found if spec.names)
    return DeviceListing(listing.names, (*broken, *unread, *listing.warnings))


def _read(file: Path) -> tuple[bytes, bool]:
    """The content, and whether anybody may change it. Raises HostError."""
    text, about = read_regular(file, MAX_BYTES, what="a CDI spec")
    folder = file.parent.stat()
    # In a sticky folder others may add files, but not replace this one.
    open_folder = bool(folder.st_mode & stat.S_IWOTH) and not folder.st_mode & stat.S_ISVTX
    return text, bool(about.st_mode & stat.S_IWOTH) or open_folder
