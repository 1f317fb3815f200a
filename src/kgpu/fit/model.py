"""What scheduling sees: frozen views of pods, nodes and what they refer to, and the answers.

Views are made by ``kgpu.fit.read`` from plain API dictionaries and hold only what a filter, a score or an explanation
needs. Amounts are integers as the scheduler counts: cpu in thousandths of a core, everything else in its own unit
(bytes, pieces), rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, TypeAlias

from kgpu.fit.binding import ClaimBinding
from kgpu.fit.selectors import EVERYTHING, NOTHING, Labels, LabelSelector, NodeTerm, PodToleration, Taint

Amounts: TypeAlias = Mapping[str, int]
Key: TypeAlias = tuple[str, str]
"""Namespace ("" for none) and name."""

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"
STORAGE: Final = "ephemeral-storage"
NONE: Final[Mapping[str, Any]] = {}
MAX_SKEW_FLOOR: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PodTerm:
    """An inter-pod affinity term. ``namespaces`` are named ones; ``namespace_selector`` adds more by label."""

    topology_key: str
    selector: LabelSelector
    namespaces: frozenset[str]
    namespace_selector: LabelSelector = NOTHING
    weight: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A topology spread constraint; ``hard`` for DoNotSchedule."""

    max_skew: int
    topology_key: str
    selector: LabelSelector
    hard: bool = True
    min_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False


@dataclass(frozen=True, slots=True)
class HostPort:
    port: int
    protocol: str = "TCP"
    address: str = "0.0.0.0"

    def clashes(self, other: HostPort) -> bool:
        """True when both can't be taken on one node."""
        same = self.port == other.port and self.protocol == other.protocol
        return same and (self.address == other.address or "0.0.0.0" in (self.address, other.address))

    def __str__(self) -> str:
        return f"{self.address}:{self.port}/{self.protocol}"


