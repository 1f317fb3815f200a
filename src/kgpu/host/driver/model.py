"""The input and the result of a search for a driver, as plain data. Paths are inside the driver root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kgpu.base.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Where to search and for what; empty means the default places.

    ``library_dirs`` (``--library-search-path``) replace the table of layouts and the loader's cache; ``config_dirs``
    (``--config-search-path``) replace /etc and the XDG data folders. Both are absolute paths inside the driver root.
    ``sys`` and ``proc`` are the node's /sys and /proc as this process sees them (default: the simulated root's own,
    else ``/sys`` and ``/proc``), ``kernel`` the release of the running kernel (default: uname's).
    ``explicit_libraries`` adds the vendor-neutral libraries of libglvnd (feature ``enable-explicit-driver-libraries``),
    ``compat32`` the 32-bit ones; ``ipc=False`` leaves out sockets and the MPS folder (feature
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
    """One library: its real path inside the root, and every file name by which the loader may look for it."""

    path: str
    names: tuple[str, ...]
    subfolder: str = ""  # programs look for vdpau libraries in a folder of that name
    bits: int = 64


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file or folder with its real path and its paths in the container, which don't follow from its name."""

    path: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing that was searched for. ``path`` is where it is ("" if missing or refused).

    ``why`` says what it is for or, if not ``found``, what is missing; ``breaks`` what does not work then ("" for
    nothing important). ``essential`` means that without it no container can use a GPU fully; ``optional`` that many
    healthy nodes don't have it.
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
        """The item as one log line."""
        return f"{self.why}: {self.breaks}" if self.breaks else self.why


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverReport:
    """What a search found and missed. ``layout`` names the kind of root, ``folders`` are its libraries' folders."""

    version: str = ""
    root: str = ""
    layout: str = ""
    folders: tuple[str, ...] = ()
    items: tuple[Item, ...] = ()

    def missing(self, *, essential: bool = False) -> tuple[Item, ...]:
        """The items that were not found; with ``essential``, only essential ones."""
        return tuple(item for item in self.items if not item.found and (item.essential or not essential))

    def notes(self) -> Iterator[str]:
        """One line for each missing item that most nodes have and that breaks something."""
        return (item.note() for item in self.items if not item.found and item.breaks and not item.optional)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """What was found; paths are inside the root. ``notes`` say what is missing and what that breaks."""

    version: str
    libraries: tuple[Library, ...]
    binaries: tuple[str, ...] = ()
    firmware: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # for IPC: /tmp/nvidia-mps
    control_nodes: tuple[str, ...] = ()
    graphics: tuple[PlacedFile, ...] = ()  # configuration files, loader links and X.Org modules
    loaders: tuple[PlacedFile, ...] = ()  # folders of dynamic loaders in unusual places, for programs that name them
    notes: tuple[str, ...] = ()
    report: DriverReport = field(default_factory=DriverReport)
