"""What the admin allows the engine in the chart's values: the budget that all operations share, the automatic
remediation of unhealthy GPUs, and how GPUs are emptied before they are cut into other MIG slices.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from kgpu.base.errors import ConfigError
from kgpu.base.plain import mapping
from kgpu.base.suggest import did_you_mean
from kgpu.base.typed import convert
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import MIG_DRAIN_SECONDS, MigDrain, OnTimeout, OperationDrain
from kgpu.operations.windows import RepairWindow, read_windows

MAX_NODES: Final = 100_000
_KEYS: Final = (
    "maxParallel", "maxUnavailable", "groups", "maxPerHour", "windows", "remediation", "mig", "hostPaths", "allowForce",
)  # fmt: skip
MAX_GROUPS: Final = 16
MAX_PATH: Final = 4096
_PERCENT: Final = re.compile(r"(?P<share>[0-9]{1,3})%")
_LABEL: Final = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Share:
    """A number of nodes, or a percentage of them."""

    count: int = 0
    percent: int | None = None

    def of(self, total: int) -> int:
        """The number of nodes out of ``total``: a percentage is rounded down, but to at least 1 unless it is 0 %."""
        if self.percent is None:
            return self.count
        return max(1, total * self.percent // 100) if self.percent and total else 0

    @property
    def is_zero(self) -> bool:
        """True if it never allows a node."""
        return not (self.count if self.percent is None else self.percent)

    def __str__(self) -> str:
        return str(self.count) if self.percent is None else f"{self.percent}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCap:
    """At most ``max_unavailable`` nodes that share a value of this label may be down at a time."""

    label: str
    max_unavailable: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationBudget:
    """How many nodes may be worked on at a time. ``max_unavailable`` counts nodes that are down for whatever reason."""

    max_parallel: int = 1
    max_unavailable: Share = Share(percent=25)
    groups: tuple[GroupCap, ...] = ()
    max_per_hour: int | None = None
    """How many operations may begin within an hour, None for any number."""
    allow_force: bool = False
    """Whether operations may delete pods past disruption budgets."""
    windows: tuple[RepairWindow, ...] = ()
    """When remediation may begin what it has made; without any, always."""


class Strongest(enum.StrEnum):
    """The strongest remedy that may be applied without a person."""

    OFF = "Off"
    SUGGEST = "Suggest"
    RESET = "Reset"
    REBOOT = "Reboot"
    REPLACE = "Replace"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationPolicy:
    """``attempts`` is how many reboots of a node are allowed in a day; ``drain`` is how it is emptied."""

    strongest: Strongest = Strongest.SUGGEST
    attempts: int = 2
    drain: OperationDrain = field(default_factory=OperationDrain)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPolicy:
    """Who goes before GPUs are cut into other MIG slices, and how pods are asked to go."""

    drain: MigDrain = MigDrain.GPU
    eviction: OperationDrain = field(default_factory=lambda: OperationDrain(timeout_seconds=MIG_DRAIN_SECONDS))


def read_budget(settings: Mapping[str, Any], where: str = "operations") -> OperationBudget:
    """Read the budget from the chart's values; a missing key has its default. Raises ConfigError."""
    _known(settings, _KEYS, where)
    usual = OperationBudget()
    parallel, unavailable = settings.get("maxParallel"), settings.get("maxUnavailable")
    groups, per_hour = settings.get("groups") or (), settings.get("maxPerHour")
    if not isinstance(groups, (list, tuple)) or len(groups) > MAX_GROUPS:
        raise ConfigError(
            f"{where}.groups is not a list of at most {MAX_GROUPS}", "[{label: rack, maxUnavailable: 1}]", "correct it"
        )
    return OperationBudget(
        max_parallel=_count(usual.max_parallel if parallel is None else parallel, f"{where}.maxParallel"),
        max_unavailable=read_share(
            str(usual.max_unavailable) if unavailable is None else unavailable, f"{where}.maxUnavailable"
        ),
        groups=tuple(_group(group, f"{where}.groups[{place}]") for place, group in enumerate(groups)),
        max_per_hour=None if per_hour is None else _count(per_hour, f"{where}.maxPerHour"),
        windows=read_windows(settings.get("windows"), f"{where}.windows"),
        allow_force=_switch(settings.get("allowForce"), f"{where}.allowForce"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverPaths:
    """The chart's hostPaths: the root of the hosts, and there a driver container's root."""

    root_fs: str = "/"
    driver_install_dir: str = names.DRIVER_INSTALL_DIR


def read_host_paths(settings: Mapping[str, Any], where: str = "hostPaths") -> DriverPaths:
    """Read them from the chart's values. Raises ConfigError."""
    rows = settings.get("hostPaths") or {}
    usual = DriverPaths()
    given = mapping(rows)
    paths = (given.get("rootFS") or usual.root_fs, given.get("driverInstallDir") or usual.driver_install_dir)
    for path in paths:
        if not isinstance(path, str) or not path.startswith("/") or len(path) > MAX_PATH:
            raise ConfigError(f"{where} has {str(path)[:60]!r}", "absolute paths", "correct it")
    return DriverPaths(root_fs=paths[0], driver_install_dir=paths[1])


def read_remediation(
    settings: Mapping[str, Any] | None, where: str = "operations.remediation", *, allow_force: bool = False
) -> RemediationPolicy:
    """Read what may be done about unhealthy GPUs. Raises ConfigError."""
    settings = settings or {}
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{where} is {str(settings)[:60]!r}", "a mapping such as {policy: Suggest}", "correct it")
    _known(settings, ("policy", "attempts", "drain"), where)
    usual = RemediationPolicy()
    attempts = settings.get("attempts")
    return RemediationPolicy(
        strongest=_strongest(settings.get("policy"), f"{where}.policy"),
        attempts=usual.attempts if attempts is None else _count(attempts, f"{where}.attempts"),
        drain=_drain(settings.get("drain") or {}, f"{where}.drain", allow_force=allow_force),
    )


def read_mig(
    settings: Mapping[str, Any] | None, where: str = "operations.mig", *, allow_force: bool = False
) -> MigPolicy:
    """Read how GPUs are emptied before they are cut. Raises ConfigError."""
    settings = settings or {}
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{where} is {str(settings)[:60]!r}", "a mapping such as {drain: gpu}", "correct it")
    _known(settings, ("drain", "eviction"), where)
    word, eviction = settings.get("drain"), settings.get("eviction") or {}
    word = str(MigDrain.GPU) if word is None else word
    if not isinstance(word, str) or word not in list(MigDrain):
        hint = did_you_mean(str(word)[:40], list(MigDrain))
        raise ConfigError(
            f"{where}.drain is {str(word)[:40]!r}", f"one of: {', '.join(MigDrain)}", hint or "correct it"
        )
    if isinstance(eviction, Mapping):
        if "waitFor" in eviction:
            raise ConfigError(
                f"{where}.eviction has waitFor", "the other fields of a NodeOperation's spec.drain",
                "remove it; with drain: none the pods that hold the GPUs are waited for",
            )  # fmt: skip
        eviction = {"timeoutSeconds": MIG_DRAIN_SECONDS, **eviction}
    drain = _drain(eviction, f"{where}.eviction", allow_force=allow_force)
    return MigPolicy(drain=MigDrain(word), eviction=drain)


def _switch(value: Any, where: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"{where} is {str(value)[:60]!r}", "true or false", "correct it")
    return value is True


def _strongest(value: Any, where: str) -> Strongest:
    if value is None:
        return RemediationPolicy().strongest
    word = "Off" if value is False else value  # YAML's off
    if not isinstance(word, str) or word not in list(Strongest):
        hint = did_you_mean(str(word)[:40], list(Strongest))
        raise ConfigError(f"{where} is {str(word)[:40]!r}", f"one of: {', '.join(Strongest)}", hint or "correct it")
    return Strongest(word)


def _drain(value: Any, where: str, *, allow_force: bool) -> OperationDrain:
    if isinstance(value, Mapping):
        _known(value, tuple(row.encode_name for row in msgspec.structs.fields(OperationDrain)), where)
    try:
        drain = convert(value, OperationDrain)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}", "the fields of a NodeOperation's spec.drain", "correct it") from error
    if OnTimeout(drain.on_timeout) is OnTimeout.FORCE and not allow_force:
        raise ConfigError(
            f"{where}.onTimeout is Force, and operations.allowForce is false",
            "Force only where the admin allows it",
            "set operations.allowForce=true, or onTimeout: Fail",
        )
    return drain


def read_share(value: Any, where: str) -> Share:
    """Read a number such as 2, or a percentage such as 25%. Raises ConfigError."""
    hit = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if hit is not None and int(hit["share"]) <= 100:
        return Share(percent=int(hit["share"]))
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NODES:
        raise ConfigError(
            f"{where} is {str(value)[:60]!r}", "a number of nodes such as 2, or a share such as 25%", "correct it"
        )
    return Share(value)


def _group(value: Any, where: str) -> GroupCap:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where} is {str(value)[:60]!r}", "a mapping such as {label: rack, maxUnavailable: 1}", "correct it"
        )
    _known(value, ("label", "maxUnavailable"), where)
    label = value.get("label")
    if not isinstance(label, str) or not _LABEL.fullmatch(label):
        raise ConfigError(f"{where}.label is {str(label)[:60]!r}", "a label of nodes", "correct it")
    return GroupCap(label=label, max_unavailable=_count(value.get("maxUnavailable", 1), f"{where}.maxUnavailable"))


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NODES:
        raise ConfigError(f"{where} is {str(value)[:60]!r}", f"a number from 0 to {MAX_NODES}", "correct it")
    return value


def _known(settings: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in settings:
        if key not in keys:
            hint = did_you_mean(str(key)[:80], keys)
            raise ConfigError(
                f'{where}: there is no key "{str(key)[:80]}"', f"one of: {', '.join(keys)}", hint or "remove it"
            )
