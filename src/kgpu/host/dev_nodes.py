"""NVIDIA's device nodes and the links to them in /dev/char: what should exist, and the steps that lead there. Pure.

On daemon-reload, systemd rewrites a container's device rules from /dev/char/MAJOR:MINOR, so running containers lose
access to a node without its link. Promises: minors come from the driver (never 0..n-1), a link or node with outdated
numbers is replaced, and what is right already is left alone. Paths are the host's.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

DEV: Final = "/dev"
DEV_CHAR: Final = "/dev/char"
CAPS_FOLDER: Final = "nvidia-caps"
MODULES: Final = ("nvidia", "nvidia-uvm", "nvidia-modeset")
MAX_NUMBER: Final = (1 << 20) - 1
"""The largest minor that Linux has; majors are smaller."""

# name, the driver's names in /proc/devices (the older one last), minor. Source: nvidia-modprobe.
CONTROL: Final = (
    ("nvidiactl", ("nvidia", "nvidia-frontend"), 255),
    ("nvidia-modeset", ("nvidia", "nvidia-frontend"), 254),
    ("nvidia-uvm", ("nvidia-uvm",), 0),
    ("nvidia-uvm-tools", ("nvidia-uvm",), 1),
)
_GPU_MAJORS: Final = ("nvidia", "nvidia-frontend")
_CAPS_MAJORS: Final = ("nvidia-caps",)
_OURS: Final = re.compile(r"nvidia(?!-(?:fs|nvswitch|nvlink)).*", re.DOTALL)
_CAP: Final = re.compile(r"nvidia-cap[0-9]+")
_CHAR_NAME: Final = re.compile(r"([0-9]{1,7}):([0-9]{1,7})")
_GPU_MINOR: Final = re.compile(r"^Device Minor:[ \t]*([0-9]{1,7})[ \t]*$", re.MULTILINE)
_MIG_MINOR: Final = re.compile(
    r"^(config|monitor|gpu[0-9]{1,7}/gi[0-9]{1,7}(?:/ci[0-9]{1,7})?/access) ([0-9]{1,7})$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Numbers:
    """A character device's numbers."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}:{self.minor}"


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """A device node that exists or should exist."""

    path: str
    numbers: Numbers


class DeviceFileAction(StrEnum):
    """What a step does."""

    CREATE = "create"
    REPLACE = "replace"
    REMOVE = "remove"
    KEEP = "keep"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFileStep:
    """One step: a link at ``path`` to ``target``, or a node with ``numbers``; ``why`` explains special cases."""

    action: DeviceFileAction
    path: str
    target: str = ""
    numbers: Numbers | None = None
    why: str = ""

    @property
    def changes(self) -> bool:
        """True if applying it changes a file."""
        return self.action in {DeviceFileAction.CREATE, DeviceFileAction.REPLACE, DeviceFileAction.REMOVE}

    def __str__(self) -> str:
        what = f" -> {self.target}" if self.target else f" c {self.numbers}" if self.numbers else ""
        return f"{self.action} {self.path}{what}{f' ({self.why})' if self.why else ''}"


class DevFiles(Protocol):
    """The device files of one host. No call follows a link at the path's end. Changes are atomic and raise OSError."""

    def names(self, folder: str) -> tuple[str, ...]:
        """The sorted names in a folder; empty if there is none."""

    def device(self, path: str) -> Numbers | None:
        """The numbers of a character device; None for anything else."""

    def link(self, path: str) -> str | None:
        """The text of a symbolic link; None for anything else."""

    def there(self, path: str) -> bool:
        """Whether anything exists at the path."""

    def put_link(self, path: str, target: str) -> None:
        """Make or replace a link; missing parent folders are created."""

    def put_node(self, path: str, numbers: Numbers) -> None:
        """Make or replace a character device with mode 0666; missing parent folders are created."""

    def remove(self, path: str) -> None:
        """Remove a link if it exists."""


@dataclass(frozen=True, slots=True)
class WantedDeviceFiles:
    """The nodes that should exist, and notes on what could not be determined."""

    nodes: tuple[DeviceFile, ...]
    notes: tuple[str, ...] = ()


def read_majors(proc_devices: str) -> dict[str, int]:
    """Driver name to major of the character devices in the text of /proc/devices; other lines are ignored."""
    found: dict[str, int] = {}
    for line in proc_devices.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isascii() and number.isdigit() and len(number) <= 7 and name:
            found[name] = int(number)
    return found


def read_gpu_minor(information: str) -> int | None:
    """A GPU's minor from the text of /proc/driver/nvidia/gpus/<bus id>/information; None if it has none."""
    match = _GPU_MINOR.search(information)
    return _number(match[1]) if match else None


def read_cap_minors(mig_minors: str) -> dict[str, int]:
    """Capability (``config``, ``gpu0/gi1/access``) to minor, from the text of /proc/driver/nvidia-caps/mig-minors."""
    found = {match[1]: _number(match[2]) for match in _MIG_MINOR.finditer(mig_minors)}
    return {name: minor for name, minor in found.items() if minor is not None}


def control_nodes(majors: Mapping[str, int], *, dev: str = DEV) -> WantedDeviceFiles:
    """The nodes that every use of the driver needs; a note for each whose module isn't loaded."""
    nodes: list[DeviceFile] = []
    notes: list[str] = []
    for name, drivers, minor in CONTROL:
        major = _major(majors, drivers)
        if major is None:
            notes.append(f"{name} can't be made: /proc/devices has no {drivers[0]}; is its module loaded?")
        else:
            nodes.append(DeviceFile(f"{dev}/{name}", Numbers(major, minor)))
    return WantedDeviceFiles(tuple(nodes), tuple(notes))


