"""The operator's data: its settings, what it observes, and what it wants. Plain values; decisions are in ``plan``.

Objects of the API server stay dictionaries. What comes from nodes and users is decoded into these values first, where
wrong shapes become empty values or advice that says so; nothing here raises for what a cluster contains.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kgpu.base.advice import Advice
from kgpu.formats import names
from kgpu.formats.agent_report import AgentReport
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.crd.deviceconfig import DeviceConfigSpec
from kgpu.formats.crd.nvidiadriver import NVIDIADriverSpec
from kgpu.formats.gpu_report import GpuReport
from kgpu.formats.mig_request import MigReport
from kgpu.formats.validation_report import ValidationReport
from kgpu.monitoring.alerts import ALERTS
from kgpu.monitoring.grafana import SIDECAR_LABEL
from kgpu.monitoring.model import Alert
from kgpu.monitoring.scrape import Scrape
from kgpu.operator.openshift import OpenShift
from kgpu.operator.vendors import SERVED

Object: TypeAlias = dict[str, Any]


class NodeLayout(enum.StrEnum):
    """One agent per node, or one DaemonSet per operand under the replaced program's name."""

    AGENT = "agent"
    OPERANDS = "operands"


class OtherProgram(enum.StrEnum):
    """Another program that may work in this cluster and that kgpu makes room for."""

    OPERATOR = "GPU operator"
    DISCOVERY = "node feature discovery"


class OtherPresence(enum.StrEnum):
    """How the operator knows whether another program works here: it looks, or the administrator says so."""

    DETECT = "detect"
    PRESENT = "present"
    IGNORE = "ignore"


class AgentNodes(enum.StrEnum):
    """Where the privileged agent runs: where there is work for it, or on every Linux node."""

    GPU = "gpu"
    ALL = "all"


