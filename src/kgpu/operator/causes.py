"""Why something does not work on a node: turns what is observed into a cause with a remedy.

One cause often has many symptoms: where a node is down or its agent's pod can't start, that is the cause of everything
that does not run there. So the checks here go from the node upwards and stop at the first that fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import msgspec

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import UserError, to_do
from kgpu.base.plain import items, mapping, text
from kgpu.base.printable import one_line
from kgpu.fit.selectors import PodToleration, Taint, tolerated
from kgpu.formats import names
from kgpu.formats.agent_report import MAX_REASON
from kgpu.formats.config_choice import REFUSED
from kgpu.operator.labels import has_agent
from kgpu.operator.model import ClusterNode, NodeLayout, Object, ObservedCluster, OperatorSettings, PodTrouble, Policy
from kgpu.operator.node_selectors import DriverSets
from kgpu.operator.upgrade_rules import UpgradeRules
from kgpu.operator.upgrades import NodeUpgrade
from kgpu.operator.vendors import TOLERATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause(Advice):
    """What is wrong, as the CamelCase ``reason`` of conditions and Events, a sentence, and what to do about it.

    ``quoted`` is the remedy that a node's agent names: it is shown as a quotation, never as the operator's own advice.
    ``passing``: part of a rollout, or waiting for something else; it is in conditions and not an Event.
    ``cluster``: about the policy and not about one node. ``symptom``: another cause on the same node may explain it.
    Texts of other origin are made printable here.
    """

    severity: Severity = Severity.WARNING
    quoted: str = ""
    passing: bool = False
    cluster: bool = False
    symptom: bool = False

    def __post_init__(self) -> None:
        for name in ("what", "remedy", "quoted"):
            quote = getattr(self, name)
            if not quote.isprintable():
                object.__setattr__(self, name, one_line(quote))

    @property
    def shown_remedy(self) -> str:
        """The remedy for an Event or a condition, or the agent's own as a quotation."""
        return self.remedy or (f'its agent says: "{self.quoted}"' if self.quoted else "")

    def line(self) -> str:
        """Cause and remedy as one line."""
        return to_do(self.what, self.shown_remedy)


# What the DaemonSet controller adds to every pod of a DaemonSet.
DAEMON_TOLERATIONS: Final = (
    PodToleration(names.TAINT_NOT_READY, "Exists", "", "NoExecute"),
    PodToleration(names.TAINT_UNREACHABLE, "Exists", "", "NoExecute"),
    PodToleration(names.TAINT_DISK_PRESSURE, "Exists", "", "NoSchedule"),
    PodToleration(names.TAINT_MEMORY_PRESSURE, "Exists", "", "NoSchedule"),
    PodToleration(names.TAINT_PID_PRESSURE, "Exists", "", "NoSchedule"),
    PodToleration(names.TAINT_UNSCHEDULABLE, "Exists", "", "NoSchedule"),
)
# Taints that go by themselves, or with a condition that is reported anyway.
_OWN_TAINTS: Final = frozenset({names.TAINT_NOT_READY, names.TAINT_UNREACHABLE})

_QUOTA: Final = re.compile(r"exceeded quota: ([^\s,]+)")


def pod_remedy(reason: str, message: str, namespace: str, pod: str) -> tuple[str, bool]:
    """Return what to do about a pod that is not ready, and whether it is merely starting."""
    for words, remedy in _POD_REMEDIES:
        if reason in words:
            return remedy.format(namespace=namespace, pod=pod, message=message), not remedy
    return f"kubectl -n {namespace} describe pod {pod}", False


UNHEALTHY: Final = "Unhealthy"
"""The kubelet's word for a probe that fails."""

# Reasons of waiting roles that need a person, as time alone does not help.
_FOR_PEOPLE: Final = frozenset({REFUSED, "BadArguments", "MpsImpossible", "MpsDaemonFailed"})
_NOT_LISTENING: Final = "connection refused"  # a probe of a process that does not listen yet

