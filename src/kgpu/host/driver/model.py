"""What a search for a driver is told and what it found, as plain data. Paths are inside the driver root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kgpu.base.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Where and for what to look; empty means the usual places.

    ``library_dirs`` (``--library-search-path``) replace the table of layouts and the loader's cache; ``config_dirs``
    (``--config-search-path``) replace /etc and the XDG data folders. Both are absolute paths inside the driver root.
    ``sys`` and ``proc`` are the node's /sys and /proc as this process sees them (default: the simulated root's own,
    else ``/sys`` and ``/proc``), ``kernel`` the release of the running kernel (default: uname's).
    ``explicit_libraries`` adds the vendor-neutral libraries of libglvnd (feature ``enable-explicit-driver-libraries``),
    ``compat32`` the 32-bit ones; ``ipc=False`` leaves sockets and the MPS folder out (feature
    ``disable-ipc-discoverer``), ``graphics=False`` configuration and X.Org modules.
    """

    library_dirs: tuple[str, ...] = ()
    config_dirs: tuple[str, ...] = ()
    sys: Path | None = None
    proc: Path | None = None
    kernel: str = ""
    ipc: bool = True
    graphics: bool = True
    explicit_libraries: bool = False
    compat32: bool = False

    def __post_init__(self) -> None:
        for flag, folders in (("library", self.library_dirs), ("config", self.config_dirs)):
            for folder in folders:
                if not folder.startswith("/") or "\0" in folder:
                    raise ConfigError(
                        f'the {flag} search path "{folder}" is not absolute',
                        "an absolute path inside the driver root",
                        f"correct --{flag}-search-path",
                    )


@dataclass(frozen=True, slots=True)
class Library:
    """One library: its real path inside the root, and every file name under which the loader may ask for it."""

    path: str
    names: tuple[str, ...]
    subfolder: str = ""  # vdpau libraries are looked for in a folder of that name
    bits: int = 64


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file (or folder) whose places in the container don't follow from its name: its real path, and where it goes."""

    path: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing looked for. ``path`` is where it is ("" when missing or refused).

    ``why`` says what it is for or, when not ``found``, what was looked for in vain; ``breaks`` what does not work then
    ("" when nothing does that anybody would miss). ``essential``: without it no container can use a GPU in full;
    ``optional``: many good nodes don't have it.
    """

    kind: str  # library | binary | firmware | ipc | config | xorg | node | params | module | loader
    name: str
    found: bool
    path: str = ""
    why: str = ""
    breaks: str = ""
    essential: bool = False
    optional: bool = False

    def note(self) -> str:
        """One line for a log."""
        return f"{self.why}: {self.breaks}" if self.breaks else self.why


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverReport:
    """What a search found and missed. ``layout`` names the kind of root, ``folders`` where its libraries are."""

    version: str = ""
    root: str = ""
    layout: str = ""
    folders: tuple[str, ...] = ()
    items: tuple[Item, ...] = ()

    def missing(self, *, essential: bool = False) -> tuple[Item, ...]:
        """What was not found; only what is essential when asked so."""
        return tuple(item for item in self.items if not item.found and (item.essential or not essential))

    def notes(self) -> Iterator[str]:
        """One line for each missing item that most nodes have and whose lack breaks something."""
        return (item.note() for item in self.items if not item.found and item.breaks and not item.optional)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """What was found; paths are inside the root. ``notes`` say what was looked for in vain, and what that costs."""

    version: str
    libraries: tuple[Library, ...]
    binaries: tuple[str, ...] = ()
    firmware: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # of IPC: /tmp/nvidia-mps
    control_nodes: tuple[str, ...] = ()
    graphics: tuple[PlacedFile, ...] = ()  # configuration files, loader links and X.Org modules
    loaders: tuple[PlacedFile, ...] = ()  # folders of a dynamic loader in an unusual place, for programs that name it
    notes: tuple[str, ...] = ()
    report: DriverReport = field(default_factory=DriverReport)
