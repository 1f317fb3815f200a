"""Pods with a node that do not start, parts of a stack without one, and nodes in trouble, where no other rule reports
them.

The finding quotes what the kubelet or the node says, so that none of them is missed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.base.plain import mapping, text
from kgpu.base.printable import counted
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.agent_reports import ill, says_more
from kgpu.doctor.ended_pods import NEWS, by_others, for_good, lost_work
from kgpu.doctor.kinds import UNSTARTED, Container, Event, Pod
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Evidence, Finding, Level, Place
from kgpu.doctor.objects import plain, seconds
from kgpu.doctor.progress import last_line, waits, works
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names
from kgpu.formats.gpu_report import UNREADABLE

OLD: Final = 300.0
"""Seconds: what is younger may still be starting."""
PATIENCE: Final = 20 * 60.0
"""Seconds that an init container or a pull may take: a driver is built, gigabytes are fetched."""
SHORT: Final = 10 * 60.0
"""Seconds after which an init container that shows no work is worth a word."""
_INIT: Final = "seconds to minutes as a rule; up to an hour where a model or data of many gigabytes is fetched"
_PULL: Final = "20 minutes at most, for an image of some gigabytes"
_MANY: Final = 3
"""Restarts after which the age, which dumps often do not tell, does not matter."""
_AGAIN: Final = 2
"""The same for what waits for nothing else."""
_ORDER: Final = (matching.DRIVER, matching.TOOLKIT, matching.VALIDATOR, matching.MIG_MANAGER, matching.PLUGIN)
_FIRM: Final = matching.CREATE_WORDS | matching.IMAGE_WORDS - {"ErrImagePull", "RegistryUnavailable"}
_GPU_CONDITION: Final = re.compile(
    r"xid|nvidia|nvlink|accelerat|fabricmanager|dcgm|cuda|imex|(?<!amd)gpu", re.IGNORECASE
)
_GOOD: Final = re.compile(
    r"(?<!Not)(?:Ready|Healthy|Validated|Available|Installed|Loaded|Operational|Initialized|OK|Passed"
    r"|(?:Manager|Daemon|Service|Plugin|Driver|Engine|Agent)(?:Running|Active))$"
)
"""How the names of conditions end that say by anything but True that all is not well."""
_FAULT: Final = re.compile(
    r"(?i:error|fail|fault|unhealthy|lost|missing|problem|xid|inactive|pressure|unavailable|corrupt|degraded|stuck|dead"
    r"|throttl|overheat|flapping|timeout|mismatch|abnormal)|[Dd]own(?!load)|(?<![Cc])[Hh](?:ang|ung)|Not(?=[A-Z])"
)
"""What is in the names of conditions that say by True that something is wrong: most others are no fault at all."""
_AGENTS: Final = (names.GPUS_HEALTHY_CONDITION, names.VALIDATED_CONDITION)
_UNWELL: Final = re.compile(r"Not(?:Healthy|Ready)|Unhealthy")
_JOINING: Final = 120.0
"""Seconds that a node has to become Ready after it has joined."""
_STATES: Final = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
_BACK_OFF: Final = re.compile(r"back-off\b(?! pulling)")
_NO_CAUSE: Final = frozenset({"FailedScheduling", "BackOff", "NotTriggerScaleUp"})
"""Reasons of warnings that say no more than the pod's status does."""
_STEPS: Final = (
    (matching.IMAGE_WORDS, ("its events have the registry's own words:", remedies.DESCRIBE_POD)),
    (
        frozenset({"CreateContainerConfigError"}),
        ("make the ConfigMap or Secret that it names, or correct its name in the manifest",),
    ),
    (
        frozenset({"FailedMount", "FailedAttachVolume"}),
        ("make what the volume names, unless it is here:", "kubectl -n {namespace} get configmap,secret,pvc"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stuck:
    """A pod that does not start: how it stands (in words), at which container, and the warning that goes with it."""

    pod: Pod
    how: str
    container: Container | None
    warning: Event | None
    level: Level = Level.PROBLEM
    expected: str = ""
    ends: bool = False
    """Its container was started and has ended: what it did itself went wrong."""
    leaves: bool = False
    """It is being deleted, and does not go."""
    over: bool = False
    """It ran, and others have ended it."""
    sure: float = POSSIBLE
    nowhere: bool = False
    """Its node is none."""

    @property
    def word(self) -> str:
        """The kubelet's reason, by which pods of one owner are grouped into one finding."""
        word = self.container.waiting or self.container.end_reason if self.container else ""
        return word if word not in matching.STARTING_WORDS else self.warning.reason if self.warning else word


@rule("POD-00", "A GPU pod does not start", Place.CLUSTER, last_resort=True)
def apps(snapshot: Snapshot) -> Iterator[Finding]:
    """A pod that uses accelerators has a node, does not start, and no other rule knows why. The finding has what the
    kubelet says of its container, the latest warning about it, and the last line of its log. Often it is the program's
    own error.
    """
    for rows in _grouped(_stuck(snapshot, stack=False)):
        yield _finding(snapshot, rows, ())
    yield from lost_work(snapshot)


@rule(
    "OPR-00",
    "A part of the GPU stack does not start",
    Place.PLUGIN,
    explains=("SCH-00", "SCH-02", "OPR-15", "DPL-18", "DPL-03", "MET-19"),
    last_resort=True,
)
def operands(snapshot: Snapshot) -> Iterator[Finding]:
    """A pod of the GPU stack has no node, does not start or is not ready, and no other rule knows why. The finding has
    what the scheduler says, or what the kubelet says of its container, the latest warning about it, and the last line
    of its log.
    """
    # Pods of a GPU stack. What waits for another part of its node is that part's consequence.
    stuck_pods = list(_stuck(snapshot, stack=True))
    first: dict[str, int] = {}
    for stuck in stuck_pods:
        first[stuck.pod.node] = min(first.get(stuck.pod.node, len(_ORDER)), _position(stuck))
    for rows in _grouped(
        stuck
        for stuck in stuck_pods
        if _is_bad(stuck) or not stuck.pod.node or _position(stuck) <= first[stuck.pod.node]
    ):
        nodes = dict.fromkeys(stuck.pod.node for stuck in rows if stuck.pod.node)
        if any(part.name == matching.OPERATOR for part in matching.parts_of(rows[0].pod)):  # it serves every node
            nodes |= dict.fromkeys(node.name for node in matching.gpu_nodes(snapshot))
        yield _finding(snapshot, rows, tuple(nodes))


def _position(stuck: _Stuck) -> int:
    """Its position in the order in which the parts wait for each other; parts that no other waits for come last."""
    parts = [_ORDER.index(part.name) for part in matching.parts_of(stuck.pod) if part.name in _ORDER]
    return min(parts, default=len(_ORDER))


def _is_bad(stuck: _Stuck) -> bool:
    """Whether it can't be that a part only waits for another: it has ended, should have gone, or fails by itself."""
    if stuck.leaves or stuck.pod.ended:
        return True
    return stuck.container is not None and matching.failing(stuck.pod) is not None


def _stuck(snapshot: Snapshot, *, stack: bool) -> Iterator[_Stuck]:
    away = {node.name for node in matching.gpu_nodes(snapshot) if node.ready is False}  # NODE-00 reports these
    for pod in snapshot.pods.values():
        over = pod.ready or (pod.ended and not by_others(snapshot, pod) and for_good(snapshot, pod) is None)
        # Pods with accelerators that have no node are what rows SCH are about.
        if pod.ended if pod.deleting else over or (not pod.node and not stack):
            continue
        if (
            pod.node in away
            or matching.is_part(snapshot, pod) is not stack
            or not (stack or matching.uses_accelerators(pod))
        ):
            continue
        judge = _leaving if pod.deleting else _ended if pod.ended else _how if pod.node else _without_node
        stuck = judge(snapshot, pod)
        if stuck is not None:
            yield stuck


def _ended(snapshot: Snapshot, pod: Pod) -> _Stuck:
    """A pod that something else ended: a problem where it was refused or never started, else a note. Or a pod that has
    failed for good: a problem for an hour, in which somebody may wait for it, then a note.
    """
    ran = [container for container in pod.blamed if container.end_reason and container.end_reason not in UNSTARTED]
    at = next((container for container in pod.blamed if container.end_reason in UNSTARTED), None)
    verdict = for_good(snapshot, pod)
    if verdict is not None and not by_others(snapshot, pod):
        age = snapshot.age(verdict.since)
        level = Level.PROBLEM if age is not None and age < NEWS else Level.NOTE
        how = f"it has ended with {_code(verdict.at)}, and {verdict.why}"
        return _Stuck(pod=pod, how=how, container=verdict.at, warning=None, level=level, ends=True, over=True)
    why = ": ".join(filter(None, (pod.reason or (at.end_reason if at else ""), pod.message)))
    level = Level.NOTE if ran and at is None else Level.PROBLEM
    return _Stuck(pod=pod, how=why, container=at, warning=None, level=level, over=bool(ran))


def _leaving(snapshot: Snapshot, pod: Pod) -> _Stuck | None:
    """A pod that should have gone by now: something holds it, or its node does not end it."""
    age = snapshot.overdue(pod)
    if age is None:
        return None
    held = ", ".join(plain(text(finalizer)) for finalizer in pod.list("metadata.finalizers"))
    how = f"it is being deleted, and should have gone {int(age // 60)} minutes ago"
    warning = next((event for event in snapshot.events(pod) if event.warning and event.reason == "FailedKillPod"), None)
    return _Stuck(
        pod=pod,
        how=how + (f"; finalizers hold it: {held}" if held else ""),
        container=None,
        warning=warning,
        leaves=True,
    )


def _without_node(snapshot: Snapshot, pod: Pod) -> _Stuck | None:
    """A part of a stack that the scheduler finds no node for, in its words."""
    age = age_of(snapshot, pod, None)
    if age is None or age < OLD:
        return None
    placed = pod.condition("PodScheduled")
    message = f": {placed.message}" if placed is not None and placed.message else ""
    return _Stuck(pod=pod, how=f"it has had no node {_for(age)}{message}", container=None, warning=None)


def _how(snapshot: Snapshot, pod: Pod) -> _Stuck | None:
    """How a pod stands that should have started by now, None while it may still be starting."""
    if pod.phase == "Pending" and pod.node not in snapshot.nodes and snapshot.once(_all_nodes):
        return _nowhere(snapshot, pod)
    stack = matching.is_part(snapshot, pod)
    warning = next((event for event in snapshot.events(pod) if event.warning and event.reason not in _NO_CAUSE), None)
    at = matching.failing(pod)
    if at is not None:
        waits_for_others = stack and not _is_failed_operator(snapshot, pod, at)
        return _ending(pod, at, warning, age_of(snapshot, pod, at), stack=waits_for_others)
    at = matching.initialising(pod)
    if at is not None:
        return _initialising(snapshot, pod, at, warning, stack=stack)
    if pod.phase == "Pending":
        return _creating(snapshot, pod, warning, age_of(snapshot, pod, None))
    at = next((container for container in pod.blamed if not container.ready and container.state == "running"), None)
    age = age_of(snapshot, pod, at)
    if not stack and at is not None and at.restarts and at.exit_code:
        if _was_ready(pod, at):
            late = age is not None and age >= OLD
            unhealthy = next(
                (event for event in snapshot.events(pod) if event.warning and event.reason == "Unhealthy"), None
            )
            return _Stuck(pod=pod, how=_not_ready(age), container=at, warning=unhealthy) if late else None
        how = f"it has ended with {_code(at)}, was started again, and is not ready yet"
        late = age is not None and age >= OLD
        return _Stuck(
            pod=pod, how=how, container=at, warning=None, ends=True,
            level=Level.PROBLEM if late else Level.WAIT, expected="" if late else "5 minutes, until it is ready",
        )  # fmt: skip
    patience = PATIENCE if stack and warning is not None else 3 * PATIENCE  # models of many gigabytes are loaded
    if at is None or age is None or age < patience:
        return None
    return _Stuck(pod=pod, how=_not_ready(age), container=at, warning=warning)


def _is_failed_operator(snapshot: Snapshot, pod: Pod, at: Container) -> bool:
    """Whether an operator has ended more than once: other than its operands it waits for nothing."""
    parts = matching.parts_of_pod(snapshot, pod)
    return at.restarts >= _AGAIN and any(part.name == matching.OPERATOR for part in parts)


def _all_nodes(snapshot: Snapshot) -> bool:
    """Whether the snapshot has every node: all were listed, or every running pod's node was read."""
    if "Node" in snapshot.listed:
        return True
    elsewhere = (pod for pod in snapshot.pods.values() if pod.phase == "Running" and pod.node not in snapshot.nodes)
    return bool(snapshot.nodes) and next(elsewhere, None) is None


def _nowhere(snapshot: Snapshot, pod: Pod) -> _Stuck | None:
    """A pod whose manifest names a node that does not exist: no scheduler looks at it, and no kubelet starts it."""
    age = age_of(snapshot, pod, None)
    began = any(container.state in ("running", "terminated") for container in pod.containers)
    if began or age is None or age < _JOINING:
        return None
    near = difflib.get_close_matches(pod.node, snapshot.nodes, n=1)
    how = f"its spec.nodeName is {pod.node}, and there is no such node" + (f" (is {near[0]} meant?)" if near else "")
    sure = CERTAIN if "Node" in snapshot.listed else LIKELY
    return _Stuck(pod=pod, how=how, container=None, warning=None, sure=sure, nowhere=True)


def _initialising(snapshot: Snapshot, pod: Pod, at: Container, warning: Event | None, *, stack: bool) -> _Stuck | None:
    """An init container that has not ended, unless it shows progress. How long it should take is not known."""
    age = age_of(snapshot, pod, at)
    if age is None or age < (PATIENCE if stack else SHORT) or (not stack and works(snapshot, pod, at)):
        return None
    late = stack or age >= 3 * PATIENCE
    again = " and says the same again and again" if waits(snapshot, pod, at) else ""
    return _Stuck(
        pod=pod, how=f"initialising {_for(age)}{again}", container=at, warning=warning,
        level=Level.PROBLEM if late else Level.WAIT, expected="" if late else _INIT,
        sure=POSSIBLE if stack else LIKELY,
    )  # fmt: skip


def _was_ready(pod: Pod, at: Container) -> str:
    """Until when a pod was ready after the last start of its container, "" where it was not or that is not known."""
    ready = pod.condition("Ready")
    lost = seconds(ready.since) if ready is not None else None
    began = seconds(mapping(mapping(at.status.get("state")).get("running")).get("startedAt"))
    return ready.since if ready is not None and lost is not None and began is not None and lost > began else ""


def _not_ready(age: float | None) -> str:
    return f"it runs, and has not been ready {_for(age)}"


def age_of(snapshot: Snapshot, pod: Pod, at: Container | None) -> float | None:
    """For how many seconds a pod has been in this state; a node's boot and a container's restart reset it."""
    own = snapshot.age(pod.text("status.startTime") or pod.created)
    times = [condition.since for condition in pod.conditions() if condition.type in _STATES]
    if at is not None:
        state = mapping(at.status.get("state"))
        times += [text(mapping(state.get("running")).get("startedAt"))]
        times += [text(mapping(state.get("terminated")).get("finishedAt"))]
    ages = [age for when in times if (age := snapshot.age(when)) is not None]
    return None if own is None else min([own, *ages])


def _ending(pod: Pod, at: Container, warning: Event | None, age: float | None, *, stack: bool) -> _Stuck | None:
    """A container that ends or can't be started. Parts of a stack get more time: they may fail while they wait."""
    ended = at.exit_code is not None and (at.waiting in ("", "CrashLoopBackOff"))
    firm = at.waiting in _FIRM or (ended and not stack)
    if not firm and at.restarts < _MANY and (age is None or age < OLD):
        return None
    word = at.waiting or at.end_reason or at.state
    if not ended:
        code = f", exit code {at.exit_code}" if at.exit_code is not None else ""
        return _Stuck(pod=pod, how=word + code, container=at, warning=warning)
    again = f", {counted(at.restarts, 'restart')} so far" if at.restarts else ""
    nothing = "; with 0 a program says that it is done: should it be a Job?" if at.exit_code == 0 else ""
    return _Stuck(
        pod=pod, how=f"{word}: it ends with {_code(at)}{again}{nothing}", container=at, warning=warning, ends=True
    )  # fmt: skip


def _code(at: Container) -> str:
    """The exit code, with the runtime's reason where that says more than the number."""
    why = at.end_reason if at.end_reason not in ("", "Error", "Completed") else ""
    return f"exit code {at.exit_code}" + (f" ({why})" if why else "")


def _creating(snapshot: Snapshot, pod: Pod, warning: Event | None, age: float | None) -> _Stuck | None:
    """Containers that are not made yet: a volume, the network or the runtime is in the way, or an image is pulled."""
    at = next(
        (container for container in pod.containers if container.waiting in ("ContainerCreating", "PodInitializing")),
        None,
    )
    often = warning is not None and warning.number("count", 1) >= _MANY
    if not often and (age is None or age < OLD):
        return None
    pulls = next((event for event in snapshot.events(pod) if event.reason in ("Pulling", "Pulled")), None)
    if warning is None and pulls is not None and pulls.reason == "Pulling" and (age or 0.0) < PATIENCE:
        how = f"its image is being pulled {_for(age)}"
        return _Stuck(pod=pod, how=how, container=at, warning=pulls, level=Level.WAIT, expected=_PULL)
    return _Stuck(pod=pod, how=f"ContainerCreating {_for(age)}", container=at, warning=warning)


def _for(age: float | None) -> str:
    return f"for {int(age // 60)} minutes" if age is not None else "for long"


def _grouped(stuck_pods: Iterator[_Stuck]) -> Iterator[list[_Stuck]]:
    """Pods of one owner with the same container and reason, as lists."""
    groups: dict[tuple[str, str, str, str], list[_Stuck]] = {}
    for stuck in stuck_pods:
        key = (
            stuck.pod.namespace,
            stuck.pod.owner or stuck.pod.name,
            stuck.container.name if stuck.container else "",
            stuck.word,
        )
        groups.setdefault(key, []).append(stuck)
    yield from groups.values()


def _finding(snapshot: Snapshot, rows: list[_Stuck], nodes: tuple[str, ...]) -> Finding:
    first = rows[0]
    pod, at = first.pod, first.container
    more = f" (and {len(rows) - 1} more of {pod.owner})" if len(rows) > 1 else ""
    what = f": container {at.name}: {first.how}" if at is not None else f": {first.how}"
    lost = _was_ready(pod, at) if at is not None else ""
    runs = at is not None and (not at.init or (at.sidecar and at.started)) and at.state == "running" and not first.ends
    verb = (
        "has failed"
        if first.ends and first.over
        else "does not stay up"
        if first.ends
        else "does not go"
        if first.leaves
        else "was ended"
        if first.over
        else "is not ready"
        if runs
        else "does not start"
    )
    message = _messages_of(first)
    line = last_line(snapshot, pod, at) if at is not None and (first.ends or not message or at.init) else None
    quoted: list[Evidence] = []
    if at is not None:
        quoted.append(at.cite_status())
        quoted += [at.cite_status("lastState")] if at.status.get("lastState") and not lost else []
    quoted += [first.warning.quote()] if first.warning is not None else []
    quoted += [line] if line is not None else []
    where = {"namespace": pod.namespace, "name": pod.name}
    known = {at.waiting if at else "", first.warning.reason if first.warning else ""}
    steps = [Remedy(step, **where) for these, steps in _STEPS if these & known for step in steps]
    if at is not None and (at.exit_code is not None or at.state == "running"):
        previous = ("--previous",) if at.restarts and at.state != "running" else ()
        steps.insert(0, remedies.logs(pod.namespace, pod.name, "-c", at.name, *previous, "--tail=50"))
    describe = remedies.describe(pod.namespace, "pod", pod.name)
    if first.nowhere:
        steps += [
            Remedy(
                "take nodeName out of its manifest, so that the scheduler finds a node, or name one that there is; "
                "then:"
            ),
            remedies.delete_pod(pod.namespace, pod.name),
        ]
    quoted += [pod.cite("spec.nodeName")] if first.nowhere else []
    return Finding(
        subject=pod.subject,
        cause=f"{pod}{f' on node {pod.node}' if pod.node else ''}{more} {verb}{what}"
        + (f"; {message}" if message else "")
        + (f'; it said last: "{line.value}"' if line else ""),
        evidence=tuple(quoted) or (pod.cite("status.phase"),),
        remedy=(*steps, *(() if any(describe in step for step in steps) else (describe,))),
        confidence=first.sure,
        level=first.level,
        expected=first.expected,
        since=lost or pod.created,
        nodes=nodes,
        pods=tuple(stuck.pod.path for stuck in rows),
    )


def _messages_of(stuck: _Stuck) -> str:
    """The kubelet's messages about it, without those that only say that it backs off."""
    own = (
        [message for _, message in stuck.container.messages if not _BACK_OFF.match(message)] if stuck.container else []
    )
    event = [f"{stuck.warning.reason}: {stuck.warning.message}"] if stuck.warning is not None else []
    return "; ".join(dict.fromkeys([*own, *event]))


@rule("NODE-00", "A GPU node is in trouble", Place.PLUGIN, explains=("SCH-*", "TNT-01", "TNT-02"), last_resort=True)
def troubled(snapshot: Snapshot) -> Iterator[Finding]:
    """The kubelet does not report, reports trouble, or a watcher on the node has set a condition about its GPUs. Pods
    go to other nodes meanwhile.
    """
    known = ill(snapshot)
    for node in matching.gpu_nodes(snapshot):
        for condition in node.conditions():
            if (
                condition.type in _AGENTS
                and condition.status == "False"
                and node.name in known
                and not says_more(snapshot, node, condition)
            ):
                continue  # rows HW report each GPU that it is about
            is_ready = condition.type == "Ready"
            unread = (
                condition.status == "Unknown"
                and condition.type == names.GPUS_HEALTHY_CONDITION
                and condition.reason == UNREADABLE
            )
            if (
                not is_ready
                and not unread
                and (condition.status == "Unknown" or not _GPU_CONDITION.search(condition.type))
            ):
                continue
            if _GOOD.search(condition.type):
                good = condition.status == "True"
            else:
                good = condition.status != "True" or not (
                    _FAULT.search(condition.type) or _UNWELL.search(condition.reason)
                )
            if good or not condition.status:
                continue
            age = snapshot.age(node.created)
            joins = is_ready and age is not None and age < _JOINING
            message = ": ".join(word for word in (condition.reason, condition.message) if word)
            what = "is not Ready" if is_ready else f"has the condition {condition.type}={condition.status}"
            warning = next((event for event in snapshot.events(node) if event.warning), None)
            yield Finding(
                subject=node.subject,
                cause=f"Node {node.name} {what}" + (f": {message}" if message else ""),
                evidence=(condition.cite(), *((warning.quote(),) if warning else ())),
                remedy=(
                    remedies.describe_node(node.name),
                    Remedy("on the node:"),
                    Remedy("journalctl -u kubelet --since -1h"),
                ),
                confidence=CERTAIN,
                level=Level.WAIT if joins else Level.PROBLEM,
                expected="2 minutes after it has joined" if joins else "",
                since=condition.since,
                nodes=(node.name,),
                stays=is_ready,
            )