_STARTING: Final = frozenset(
    {"", "Starting", "NotReady", "ContainerCreating", "PodInitializing", "Pending", "ContainersNotReady"}
)
_POD_REMEDIES: Final = (
    (
        frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}),
        "correct the image's name, or make it available on the node (registry, pull secret, or load it there)",
    ),
    (
        frozenset({"CrashLoopBackOff", "Error", "StartError", "RunContainerError"}),
        "read its last words: kubectl -n {namespace} logs {pod} --previous",
    ),
    (
        frozenset({"CreateContainerConfigError"}),
        "make the ConfigMap or Secret that it names: kubectl -n {namespace} describe pod {pod}",
    ),
    (frozenset({"OOMKilled"}), "raise the container's memory limit"),
    (
        frozenset({"Unschedulable", "Evicted", "OutOfcpu", "OutOfmemory", "OutOfpods", "NodeAffinity"}),
        "make room on the node: kubectl -n {namespace} describe pod {pod}",
    ),
    (_STARTING, ""),
)  # fmt: skip

_CREATE_REMEDIES: Final[tuple[tuple[str, str], ...]] = (
    (
        "exceeded quota",
        "raise the ResourceQuota: kubectl -n {namespace} edit resourcequota {quota}",
    ),
    (
        "violates PodSecurity",
        "kubectl label --overwrite namespace {namespace} pod-security.kubernetes.io/enforce=privileged",
    ),
    (
        "security context constraint",
        "install the chart with platform.openshift=true, which brings SecurityContextConstraints for these pods",
    ),
    ("no PriorityClass", "correct daemonsets.priorityClassName, or make that PriorityClass"),
    ("admission webhook", "read the webhook's reason, and let namespace {namespace} pass"),
    ("service account", "put the ServiceAccount back: helm upgrade with the same values"),
)


def not_created(message: str, namespace: str) -> Cause:
    """Why the API server refuses a DaemonSet's pods, with the remedy."""
    match = _QUOTA.search(message)
    quota = match[1] if match else "-n " + namespace
    remedy = next((remedy for words, remedy in _CREATE_REMEDIES if words in message), "")
    remedy = remedy.format(namespace=namespace, quota=quota) or "correct what the API server names"
    return Cause(reason="PodsNotCreated", what=f"its pods are refused: {_cut(message)}", remedy=remedy)


