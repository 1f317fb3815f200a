"""What is in the folder of a lab's nodes: each node's spec, what is wrong with those that can't be read, and who runs
the agents.

A ``node.json`` is read again only when the file has changed. One that is wrong is a problem of that node alone and does
not affect the others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from kgpu.base.errors import LabError
from kgpu.lab.nodes import host_folder, spec
from kgpu.lab.nodes.spec import SPEC_FILE, NodeSpec

SPECIAL: Final = "host"
"""The host's own folder among the nodes': keys, the port, what it probed."""
LEAVING: Final = "leaving"
"""In place of a ``node.json``: the node is to be removed, by the next host if this one ends before it has done so."""
REBOOT: Final = "reboot"
"""Beside a ``node.json``: the node's machine is to be rebooted, or is just rebooting. See ``reboot.py``."""
OFF: Final = "off"
"""Beside ``reboot``: the reboot stops between its two halves until this file is gone."""
POWERED_DOWN: Final = "powered-down"
"""Beside ``off``: nothing of the machine runs any more. Its host writes it."""

OPERATOR: Final = "operator"
"""A file in the folder: kgpu's operator runs the agents, and not the nodes' host."""

_Identity: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderContents:
    """One look at the folder. ``news`` are problems that the look before did not have."""

    specs: Mapping[str, NodeSpec] = field(default_factory=dict)
    problems: Mapping[str, LabError] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    """Nodes that are to go, whoever knows them."""
    rebooting: frozenset[str] = frozenset()
    """Nodes whose machines are to be rebooted, or are just rebooting."""
    news: tuple[LabError, ...] = ()
    folders: tuple[str, ...] = ()
    """The names of every folder in it, with or without a node."""


class NodeFolder:
    """Looks at one folder again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[_Identity, NodeSpec | LabError]] = {}

    def look(self) -> FolderContents:
        """What is there now. Raises LabError when the folder itself is gone."""
        try:
            with os.scandir(self.folder) as entries:
                folders = sorted(entry.name for entry in entries if entry.is_dir() and entry.name != SPECIAL)
        except OSError as error:
            raise LabError(
                f"{self.folder} can't be read: {error.strerror}", "the folder of the nodes", "bring the lab up again"
            ) from error
        former, self._known = self._known, {}
        news: list[LabError] = []
        leaving: list[str] = []
        rebooting: list[str] = []
        root = str(self.folder)  # paths as text: there may be thousands
        for name in folders:
            identity = _identity(f"{root}/{name}/{SPEC_FILE}")
            if identity is None:
                if os.path.exists(f"{root}/{name}/{LEAVING}"):
                    leaving.append(name)
                continue
            if os.path.exists(f"{root}/{name}/{REBOOT}"):
                rebooting.append(name)
            before = former.get(name)
            if before is not None and before[0] == identity:
                self._known[name] = before
                continue
            content = self._read(name)
            self._known[name] = (identity, content)
            if isinstance(content, LabError):
                news.append(content)
        return FolderContents(
            specs={name: spec for name, (_, spec) in self._known.items() if isinstance(spec, NodeSpec)},
            problems={name: problem for name, (_, problem) in self._known.items() if isinstance(problem, LabError)},
            leaving=frozenset(leaving),
            rebooting=frozenset(rebooting),
            news=tuple(news),
            folders=tuple(folders),
        )

    def _read(self, name: str) -> NodeSpec | LabError:
        path = self.folder / name / SPEC_FILE
        try:
            node = spec.load(path)
        except LabError as error:
            return error
        if node.name != name:
            return LabError(f"{path}: its node is named {node.name}", f"the folder's name, {name}", "rename one")
        return node


def _identity(path: str) -> _Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def mark_for_removal(folder: Path) -> None:
    """Mark the node of that folder for removal by its host. Raises OSError."""
    (folder / LEAVING).touch()
    (folder / SPEC_FILE).unlink(missing_ok=True)


def ask_for_reboot(folder: Path) -> None:
    """Have the machine of the node in that folder rebooted by its host. Raises OSError."""
    (folder / REBOOT).touch()


def switch_off(folder: Path) -> None:
    """Have the machine of the node in that folder switched off until ``switch_on``. Raises OSError."""
    (folder / OFF).touch()  # first: a host that sees only the other file would boot it at once
    ask_for_reboot(folder)


def switch_on(folder: Path) -> None:
    """Have the machine booted that ``switch_off`` was for; one that is on stays so. Raises OSError."""
    (folder / OFF).unlink(missing_ok=True)


def is_off(folder: Path) -> bool:
    """Whether the machine is switched off, or is to be."""
    return (folder / OFF).exists()


def give_to_operator(nodes: Path) -> None:
    """From now on the agents are the operator's. Raises OSError."""
    host_folder.make_private(nodes, parents=True)
    (nodes / OPERATOR).touch()


def has_operator(nodes: Path) -> bool:
    """Whether the agents of the nodes in that folder are the operator's."""
    return (nodes / OPERATOR).exists()
