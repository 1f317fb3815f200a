"""How every operand is doing: one verdict each, with the nodes on which it does not work and why.

A verdict counts the nodes whose labels want the operand, once the present plan has been carried out. What kgpu has
nothing for yet is ``NotProvided`` and holds nothing up; what the policy has switched off is ``Disabled`` and fine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from kgpu.base.errors import UserError
from kgpu.formats import names
from kgpu.formats.operands import OPERANDS, Operand
from kgpu.operator.causes import Cause, View, not_applied, unrendered
from kgpu.operator.checks import CHECKS, config_map, role
from kgpu.operator.labels import CONTAINER, TRUE, Rules, deploy, looked_at, opted_out, workload
from kgpu.operator.model import Layout, Node
from kgpu.operator.objects.enabled import is_enabled

SHOWN: Final = 5
"""Nodes that one condition names."""

NOT_LOOKED_AT: Final = "not looked at: "
"""How the note on nodes begins that may have GPUs nobody knows of."""

OTHER_DISCOVERY: Final = "another node feature discovery works in this cluster and is used"
"""The note where kgpu's own adds no labels and keeps each that it has until the other one has published it."""


@dataclass(frozen=True, slots=True)
class NodeCause:
    """A cause on a node; ``node`` is "" for what concerns the whole cluster."""

    node: str
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One operand: ``status`` and ``reason`` of its condition, its nodes, and what is wrong where."""

    operand: Operand
    status: str
    reason: str
    on: frozenset[str] = frozenset()
    """The nodes on which it should work."""

    off: frozenset[str] = frozenset()
    """The nodes on which a label of its own switches it off."""

    findings: tuple[NodeCause, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def holds_up(self) -> bool:
        """True when the policy is not ready because of this."""
        return self.status == "False"

    @property
    def message(self) -> str:
        """Of its condition."""
        if not self.findings:
            return "; ".join(self.notes)
        bad = {finding.node for finding in self.findings if finding.node}
        counted = [f"{max(0, len(self.on) - len(bad))} of {len(self.on)} nodes"] if bad else []
        return "; ".join([*counted, told(self.findings), *self.notes])


def told(findings: Iterable[NodeCause]) -> str:
    """Up to five nodes with cause and remedy, those with the same one together, the most frequent first."""
    groups: dict[str, list[str]] = {}
    for finding in findings:
        groups.setdefault(finding.cause.line(), []).append(finding.node)
    parts, left, more = [], SHOWN, 0
    for line, nodes in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        named = [node for node in nodes if node]
        if not named:
            parts.append(line)
            continue
        shown = sorted(named)[:left]
        left -= len(shown)
        rest = len(named) - len(shown)
        if shown:
            parts.append(f"{'node' if len(named) == 1 else 'nodes'} {', '.join(shown)}{_more(rest)}: {line}")
        else:
            more += rest
    return "; ".join(parts) + _more(more)


def _more(count: int) -> str:
    return f" (+{count} more)" if count else ""


def judge(view: View, rules: Rules) -> tuple[Verdict, ...]:
    """All operands, in the table's order."""
    container = [node for node in view.gpu_nodes if not opted_out(node) and workload(node, rules) == CONTAINER]
    out = _out(view)
    return tuple(_verdict(view, operand, container, out) for operand in OPERANDS)


def _out(view: View) -> tuple[str, ...]:
    """Notes on GPU nodes that kgpu keeps off, by whose word."""
    aside = sum(node.aside for node in view.gpu_nodes)
    labelled = sum(map(opted_out, view.gpu_nodes)) - aside
    rows = (
        (labelled, "opted out", names.LABEL_DEPLOY_OPERANDS),
        (aside, "been left out", "the Helm value agent.nodeSelector"),
    )
    return tuple(
        f"{count} GPU {'node has' if count == 1 else 'nodes have'} {what} ({by})" for count, what, by in rows if count
    )


def enabled(view: View, operand: Operand) -> bool:
    """Whether the policy wants an operand."""
    if operand.name == "driver":  # by whichever kind of object
        return view.policy.spec.driver.enabled is not False
    return is_enabled(operand, view.policy, view.settings)


