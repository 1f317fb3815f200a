"""Which fields the opaque parameters ``resource.nvidia.com/v1beta1`` have, and what each may hold: rows, and no more.

They are read twice. ``formats.dra_config`` decides by them what a node prepares, and ``tools/claim_policy.py`` makes of
them the admission policy that refuses wrong parameters when they are written. Names and bounds are those of NVIDIA's
DRA driver, but for a percentage of 0, with which no client could run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

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
    """A kind of parameters: the attribute ``type`` of the devices that it is for, and what is in ``sharing``."""

    name: str
    type: str
    sharing: ParameterTree


KINDS: Final = {
    row.name: row
    for row in (
        ParameterKind("GpuConfig", GPU, ParameterTree((_STRATEGY, _TIME_SLICING, _MPS))),
        ParameterKind("MigDeviceConfig", MIG, ParameterTree((_STRATEGY, _MPS))),
    )
}
FIELDS: Final = ("apiVersion", "kind", "sharing")
"""What an object of any kind has."""
ELSEWHERE: Final = {
    "VfioDeviceConfig": "GPUs for virtual machines are out of kgpu's scope",
    "ComputeDomainChannelConfig": "it is for the driver compute-domain.nvidia.com",
    "ComputeDomainDaemonConfig": "it is for the driver compute-domain.nvidia.com",
}
"""What is said of kinds that are none of this driver's."""
