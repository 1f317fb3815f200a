"""What allocation of devices sees: slices, claims and classes as frozen views, whatever version of the API they had.

Made by ``kgpu.fit.devices.read``. Quantities are exact. Names are the API's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from kgpu.base.quantity import Quantity
from kgpu.fit.selectors import Labels, NodeTerm, PodToleration, Taint

MAX_RESULTS: Final = 32
"""Devices of one claim; the API stores no more."""
MAX_CHOICES: Final = 8
"""Of a request with a list of choices."""
EXACT_COUNT: Final = "ExactCount"
ALL: Final = "All"

CounterSets: TypeAlias = Mapping[str, Mapping[str, Quantity]]
"""Counters by the name of their set."""


class PoolKey(NamedTuple):
    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class DeviceKey(NamedTuple):
    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationGates:
    """Feature gates of kube-scheduler that decide about devices; the defaults are those of 1.35."""

    admin_access: bool = True
    prioritized_list: bool = True
    device_taints: bool = False
    partitionable_devices: bool = False
    consumable_capacity: bool = False
    binding_conditions: bool = False

    @property
    def newest(self) -> bool:
        """True where the scheduler takes its newest allocator: with either of two alpha gates."""
        return self.consumable_capacity or self.binding_conditions

    @property
    def oldest(self) -> bool:
        """True where it takes its oldest one: without any gate."""
        return self == AllocationGates(admin_access=False, prioritized_list=False)


@dataclass(frozen=True, slots=True)
class AttributeValue:
    """``kind`` is string, int, bool or version; "" for a kind that is not known."""

    kind: str
    value: Any = None

    def __str__(self) -> str:
        return str(self.value).lower() if self.kind == "bool" else str(self.value)


@dataclass(frozen=True, slots=True)
class CapacityPolicy:
    """How much of a capacity a claim may ask for (``requestPolicy``)."""

    default: Quantity | None = None
    ranged: bool = False
    minimum: Quantity | None = None
    maximum: Quantity | None = None
    step: Quantity | None = None
    values: tuple[Quantity, ...] | None = None


@dataclass(frozen=True, slots=True)
class CapacityValue:
    value: Quantity
    policy: CapacityPolicy | None = None


@dataclass(frozen=True, slots=True)
class CounterUse:
    """What a device takes from one set of counters."""

    counter_set: str
    counters: Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class NodeReach:
    """From where devices can be used: one node, some, or all. ``selector`` is the API object behind ``terms``."""

    node_name: str | None = None
    all_nodes: bool = False
    terms: tuple[NodeTerm, ...] | None = None
    selector: Mapping[str, Any] | None = None

    @property
    def said(self) -> bool:
        return bool(self.node_name) or self.all_nodes or self.terms is not None

    def matches(self, name: str, labels: Labels) -> bool:
        if self.node_name:
            return name == self.node_name
        return self.all_nodes or any(term.matches(labels, name) for term in self.terms or ())

    @property
    def error(self) -> str:
        """Why the selector can't be evaluated."""
        if self.node_name or self.all_nodes:
            return ""
        return next((term.error for term in self.terms or () if term.error), "")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceDevice:
    """A device as its slice offers it. ``reach`` counts only in slices with ``perDeviceNodeSelection``."""

    name: str
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    capacity: Mapping[str, CapacityValue] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    consumes: tuple[CounterUse, ...] = ()
    reach: NodeReach = NodeReach()
    shareable: bool = False
    """``allowMultipleAllocations``."""
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] | None = None
    binding_failures: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceSlice:
    """A ResourceSlice. ``per_device`` is None where ``perDeviceNodeSelection`` is not said."""

    name: str
    driver: str
    pool: str
    generation: int = 0
    slice_count: int = 1
    reach: NodeReach = NodeReach()
    per_device: bool | None = None
    devices: tuple[SliceDevice, ...] = ()
    counter_sets: tuple[tuple[str, Mapping[str, Quantity]], ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be read."""

    @property
    def key(self) -> PoolKey:
        return PoolKey(self.driver, self.pool)

    def device_key(self, device: SliceDevice) -> DeviceKey:
        return DeviceKey(self.driver, self.pool, device.name)


@dataclass(frozen=True, slots=True)
class TaintRule:
    """A DeviceTaintRule: a taint of all devices that it selects. None selects any.

    One that has no selector at all taints every device for the scheduler, and none for who evicts pods: ``selects``.
    """

    name: str
    taint: Taint
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    selects: bool = True

    def concerns(self, key: DeviceKey) -> bool:
        own = (self.driver, self.pool, self.device)
        return all(
            wanted in (None, found) for wanted, found in zip(own, (key.driver, key.pool, key.device), strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceAsk:
    """What is asked for: ``exactly``, or one choice of ``firstAvailable``. A selector of None is of an unknown type."""

    name: str
    device_class: str = ""
    selectors: tuple[str | None, ...] = ()
    mode: str = EXACT_COUNT
    count: int = 1
    admin: bool | None = None
    tolerations: tuple[PodToleration, ...] = ()
    raw_tolerations: tuple[Mapping[str, Any], ...] = ()
    capacity: Mapping[str, Quantity] | None = None
    """None where the request says nothing of capacity."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestView:
    """A request: one ask, or choices in order of preference."""

    name: str
    exactly: DeviceAsk | None = None
    choices: tuple[DeviceAsk, ...] = ()


@dataclass(frozen=True, slots=True)
class ConstraintView:
    """Devices of the requests (of all, where none is named) share an attribute's value, or no two have the same."""

    requests: frozenset[str] = frozenset()
    match: str | None = None
    distinct: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ConfigView:
    """An entry of ``config``; ``settings`` is all of it but the requests."""

    requests: tuple[str, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClaimDemand:
    """What a claim asks for."""

    namespace: str
    name: str
    uid: str = ""
    requests: tuple[RequestView, ...] = ()
    constraints: tuple[ConstraintView, ...] = ()
    configs: tuple[ConfigView, ...] = ()
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassRules:
    """A device class: whose devices, and with which settings."""

    name: str
    selectors: tuple[str | None, ...] = ()
    configs: tuple[ConfigView, ...] = ()


@dataclass(frozen=True, slots=True)
class TakenDevice:
    """A device that a claim (``namespace/name``) holds; with ``share_id`` only a share of it."""

    key: DeviceKey
    claim: str = ""
    share_id: str = ""
    consumed: Mapping[str, Quantity] | None = None