def _verdict(view: View, operand: Operand, container: list[Node], out: tuple[str, ...]) -> Verdict:
    if not enabled(view, operand):
        missed = _unlabelled(view) if operand.name == "features" else ()
        if missed:
            return _summed(operand, [one.node for one in missed], missed, [_disabled(view, operand)])
        return Verdict(operand=operand, status="True", reason="Disabled", notes=(_disabled(view, operand),))
    if not operand.role and operand.name != "driver":
        note = f"kgpu has nothing for the {operand.title} yet; nothing waits for it"
        return Verdict(operand=operand, status="Unknown", reason="NotProvided", notes=(note,))
    error = _render_error(view, operand)
    if error is not None:
        broken = unrendered(error)
        return Verdict(operand=operand, status="False", reason=broken.reason, findings=(NodeCause("", broken),))
    if operand.name == "features":
        return _features(view, operand)
    nodes, off = _expected(operand, container)
    check = CHECKS.get(operand.name, role)
    findings = [NodeCause("", cause) for cause in _general(view, operand)]
    for node in nodes:
        cause = check(view, operand, node)
        if cause is not None:
            findings.append(NodeCause("" if cause.cluster else node.name, cause))
    notes = []
    if off:
        notes.append(f"switched off by node label on {_some(off)}")
    notes += out
    found = _summed(operand, [node.name for node in nodes], _unique(findings), notes)
    return replace(found, off=frozenset(off))


def _render_error(view: View, operand: Operand) -> UserError | None:
    """Why an operand's objects can't be made; without the agent no role of it can be."""
    agent = view.errors.get("agent") if operand.role and view.settings.layout is Layout.AGENT else None
    return view.errors.get(operand.name) or agent


def _summed(operand: Operand, nodes: list[str], findings: tuple[NodeCause, ...], notes: list[str]) -> Verdict:
    if findings:
        return Verdict(
            operand=operand,
            status="False",
            reason=_most_frequent(findings),
            on=frozenset(nodes),
            findings=findings,
            notes=tuple(notes),
        )
    count = len(nodes)
    first = f"{count} of {count} nodes" if count else "no node wants it now"
    return Verdict(operand=operand, status="True", reason="Ready", on=frozenset(nodes), notes=(first, *notes))


def _unique(findings: list[NodeCause]) -> tuple[NodeCause, ...]:
    """What concerns the whole cluster is said once."""
    return tuple(dict.fromkeys(findings))


def _most_frequent(findings: Iterable[NodeCause]) -> str:
    """The commonest reason; of what fails before what is under way."""
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.cause.reason] = counts.get(finding.cause.reason, 0) + 1
    failing = {finding.cause.reason for finding in findings if not finding.cause.passing}
    return min(failing or counts, key=lambda reason: (-counts[reason], reason))


def _some(nodes: list[str]) -> str:
    return f"{', '.join(sorted(nodes)[:SHOWN])}{_more(len(nodes) - SHOWN) if len(nodes) > SHOWN else ''}"


def _disabled(view: View, operand: Operand) -> str:
    if operand.name == "features":
        return "switched off by the Helm value nfd.enabled; something else has to label nodes"
    if operand.name == "driver":
        return _host_drivers(view)
    return "switched off in the ClusterPolicy"


def _host_drivers(view: View) -> str:
    found: dict[str, int] = {}
    for node in view.gpu_nodes:
        if node.report is not None and node.report.driver:
            found[node.report.driver[:40]] = found.get(node.report.driver[:40], 0) + 1
    listed = ", ".join(f"{version} on {count}" for version, count in sorted(found.items())[:SHOWN])
    said = f"; found: {listed} of {len(view.gpu_nodes)} GPU nodes" if listed else ""
    return f"switched off in the ClusterPolicy: nodes use the driver that they have{said}"