@dataclass(frozen=True)
class CauseView:
    """What operands are judged by: the policy, the nodes as they will be labelled, and what is known by node."""

    observed: ObservedCluster
    settings: OperatorSettings
    policy: Policy
    nodes: tuple[ClusterNode, ...]
    gpu_nodes: tuple[ClusterNode, ...]
    wanted: Mapping[str, Object] = field(default_factory=dict)
    """The DaemonSets that there should be, by name."""
    errors: Mapping[str, UserError] = field(default_factory=dict)
    """What can't be rendered, by operand."""
    unusable_drivers: Mapping[str, Advice] = field(default_factory=dict)
    """Why an NVIDIADriver installs no driver, by its name."""
    upgrades: Mapping[str, NodeUpgrade] = field(default_factory=dict)
    """The nodes with a driver DaemonSet, by name: whether they run the driver that is asked for."""
    upgrade_rules: Mapping[str, UpgradeRules] = field(default_factory=dict)
    """How nodes get a new driver, by the DaemonSet that installs it."""

    @cached_property
    def troubles(self) -> Mapping[tuple[str, str], PodTrouble]:
        """By DaemonSet and node."""
        troubles: dict[tuple[str, str], PodTrouble] = {}
        for trouble in self.observed.troubles:
            troubles.setdefault((trouble.daemon_set, trouble.node), trouble)
        return troubles

    @cached_property
    def in_trouble(self) -> frozenset[str]:
        """The DaemonSets with a pod that is not ready."""
        return frozenset(name for name, _ in self.troubles)

    @cached_property
    def drivers(self) -> DriverSets:
        """The wanted DaemonSets of drivers by node."""
        return DriverSets(self.wanted)

    @cached_property
    def _tainted(self) -> dict[tuple[PodToleration, ...], Mapping[str, tuple[Taint, ...]]]:
        return {}

    @cached_property
    def _bearing(self) -> dict[str, tuple[PodToleration, ...]]:
        return {}

    @cached_property
    def _agent_causes(self) -> dict[str, Cause | None]:
        return {}

    def finder(self, node: ClusterNode) -> str:
        """The DaemonSet whose pod discovers this node's features: the agent's where it belongs, else the finder's; ""
        where only another node feature discovery does.
        """
        if self.settings.layout is NodeLayout.AGENT and has_agent(node):
            return names.AGENT_DAEMON_SET
        return names.FINDER_DAEMON_SET if names.FINDER_DAEMON_SET in self.wanted else ""

    def tainted(self, daemon_set: str) -> Mapping[str, tuple[Taint, ...]]:
        """Nodes with taints that a DaemonSet does not tolerate: those taints by node name."""
        if daemon_set not in self._bearing:
            self._bearing[daemon_set] = self._tolerations(daemon_set)
        bearing, known = self._bearing[daemon_set], self._tainted
        if bearing not in known:  # most DaemonSets tolerate the same
            known[bearing] = {
                node.name: taints for node in self.nodes if node.taints and (taints := untolerated(node, bearing))
            }
        return known[bearing]

    def _tolerations(self, daemon_set: str) -> tuple[PodToleration, ...]:
        wanted = self.wanted.get(daemon_set) or self.observed.daemon_sets.get(daemon_set)
        if wanted is None:
            tolerations = msgspec.to_builtins(self.policy.spec.daemonsets.tolerations) or TOLERATIONS
        else:
            tolerations = mapping(mapping(mapping(wanted.get("spec")).get("template")).get("spec")).get("tolerations")
        return (*map(_toleration, map(mapping, items(tolerations))), *DAEMON_TOLERATIONS)

    def agent_cause(self, node: ClusterNode) -> Cause | None:
        """Why no agent works on this node, None where one does."""
        known = self._agent_causes
        if node.name not in known:
            known[node.name] = self._agent(node)
        return known[node.name]

    def _agent(self, node: ClusterNode) -> Cause | None:
        cause = self.pod_cause(node, names.AGENT_DAEMON_SET, running=node.agent is not None)
        if cause is not None:
            return cause
        if node.agent is None:
            return Cause(reason="AgentStarting", what="its agent has not reported yet", passing=True)
        if node.agent.generation < self.policy.generation:
            return Cause(
                reason="OldConfiguration",
                what=f"its agent still acts on generation {node.agent.generation} of the policy",
                passing=True,
            )
        return None

    def pod_cause(self, node: ClusterNode, daemon_set: str, *, running: bool) -> Cause | None:
        """Why a DaemonSet's pod does not work on a node. ``running``: something shows that it has run there."""
        if not node.ready:
            return _node_down(node)
        refused = self.observed.apply_errors.get(f"DaemonSet/{daemon_set}")
        if refused is not None:
            return not_applied(f"DaemonSet/{daemon_set}", refused)
        live = self.observed.daemon_sets.get(daemon_set)
        if live is None:
            return Cause(reason="NotCreatedYet", what=f"DaemonSet {daemon_set} is not there yet", passing=True)
        missing = self._missing(node, daemon_set, running=running)
        taints = self.tainted(daemon_set).get(node.name, ())
        if taints and (missing or any(taint.effect == "NoExecute" for taint in taints)):
            return _not_tolerated(node, taints, self.policy.name)
        trouble = self.troubles.get((daemon_set, node.name))
        if trouble is not None:
            return self._in_trouble(trouble)
        if not missing:
            return None
        failure = self.observed.failures.get(daemon_set)
        if failure:
            return not_created(failure, self.settings.namespace)
        if running:  # the report is from a pod that is gone
            return Cause(reason="PodMissing", what=f"DaemonSet {daemon_set} has no pod on it yet", passing=True)
        return None

    def _missing(self, node: ClusterNode, daemon_set: str, *, running: bool) -> bool:
        """Whether the DaemonSet has no pod there; without rights to list pods, ``running`` decides."""
        if self.observed.pods is None:
            return not running
        return node.name not in self.observed.pods.get(daemon_set, frozenset())

    def _in_trouble(self, trouble: PodTrouble) -> Cause:
        remedy, passing = pod_remedy(trouble.reason, trouble.message, self.settings.namespace, trouble.pod)
        what = f"pod {trouble.pod} is not ready: {_cut(trouble.reason, 60) or 'starting'}"
        detail = f" ({_cut(trouble.message)})" if trouble.message else ""
        passing = passing or (trouble.reason == UNHEALTHY and _NOT_LISTENING in trouble.message)
        return Cause(reason=word(trouble.reason, "PodNotReady"), what=what + detail, remedy=remedy, passing=passing)

    def role_cause(self, node: ClusterNode, role: str) -> Cause | None:
        """Why a role does not work on a node, None when it does."""
        cause = self.agent_cause(node)
        if cause is not None:
            return cause
        return self.role_cause_alone(node, role)

    def role_cause_alone(self, node: ClusterNode, role: str) -> Cause | None:
        """``role_cause`` of a node whose agent is known to work."""
        report = node.report.roles.get(role) if node.report else None
        if report is None:
            return Cause(reason="RoleStarting", what=f"its agent does not run the role {role} yet", passing=True)
        # It runs, but not as configured; or it waits for a person.
        complaint = (report.state == "running" and report.why) or (
            report.state == "waiting" and report.why in _FOR_PEOPLE
        )
        if report.state == "running" and not complaint:
            return None
        words = f": {_cut(report.reason, MAX_REASON)}" if report.reason else ""
        what = f"the role {role} complains" if complaint else f"the role {role} is {report.state[:20]}"
        if report.why == REFUSED:  # the same for every role that reads it
            what = "its configuration is refused"
        return Cause(
            reason=word(report.why, word(report.state.capitalize(), "NotRunning")),
            what=what + words,
            quoted=_cut(report.remedy, MAX_REASON),
            passing=report.state != "failed" and not complaint,
        )


