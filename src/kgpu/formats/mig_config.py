"""Reads mig-parted's config file v1: named configs, each a list of entries that say how GPUs are cut into MIG slices.

The replaced program takes a filter that no GPU can match without a word; here it is told. Every problem has path and
line, and the error texts that its users know stay inside the messages. Whether a GPU has a profile is decided where the
hardware is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import ConfigError, PlacedError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.mig_profile import MigProfile, parse_mig_profile
from kgpu.formats.pci_ids import PciFilter, parse_pci_filter
from kgpu.formats.strict import FileKeyError, Problems, Table, boolean, raw, read_table, some_of, whole
from kgpu.formats.yaml import Path, load_document

VERSION: Final = "v1"
ALL: Final = "all"
MAX_GPUS: Final = 1024
MAX_COUNT: Final = 64
"""More slices of one profile than any GPU has instances."""
_PROFILES: Final = 'profiles with counts, such as {"1g.10gb": 7}; {} for MIG without slices'


@dataclass(frozen=True, slots=True, kw_only=True)
class MigEntry:
    """How some GPUs are to be: ``devices`` are the driver's indexes, None for all; ``filters`` further limit them by
    model, any of which is enough. ``profiles`` are the slices of each GPU with their counts, which may be 0.
    """

    enabled: bool
    devices: tuple[int, ...] | None = None
    filters: tuple[PciFilter, ...] = ()
    profiles: tuple[tuple[MigProfile, int], ...] = ()

    def is_about(self, index: int, device: int, subsystem: int) -> bool:
        """Whether the entry concerns the GPU; ``device`` and ``subsystem`` are packed PCI ids (``0x20B210DE``)."""
        listed = self.devices is None or index in self.devices
        return listed and (not self.filters or any(one.matches(device, subsystem) for one in self.filters))


@dataclass(frozen=True, slots=True, kw_only=True)
class MigConfigs:
    """A file's configs by name, in its order. ``warnings`` are about what is taken and has no effect."""

    configs: Mapping[str, tuple[MigEntry, ...]]
    warnings: tuple[str, ...] = ()

    def chosen(self, name: str = "") -> tuple[str, tuple[MigEntry, ...]]:
        """A config by its name; without one the only config. Raises ConfigError."""
        if not name:
            if len(self.configs) != 1:
                raise ConfigError(
                    "missing required flag 'selected-config' when more than one config available",
                    f"one of {some_of(self.configs)}",
                    "name one",
                )
            return next(iter(self.configs.items()))
        entries = self.configs.get(name)
        if entries is None:
            raise ConfigError(
                f"selected mig-config not present: {name:.100}",
                f"one of {some_of(self.configs)}",
                did_you_mean(name, self.configs) or "take one of these, or add it to the file",
            )
        return name, entries


def parse_mig_configs(content: str | bytes, *, source: str = "MIG config file") -> MigConfigs:
    """The file's configs; none for an empty file. Raises ConfigError for the first problem, with the next few."""
    try:
        document = load_document(content, source=source)
    except ConfigError as problem:
        said = f"{problem.place}: {problem.said}" if isinstance(problem, PlacedError) else problem.what
        raise ConfigError(f"unable to parse config file: {said}", problem.expected, problem.remedy) from problem
    if document.value is None or document.value == {}:
        return MigConfigs(configs={})
    problems = Problems(source, document, _TOP)
    tree = read_table(problems, (), document.value, _TOP, exact=True)
    if isinstance(document.value, dict) and document.value.get("version") is None:
        problems.found.insert(0, _without_version(source))
    problems.raise_found()
    configs = tree.get("mig-configs", {})
    return MigConfigs(configs=configs, warnings=tuple(_without_effect(configs, source)))


def _without_effect(configs: Mapping[str, tuple[MigEntry, ...]], source: str) -> Iterator[str]:
    for name, entries in configs.items():
        filters = dict.fromkeys(one for entry in entries for one in entry.filters if one.device is None)
        for one in filters:
            yield (
                f'{source}: config "{name:.60}": device-filter "{one.text:.60}" matches no GPU: it is no packed PCI id '
                "such as 0x20B210DE"
            )


def _without_version(source: str) -> FileKeyError:
    return FileKeyError(
        source, "unable to parse with missing 'version' field", f"version: {VERSION}", "add it at the top",
        line=1, place="", is_unknown=False,
    )  # fmt: skip


