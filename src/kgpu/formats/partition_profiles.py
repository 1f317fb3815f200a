"""AMD's partition profiles: the file ``config.json`` of its device config manager, and the modes that it names.

A profile says by which compute and memory mode a node's GPUs are parted, and how many of them by which; GPUs get their
rows in the order of their indexes. What can be told without the GPUs is told here, with path and line: modes that there
are not, two memory modes in one profile, compute modes mixed under any memory mode but NPS1. The replaced program takes
an unknown mode for SPX and NPS1.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.partition_mode import COMPUTE, MEMORY, PartitionMode
from kgpu.formats.strict import Problems, Table, choice, raw, read_table, some_of, whole
from kgpu.formats.yaml import Path, load_document

DEFAULT_GPUS: Final = 8
MAX_GPUS: Final = 1024
MAX_SERVICES: Final = 64
_UNIT: Final = re.compile(r"[A-Za-z0-9:_.@-]{1,200}", re.ASCII)
_PROFILES: Final = (
    'profiles with "profiles": [{"computePartition": "CPX", "memoryPartition": "NPS4", "numGPUsAssigned": 8}]'
)


@dataclass(frozen=True, slots=True)
class AssignedMode:
    """A mode, and how many GPUs have it."""

    mode: PartitionMode
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProfile:
    """A profile. ``skipped`` are the indexes of GPUs that stay as they are."""

    rows: tuple[AssignedMode, ...]
    skipped: tuple[int, ...] = ()

    @property
    def gpus(self) -> int:
        """How many GPUs a node has that it is for."""
        return len(self.skipped) + sum(row.gpus for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProfiles:
    """A file's profiles by name. ``services`` are those of the host that use GPUs, as units of systemd."""

    profiles: Mapping[str, PartitionProfile]
    services: tuple[str, ...] = ()

    def chosen(self, name: str) -> PartitionProfile:
        """A profile by its name. Raises ConfigError."""
        profile = self.profiles.get(name)
        if profile is None:
            raise ConfigError(
                f'there is no partition profile "{name:.100}"', f"one of {some_of(self.profiles)}",
                did_you_mean(name, self.profiles) or "take one of these, or add it to config.json",
            )  # fmt: skip
        return profile


def default_profiles(gpus: int = DEFAULT_GPUS) -> dict[str, Any]:
    """The content of a ``config.json`` with the replaced operator's profiles, for nodes with so many GPUs."""
    half = gpus // 2
    every = {
        "default": [("SPX", "NPS1", gpus)],
        "cpx_nps1_all": [("CPX", "NPS1", gpus)],
        "cpx_nps4_all": [("CPX", "NPS4", gpus)],
        "dpx_nps2_all": [("DPX", "NPS2", gpus)],
        "qpx_nps1_all": [("QPX", "NPS1", gpus)],
        "heterogeneous_example": [("CPX", "NPS1", half), ("SPX", "NPS1", gpus - half)],
    }
    return {
        "gpu-config-profiles": {
            name: {
                "skippedGPUs": {"ids": []},
                "profiles": [
                    {"computePartition": compute, "memoryPartition": memory, "numGPUsAssigned": count}
                    for compute, memory, count in rows if count
                ],
            }
            for name, rows in every.items()
        },
    }  # fmt: skip


@functools.cache
def defaults(gpus: int) -> Mapping[str, PartitionProfile]:
    """The replaced operator's profiles, for nodes with so many GPUs."""
    return parse_profiles(json.dumps(default_profiles(gpus))).profiles


def fitted(given: PartitionProfiles, gpus: int) -> PartitionProfiles:
    """The same with those profiles that are the replaced operator's own made for nodes with so many GPUs: its file is
    for nodes with eight.
    """
    usual, wanted = defaults(DEFAULT_GPUS), defaults(gpus)
    profiles = {
        name: wanted.get(name, profile) if profile == usual.get(name) else profile
        for name, profile in given.profiles.items()
    }
    return PartitionProfiles(profiles=profiles, services=given.services)


def parse_profiles(content: str, *, source: str = "config.json") -> PartitionProfiles:
    """The profiles of a file. Raises ConfigError for the first problem, with the next few."""
    document = load_document(content.replace("\t", " "), source=source)
    problems = Problems(source, document, _TOP)
    tree = read_table(problems, (), document.value, _TOP, exact=True)
    profiles = tree.get("gpu-config-profiles")
    if not profiles and not problems.found:
        problems.add((), "there are no gpu-config-profiles", _PROFILES, "add profiles")
    problems.raise_found()
    return PartitionProfiles(
        profiles=profiles or {}, services=tree.get("gpuClientSystemdServices", {}).get("names", ())
    )