class Allocation(enum.StrEnum):
    """How a node's GPUs are handed out: as counted resources, or as devices of claims."""

    DEVICE_PLUGIN = names.ALLOCATION_DEVICE_PLUGIN
    DRA = names.ALLOCATION_DRA


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """What is made for Prometheus and Grafana: alert rules, dashboards in ConfigMaps, and how exporters are scraped.

    ``labels`` and ``annotations`` are those by which Grafana's sidecar finds dashboards.
    """

    rules: bool = True
    alerts: tuple[Alert, ...] = ALERTS
    dashboards: bool = False
    labels: Mapping[str, str] = field(default_factory=lambda: dict(SIDECAR_LABEL))
    annotations: Mapping[str, str] = field(default_factory=dict)
    scrape: Scrape = field(default_factory=Scrape)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """The operator's settings. ``image`` is kgpu's own, for agents and operands."""

    namespace: str
    image: str
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    layout: NodeLayout = NodeLayout.AGENT
    agent_nodes: AgentNodes = AgentNodes.GPU
    """Where the privileged agent runs in the layout ``agent`` (``agent.nodes``)."""
    vendors: frozenset[str] = SERVED
    """Whose accelerators are served (Helm value ``vendors``)."""
    device_configs: bool = False
    """Whether AMD's DeviceConfigs are followed (Helm value ``deviceConfigs.enabled``)."""
    agent_selector: Mapping[str, str] = field(default_factory=dict)
    """Further labels that such a node must have; on others nothing privileged runs, whatever GPUs they have."""
    dra: bool = False
    """Whether nodes may hand out their GPUs by claims (Helm value ``dra.enabled``)."""
    dra_gates: str = ""
    """Feature gates of the DRA driver, as ``NAME=true,...`` (``dra.featureGates``)."""
    allocation: Allocation = Allocation.DEVICE_PLUGIN
    """How a node without the label ``kgpu.dev/allocation`` hands out its GPUs (``allocation``)."""
    discovery: bool = True
    """The built-in node feature discovery (Helm value ``nfd.enabled``); it adds no labels where another one works."""
    other_discovery: OtherPresence = OtherPresence.DETECT
    """Whether another node feature discovery works here (``nfd.other``)."""
    feature_rules: bool = False
    """Whether rules of node features are carried out (``nfd.nodefeaturerules``); not beside another discovery."""
    features_config: str = ""
    """How nodes' features are looked for, a worker's config of node feature discovery in YAML; "" for the default."""
    other_operator: OtherPresence = OtherPresence.DETECT
    """Whether another GPU operator makes kgpu do nothing (``operator.otherOperator``); never ``PRESENT``."""
    operations: bool = True
    """Whether NodeOperations are carried out (``operations.enabled``); drivers are upgraded by these alone."""
    health: bool = True
    """Whether GPUs' health is watched (Helm value ``health.enabled``)."""
    health_config: str = ""
    """Configuration of the health role as YAML, "" for the default."""
    usage: bool = False
    """Whether agents count what GPUs are used for (Helm value ``usage.enabled``)."""
    usage_labels: tuple[str, ...] = ()
    """The keys of pods' labels that they record (``usage.labels``)."""
    host_facts: bool = True
    """Whether agents write what ``kgpu doctor`` wants to know of nodes into their logs (``doctor.hostFacts``)."""
    monitoring: Monitoring = field(default_factory=Monitoring)
    images: Mapping[str, str] = field(default_factory=dict)
    """Images of operands by the environment variables of the replaced operator, e.g. ``DRIVER_IMAGE``."""
    owner: Object | None = None
    """The operator's own Deployment (apiVersion, kind, name, uid): owner of what is not a policy's."""

    @property
    def looks_for(self) -> frozenset[OtherProgram]:
        """The programs that the operator looks for."""
        told = {OtherProgram.OPERATOR: self.other_operator, OtherProgram.DISCOVERY: self.other_discovery}
        return frozenset(program for program, other in told.items() if other is OtherPresence.DETECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCondition:
    """One of a Node's conditions."""

    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """One Node as the operator sees it. ``owned`` are the label keys that the operator itself has applied,
    ``owned_annotations`` the annotation keys.

    ``runtime`` is ``containerd``, ``docker``, ``cri-o`` or "" when the kubelet has not said. ``os_id``, ``os_version``
    and ``kernel`` come from feature labels, otherwise from what the kubelet reports. ``capacity`` and ``allocatable``
    count the extended resources of its vendor's accelerators by name, NVIDIA's where it has none. ``report`` merges the
    reports of the node's processes, None without any;
    ``reports`` are those of processes for one role, ``agent`` is the whole agent's. ``gpus`` is the health role's
    report, ``validation`` the validator's, ``mig`` the MIG manager's and ``partition`` the device config manager's,
    None where it can't be read. ``discovered``: kgpu's own discovery has labels on it. ``aside``:
    ``OperatorSettings.agent_selector`` leaves it out. ``served`` are the vendors that are served, None for all
    (``OperatorSettings.vendors``). ``device_config`` is the DeviceConfig that it is to have, "" for none, ``without``
    are the roles that this one switches off, ``by_claims``: it has the GPUs handed out by claims. ``next_owner`` is set
    while the node keeps the driver of another object than it is to belong to (``driver_moves``): the NVIDIADriver's
    name, "" for the ClusterPolicy.
    """

    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owned: frozenset[str] = frozenset()
    owned_annotations: frozenset[str] = frozenset()
    ready: bool = True
    unschedulable: bool = False
    taints: tuple[Object, ...] = ()
    runtime: str = ""
    runtime_version: str = ""
    os: str = "linux"
    os_id: str = ""
    os_version: str = ""
    kernel: str = ""
    architecture: str = "amd64"
    kubelet: str = ""
    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    conditions: Mapping[str, NodeCondition] = field(default_factory=dict)
    report: AgentReport | None = None
    reports: Mapping[str, AgentReport] = field(default_factory=dict)
    agent: AgentReport | None = None
    gpus: GpuReport | None = None
    validation: ValidationReport | None = None
    mig: MigReport | None = None
    partition: MigReport | None = None
    discovered: bool = False
    aside: bool = False
    served: frozenset[str] | None = None
    device_config: str = ""
    without: frozenset[str] = frozenset()
    by_claims: bool = False
    next_owner: str | None = None

    @property
    def driver_owner(self) -> str:
        """The NVIDIADriver that the node is to belong to, "" for none."""
        return self.labels.get(names.LABEL_DRIVER_OWNER, "") if self.next_owner is None else self.next_owner


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTrouble:
    """A pod of an operand that is not ready: on which node, and the first reason found in its status or Events."""

    daemon_set: str
    node: str
    pod: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDriverPod:
    """A driver's pod: the DaemonSet that has made it (another controller as ``kind/name``, "" without one), and what it
    was made for.

    ``digest`` and ``image`` are those of its container, ``digest_version`` says how the digest was made. ``made`` is
    its creation time. ``fresh``: it has been Ready for a few seconds only. ``placed``: it is on the node, and not only
    meant for it. ``leaving``: it has been deleted and is not gone.
    """

    name: str
    node: str
    daemon_set: str = ""
    digest: str = ""
    digest_version: str = ""
    image: str = ""
    made: str = ""
    ready: bool = False
    fresh: bool = False
    placed: bool = True
    leaving: bool = False

    @property
    def holds(self) -> bool:
        """Whether its driver is there to stay."""
        return self.placed and not self.leaving


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeOperation:
    """A NodeOperation that exchanges a node's driver, as its object says. ``spec`` is the whole one.

    ``approved_by_policy``: the operator has made it approved, because of ``autoUpgrade``. ``was_cordoned``: its node
    was, before it began. ``released``: its node is empty, and the node's agent has had its time to let go of the
    driver.
    """

    name: str
    uid: str = ""
    created: str = ""
    spec: Object = field(default_factory=dict)
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    result: str = ""
    approved: bool = True
    approved_by_policy: bool = False
    was_cordoned: bool = False
    released: bool = False
    node: str = ""
    node_uid: str = ""
    daemon_set: str = ""
    digest: str = ""
    requested_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One ClusterPolicy. ``warnings`` are about what its manifest has without effect, ``unbuilt`` are the fields of
    these that kgpu does not provide yet, and ``of_unbuilt`` the warnings about those; ``problem`` is set when it can't
    be read at all, and ``spec`` then has the defaults.
    """

    name: str
    uid: str
    generation: int
    created: str
    spec: ClusterPolicySpec
    status: Object = field(default_factory=dict)
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unbuilt: tuple[str, ...] = ()
    of_unbuilt: frozenset[str] = frozenset()
    problem: Advice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaDriver:
    """One NVIDIADriver, as ``Policy``."""

    name: str
    uid: str
    generation: int
    created: str
    spec: NVIDIADriverSpec
    status: Object = field(default_factory=dict)
    deleting: bool = False
    warnings: tuple[str, ...] = ()
    unbuilt: tuple[str, ...] = ()
    problem: Advice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """One DeviceConfig of AMD's, as ``Policy``."""

    name: str
    namespace: str
    uid: str
    generation: int
    created: str
    spec: DeviceConfigSpec
    status: Object = field(default_factory=dict)
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unbuilt: tuple[str, ...] = ()
    problem: Advice | None = None

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPod:
    """Where a node's agent can be reached, and whether the kubelet calls it ready."""

    address: str
    ready: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCluster:
    """The cluster at one moment.

    ``kinds`` are optional kinds that the API server has, as ``plural.group`` (``nodefeatures.nfd.k8s-sigs.io``).
    ``daemon_sets`` are the live ones in the operator's namespace by name, ``config_maps`` the keys of those there, and
    ``given_maps`` the names of those that somebody else than the operator has made.
    ``foreign_nfd``: another node feature discovery works in this cluster. ``foreign_operator`` names a running GPU
    operator that is not kgpu, as ``namespace/deployment``, ``foreign_version`` its release. ``pods`` are the nodes
    with a pod of a DaemonSet there, by the DaemonSet's name, None where pods can't be listed. ``agents`` are the
    agent's pods that have an address, by node. ``driver_pods`` are those of drivers, ``upgrades`` the operations
    that exchange drivers. ``failures`` are Warning events about DaemonSets there, by name: why pods could not be
    created (quota, admission). ``openshift`` is None on other clusters.
    """

    kube_version: tuple[int, int] = (1, 35)
    kinds: frozenset[str] = frozenset()
    foreign_nfd: bool = False
    foreign_operator: str = ""
    foreign_version: str = ""
    openshift: OpenShift | None = None
    policies: tuple[Policy, ...] = ()
    drivers: tuple[NvidiaDriver, ...] = ()
    device_configs: tuple[DeviceConfig, ...] = ()
    nodes: tuple[ClusterNode, ...] = ()
    daemon_sets: Mapping[str, Object] = field(default_factory=dict)
    config_maps: Mapping[str, frozenset[str]] = field(default_factory=dict)
    given_maps: frozenset[str] = frozenset()
    pods: Mapping[str, frozenset[str]] | None = None
    agents: Mapping[str, AgentPod] = field(default_factory=dict)
    driver_pods: tuple[NodeDriverPod, ...] = ()
    upgrades: tuple[UpgradeOperation, ...] = ()
    troubles: tuple[PodTrouble, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    apply_errors: Mapping[str, str] = field(default_factory=dict)
    """What the API server refused last time, by ``Kind/name``."""
    unmarked: frozenset[str] = frozenset()
    """Nodes where the agent belongs and whose label does not say so yet; set once the plan's labels are applied to
    them.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLabels:
    """The whole set of labels and annotations that the operator applies to one Node, under its field manager.

    ``clear`` are keys of labels that others own and that have to go or change all the same (a mode that ended),
    ``clear_annotations`` such keys of annotations.
    """

    name: str
    labels: Mapping[str, str]
    clear: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    clear_annotations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradePlan:
    """``create`` are NodeOperations as objects; ``withdraw`` are those that have not begun and must not any more."""

    create: tuple[Object, ...] = ()
    withdraw: tuple[UpgradeOperation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What there should be.

    ``hold``: leave every object as it is, apply none and delete none; only statuses and advice count (a foreign
    operator works here, or the policy can't be read). Otherwise ``objects`` are applied in this order, and whatever
    else carries the operator's label is deleted, but for what is of a state in ``keep`` (values of the label
    ``nvidia.com/gpu-operator.state``: an operand that can't be rendered now stays as it is). ``orphan``: names of
    DaemonSets that are deleted even so, and whose pods have to survive that. ``retry``: names of DaemonSets whose pods
    are refused, and whose controller is to be asked for another attempt now and then. ``nodes`` has only Nodes that
    differ from what is wanted.
    ``endpoint_slices`` are those of Services without a selector; others of kgpu's go.
    ``released`` are DeviceConfigs that are being deleted and that no node has any more: AMD's finalizer goes.
    ``policy_status``, ``driver_status`` and ``device_config_status`` are whole status objects by name, with the
    namespace before it where there is one; a condition without lastTransitionTime
    has just changed: whoever writes the status stamps it (``conditions.stamp``). ``advice`` becomes log lines and
    Events once each: their subject is ``Node/<name>``, ``ClusterPolicy/<name>`` or ``NVIDIADriver/<name>``.
    """

    hold: bool = False
    keep: frozenset[str] = frozenset()
    objects: tuple[Object, ...] = ()
    orphan: frozenset[str] = frozenset()
    retry: frozenset[str] = frozenset()
    nodes: tuple[NodeLabels, ...] = ()
    upgrades: UpgradePlan = field(default_factory=UpgradePlan)
    policy_status: Mapping[str, Object] = field(default_factory=dict)
    driver_status: Mapping[str, Object] = field(default_factory=dict)
    device_config_status: Mapping[str, Object] = field(default_factory=dict)
    endpoint_slices: tuple[Object, ...] = ()
    released: tuple[DeviceConfig, ...] = ()
    advice: tuple[Advice, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    again_after: float | None = None
    """Seconds after which to plan again without a change, None for never."""
