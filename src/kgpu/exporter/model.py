"""Input and output of the exporter's plan: units, values, pods; families of samples.

Values are plain: a unit's readings by name, with the unit of measure in the name as in ``hw.port.Reading``
(``power_w``, ``memory_used_mib``, ``energy_mj``). A reading that the device does not have is absent; one that failed is
in ``failures`` with its reason. Nothing here depends on how they were read.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from kgpu.base.advice import Advice
from kgpu.hw.port import Inventory

if TYPE_CHECKING:
    from kgpu.kubelet.pod_resources import Holding

Value: TypeAlias = "float | str"
PodKey: TypeAlias = "tuple[str, str, str]"
"""Namespace, pod, container."""
ClaimedKey: TypeAlias = "tuple[str, str, str]"
"""Driver, pool and name of a device that resource claims may have."""


class Unit(NamedTuple):
    """What values are of: a GPU, or one GPU instance, NVLink or CPU. ``uuid`` is the GPU's, "" for a CPU."""

    uuid: str
    gpu_instance: int | None = None
    link: int | None = None
    cpu: int | None = None

    @property
    def order(self) -> tuple[str, int, int, int]:
        """What units are sorted by: a GPU before its instances."""
        return (self.uuid, *(-1 if part is None else part for part in self[1:]))  # type: ignore[return-value]


class MetricKind(enum.StrEnum):
    """A counter's type as the CSV spells it; LABEL makes no series, its value becomes a label of every series."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"
    LABEL = "label"


class Generation(enum.StrEnum):
    """Versions of the replaced exporter whose names, units and label capitals differ: up to 4.8.2, 4.8.3 and 4.8.4,
    from 4.9.0.
    """

    A = "a"
    B = "b"
    C = "c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """All values of one tick. ``at`` is in seconds of a clock that only grows.

    ``answered`` are the GPUs of which a reading came; ``values`` has facts of the others too.
    """

    at: float = 0.0
    values: Mapping[Unit, Mapping[str, Value]] = field(default_factory=dict)
    failures: Mapping[Unit, Mapping[str, str]] = field(default_factory=dict)
    answered: frozenset[Unit] = frozenset()


class ComputedSample(NamedTuple):
    """One sample of a metric that no driver call gives, such as a count over a window; ``labels`` follow the others."""

    unit: Unit
    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """Uid, labels and owner (such as ``Deployment/llama``) of a pod, by the API server. ``gang``: the pods that it
    works together with (such as ``JobSet/train``), "" for none.
    """

    uid: str = ""
    owner: str = ""
    gang: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """Who uses what, as far as it is known now; the first five fields are those of ``PlanInput``.

    ``failures`` says which parts could not be read or are old, by the part's name with a short reason word
    (``holdings`` to ``unreachable``). ``missing`` counts what is held or used but is not shown, by (what, reason):
    ``("device", "unknown-id")``. Both are for metrics; people were warned when it was new.
    """

    holdings: tuple[Holding, ...] | None = ()
    pods: Mapping[tuple[str, str], PodFacts] = field(default_factory=dict)
    claimed: Mapping[ClaimedKey, str] = field(default_factory=dict)
    shares: Mapping[tuple[Unit, PodKey], Mapping[str, float]] = field(default_factory=dict)
    jobs: Mapping[Unit, tuple[str, ...]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[tuple[str, str], int] = field(default_factory=dict)


class UsersPort(Protocol):
    """Reports who uses what. ``users.kubelet_users`` has the real one, ``KubeletUsers``, and ``FakeUsers`` for tests.

    ``changed`` is called when ``current`` would return something else.
    """

    changed: Callable[[], None]

    async def current(self) -> Users:
        """Return what is known now. Never raises; only the first call waits, two seconds at most. Call it each tick."""
        ...

    async def close(self) -> None:
        """Stop following; what was known stays readable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """The input of one plan.

    ``answers`` is False when the driver did not answer; the inventory is then the last one read. ``holdings`` is None
    when the kubelet does not report them. ``pods`` is by (namespace, pod). ``claimed`` says which GPU or MIG uuid a
    claim's device is, by driver, pool and name, "" for a device that is no GPU. ``shares`` are values of one container
    on one unit, from its processes. ``jobs`` are batch job ids by unit. ``computed`` is by the metric's usual name.
    """

    inventory: Inventory
    now: Tick
    before: Tick | None = None
    answers: bool = True
    holdings: tuple[Holding, ...] | None = ()
    pods: Mapping[tuple[str, str], PodFacts] = field(default_factory=dict)
    claimed: Mapping[ClaimedKey, str] = field(default_factory=dict)
    shares: Mapping[tuple[Unit, PodKey], Mapping[str, float]] = field(default_factory=dict)
    jobs: Mapping[Unit, tuple[str, ...]] = field(default_factory=dict)
    computed: Mapping[str, tuple[ComputedSample, ...]] = field(default_factory=dict)
    xid_texts: Mapping[int, str] = field(default_factory=dict)


class SeriesSample(NamedTuple):
    """One line: its labels as text without braces, escaped for both formats, and its value as text."""

    labels: str
    value: str


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: samples have different labels, each set once."""

    name: str
    kind: MetricKind
    help: str
    samples: tuple[SeriesSample, ...]


class VendorFamilies(NamedTuple):
    """Families that only one vendor's GPUs have, and this tick's failed values of theirs by (metric, reason)."""

    families: tuple[Family, ...] = ()
    errors: Mapping[tuple[str, str], int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan's outcome. ``errors`` counts this tick's failed values by (metric, reason).

    ``series`` counts those of the configured metrics, without the exporter's own.
    ``label_sets`` are the labels that a device's series share, one set per device and user, for the series budget.
    """

    families: tuple[Family, ...] = ()
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    series: int = 0
    label_sets: tuple[tuple[tuple[str, str], ...], ...] = ()
    advice: tuple[Advice, ...] = ()
