"""Which fields the opaque parameters of each DRA driver have, and what each may hold: rows, and no more.

They are read twice. ``formats.dra_config`` decides by them what a node prepares, and ``tools/claim_policy.py`` makes of
them the admission policy that refuses wrong parameters when they are written. Names and bounds are those of the
vendors' DRA drivers, but for a percentage of 0 in NVIDIA's, with which no client could run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kgpu.formats.names import (
    DRA_AMD_DRIVER,
    DRA_AMD_PARAMETERS,
    DRA_GAUDI_DRIVER,
    DRA_GPU_DRIVER,
    DRA_PARAMETERS,
)

GPU: Final = "gpu"
MIG: Final = "mig"
TIME_SLICING: Final = "TimeSlicing"
MPS: Final = "MPS"
INTERVALS: Final = ("Default", "Short", "Medium", "Long")
"""Lengths of a time slice; the position is what ``nvidia-smi compute-policy --set-timeslice`` takes."""
TIME_SLICING_GATE: Final = "TimeSlicingSettings"
MPS_GATE: Final = "MPSSupport"
GATES: Final = {TIME_SLICING: TIME_SLICING_GATE, MPS: MPS_GATE}
"""The feature gate that a strategy needs."""
MIB: Final = 1 << 20
STRATEGY: Final = "strategy"


@dataclass(frozen=True, slots=True)
class KnownWord:
    """One of these texts; ``wrong`` begins what is said of another. ``gates``: the feature gate that a text needs."""

    words: tuple[str, ...]
    wrong: str
    gates: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """An integer from ``low`` to ``high``; ``wrong`` ends what is said of anything else."""

    low: int
    high: int
    wrong: str


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A quantity of ``least`` bytes at least, as text or as a number. ``wrong`` ends what is said of anything else."""

    least: int = MIB
    wrong: str = "is no limit of memory"
    expected: str = "a quantity of 1Mi at least"


@dataclass(frozen=True, slots=True)
class ByDevice:
    """An object with a value for each of some devices, whose names only the node can know."""

    rule: MemoryLimit
    expected: str = "limits by UUID or number"


@dataclass(frozen=True, slots=True)
class ParameterTree:
    """An object with these fields and no others."""

    fields: tuple[ParameterField, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.fields)

    @property
    def expected(self) -> str:
        return f"one with {', '.join(self.names)}"


ParameterRule: TypeAlias = KnownWord | WholeNumber | MemoryLimit | ByDevice | ParameterTree


@dataclass(frozen=True, slots=True)
class ParameterField:
    """A field. Null is as if it were not there, which a ``required`` one can't be. ``strategy``: the only one with
    which it has an effect.
    """

    name: str
    rule: ParameterRule
    required: bool = False
    strategy: str = ""


_STRATEGY: Final = ParameterField(STRATEGY, KnownWord(tuple(GATES), "unknown strategy", GATES), required=True)
_INTERVAL: Final = ParameterField("interval", KnownWord(INTERVALS, "unknown time-slice interval:"))
_TIME_SLICING: Final = ParameterField("timeSlicingConfig", ParameterTree((_INTERVAL,)), strategy=TIME_SLICING)
_MPS: Final = ParameterField(
    "mpsConfig",
    ParameterTree((
        ParameterField(
            "defaultActiveThreadPercentage",
            WholeNumber(1, 100, "is no percentage of threads that a client can run with"),
        ),
        ParameterField("defaultPinnedDeviceMemoryLimit", MemoryLimit()),
        ParameterField("defaultPerDevicePinnedMemoryLimit", ByDevice(MemoryLimit())),
    )),
    strategy=MPS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ParameterKind:
    """A kind of parameters: the attribute ``type`` of the devices that it is for, "" for all, and what is in
    ``sharing``, None where that is no field of it.
    """

    name: str
    type: str = ""
    sharing: ParameterTree | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverParameters:
    """What one driver takes: ``kinds`` of this ``version`` by name, nothing at all where there are none. ``elsewhere``
    is what is said of kinds that are none of this driver's.
    """

    version: str = ""
    kinds: Mapping[str, ParameterKind] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    @property
    def fields(self) -> tuple[str, ...]:
        """What an object of any of the kinds has."""
        sharing = any(kind.sharing is not None for kind in self.kinds.values())
        return ("apiVersion", "kind", *(("sharing",) if sharing else ()))


KINDS: Final = {
    row.name: row
    for row in (
        ParameterKind("GpuConfig", GPU, ParameterTree((_STRATEGY, _TIME_SLICING, _MPS))),
        ParameterKind("MigDeviceConfig", MIG, ParameterTree((_STRATEGY, _MPS))),
    )
}
ELSEWHERE: Final = {
    "VfioDeviceConfig": "GPUs for virtual machines are out of kgpu's scope",
    "ComputeDomainChannelConfig": "it is for the driver compute-domain.nvidia.com",
    "ComputeDomainDaemonConfig": "it is for the driver compute-domain.nvidia.com",
}
DRIVER_PARAMETERS: Final[Mapping[str, DriverParameters]] = {
    DRA_GPU_DRIVER: DriverParameters(version=DRA_PARAMETERS, kinds=KINDS, elsewhere=ELSEWHERE),
    DRA_AMD_DRIVER: DriverParameters(version=DRA_AMD_PARAMETERS, kinds={"GpuConfig": ParameterKind("GpuConfig")}),
    DRA_GAUDI_DRIVER: DriverParameters(),
}
"""By driver."""