def _profiles(problems: Problems, path: Path, value: Any) -> dict[str, PartitionProfile] | None:
    if not isinstance(value, dict):
        problems.add(path, f"{raw(value)} is no mapping", _PROFILES)
        return None
    read = {name: _profile(problems, (*path, name), given) for name, given in value.items()}
    return {str(name): profile for name, profile in read.items() if profile is not None}


def _profile(problems: Problems, path: Path, value: Any) -> PartitionProfile | None:
    before = len(problems.found)
    tree = read_table(problems, path, value, _PROFILE, exact=True)
    rows: tuple[AssignedMode, ...] = tree.get("profiles", ())
    if len(problems.found) == before and not rows:
        problems.add(path, "missing required field: profiles", "a list of modes with numGPUsAssigned", "add profiles")
    _check_together(problems, (*path, "profiles"), [row.mode for row in rows])
    if len(problems.found) > before:
        return None
    return PartitionProfile(rows=rows, skipped=tree.get("skippedGPUs", {}).get("ids", ()))


def _check_together(problems: Problems, path: Path, modes: list[PartitionMode]) -> None:
    memory = list(dict.fromkeys(mode.memory for mode in modes))
    compute = list(dict.fromkeys(mode.compute for mode in modes))
    if len(memory) > 1:
        problems.add(
            path, f"{' and '.join(memory)} in one profile", "one memoryPartition for all GPUs of a node",
            "give all rows the same memoryPartition",
        )  # fmt: skip
    elif len(compute) > 1 and memory != ["NPS1"]:
        problems.add(
            path, f"{' and '.join(compute)} with {memory[0]}", "one computePartition, or NPS1 for several of them",
            "give all rows the same computePartition, or memoryPartition NPS1",
        )  # fmt: skip


def _rows(problems: Problems, path: Path, value: Any) -> tuple[AssignedMode, ...] | None:
    if not isinstance(value, list) or len(value) > MAX_GPUS:
        problems.add(path, f"{raw(value)} is no list of modes", "a list of modes with numGPUsAssigned")
        return None
    read = [_row(problems, (*path, number), item) for number, item in enumerate(value)]
    return tuple(row for row in read if row is not None)


def _row(problems: Problems, path: Path, value: Any) -> AssignedMode | None:
    before = len(problems.found)
    tree = read_table(problems, path, value, _ROW, exact=True)
    missing = [name for name in _ROW if name not in tree]
    if len(problems.found) > before:
        return None
    if missing:
        problems.add(path, f"missing required field: {missing[0]}", f"{', '.join(_ROW)} in each row")
        return None
    mode = PartitionMode(tree["computePartition"], tree["memoryPartition"])
    if MEMORY[mode.memory] > COMPUTE[mode.compute]:
        problems.add(
            path, f"{mode.compute} with {mode.memory}", "at least as many compute partitions as memory partitions",
            "take another memoryPartition, such as NPS1",
        )  # fmt: skip
        return None
    return AssignedMode(mode, tree["numGPUsAssigned"])


def _count(problems: Problems, path: Path, value: Any) -> int | None:
    number = whole(value)
    if number is None or not 0 <= number <= MAX_GPUS:
        problems.add(path, f"{raw(value)} is no number of GPUs", f"a number from 0 to {MAX_GPUS}")
        return None
    return number


def _indexes(problems: Problems, path: Path, value: Any) -> tuple[int, ...] | None:
    numbers = [whole(item) for item in value] if isinstance(value, list) else [None]
    found = [number for number in numbers if number is not None and 0 <= number < MAX_GPUS]
    if len(found) < len(numbers) or len(set(found)) < len(found):
        problems.add(path, f"{raw(value)} names no GPUs", "a list of indexes such as [0, 1], each once")
        return None
    return tuple(found)


def _services(problems: Problems, path: Path, value: Any) -> tuple[str, ...] | None:
    given = value if isinstance(value, list) and len(value) <= MAX_SERVICES else [None]
    listed = [name for name in given if isinstance(name, str) and _UNIT.fullmatch(name) and name[0] != "-"]
    if len(listed) < len(given):
        problems.add(path, f"{raw(value)} names no services", 'a list of services such as ["amd-metrics-exporter"]')
        return None
    return tuple(dict.fromkeys(name if name.endswith(".service") else f"{name}.service" for name in listed))


_ROW: Final[Table] = {
    "computePartition": choice("there is no compute partition mode ", *COMPUTE),
    "memoryPartition": choice("there is no memory partition mode ", *MEMORY),
    "numGPUsAssigned": _count,
}
_PROFILE: Final[Table] = {"skippedGPUs": {"ids": _indexes}, "profiles": _rows}
_TOP: Final[Table] = {"gpu-config-profiles": _profiles, "gpuClientSystemdServices": {"names": _services}}
