"""The ways to sort GPUs, as rows; the letters are nvitop's where it has the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.top.history import activity
from kgpu.top.model import GpuHealth
from kgpu.top.rows import GpuRow


@lru_cache(maxsize=8192)
def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts ``node-9`` before ``node-10``."""
    parts = re.split(r"([0-9]+)", text[:300])
    return tuple((1, int(part), "") if part.isascii() and part.isdigit() else (0, 0, part) for part in parts)


def value(row: GpuRow, name: str) -> float:
    """For sorting: what is not known comes last."""
    return row.gpu.values.get(name, -1.0)


BADNESS: Final = {
    GpuHealth.LOST: 4.0,
    GpuHealth.BAD: 3.0,
    GpuHealth.WARN: 2.0,
    GpuHealth.UNKNOWN: 1.0,
    GpuHealth.OK: 0.0,
}


@dataclass(frozen=True, slots=True)
class Sort:
    """A way to sort GPUs. ``letter`` follows ``o``; ``largest``: the largest first."""

    letter: str
    name: str
    help: str
    key: Callable[[GpuRow], object]
    largest: bool = True


def _active(row: GpuRow) -> float:
    busy = activity(row.gpu)
    return -1.0 if busy is None else busy


def _names(row: GpuRow) -> object:
    return (not row.gpu.everybody, sorted(user.name for user in row.gpu.everybody))


SORTS: Final[Mapping[str, Sort]] = {
    one.name: one
    for one in (
        Sort("n", "natural", "node and number", lambda row: (natural(row.node.name), row.gpu.index), largest=False),
        Sort("u", "user", "namespace and pod", _names, largest=False),
        Sort("s", "utilization", "how busy", _active),
        Sort("g", "memory", "memory in use", lambda row: value(row, "memory_used_mib")),
        Sort("w", "power", "power (watts)", lambda row: value(row, "power_w")),
        Sort("e", "temperature", "temperature", lambda row: value(row, "temperature_c")),
        Sort("t", "idle", "time without work", lambda row: row.idle.seconds if row.idle else -1.0),
        Sort("h", "health", "health, the worst first", lambda row: BADNESS[row.gpu.health]),
    )
}


def check_sort(name: str) -> str:
    """The sort of that name or beginning. Raises ConfigError."""
    matches = [known for known in SORTS if known.startswith(name)]
    if name and (name in SORTS or len(matches) == 1):
        return name if name in SORTS else matches[0]
    hint = did_you_mean(name, SORTS)
    raise ConfigError(
        f'GPUs can\'t be sorted by "{name}"' + (f"; {hint}" if hint else ""), f"one of: {', '.join(SORTS)}",
        "correct --sort",
    )  # fmt: skip