def every_node(
    majors: Mapping[str, int], gpu_minors: Iterable[int], cap_minors: Mapping[str, int], *, dev: str = DEV
) -> WantedDeviceFiles:
    """All nodes that the driver may have: control nodes, GPUs by their real minors, MIG capabilities."""
    control = control_nodes(majors, dev=dev)
    nodes, notes = list(control.nodes), list(control.notes)
    rows = (
        (_major(majors, _GPU_MAJORS), [(f"{dev}/nvidia{minor}", minor) for minor in sorted(set(gpu_minors))]),
        (
            _major(majors, _CAPS_MAJORS),
            [(f"{dev}/{CAPS_FOLDER}/nvidia-cap{minor}", minor) for minor in sorted(set(cap_minors.values()))],
        ),
    )
    for major, of_major in rows:
        if major is not None:
            nodes += [DeviceFile(path, Numbers(major, minor)) for path, minor in of_major]
        elif of_major:
            which = of_major[0][0] if len(of_major) == 1 else f"{of_major[0][0]} and {len(of_major) - 1} more"
            notes.append(f"left out, because its major is not in /proc/devices: {which}")
    return WantedDeviceFiles(tuple(nodes), tuple(notes))


def existing_nodes(files: DevFiles, *, dev: str = DEV) -> tuple[DeviceFile, ...]:
    """The driver's existing nodes, without those of nvidia-fs, NVSwitch and NVLink, which are not for containers."""
    paths = [f"{dev}/{name}" for name in files.names(dev) if _OURS.fullmatch(name)]
    paths += [f"{dev}/{CAPS_FOLDER}/{name}" for name in files.names(f"{dev}/{CAPS_FOLDER}") if _CAP.fullmatch(name)]
    found = ((path, files.device(path)) for path in paths)
    return tuple(DeviceFile(path, numbers) for path, numbers in found if numbers is not None)


def join_nodes(there: Iterable[DeviceFile], expected: Iterable[DeviceFile]) -> tuple[DeviceFile, ...]:
    """One node for each path; an existing one wins, as its numbers are facts."""
    by_path = {node.path: node for node in (*expected, *there)}
    return tuple(by_path.values())


def plan_links(files: DevFiles, nodes: Iterable[DeviceFile], *, dev_char: str = DEV_CHAR) -> tuple[DeviceFileStep, ...]:
    """The steps after which each node has its link, and no link has numbers that its node lacks."""
    listed = tuple(nodes)
    wanted = {str(node.numbers): node.path for node in listed}
    ours = {node.path for node in listed}
    names = set(files.names(dev_char))
    steps = [_link_step(files, dev_char, name, target, exists=name in names) for name, target in wanted.items()]
    for name in sorted(names - set(wanted)):
        match = _CHAR_NAME.fullmatch(name)
        path = f"{dev_char}/{name}"
        target = _follow(path, files.link(path)) if match else ""
        now = files.device(target) if match and target in ours else None
        if match and now is not None and now != Numbers(int(match[1]), int(match[2])):
            steps.append(DeviceFileStep(action=DeviceFileAction.REMOVE, path=path, why=f"stale: {target} is {now} now"))
    return tuple(steps)


def plan_nodes(files: DevFiles, nodes: Iterable[DeviceFile]) -> tuple[DeviceFileStep, ...]:
    """The steps after which each node exists with its numbers. A file that is not a device stays, with a SKIP step."""
    steps: list[DeviceFileStep] = []
    for node in nodes:
        now = files.device(node.path)
        if now == node.numbers:
            action, why = DeviceFileAction.KEEP, ""
        elif now is not None:
            action, why = DeviceFileAction.REPLACE, f"stale: it was {now}"
        elif files.there(node.path):
            action, why = DeviceFileAction.SKIP, "there is something that is no character device"
        else:
            action, why = DeviceFileAction.CREATE, ""
        steps.append(DeviceFileStep(action=action, path=node.path, numbers=node.numbers, why=why))
    return tuple(steps)


def apply(files: DevFiles, steps: Iterable[DeviceFileStep]) -> None:
    """Apply the steps in order. Raises OSError from the first one that fails."""
    for step in steps:
        if not step.changes:
            continue
        if step.action is DeviceFileAction.REMOVE:
            files.remove(step.path)
        elif step.numbers is not None:
            files.put_node(step.path, step.numbers)
        else:
            files.put_link(step.path, step.target)


def _link_step(files: DevFiles, dev_char: str, name: str, target: str, *, exists: bool) -> DeviceFileStep:
    path = f"{dev_char}/{name}"
    text = files.link(path)
    if text is None:
        action, why = (
            (DeviceFileAction.SKIP, "there is something that is no link") if exists else (DeviceFileAction.CREATE, "")
        )
        return DeviceFileStep(action=action, path=path, target=target, why=why)
    current = _follow(path, text)
    now = files.device(current)
    if current == target:
        return DeviceFileStep(action=DeviceFileAction.KEEP, path=path, target=target)
    if now is not None and str(now) == name:
        return DeviceFileStep(
            action=DeviceFileAction.KEEP, path=path, target=target, why=f"it leads to the same device at {current}"
        )
    why = f"stale: it led to {current}, which is {now or 'not there'}"
    return DeviceFileStep(action=DeviceFileAction.REPLACE, path=path, target=target, why=why)


def _follow(path: str, text: str | None) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), text)) if text else ""


def _major(majors: Mapping[str, int], drivers: Iterable[str]) -> int | None:
    return next((majors[driver] for driver in drivers if driver in majors), None)


def _number(digits: str) -> int | None:
    number = int(digits)
    return number if number <= MAX_NUMBER else None