def _version(problems: Problems, path: Path, value: Any) -> str | None:
    if value != VERSION:
        problems.add(path, f"unknown version: {raw(value)}", VERSION)
        return None
    return VERSION


def _configs(problems: Problems, path: Path, value: Any) -> dict[str, tuple[MigEntry, ...]]:
    if not isinstance(value, dict) or not value:
        problems.add(path, f"{raw(value)} has no configs", "names of configs, each with a list of entries")
        return {}
    return {name: _entries(problems, (*path, name), listed) for name, listed in value.items()}


def _entries(problems: Problems, path: Path, value: Any) -> tuple[MigEntry, ...]:
    if not isinstance(value, list) or not value:
        problems.add(path, f"{raw(value)} has no entries", "a list of entries with devices and mig-enabled")
        return ()
    read = [_entry(problems, (*path, number), item) for number, item in enumerate(value)]
    return tuple(entry for entry in read if entry is not None)


def _entry(problems: Problems, path: Path, value: Any) -> MigEntry | None:
    before = len(problems.found)
    tree = read_table(problems, path, value, _ENTRY, exact=True)
    given = value if isinstance(value, dict) else {}
    for name in ("devices", "mig-enabled"):
        if given.get(name) is None:
            problems.add(path, f"missing required field: {name}", f"{name} in each entry", f"add {name}")
    if tree.get("mig-enabled") is True and "mig-devices" not in tree and given.get("mig-devices") is None:
        problems.add(path, "missing required field: mig-devices", _PROFILES, "add mig-devices, or mig-enabled: false")
    if tree.get("mig-enabled") is False and tree.get("mig-devices"):
        problems.add(
            (*path, "mig-devices"), "mig-devices with MIG off", "no slices where mig-enabled is false",
            "remove mig-devices, or set mig-enabled: true",
        )  # fmt: skip
    if len(problems.found) > before:
        return None
    devices = tree["devices"]
    return MigEntry(
        enabled=tree["mig-enabled"],
        devices=None if devices == ALL else devices,
        filters=tree.get("device-filter", ()),
        profiles=tree.get("mig-devices", ()),
    )


def _devices(problems: Problems, path: Path, value: Any) -> str | tuple[int, ...] | None:
    if value == ALL:
        return ALL
    if isinstance(value, list):
        indexes = [whole(item) for item in value]
        if all(index is not None and 0 <= index < MAX_GPUS for index in indexes):
            return tuple(dict.fromkeys(index for index in indexes if index is not None))
    problems.add(path, f"{raw(value)} names no GPUs", f'"{ALL}", or a list of indexes such as [0, 1]')
    return None


def _filter(problems: Problems, path: Path, value: Any) -> tuple[PciFilter, ...] | None:
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in listed):
        problems.add(path, f"{raw(value)} is no filter", 'a packed PCI id as text, such as "0x20B210DE", or a list')
        return None
    return tuple(parse_pci_filter(item) for item in listed if item)


def _profiles(problems: Problems, path: Path, value: Any) -> tuple[tuple[MigProfile, int], ...] | None:
    if not isinstance(value, dict):
        problems.add(path, f"{raw(value)} is no mapping", _PROFILES)
        return None
    before = len(problems.found)
    counted: dict[MigProfile, int] = {}
    for name, count in value.items():
        number = whole(count)
        if number is None or not 0 <= number <= MAX_COUNT:
            problems.add((*path, name), f"{raw(count)} is no count", f"a number from 0 to {MAX_COUNT}")
            continue
        try:
            profile = parse_mig_profile(name)
        except ConfigError as problem:
            problems.add((*path, name), problem.what, problem.expected, problem.remedy)
            continue
        counted[profile] = counted.get(profile, 0) + number
    if value and not any(counted.values()) and len(problems.found) == before:
        problems.add(path, "all counts are 0", _PROFILES, "use {} for MIG without slices")
        return None
    return tuple(counted.items())


_ENTRY: Final[Table] = {
    "device-filter": _filter,
    "devices": _devices,
    "mig-enabled": boolean,
    "mig-devices": _profiles,
}
_TOP: Final[Table] = {"version": _version, "mig-configs": _configs}