def _expected(operand: Operand, nodes: list[Node]) -> tuple[list[Node], list[str]]:
    """The nodes on which an operand should run, and the names of those where a label switches it off."""
    key = deploy(operand.deploy)
    wanted, off = [], []
    for node in nodes:
        value = node.labels.get(key, "")
        if value == TRUE or names.PAUSED_FOR_DRIVER_UPGRADE in value or value == names.PRE_INSTALLED:
            wanted.append(node)
        else:
            off.append(node.name)
    return wanted, off


def _general(view: View, operand: Operand) -> Iterable[Cause]:
    """What is wrong with an operand on no node in particular."""
    refused = view.observed.apply_errors
    subjects = [f"ConfigMap/{names.AGENT_CONFIG_MAP}"]
    if view.settings.layout is Layout.OPERANDS:
        subjects.append(f"ServiceAccount/{operand.account}")
    for subject in subjects:
        if subject in refused and operand.role:
            yield not_applied(subject, refused[subject])
    if operand.name == "device-plugin":
        missing = config_map(view)
        if missing is not None:
            yield missing


def _unlabelled(view: View) -> tuple[NodeCause, ...]:
    """Nodes that offer NVIDIA GPUs and that nothing calls GPU nodes: somebody has taken their labels away.

    Capacity does not count: the kubelet goes on naming devices whose plugin has gone.
    """
    gpus = {node.name for node in view.gpu_nodes}
    found = []
    for node in view.nodes:
        if node.name in gpus or opted_out(node) or not any(node.allocatable.values()):
            continue
        counted = ", ".join(f"{count} {name}" for name, count in sorted(node.allocatable.items()) if count)
        cause = Cause(
            reason="GPULabelsMissing",
            what=f"it has {counted} and no label of an NVIDIA device ({', '.join(names.NFD_PCI_NVIDIA)})",
            remedy=(
                "let its node feature discovery label it again (kgpu's does so by itself); see which labels it has: "
                f"kubectl get node {node.name} --show-labels"
            ),
        )
        found.append(NodeCause(node.name, cause))
    return tuple(found)


def _features(view: View, operand: Operand) -> Verdict:
    """Node features run everywhere; a node that has not been looked at may have GPUs that nobody knows of."""
    gpus = {node.name for node in view.gpu_nodes}
    findings = [NodeCause("", cause) for cause in _general(view, operand)]
    missed = {finding.node: finding for finding in _unlabelled(view)}
    aside: list[str] = []
    unseen: list[NodeCause] = []
    counted: list[str] = []
    others: list[str] = []
    for node in view.nodes:
        if node.os != "linux":
            continue
        daemon_set = view.finder(node)
        if not daemon_set:
            (counted if looked_at(node) else others).append(node.name)
            continue
        if node.name not in gpus:
            taints = view.tainted(daemon_set).get(node.name)
            if taints or not node.ready:
                why = f"taint {taints[0]} is not tolerated" if taints else "it is not Ready"
                absent = view.pod(node, daemon_set, running=False)
                if not looked_at(node) and absent is not None:
                    aside.append(f"{node.name} ({why})")
                    unseen.append(NodeCause(node.name, absent))
                continue
        counted.append(node.name)
        cause = role(view, operand, node)
        if cause is not None and (node.name in gpus or not cause.passing or not looked_at(node)):
            findings.append(NodeCause("" if cause.cluster else node.name, cause))
        elif node.name in missed:
            findings.append(missed[node.name])
    notes = [OTHER_DISCOVERY] if view.observed.foreign_nfd else []
    if unseen and not counted:  # nobody has looked anywhere: that there are no GPUs is not known
        findings += unseen
        counted = [finding.node for finding in unseen]
    elif aside:
        notes.append(
            f"{NOT_LOOKED_AT}{', '.join(sorted(aside)[:SHOWN])}{_more(max(0, len(aside) - SHOWN))}; if there are GPUs "
            f"on them, add the taint to spec.daemonsets.tolerations of ClusterPolicy {view.policy.name}"
        )
    if others:
        notes.append(f"{NOT_LOOKED_AT}{_some(others)}; the other node feature discovery has not labelled them")
    return _summed(operand, counted, _unique(findings), notes)
