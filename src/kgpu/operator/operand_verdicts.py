"""How every operand is doing: one verdict each, with the nodes on which it does not work and why.

A verdict counts the nodes whose labels want the operand, once the present plan has been carried out. What kgpu has
nothing for yet is ``NotProvided`` and holds nothing up; what the policy has switched off is ``Disabled`` and fine.
"""

from __future__ import annotations

from dataclasses import replace

from kgpu.base.errors import UserError
from kgpu.formats import names
from kgpu.formats.operands import OPERANDS, Operand
from kgpu.operator.allocation import LEAVING
from kgpu.operator.causes import CauseView, unrendered
from kgpu.operator.checks import refused_causes
from kgpu.operator.labels import CONTAINER, TRUE, LabelRules, deploy, is_taken, opted_out, serves, workload
from kgpu.operator.model import ClusterNode, NodeLayout
from kgpu.operator.operand_spec import SWITCHED_OFF, OperandSpec
from kgpu.operator.operands import SPECS, is_enabled
from kgpu.operator.verdict import NodeCause, OperandVerdict, some_nodes, unique, verdict_of


def judge(view: CauseView, rules: LabelRules) -> tuple[OperandVerdict, ...]:
    """All operands, in the table's order."""
    container = [node for node in view.gpu_nodes if not opted_out(node) and workload(node, rules) == CONTAINER]
    out = _out(view)
    return tuple(_verdict(view, operand, container, out) for operand in OPERANDS)


def _out(view: CauseView) -> tuple[str, ...]:
    """Notes on GPU nodes without operands, and what keeps them off."""
    aside = sum(node.aside for node in view.gpu_nodes)
    taken = sum(is_taken(node) and not node.aside for node in view.gpu_nodes)
    labelled = sum(map(opted_out, view.gpu_nodes)) - aside - taken
    rows = (
        (labelled, "opted out", names.LABEL_DEPLOY_OPERANDS),
        (aside, "been left out", "the Helm value agent.nodeSelector"),
        (taken, "been left to another device plugin", "which offers their accelerators; remove it to have kgpu do so"),
    )
    return tuple(
        f"{count} GPU {'node has' if count == 1 else 'nodes have'} {what} ({by})" for count, what, by in rows if count
    )


def _verdict(view: CauseView, operand: Operand, container: list[ClusterNode], out: tuple[str, ...]) -> OperandVerdict:
    spec = SPECS.get(operand.name)
    if spec is None:
        return _not_provided(view, operand)
    wanted = spec.wanted(view) if spec.wanted else spec.is_enabled(view.policy, view.settings)
    if not wanted:
        missed = tuple(spec.missed(view))
        if missed:
            return verdict_of(operand, [finding.node for finding in missed], missed, [spec.why_off(view)])
        return OperandVerdict(operand=operand, status="True", reason="Disabled", notes=(spec.why_off(view),))
    error = _render_error(view, operand)
    if error is not None:
        broken = unrendered(error)
        return OperandVerdict(operand=operand, status="False", reason=broken.reason, findings=(NodeCause("", broken),))
    return spec.verdict(view) if spec.verdict else _on_nodes(view, spec, container, out)


def _not_provided(view: CauseView, operand: Operand) -> OperandVerdict:
    if not is_enabled(operand, view.policy, view.settings):
        return OperandVerdict(operand=operand, status="True", reason="Disabled", notes=(SWITCHED_OFF,))
    note = f"kgpu has nothing for the {operand.title} yet; nothing waits for it"
    return OperandVerdict(operand=operand, status="Unknown", reason="NotProvided", notes=(note,))


def _on_nodes(view: CauseView, spec: OperandSpec, container: list[ClusterNode], out: tuple[str, ...]) -> OperandVerdict:
    operand = spec.operand
    nodes, off = _expected(spec, spec.where(view.policy), container)
    general = spec.general(view)
    causes = [*refused_causes(view, operand), *([general] if general is not None else [])]
    findings = [NodeCause("", cause) for cause in causes]
    for node in nodes:
        cause = spec.check(view, operand, node)
        if cause is not None:
            findings.append(NodeCause("" if cause.cluster else node.name, cause))
    notes = []
    if off:
        notes.append(f"switched off by node label on {some_nodes(off)}")
    notes += out
    verdict = verdict_of(operand, [node.name for node in nodes], unique(findings), notes)
    return replace(verdict, off=frozenset(off))


def _render_error(view: CauseView, operand: Operand) -> UserError | None:
    """Why an operand's objects can't be rendered; an error of the agent is one of all its roles."""
    agent = view.errors.get("agent") if operand.role and view.settings.layout is NodeLayout.AGENT else None
    return view.errors.get(operand.name) or agent


def _expected(spec: OperandSpec, where: str, nodes: list[ClusterNode]) -> tuple[list[ClusterNode], list[str]]:
    """The nodes on which an operand should run, and the names of those where a label switches it off. Where there is
    nothing for it to do, it is neither.
    """
    key = deploy(spec.operand.deploy)
    wanted, off = [], []
    for node in nodes:
        if not serves(spec.operand, node):
            continue
        value = node.labels.get(key, "")
        if (where and node.labels.get(where) != TRUE) or (spec.per_node and value in ("", LEAVING)):
            continue
        if value == TRUE or names.PAUSED_FOR_DRIVER_UPGRADE in value or value == names.PRE_INSTALLED:
            wanted.append(node)
        else:
            off.append(node.name)
    return wanted, off
