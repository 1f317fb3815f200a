"""What claims and device classes ask of GPUs that they get: the opaque parameters ``resource.nvidia.com/v1beta1``.

``GpuConfig`` and ``MigDeviceConfig`` say how the containers of a claim share its devices. Names and bounds are those of
NVIDIA's DRA driver, but for a percentage of 0, with which no client could run. Parameters from users are read strictly;
stored ones may have keys of another version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.base.quantity import Quantity, QuantityError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.names import DRA_PARAMETERS

GPU: Final = "gpu"
MIG: Final = "mig"
TYPE_OF_KIND: Final = {"GpuConfig": GPU, "MigDeviceConfig": MIG}
"""The attribute ``type`` of the devices that a kind of parameters is for."""
INTERVALS: Final = ("Default", "Short", "Medium", "Long")
"""Lengths of a time slice; the position is what ``nvidia-smi compute-policy --set-timeslice`` takes."""
TIME_SLICING_GATE: Final = "TimeSlicingSettings"
MPS_GATE: Final = "MPSSupport"
_GATES: Final = {"TimeSlicing": TIME_SLICING_GATE, "MPS": MPS_GATE}
_MIB: Final = 1 << 20
_SHOWN: Final = 60  # characters of a foreign value in a message
_ELSEWHERE: Final = {
    "VfioDeviceConfig": "GPUs for virtual machines are out of kgpu's scope",
    "ComputeDomainChannelConfig": "it is for the driver compute-domain.nvidia.com",
    "ComputeDomainDaemonConfig": "it is for the driver compute-domain.nvidia.com",
}

T = TypeVar("T")
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
        return {uuid: limit.value // _MIB for uuid, limit in limits.items()}


@dataclass(frozen=True, slots=True)
class ClaimDeviceConfig:
    """Parameters for devices of one ``type``; ``sharing`` None leaves all as it is."""

    type: str
    sharing: ClaimTimeSlicing | ClaimMps | None = None


def parse_parameters(parameters: Any, gates: Iterable[str], *, stored: bool = False) -> ClaimDeviceConfig:
    """Opaque parameters; ``gates`` are the feature gates that are on. Raises ConfigError, whose ``what`` has the path.

    ``stored``: they were accepted before, by whichever version, so that gates and unknown keys do not matter.
    """
    if not isinstance(parameters, Mapping):
        raise _wrong("", f"{_shown(parameters)} is not an object", f"one with apiVersion {DRA_PARAMETERS} and a kind")
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if version != DRA_PARAMETERS:
        raise _wrong("apiVersion", f"unknown version {_shown(version)}", DRA_PARAMETERS)
    if not isinstance(kind, str) or kind not in TYPE_OF_KIND:
        why = _ELSEWHERE.get(kind, "") if isinstance(kind, str) else ""
        expected = " or ".join(TYPE_OF_KIND)
        raise _wrong("kind", f"unknown kind {_shown(kind)}", expected, why or _near(kind, TYPE_OF_KIND))
    reading = _Reading(None if stored else frozenset(gates))
    tree = reading.tree("", parameters, ("apiVersion", "kind", "sharing"))
    device = TYPE_OF_KIND[kind]
    sharing = tree.get("sharing")
    return ClaimDeviceConfig(device, None if sharing is None else reading.sharing(device, sharing))


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads one object. ``gates`` None: what is stored."""

    gates: frozenset[str] | None

    def tree(self, path: str, value: Any, keys: Sequence[str]) -> Tree:
        if not isinstance(value, Mapping):
            raise _wrong(path, f"{_shown(value)} is not an object", f"one with {', '.join(keys)}")
        for key in value if self.gates is not None else ():
            if key not in keys:
                raise _wrong(path, f'unknown field "{one_line(str(key), _SHOWN)}"', ", ".join(keys), _near(key, keys))
        return value

    def sharing(self, device: str, value: Any) -> ClaimTimeSlicing | ClaimMps:
        configs = ("timeSlicingConfig", "mpsConfig") if device == GPU else ("mpsConfig",)
        tree = self.tree("sharing", value, ("strategy", *configs))
        strategy = tree.get("strategy")
        if not isinstance(strategy, str) or strategy not in _GATES:
            raise _wrong("sharing.strategy", f"unknown strategy {_shown(strategy)}", " or ".join(_GATES))
        gate = _GATES[strategy]
        if self.gates is not None and gate not in self.gates:
            raise ConfigError(
                f"sharing.strategy: {strategy} is not enabled", f"the feature gate {gate}",
                f"have the administrator switch it on ({gate}=true), or remove the configuration",
            )  # fmt: skip
        other = "mpsConfig" if strategy == "TimeSlicing" else "timeSlicingConfig"
        if tree.get(other) is not None:
            raise _wrong(f"sharing.{other}", f"it has no effect with the strategy {strategy}", "one kind of sharing")
        if strategy == "MPS":
            return self.mps(tree.get("mpsConfig"))
        return ClaimTimeSlicing(self.interval(tree.get("timeSlicingConfig")) if device == GPU else None)

    def interval(self, value: Any) -> int:
        tree = {} if value is None else self.tree("sharing.timeSlicingConfig", value, ("interval",))
        interval = tree.get("interval")
        if interval is None:
            return 0
        if interval not in INTERVALS:
            what = f"unknown time-slice interval: {_shown(interval)}"
            raise _wrong("sharing.timeSlicingConfig.interval", what, ", ".join(INTERVALS), _near(interval, INTERVALS))
        return INTERVALS.index(interval)

    def mps(self, value: Any) -> ClaimMps:
        keys = (
            "defaultActiveThreadPercentage", "defaultPinnedDeviceMemoryLimit", "defaultPerDevicePinnedMemoryLimit",
        )  # fmt: skip
        path = "sharing.mpsConfig"
        tree = {} if value is None else self.tree(path, value, keys)
        by_device = tree.get(keys[2]) or {}
        if not isinstance(by_device, Mapping):
            raise _wrong(f"{path}.{keys[2]}", f"{_shown(by_device)} is not an object", "limits by UUID or number")
        return ClaimMps(
            threads=_of(tree.get(keys[0]), _percentage, f"{path}.{keys[0]}"),
            memory=_of(tree.get(keys[1]), _memory, f"{path}.{keys[1]}"),
            by_device={
                str(device): _memory(limit, f"{path}.{keys[2]}.{one_line(str(device), _SHOWN)}")
                for device, limit in by_device.items()
            },
        )


def _of(value: Any, read: Callable[[Any, str], T], path: str) -> T | None:
    return None if value is None else read(value, path)


def _percentage(value: Any, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100:
        raise _wrong(path, f"{_shown(value)} is no percentage of threads that a client can run with", "1 to 100")
    return value


def _memory(value: Any, path: str) -> Quantity:
    try:
        amount = Quantity.parse(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    except QuantityError as error:
        raise _wrong(path, error.what, error.expected) from error
    if amount is None or amount.value < _MIB:
        raise _wrong(path, f"{_shown(value)} is no limit of memory", "a quantity of 1Mi at least")
    return amount


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
