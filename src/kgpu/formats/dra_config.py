"""What claims and device classes ask of devices that they get: the opaque parameters of each DRA driver.

NVIDIA's ``GpuConfig`` and ``MigDeviceConfig`` say how the containers of a claim share its devices; AMD's ``GpuConfig``
says nothing, and Gaudi's driver takes none. Which fields there are and what they may hold is in ``dra_parameters``.
Parameters from users are read strictly; stored ones may have keys of another version. Limits for devices that a claim
does not have are found only here, once it has devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.base.quantity import Quantity, QuantityError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.dra_parameters import (
    DRIVER_PARAMETERS,
    GPU,
    INTERVALS,
    MIB,
    MPS,
    STRATEGY,
    ByDevice,
    KnownWord,
    MemoryLimit,
    ParameterField,
    ParameterRule,
    ParameterTree,
    WholeNumber,
)
from kgpu.formats.names import DRA_GPU_DRIVER

_SHOWN: Final = 60  # characters of a foreign value in a message

Tree: TypeAlias = "Mapping[str, Any]"


@dataclass(frozen=True, slots=True)
class ClaimTimeSlicing:
    """Containers take turns; ``interval`` is an index of ``INTERVALS``, None on MIG slices, which have no setting."""

    interval: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimMps:
    """Containers share by an MPS control daemon. ``threads`` is a percentage, None for no limit; ``by_device`` has
    limits of memory by the device's UUID or its number in the claim, ``memory`` that of all others.
    """

    threads: int | None = None
    memory: Quantity | None = None
    by_device: Mapping[str, Quantity] = field(default_factory=dict)

    def limits(self, uuids: Sequence[str]) -> dict[str, int]:
        """Limits of pinned memory by device, in MiB, which is what MPS takes. Raises ConfigError."""
        limits: dict[str, Quantity] = dict.fromkeys(uuids, self.memory) if self.memory is not None else {}
        for device, limit in self.by_device.items():
            limits[_uuid_of(device, uuids)] = limit
        return {uuid: limit.value // MIB for uuid, limit in limits.items()}


@dataclass(frozen=True, slots=True)
class ClaimDeviceConfig:
    """Parameters for devices of one ``type``, "" for all; ``sharing`` None leaves all as it is."""

    type: str
    sharing: ClaimTimeSlicing | ClaimMps | None = None


def parse_parameters(
    parameters: Any, gates: Iterable[str], *, driver: str = DRA_GPU_DRIVER, stored: bool = False
) -> ClaimDeviceConfig:
    """Opaque parameters for a driver of kgpu; ``gates`` are the feature gates that are on. Raises ConfigError, whose
    ``what`` has the path.

    ``stored``: they were accepted before, by whichever version, so that gates and unknown keys do not matter.
    """
    known = DRIVER_PARAMETERS[driver]
    if not known.kinds:
        raise _wrong("", "the driver takes no parameters", "none", f"remove the entry for {driver}")
    if not isinstance(parameters, Mapping):
        raise _wrong("", f"{_shown(parameters)} is not an object", f"one with apiVersion {known.version} and a kind")
    version, named = parameters.get("apiVersion"), parameters.get("kind")
    if version != known.version:
        raise _wrong("apiVersion", f"unknown version {_shown(version)}", known.version)
    kind = known.kinds.get(named) if isinstance(named, str) else None
    if kind is None:
        why = known.elsewhere.get(named, "") if isinstance(named, str) else ""
        raise _wrong(
            "kind", f"unknown kind {_shown(named)}", " or ".join(known.kinds), why or _near(named, known.kinds)
        )
    checking = _Checking(None if stored else frozenset(gates))
    checking.names("", parameters, known.fields)
    sharing = parameters.get("sharing")
    if sharing is None or kind.sharing is None:
        return ClaimDeviceConfig(kind.type)
    checking.tree(kind.sharing, "sharing", sharing)
    read = _mps(sharing) if sharing[STRATEGY] == MPS else _time_slicing(kind.type, sharing)
    return ClaimDeviceConfig(kind.type, read)


@dataclass(frozen=True, slots=True)
class _Checking:
    """Holds values to their rows. ``gates`` None: what is stored."""

    gates: frozenset[str] | None

    def names(self, path: str, value: Tree, known: Sequence[str]) -> None:
        for key in value if self.gates is not None else ():
            if key not in known:
                what = f'unknown field "{one_line(str(key), _SHOWN)}"'
                raise _wrong(path, what, ", ".join(known), _near(key, known))

    def tree(self, rule: ParameterTree, path: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise _wrong(path, f"{_shown(value)} is not an object", rule.expected)
        self.names(path, value, rule.names)
        for row in rule.fields:
            self.field(row, f"{path}.{row.name}", value.get(row.name), value.get(STRATEGY))

    def field(self, row: ParameterField, path: str, value: Any, strategy: Any) -> None:
        if value is None and not row.required:
            return
        if row.strategy and strategy != row.strategy:
            raise _wrong(path, f"it has no effect with the strategy {_shown(strategy)}", "one kind of sharing")
        self.value(row.rule, path, value)

    def value(self, rule: ParameterRule, path: str, value: Any) -> None:
        match rule:
            case KnownWord():
                self.word(rule, path, value)
            case WholeNumber():
                if not isinstance(value, int) or isinstance(value, bool) or not rule.low <= value <= rule.high:
                    raise _wrong(path, f"{_shown(value)} {rule.wrong}", f"{rule.low} to {rule.high}")
            case MemoryLimit():
                _limit(rule, path, value)
            case ByDevice():
                if not isinstance(value, Mapping):
                    raise _wrong(path, f"{_shown(value)} is not an object", rule.expected)
                for device, limit in value.items():
                    _limit(rule.rule, f"{path}.{one_line(str(device), _SHOWN)}", limit)
            case ParameterTree():
                self.tree(rule, path, value)

    def word(self, rule: KnownWord, path: str, value: Any) -> None:
        if not isinstance(value, str) or value not in rule.words:
            expected = (" or " if len(rule.words) == 2 else ", ").join(rule.words)
            raise _wrong(path, f"{rule.wrong} {_shown(value)}", expected, _near(value, rule.words))
        gate = rule.gates.get(value)
        if gate is not None and self.gates is not None and gate not in self.gates:
            raise ConfigError(
                f"{path}: {value} is not enabled", f"the feature gate {gate}",
                f"have the administrator switch it on ({gate}=true), or remove the configuration",
            )  # fmt: skip


def _limit(rule: MemoryLimit, path: str, value: Any) -> None:
    try:
        amount = Quantity.parse(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    except QuantityError as error:
        raise _wrong(path, error.what, error.expected) from error
    if amount is None or amount < Quantity.of(rule.least):
        raise _wrong(path, f"{_shown(value)} {rule.wrong}", rule.expected)


def _time_slicing(device: str, sharing: Tree) -> ClaimTimeSlicing:
    if device != GPU:
        return ClaimTimeSlicing(None)
    interval = (sharing.get("timeSlicingConfig") or {}).get("interval")
    return ClaimTimeSlicing(0 if interval is None else INTERVALS.index(interval))


def _mps(sharing: Tree) -> ClaimMps:
    config = sharing.get("mpsConfig") or {}
    memory = config.get("defaultPinnedDeviceMemoryLimit")
    by_device = config.get("defaultPerDevicePinnedMemoryLimit") or {}
    return ClaimMps(
        threads=config.get("defaultActiveThreadPercentage"),
        memory=None if memory is None else Quantity.parse(memory),
        by_device={str(device): Quantity.parse(limit) for device, limit in by_device.items()},
    )


def _uuid_of(device: str, uuids: Sequence[str]) -> str:
    if device in uuids:
        return device
    if device.isascii() and device.isdecimal() and len(device) < 4 and int(device) < len(uuids):
        return uuids[int(device)]
    raise ConfigError(
        f'a limit of memory is for the device "{one_line(device, _SHOWN)}", which the claim does not have',
        f"a number from 0 to {len(uuids) - 1}, or one of {', '.join(uuids)}" if uuids else "no limit of memory",
        "correct defaultPerDevicePinnedMemoryLimit",
    )


def _near(word: Any, known: Iterable[str]) -> str:
    return did_you_mean(word, known) if isinstance(word, str) else ""


def _shown(value: Any) -> str:
    return "nothing" if value is None else one_line(str(value), _SHOWN) or '""'


def _wrong(path: str, what: str, expected: str, remedy: str = "") -> ConfigError:
    return ConfigError(f"{path}: {what}" if path else what, expected, remedy or f"correct {path or 'the parameters'}")
