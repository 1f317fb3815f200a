"""The policy as a whole: its state, its conditions and advice, from the operands' verdicts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.formats import names
from kgpu.formats.operands import BY_NAME, DAEMON_SETS
from kgpu.operator.causes import APPLY_FAILED, Cause, CauseView, not_applied
from kgpu.operator.conditions import STATE_NOT_READY, STATE_READY, condition, failure, success
from kgpu.operator.labels import opted_out, vendor_of
from kgpu.operator.model import ClusterNode, Object, Policy
from kgpu.operator.vendors import VENDORS, pci_labels
from kgpu.operator.verdict import NOT_LOOKED_AT, SHOWN, NodeCause, OperandVerdict, findings_text, some_nodes

RECONCILED: Final = "ClusterPolicy is ready as all resources have been successfully reconciled"
NO_LABELS: Final = "No NFD labels found"
NO_GPU_NODE: Final = "No GPU node found, watching for new nodes to join the cluster."
EVERY_NODE: Final = 20
"""Nodes with the same trouble up to which each gets its own Event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """``conditions`` are the pair and one per operand; ``failed``: some objects can't be made or are refused."""

    state: str
    conditions: tuple[Object, ...]
    advice: tuple[Advice, ...] = ()
    failed: bool = False


def summarize(view: CauseView, verdicts: tuple[OperandVerdict, ...], prerequisites: Iterable[Cause] = ()) -> Summary:
    """Summarize a policy that is in force."""
    unmet = tuple(prerequisites)
    hard = [*((cause, "pre-requisites") for cause in unmet), *_refused(view)]
    each = tuple(_of_operand(verdict) for verdict in verdicts)
    bad = [verdict for verdict in verdicts if verdict.holds_up]
    findings = root_causes(finding for verdict in bad for finding in verdict.findings)
    advice = _advice(view.policy, findings, [cause for cause, _ in hard])
    own = {name: error for name, error in view.errors.items() if not name.startswith("NVIDIADriver/")}
    if hard or own:
        lines = [f"Failed to reconcile {state}: {cause.line()}" for cause, state in hard]
        lines += [f"Failed to reconcile {_of(name)}: {error.one_line()}" for name, error in own.items()]
        reason = "PrerequisiteNotMet" if unmet else "ReconcileFailed"
        return Summary(
            state=STATE_NOT_READY,
            conditions=(*failure(reason, "; ".join(lines)), *each),
            advice=advice,
            failed=True,
        )
    if bad:
        states = " ".join(verdict.operand.state for verdict in bad)
        extra = findings_text(findings)
        message = f"ClusterPolicy is not ready; states not ready: [{states}]" + (f"; {extra}" if extra else "")
        reason = "DriverNotReady" if any(verdict.operand.name == "driver" for verdict in bad) else "OperandNotReady"
        return Summary(state=STATE_NOT_READY, conditions=(*failure(reason, message), *each), advice=advice)
    absent = None if view.gpu_nodes else _no_gpus(view, verdicts)
    if absent is not None:
        pair = success(absent.reason, absent.line())
        advice = (*advice, _advice_of(f"ClusterPolicy/{view.policy.name}", absent))
    else:
        pair = success("Reconciled", f"{RECONCILED}{_not_computed(view)}")
    return Summary(state=STATE_READY, conditions=(*pair, *each), advice=advice)


def not_computed(nodes: Iterable[ClusterNode]) -> list[str]:
    """The names of those nodes on whose devices nothing has computed, as kgpu has no program for their vendor's."""
    return [
        node.name for node in nodes if not opted_out(node) and not VENDORS[vendor_of(node) or names.NVIDIA].computes
    ]


def _not_computed(view: CauseView) -> str:
    found = not_computed(view.gpu_nodes)
    if not found:
        return ""
    return f"; nothing has computed on {some_nodes(found)}: kgpu has no program for the devices of its vendor"


def _no_gpus(view: CauseView, verdicts: tuple[OperandVerdict, ...]) -> Cause:
    """Why there is nothing to do; the policy is ready all the same, as with the replaced operator."""
    looked = [node.name for node in view.nodes]
    looked_for = f"looked for {', '.join(pci_labels(view.settings.vendors))} = true"
    more = f" (+{len(looked) - SHOWN} more)" if len(looked) > SHOWN else ""
    where = f"on {', '.join(looked[:SHOWN])}{more}" if looked else "on no node at all"
    aside = [note for verdict in verdicts for note in verdict.notes if note.startswith(NOT_LOOKED_AT)]
    extra = "; ".join(["", *aside])
    if not has_feature_labels(view.nodes):
        return Cause(
            reason="NFDLabelsMissing",
            what=f"{NO_LABELS}; {looked_for} {where}{extra}",
            remedy="let a node feature discovery run: set the Helm value nfd.enabled, or see why yours labels nothing",
        )
    near = _near_miss(view.nodes)
    ids = "|".join(row.pci_id for name, row in VENDORS.items() if name in view.settings.vendors)
    return Cause(
        reason="NoGPUNodes",
        what=f"{NO_GPU_NODE} {looked_for.capitalize()} {where}{extra}{near}",
        remedy=(
            "set deviceLabelFields: [vendor] for the pci source of your node feature discovery"
            if near
            else f"nothing where there are none; otherwise look on the node with: lspci -nn | grep -E '{ids}'"
        ),
    )