@dataclass(frozen=True, slots=True)
class WeightedNodeTerm:
    weight: int
    term: NodeTerm


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of ``spec.resourceClaims``: the claim's own name, or the template that it is generated from.

    ``claim`` is None while nobody has generated it; "" when it was decided that none is needed.
    """

    name: str
    claim: str | None
    generated: bool = False


@dataclass(frozen=True, slots=True)
class ContainerAsk:
    """A container's requests by name, in whole units. One that ``ends`` is an init container and no sidecar."""

    name: str
    requests: tuple[tuple[str, int], ...]
    ends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PodView:
    """A pod. ``requests`` is what it asks for, ``used`` what it takes where it is bound (after resizes)."""

    name: str
    namespace: str = "default"
    uid: str = ""
    labels: Labels = field(default_factory=dict)
    node: str = ""
    nominated: str = ""
    scheduler: str = "default-scheduler"
    priority: int = 0
    preempts: bool = True
    gates: tuple[str, ...] = ()
    terminal: bool = False
    deleting: bool = False
    being_preempted: bool = False
    tolerations: tuple[PodToleration, ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    node_terms: tuple[NodeTerm, ...] | None = None
    preferred_nodes: tuple[WeightedNodeTerm, ...] = ()
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    preferred_pods: tuple[PodTerm, ...] = ()
    """Preferred affinity with its weights; anti-affinity has negative ones."""
    spread: tuple[Spread, ...] = ()
    requests: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    nonzero: Amounts = field(default_factory=dict)
    """cpu and memory with the scheduler's floor for containers that ask for none; scores go by it."""
    limits: Amounts = field(default_factory=dict)
    """Of cpu, memory and ephemeral storage, as ``requests``; quotas go by them."""
    unsaid: frozenset[str] = frozenset()
    """``requests.cpu``, ``limits.memory`` and the like that one of its containers does not say; quotas want them."""
    ports: tuple[HostPort, ...] = ()
    volume_claims: tuple[tuple[str, bool], ...] = ()
    """Names of PersistentVolumeClaims, each with whether it is generated for an ephemeral volume."""
    claims: tuple[PodClaim, ...] = ()
    containers: tuple[ContainerAsk, ...] = ()
    """Init containers first; empty for a pod without extended resources."""
    created: str = ""
    started: str = ""
    owner: str = ""
    """``Kind/name`` of the controller."""
    problems: tuple[str, ...] = ()
    """What of the object could not be read."""

    @property
    def key(self) -> Key:
        return (self.namespace, self.name)

    @property
    def id(self) -> str:
        """The uid, or the key where there is none."""
        return self.uid or f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeView:
    """A node. ``allocatable`` has every resource by name, ``pods`` among them."""

    name: str
    labels: Labels = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: Amounts = field(default_factory=dict)
    capacity: Amounts = field(default_factory=dict)
    ready: bool | None = None
    """As its Ready condition says; None when nobody has said. Evidence only: the scheduler goes by taints."""
    deleting: bool = False
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceView:
    name: str
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeClaimView:
    """A PersistentVolumeClaim; ``volume`` is "" until it is bound."""

    namespace: str
    name: str
    volume: str = ""
    storage_class: str = ""
    lost: bool = False
    deleting: bool = False
    bound: bool = False
    single_pod: bool = False
    """Access mode ReadWriteOncePod."""
    request: int = 0
    """Of storage, in billionths."""
    access: frozenset[str] = frozenset()
    mode: str = "Filesystem"
    selector: LabelSelector = EVERYTHING
    selected: str = ""
    """The node on which its volume is being made, "" before that."""

    @property
    def key(self) -> Key:
        return (self.namespace, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeView:
    """A PersistentVolume with the node terms that it asks for, None for none, and its zone labels. ``capacity`` is in
    billionths; ``claimed`` the claim that has it or is meant to, None for a free one.
    """

    name: str
    node_terms: tuple[NodeTerm, ...] | None = None
    labels: Labels = field(default_factory=dict)
    capacity: int = 0
    storage_class: str = ""
    access: frozenset[str] = frozenset()
    mode: str = "Filesystem"
    claimed: Key | None = None
    available: bool = True
    deleting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageClassView:
    name: str
    waits: bool = False
    """volumeBindingMode WaitForFirstConsumer."""
    provisioner: str = ""
    places: tuple[NodeTerm, ...] = ()
    """allowedTopologies; empty for everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaView:
    """A ResourceQuota: limits and what is used, each amount as the quota's key counts (``requests.nvidia.com/gpu``)."""

    namespace: str
    name: str
    hard: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    scoped: bool = False

    @property
    def key(self) -> Key:
        return (self.namespace, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetView:
    """A PodDisruptionBudget."""

    namespace: str
    name: str
    selector: LabelSelector = EVERYTHING
    allowed: int = 0
    disrupted: frozenset[str] = frozenset()

    @property
    def key(self) -> Key:
        return (self.namespace, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimView:
    """A ResourceClaim. ``classes`` has the device class of every request by request name (``name/sub`` for choices).

    ``allocated`` with ``node_terms`` None means that the devices can be used from every node.
    """

    namespace: str
    name: str
    uid: str = ""
    owner: str = ""
    deleting: bool = False
    allocated: bool = False
    node_terms: tuple[NodeTerm, ...] | None = None
    classes: Mapping[str, str] = field(default_factory=dict)
    extended_for: str = ""
    """The uid of the pod whose extended resources it was made for, "" for other claims."""
    reserved_for: tuple[str, ...] = ()
    """The uids of the pods that may use it."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """``spec.devices`` as it is, for who allocates."""
    binding: ClaimBinding | None = None
    """What its devices wait for before a pod may be bound, None for nothing."""

    @property
    def key(self) -> Key:
        return (self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class DeviceRefusal:
    """Why claims can't be allocated, in the scheduler's words. ``everywhere``: something is wrong with them or with a
    slice, and the scheduler looks at no further node.
    """

    phrase: str
    everywhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClassView:
    """A DeviceClass with its spec as it is. ``resource`` is the extended resource that it offers, "" for none."""

    name: str
    resource: str = ""
    created: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why a pod does not fit a node (``node`` is "" where it holds for all nodes).

    ``filter`` is the scheduler's plugin, or ``kgpu`` for what no scheduler says; ``phrase`` is what the scheduler
    prints, ``sentence`` names the evidence. ``resolvable``: removing pods of lower priority from the node could help.
    ``subject`` is the resource, taint, label key or object at fault, ``taint`` the same where it is one, and
    ``holders`` are the pods that are in the way.
    """

    filter: str
    phrase: str
    sentence: str
    _: KW_ONLY
    resolvable: bool = False
    node: str = ""
    subject: str = ""
    taint: Taint | None = None
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Preemption:
    """Where room could be made: the pods to remove from ``node``, most important first."""

    node: str
    victims: tuple[PodView, ...]
    violations: int = 0
    """How many of them a PodDisruptionBudget protects."""