APPLY_FAILED: Final = "ApplyFailed"
_REFUSES: Final = "the API server refuses "
# How the API server names fields: spec.template.spec.containers[0].image, .spec.foo, spec.nodeSelector[a.b/c].
_FIELD: Final = re.compile(r"(?<![\w.])\.?((?:spec|metadata|data)(?:\.[\w-]+|\[[^\]]{0,100}\]){1,20}): ")


def not_applied(subject: str, message: str) -> Cause:
    """An object that the API server refuses; the remedy names the field where the message does."""
    field = _FIELD.search(message)
    what = f"the value in the ClusterPolicy that {field[1]} comes from" if field else "what it names"
    return Cause(
        reason=APPLY_FAILED,
        what=f"{_REFUSES}{subject}: {_cut(message)}",
        remedy=f"correct {what}; the operator goes on trying",
        cluster=True,
    )


def unrendered(error: UserError) -> Cause:
    """An object that can't be rendered from the policy, with the values that are allowed."""
    return Cause(
        reason="ReconcileFailed", what=f"{error.what}; expected {error.expected}", remedy=error.remedy, cluster=True
    )


def _toleration(value: Mapping[str, Any]) -> PodToleration:
    return PodToleration(*(text(value.get(key)) for key in ("key", "operator", "value", "effect")))


def untolerated(node: ClusterNode, tolerations: tuple[PodToleration, ...]) -> tuple[Taint, ...]:
    """The taints that keep pods with these tolerations away from a node."""
    taints = []
    for entry in node.taints:
        taint = Taint(text(entry.get("key")), text(entry.get("value")), text(entry.get("effect")))
        if taint.hard and taint.key not in _OWN_TAINTS and not tolerated(taint, tolerations):
            taints.append(taint)
    return tuple(taints)


def _not_tolerated(node: ClusterNode, taints: Iterable[Taint], policy: str) -> Cause:
    every = tuple(taints)
    first = every[0]
    many = "taints " + ", ".join(map(str, every)) + " are" if len(every) > 1 else f"taint {first} is"
    return Cause(
        reason="TaintNotTolerated",
        what=f"{many} not tolerated by daemonsets.tolerations",
        remedy=(
            f"add {{key: {first.key}, operator: Exists, effect: {first.effect}}} to spec.daemonsets.tolerations of "
            f"ClusterPolicy {policy}, or remove it: kubectl taint node {node.name} {first.key}:{first.effect}-"
        ),
    )


def _node_down(node: ClusterNode) -> Cause:
    condition = node.conditions.get("Ready")
    words = f": {_cut(condition.message)}" if condition and condition.message else ""
    return Cause(
        reason="NodeNotReady", what=f"the node is not Ready{words}", remedy=f"kubectl describe node {node.name}"
    )


def _cut(message: str, limit: int = 300) -> str:
    return one_line(message, limit)


_REASON: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_,:]{0,200}[A-Za-z0-9_])?", re.ASCII)


def word(reason: str, otherwise: str) -> str:
    """The reported reason where a condition may have it, else ``otherwise``."""
    return reason if _REASON.fullmatch(reason) else otherwise
