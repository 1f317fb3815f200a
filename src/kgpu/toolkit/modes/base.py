"""What a mode is: a name, the kind of its specs, and a function that looks at a node; and looks that modes share."""

from __future__ import annotations

import enum
import fnmatch
import os
import posixpath
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kgpu.base.errors import ConfigError
from kgpu.formats.cdi import CdiDeviceNode, ContainerEdits, kind_of
from kgpu.formats.names import ENV_VISIBLE_DEVICES, NVIDIA_DOMAIN
from kgpu.host.root import DriverRoot
from kgpu.toolkit.config import ALL, GenerateConfig
from kgpu.toolkit.model import ModeFinding, ModeInput

VOID = f"{ENV_VISIBLE_DEVICES}=void"
"""In every spec: a runtime that also reads this variable shall not add devices a second time."""


class Hardware(enum.Enum):
    """Whether a mode reads the GPUs through NVML."""

    NEVER = enum.auto()
    IF_THERE = enum.auto()
    ALWAYS = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One row of the table of modes; ``vendor`` and ``device_class`` are its kind unless the user gives another."""

    name: str
    help: str
    find: Callable[[ModeInput], ModeFinding]
    vendor: str = NVIDIA_DOMAIN
    device_class: str = "gpu"
    hardware: Hardware = Hardware.NEVER

    def kind(self, config: GenerateConfig) -> str:
        """The kind of this mode's specs under a configuration. Raises ConfigError for what is no CDI name."""
        return config.kind or kind_of(config.vendor or self.vendor, config.device_class or self.device_class)


def matching(root: DriverRoot, patterns: Iterable[str], excluded: Iterable[str] = ()) -> tuple[str, ...]:
    """The device nodes whose paths match a pattern of their folder's names (``/dev/nvidia*``); folders don't count."""
    without = tuple(excluded)
    paths: dict[str, None] = {}
    for pattern in patterns:
        folder, name_pattern = posixpath.split(pattern)
        for name in root.dev.names(folder):
            path = f"{folder}/{name}"
            if not fnmatch.fnmatchcase(name, name_pattern) or any(
                fnmatch.fnmatchcase(path, exclusion) for exclusion in without
            ):
                continue
            if root.has_node(path) and not root.dev.local(path).is_dir():
                paths[path] = None
    return tuple(paths)


def gid_of(look: ModeInput) -> Callable[[str], int | None]:
    """Which group a process must be in to open a node: its own group where not everybody may read and write it.

    Always None when the engines don't read ``additionalGids``, and for a node of root's group.
    """
    if not look.gids:
        return lambda _path: None

    def gid(path: str) -> int | None:
        try:
            status = os.stat(look.root.dev.local(path))
        except OSError:
            return None
        everybody = status.st_mode & 0o006 == 0o006
        return status.st_gid if stat.S_ISCHR(status.st_mode) and status.st_gid and not everybody else None

    return gid


def gids(look: ModeInput, nodes: Iterable[CdiDeviceNode]) -> tuple[int, ...]:
    """The groups for all of these nodes, each once."""
    of = gid_of(look)
    return tuple(dict.fromkeys(gid for node in nodes if (gid := of(node.path)) is not None))


def void_only() -> ContainerEdits:
    """The common edits of modes that bring nothing but nodes."""
    return ContainerEdits(env=(VOID,))


def check_only_all(look: ModeInput, mode: str) -> None:
    """Raises ConfigError when one of several devices is asked for in a mode that has one."""
    others = [wanted for wanted in look.config.device_ids if wanted != ALL]
    if others:
        raise ConfigError(
            f'mode {mode} has no device "{others[0]}"',
            f'its one device, "{ALL}"',
            "leave --device-id out, or choose another --mode",
        )
