"""How a cluster is doing, as data for people and programs: what ``kgpu status`` shows.

It applies the operator's own rules to what is read now, so that it is right also while the operator is down, and names
what the operator has written where that differs.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.plain import items, mapping, text
from kgpu.base.printable import counted
from kgpu.formats import names
from kgpu.formats.support import cuda_of
from kgpu.operator import conditions
from kgpu.operator.active_policy import ActivePolicy, choose_policy, hands_off, ignored
from kgpu.operator.causes import APPLY_FAILED, Cause, unrendered
from kgpu.operator.conditions import STATE_NOT_READY, STATE_READY
from kgpu.operator.field_rows import FieldRow, field_rows
from kgpu.operator.gpu_health import gpus_of
from kgpu.operator.labels import deploy, has_accelerators, is_known, opted_out, vendor_of
from kgpu.operator.model import ClusterNode, NvidiaDriver, ObservedCluster, OperatorSettings, Policy
from kgpu.operator.plan_report import MANIFEST_WARNING, of_device_configs, printable_error
from kgpu.operator.policy_summary import not_computed, root_causes
from kgpu.operator.rendering.ignored import SANDBOX
from kgpu.operator.survey import LabelledCluster, Survey, labelled, survey
from kgpu.operator.upgrades import NodeUpgrade
from kgpu.operator.vendors import product
from kgpu.operator.verdict import NodeCause, OperandVerdict
from kgpu.operator.versions import Unsupported

WORKS: Final = "works"
FAILS: Final = "fails"
WAITS: Final = "waits"
OFF: Final = "off"
"""The states of an operand on a node; off: it is not meant to run there."""

INSTALL: Final = "helm install kgpu charts/kgpu -n gpu-operator --create-namespace --set image.repository=REGISTRY/kgpu"
_REMEDIES: Final = {
    MANIFEST_WARNING: "correct the field: kubectl edit clusterpolicy",
    "Leaving": "wait until what it has made is gone: kubectl get clusterpolicy -w",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProblem:
    """A problem. ``nodes`` is empty for what concerns the whole cluster.

    ``passing``: it usually goes by itself. ``warning``: it holds nothing up.
    """

    what: str
    remedy: str = ""
    reason: str = ""
    nodes: tuple[str, ...] = ()
    passing: bool = False
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAmounts:
    """One extended resource of a node."""

    capacity: int
    allocatable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOverview:
    """One GPU node. ``vendor`` is whose devices it is served for. ``operands`` has ``works``, ``fails``, ``waits`` or
    ``off`` by operand name: how the operand is.

    ``gpus_bad`` is how many of its GPUs take no work by the health role's verdict, ``gpus_to_look_at`` how many do and
    want to be looked at.
    """

    name: str
    vendor: str
    ready: bool
    product: str
    system: str
    runtime: str
    driver: str
    driver_source: str
    cuda: str
    resources: dict[str, ResourceAmounts] = field(default_factory=dict)
    operands: dict[str, str] = field(default_factory=dict)
    opted_out: bool = False
    gpus_bad: int = 0
    gpus_to_look_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandRow:
    """One operand, as its condition says."""

    name: str
    title: str
    status: str
    reason: str
    message: str
    nodes: int
    working: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRow:
    """One NVIDIADriver, as its status says."""

    name: str
    state: str
    message: str
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeRow:
    """How far a node's driver upgrade is. ``running`` and ``wanted`` are releases, or images without one; ``operation``
    is "" before there is one; ``waits`` is whether a person has to approve it.
    """

    node: str
    state: str
    running: str
    wanted: str
    operation: str = ""
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of the whole cluster. ``installed``: there is an operator of kgpu. ``unread`` is what could not be
    read, so that nothing is known about it.
    """

    ready: bool
    headline: str
    namespace: str
    operator: str
    installed: bool = False
    policy: str = ""
    layout: str = ""
    nodes: tuple[NodeOverview, ...] = ()
    other_nodes: int = 0
    operands: tuple[OperandRow, ...] = ()
    drivers: tuple[DriverRow, ...] = ()
    upgrades: tuple[UpgradeRow, ...] = ()
    fields: tuple[FieldRow, ...] = ()
    problems: tuple[ShownProblem, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorState:
    """What is known of the operator's Deployment. ``said`` describes it in words; ``down``: it exists and does not run;
    ``name`` is its name, "" without one; ``idle``: it is scaled to 0; ``release`` is Helm's, "" without one; ``image``
    is what it runs, "" where that is not known.
    """

    said: str = ""
    down: bool = False
    name: str = ""
    idle: bool = False
    release: str = ""
    image: str = ""


def overview(
    observed: ObservedCluster,
    settings: OperatorSettings,
    *,
    operator: OperatorState | None = None,
    unread: tuple[str, ...] = (),
) -> Overview:
    """Make the overview of a cluster that has been read."""
    state = operator or OperatorState()
    active = choose_policy(observed)
    policy = active.policy
    aside = (*_aside(active), *([_operator_down(state, settings)] if state.down else []))
    stand_in = tuple(_stand_in(observed.nodes, state, settings))
    if policy is None or policy.problem or active.foreign:
        problem = _stopper(active, policy, state, settings)
        return Overview(
            ready=False,
            headline=problem.what,
            namespace=settings.namespace,
            operator=state.said,
            installed=bool(state.name),
            policy=policy.name if policy else "",
            layout=settings.layout.value,
            nodes=tuple(_row(node, ()) for node in observed.nodes if has_accelerators(node)),
            other_nodes=sum(not has_accelerators(node) for node in observed.nodes),
            drivers=_drivers(observed.drivers, observed.nodes),
            problems=tuple(map(with_remedy, (*stand_in, problem, *aside))),
            unread=unread,
        )
    if not observed.apply_errors and _is_current(policy):  # only the operator knows what it has been refused
        observed = dataclasses.replace(observed, apply_errors=conditions.refusals(policy.status))
    cluster = labelled(observed, policy, settings)
    known = survey(cluster, settings, policy)
    written = _written(policy)
    judged_ready = known.summary.state == STATE_READY
    problems = (
        *sorted((*_problems(known), *_gpus(known.view.gpu_nodes)), key=_weight),
        *aside, *_switched_off(known), *_outside(known.findings), *_warnings(policy), *_device_configs(cluster),
        *_without_effect(known),
    )  # fmt: skip
    if judged_ready and written != STATE_READY:
        problems = (_disagreement(policy, written), *problems)
    problems = (*stand_in, *problems)
    return Overview(
        ready=judged_ready and written == STATE_READY,
        headline=_headline(known, policy, written),
        namespace=settings.namespace,
        operator=state.said,
        installed=bool(state.name),
        policy=policy.name,
        layout=settings.layout.value,
        nodes=tuple(_row(node, known.verdicts) for node in known.view.gpu_nodes),
        other_nodes=len(known.view.nodes) - len(known.view.gpu_nodes),
        operands=tuple(map(_operand, known.verdicts)),
        drivers=_drivers(observed.drivers, known.view.nodes),
        upgrades=tuple(_upgrade(upgrade) for upgrade in known.view.upgrades.values() if upgrade.state is not None),
        fields=field_rows(policy, observed.drivers),
        problems=tuple(map(with_remedy, problems)),
        unread=unread,
    )


def _operator_down(operator: OperatorState, settings: OperatorSettings) -> ShownProblem:
    where = f"kubectl -n {settings.namespace}"
    if operator.idle:
        what = "the operator is scaled to 0, so nothing is brought up to date"
        remedy = f"{where} scale deployment/{operator.name} --replicas=1"
    else:
        what = f"the operator does not run, so nothing is brought up to date ({operator.said})"
        remedy = f"{where} describe pods -l app=gpu-operator"
    return ShownProblem(what=what, remedy=remedy, reason="OperatorDown", warning=True)


def _stand_in(
    nodes: Iterable[ClusterNode], operator: OperatorState, settings: OperatorSettings
) -> Iterable[ShownProblem]:
    """That simulated nodes don't have the image that kgpu is to run from: their pods run and do nothing."""
    simulated = tuple(sorted(node.name for node in nodes if names.NODE_HOST_LABEL in node.labels))
    if not simulated or not operator.image or re.fullmatch(names.IMAGE_PATTERN, operator.image):
        return
    upgrade = f"helm -n {settings.namespace} upgrade {operator.release or 'kgpu'} charts/kgpu"
    yield ShownProblem(
        what=f"simulated nodes know kgpu's image as {names.IMAGE_REPOSITORY} alone: a stand-in, which does nothing, "
        f"runs there in place of {operator.image}",
        remedy=f"{upgrade} --reset-then-reuse-values --set image.repository={names.IMAGE_REPOSITORY}",
        reason="StandIn",
        nodes=simulated,
    )


def _policy_remedy(operator: OperatorState, settings: OperatorSettings) -> str:
    """How to get a ClusterPolicy; where the operator is installed, a second release would be in its way."""
    if not operator.name:
        return f"install the chart: {INSTALL}"
    if not operator.release:
        return "apply your ClusterPolicy: kubectl apply -f FILE"
    again = f"helm -n {settings.namespace} upgrade {operator.release} charts/kgpu --reuse-values"
    return f"apply your ClusterPolicy (kubectl apply -f FILE), or let the release make it again: {again}"


def _stopper(
    active: ActivePolicy, policy: Policy | None, operator: OperatorState, settings: OperatorSettings
) -> ShownProblem:
    if active.foreign:
        return _of(hands_off(active.foreign, active.foreign_version))
    if policy is not None and policy.problem is not None:
        what = f"ClusterPolicy {policy.name} can't be read: {policy.problem.statement}"
        return ShownProblem(what=what, remedy=policy.problem.remedy, reason="ReconcileFailed")
    if active.leaving:
        return ShownProblem(
            what=f"ClusterPolicy {active.leaving[0].name} is being deleted", reason="Leaving", passing=True
        )
    return ShownProblem(
        what="There is no ClusterPolicy, so nothing is managed here",
        remedy=_policy_remedy(operator, settings),
        reason="NoClusterPolicy",
    )


def _headline(known: Survey, policy: Policy, written: str) -> str:
    gpus = known.view.gpu_nodes
    state = known.summary.state
    if state == STATE_READY and written == STATE_READY:
        if not gpus:
            return f"ClusterPolicy {policy.name} is ready: there is no GPU node, so there is nothing to do"
        count = len(gpus)
        validated = conditions.counts(len(known.view.nodes), gpus)["validated"]
        share = "all validated" if validated == count else f"{validated} of {count} validated"
        if bare := not_computed(gpus):
            share += f", nothing computed on {counted(len(bare), 'node')} of other vendors"
        head = f"ClusterPolicy {policy.name} is ready: {counted(count, 'GPU node')}, {share}"
        return head + _not_offered(known) + _not_well(gpus)
    if state == STATE_READY:
        return f"Everything works, but ClusterPolicy {policy.name} does not say so yet"
    refused = sorted(known.view.observed.apply_errors)
    if refused:
        more = f" (+{len(refused) - 1} more)" if len(refused) > 1 else ""
        return f"ClusterPolicy {policy.name} is not ready: the API server refuses {refused[0]}{more}"
    late = [verdict for verdict in known.verdicts if verdict.holds_up]
    failing = [verdict for verdict in late if not all(finding.cause.passing for finding in verdict.findings)]
    bad = [verdict.operand.title for verdict in failing or late]
    return f"ClusterPolicy {policy.name} is not ready: {', '.join(bad) or 'it can not be carried out'}"


def _not_offered(known: Survey) -> str:
    """The part of the headline about nodes without GPUs because the device plugin is off; "" where there is none."""
    off = {name for verdict in known.verdicts if verdict.operand.name == "device-plugin" for name in verdict.off}
    if known.view.policy.spec.device_plugin.enabled is False:
        off = {node.name for node in known.view.gpu_nodes}
    bare = [node for node in known.view.gpu_nodes if node.name in off and not any(node.allocatable.values())]
    if not bare:
        return ""
    count = len(bare)
    return f"; no GPU is offered on {count} of {len(known.view.gpu_nodes)}: the device plugin is switched off"


def _not_well(nodes: Iterable[ClusterNode]) -> str:
    """The part of the headline about GPUs that are not well, "" without any."""
    counts = {node.name: bad for node in nodes if (bad := gpus_of(node).bad)}
    if not counts:
        return ""
    total = sum(counts.values())
    more = f" and {len(counts) - 3} more" if len(counts) > 3 else ""
    where = f"{'node' if len(counts) == 1 else 'nodes'} {', '.join(list(counts)[:3])}{more}"
    return f"; {total} {'GPU is' if total == 1 else 'GPUs are'} not well ({where})"


def _is_current(policy: Policy) -> bool:
    """Whether the status that the operator has written is of the policy's current generation."""
    entries = map(mapping, items(policy.status.get("conditions")))
    return all(entry.get("observedGeneration") == policy.generation for entry in entries)


def _written(policy: Policy) -> str:
    return text(policy.status.get("state")) if _is_current(policy) else STATE_NOT_READY


def _said(policy: Policy) -> str:
    """The message of the condition ``Error`` that the operator has last written, "" without one."""
    for entry in map(mapping, items(policy.status.get("conditions"))):
        if entry.get("type") == "Error" and entry.get("status") == "True":
            return text(entry.get("message"))
    return ""


def _switched_off(known: Survey) -> Iterable[ShownProblem]:
    """Operands that node labels switch off, with the command that undoes it, unless that is a cause already."""
    explained = {(finding.node, finding.cause.remedy) for verdict in known.verdicts for finding in verdict.findings}
    out = frozenset(node.name for node in known.view.gpu_nodes if opted_out(node) and not node.aside)
    labels = [(names.LABEL_DEPLOY_OPERANDS, "nothing of kgpu's runs", out)]
    for verdict in known.verdicts:
        what = verdict.operand.without or f"no {verdict.operand.title} runs"
        labels.append((deploy(verdict.operand.deploy), what, verdict.off))
    for key, what, off in labels:
        groups: dict[str, list[str]] = {}
        for node in known.view.gpu_nodes:
            if node.name in off and (node.name, f"kubectl label node {node.name} {key}-") not in explained:
                groups.setdefault(node.labels.get(key, ""), []).append(node.name)
        for value, nodes in groups.items():
            yield ShownProblem(
                what=f'{what}: the node label {key} is "{value}"',
                remedy=f"kubectl label node {' '.join(nodes[:5])} {key}-",
                reason="SwitchedOff",
                nodes=tuple(nodes),
                warning=True,
            )


def _disagreement(policy: Policy, written: str) -> ShownProblem:
    error = _said(policy)
    return ShownProblem(
        what=f'the operator has last written state "{written or "none"}"{f": {error}" if error else ""}',
        remedy="see that the operator runs; it writes again as soon as it sees the same",
        reason="NotWrittenYet",
        passing=True,
    )


def _of(advice: Advice, nodes: tuple[str, ...] = (), *, warning: bool = False) -> ShownProblem:
    return ShownProblem(
        what=advice.statement, remedy=advice.remedy, reason=advice.reason, nodes=nodes, warning=warning
    )  # fmt: skip


def _problem(cause: Cause, nodes: tuple[str, ...]) -> ShownProblem:
    remedy = cause.remedy or (_quoted(nodes[0], cause.quoted) if cause.quoted and nodes else "")
    return ShownProblem(reason=cause.reason, what=cause.what, remedy=remedy, nodes=nodes, passing=cause.passing)


def _problems(known: Survey) -> tuple[ShownProblem, ...]:
    """Root causes as problems, one for all nodes with the same; and what can't be applied or rendered."""
    findings = root_causes(finding for verdict in known.verdicts if verdict.holds_up for finding in verdict.findings)
    groups: dict[Cause, list[str]] = {}
    for finding in findings:
        groups.setdefault(finding.cause, []).append(finding.node)
    problems = [_problem(cause, tuple(sorted(filter(None, nodes)))) for cause, nodes in groups.items()]
    texts = {problem.what for problem in problems}
    problems += [  # what is refused, and what there is to say where all is ready
        _of(advice, warning=known.summary.state == STATE_READY)
        for advice in known.summary.advice
        if advice.subject.startswith("ClusterPolicy/")
        and advice.what not in texts
        and (not findings or advice.reason == APPLY_FAILED)
    ]
    problems += [
        _of(cause)
        for cause in map(unrendered, map(printable_error, known.rendered.errors.values()))
        if cause.what not in texts
    ]
    return tuple(problems)


def _gpus(nodes: Iterable[ClusterNode]) -> Iterable[ShownProblem]:
    """GPUs that are not well by the health role's verdict, also where every operand works."""
    for node in nodes:
        known = gpus_of(node)
        if known.unread:
            yield ShownProblem(what=known.unread, reason="DriverUnreadable", nodes=(node.name,))
        if known.untold:
            what = f"its GPUs are not all well, as an agent of another version says: {known.untold}"
            yield ShownProblem(
                what=what, remedy=f"kgpu doctor node {node.name}", reason="GPUNotWell", nodes=(node.name,)
            )
        for gpu in known.ill:
            what = f"{gpu.name} {'works, and should be looked at' if gpu.works else 'is not well'}: {gpu.what}"
            remedy = _quoted(node.name, gpu.remedy) if gpu.remedy and not gpu.works else ""
            yield ShownProblem(what=what, remedy=remedy, reason="GPUNotWell", nodes=(node.name,), warning=gpu.works)
        if known.more:
            yield ShownProblem(what=f"{known.more} more GPUs are not well", reason="GPUNotWell", nodes=(node.name,))


def with_remedy(problem: ShownProblem) -> ShownProblem:
    """The problem with a remedy, the usual one for its reason where it has none."""
    if problem.remedy:
        return problem
    if problem.passing:
        return dataclasses.replace(problem, remedy="wait: it goes by itself; kgpu status shows how far it is")
    where = f"kgpu doctor node {problem.nodes[0]}" if problem.nodes else "kgpu doctor"
    return dataclasses.replace(problem, remedy=_REMEDIES.get(problem.reason, where))


def _quoted(node: str, remedy: str) -> str:
    """The remedy as a quotation of the agent: whoever has a node's token must not give orders in kgpu's name."""
    return f'its agent says: "{remedy}"; kgpu doctor node {node} checks it'


def _weight(problem: ShownProblem) -> tuple[bool, bool, bool, int, str]:
    """Sort key, worst first; what the API server refuses may be the reason for all others."""
    return problem.passing, problem.warning, problem.reason != APPLY_FAILED, -len(problem.nodes), problem.what


def _aside(active: ActivePolicy) -> tuple[ShownProblem, ...]:
    winner = active.policy
    if winner is None:
        return ()
    return tuple(_of(ignored(policy, winner), warning=True) for policy in active.ignored)


def _outside(findings: Iterable[Unsupported]) -> Iterable[ShownProblem]:
    return (_of(one, one.nodes, warning=True) for one in findings)


def _warnings(policy: Policy) -> Iterable[ShownProblem]:
    """Warnings of the policy's manifest, without fields that are not provided yet: they have rows of their own."""
    return (
        ShownProblem(what=f"ClusterPolicy {policy.name}: {warning}", reason=MANIFEST_WARNING, warning=True)
        for warning in policy.warnings
        if warning not in policy.of_unbuilt
    )


def _device_configs(cluster: LabelledCluster) -> Iterable[ShownProblem]:
    """AMD's DeviceConfigs that are not followed as they stand; a node keeps what it has."""
    for advice in of_device_configs(cluster.observed, cluster.selection):
        if advice.reason != MANIFEST_WARNING:
            yield _of(advice, warning=True)


def _without_effect(known: Survey) -> Iterable[ShownProblem]:
    """What the policy asks for and kgpu does in another way, or not in this layout."""
    for advice in known.rendered.advice:
        if advice.severity is Severity.WARNING and advice.reason != SANDBOX:
            yield ShownProblem(
                what=f"{advice.what} ({advice.why})", remedy=advice.remedy, reason=advice.reason, warning=True
            )


def _row(node: ClusterNode, verdicts: tuple[OperandVerdict, ...]) -> NodeOverview:
    report, gpus, vendor = node.report, gpus_of(node), vendor_of(node)
    driver = (report.driver[:40] if report else "") or _driver_label(node)
    return NodeOverview(
        name=node.name,
        vendor=vendor,
        ready=node.ready,
        product=product(node.labels, vendor) or ("" if is_known(node) else "(not looked at)"),
        system=f"{node.os_id} {node.os_version}".strip(),
        runtime=f"{node.runtime} {node.runtime_version}".strip(),
        driver=driver,
        driver_source=report.driver_source[:40] if report else "",
        cuda=(report.cuda[:40] if report else "") or cuda_of(driver),
        resources={
            name: ResourceAmounts(capacity=count, allocatable=node.allocatable.get(name, 0))
            for name, count in sorted(node.capacity.items())
        },
        operands={verdict.operand.name: _cell(node, verdict) for verdict in verdicts if verdict.on or verdict.off},
        opted_out=opted_out(node),
        gpus_bad=gpus.bad,
        gpus_to_look_at=sum(gpu.works for gpu in gpus.ill),
    )


def _driver_label(node: ClusterNode) -> str:
    return node.labels.get(f"{names.LABEL_CUDA_DRIVER_VERSION}.full", "")


def _cell(node: ClusterNode, verdict: OperandVerdict) -> str:
    if node.name not in verdict.on:
        return OFF
    mine = [finding.cause.passing for finding in verdict.findings if finding.node in (node.name, "")]
    return WORKS if not mine else WAITS if all(mine) else FAILS


def _operand(verdict: OperandVerdict) -> OperandRow:
    bad = {finding.node for finding in verdict.findings} if not _everywhere(verdict.findings) else verdict.on
    return OperandRow(
        name=verdict.operand.name,
        title=verdict.operand.title,
        status=verdict.status,
        reason=verdict.reason,
        message=verdict.message,
        nodes=len(verdict.on),
        working=len(verdict.on) - len(bad),
    )


def _everywhere(findings: Iterable[NodeCause]) -> bool:
    return any(not finding.node for finding in findings)


def _upgrade(upgrade: NodeUpgrade) -> UpgradeRow:
    return UpgradeRow(
        node=upgrade.node,
        state=str(upgrade.state),
        running=upgrade.running,
        wanted=upgrade.wanted.release or upgrade.wanted.image,
        operation=upgrade.operation.name if upgrade.operation is not None else "",
        waits=upgrade.waits,
    )


def _drivers(drivers: Iterable[NvidiaDriver], nodes: Iterable[ClusterNode]) -> tuple[DriverRow, ...]:
    owned = Counter(node.driver_owner for node in nodes)
    rows = []
    for driver in sorted(drivers, key=lambda driver: driver.name):
        entries = [mapping(entry) for entry in items(driver.status.get("conditions"))]
        message = next((text(entry.get("message")) for entry in entries if entry.get("type") == "Ready"), "")
        state = text(driver.status.get("state"))
        rows.append(DriverRow(name=driver.name, state=state, message=message, nodes=owned[driver.name]))
    return tuple(rows)