def _near_miss(nodes: Iterable[ClusterNode]) -> str:
    """Name an NVIDIA device's label in another form, as a discovery with other label fields writes it; "" for none."""
    for node in nodes:
        for key in sorted(node.labels):
            if key.startswith(f"{names.NFD_PREFIX}pci-") and names.NVIDIA_PCI_ID in key:
                return f"; node {node.name} has {key}, which is not one of them"
    return ""


def has_feature_labels(nodes: Iterable[ClusterNode]) -> bool:
    """True when some node feature discovery has labelled some node."""
    return any(key.startswith(names.NFD_PREFIX) for node in nodes for key in node.labels)


def root_causes(findings: Iterable[NodeCause]) -> tuple[NodeCause, ...]:
    """The findings without duplicates, and without passing causes where something on the same node, or on all, failed.

    Symptoms are left out where the validator has found what is wrong with that node's devices.
    """
    distinct = tuple(dict.fromkeys(findings))
    explained = {finding.node for finding in distinct if _explains(finding.cause)}
    every = tuple(finding for finding in distinct if not (finding.cause.symptom and finding.node in explained))
    failed = {finding.node for finding in every if not finding.cause.passing}
    return tuple(
        finding for finding in every if not finding.cause.passing or (finding.node not in failed and "" not in failed)
    )


# The validator's reasons that explain why devices are not offered begin with these.
_DEVICES: Final = ("Driver", "Cuda", "Plugin")


def _explains(cause: Cause) -> bool:
    return not (cause.passing or cause.symptom) and cause.reason.startswith(_DEVICES)


def _of_operand(verdict: OperandVerdict) -> Object:
    return condition(verdict.operand.condition, verdict.status, verdict.reason, verdict.message)


def _of(name: str) -> str:
    """The state that a name in ``errors`` belongs to: an operand's, or the agent's."""
    operand = BY_NAME.get(name)
    return operand.state if operand is not None else name


def _refused(view: CauseView) -> list[tuple[Cause, str]]:
    """Causes for objects that the API server refuses, with the states that they belong to."""
    return [
        (not_applied(subject, message), _state_of(subject))
        for subject, message in sorted(view.observed.apply_errors.items())
    ]


def _state_of(subject: str) -> str:
    kind, _, name = subject.partition("/")
    operand = DAEMON_SETS.get(name) if kind == "DaemonSet" else None
    if operand is None and name.startswith("nvidia-driver-daemonset"):
        operand = DAEMON_SETS["nvidia-driver-daemonset"]
    return operand.state if operand is not None else "pre-requisites"


# Objects that can't be rendered or are refused are reported once, and not for every operand that needs them.
_TOLD_ELSEWHERE: Final = frozenset({"ReconcileFailed", APPLY_FAILED})


def _advice(policy: Policy, findings: tuple[NodeCause, ...], hard: Iterable[Cause]) -> tuple[Advice, ...]:
    """One record per cause and node; one in all for a reason on many nodes, which the conditions detail."""
    subject = f"ClusterPolicy/{policy.name}"
    by_reason: dict[str, list[NodeCause]] = {}
    for finding in findings:
        if not finding.cause.passing and finding.cause.reason not in _TOLD_ELSEWHERE:
            by_reason.setdefault(finding.cause.reason, []).append(finding)
    advice = [_advice_of(subject, cause) for cause in hard]
    for reason, same in by_reason.items():
        advice += [_advice_of(subject, finding.cause) for finding in same if not finding.node]
        on_nodes = sorted((finding for finding in same if finding.node), key=lambda finding: finding.node)
        if len(on_nodes) > EVERY_NODE:
            cause = on_nodes[0].cause
            what = f"{reason} on more than {EVERY_NODE} nodes, such as: {cause.what}"
            remedy = cause.shown_remedy
            advice.append(
                Advice(subject=subject, what=what, why="", severity=Severity.WARNING, remedy=remedy, reason=reason)
            )
        else:
            advice += [_advice_of(f"Node/{finding.node}", finding.cause) for finding in on_nodes]
    return tuple(dict.fromkeys(advice))


def _advice_of(subject: str, cause: Cause) -> Advice:
    kind, _, name = subject.partition("/")
    what = f"node {name}: {cause.what}" if kind == "Node" else cause.what
    return Advice(
        subject=subject, what=what, why="", severity=Severity.WARNING, remedy=cause.shown_remedy, reason=cause.reason
    )
