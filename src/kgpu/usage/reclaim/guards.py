"""Pure: what keeps a workload from being stopped. One row for each guard, in the order in which they are told.

Every guard can stop alone, and all are asked, so that ``kgpu idle explain`` shows which pass. A guard that lacks what
it would have to know stops.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.base.printable import one_line
from kgpu.base.times import stamp_of, time_zone
from kgpu.formats import names
from kgpu.formats.crd.usagepolicy import SYSTEM_NAMESPACES
from kgpu.formats.names import MIRROR_ANNOTATION
from kgpu.formats.usage import UsageState
from kgpu.kube.owners import gang_of
from kgpu.kube.port import Object, annotations_of, labels_of
from kgpu.usage.reclaim.keeps import NEVER, idle_after, kept_by, moment_of, title_of
from kgpu.usage.reclaim.model import HeldWorkload, ReclaimMode, ReclaimPolicy
from kgpu.usage.reclaim.owners import GANGS, OwnersFound, StopTarget, StopWay
from kgpu.usage.states import WASTED

ENABLED: Final = "enabled"
CLOCKS_DIFFER: Final = 120.0
"""Seconds by which a moment that another machine has written may lie ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardFacts:
    """What the guards look at, read for this one decision.

    ``pods`` are all pods of the workload that ask for accelerators, and ``unwatched`` those of them of which there are
    no readings. ``scalers`` and ``disruption_budgets`` are named as people know them: who else sets its replicas, and
    what allows no disruption now. ``requests``: why requests that it serves keep it. ``keep_ends``: when its time of
    being kept by tenants' annotations ends, in seconds since 1970, None where that has not begun to count. ``frozen``,
    ``spent``: why nothing at all, or nothing more, may be done now.
    """

    policy: ReclaimPolicy
    workload: HeldWorkload
    now: float
    namespace: Object | None = None
    own_namespace: str = ""
    found: OwnersFound | None = None
    target: StopTarget | str = "its owners have not been read"
    pods: tuple[Object, ...] = ()
    unwatched: tuple[str, ...] = ()
    scalers: tuple[str, ...] = ()
    disruption_budgets: tuple[str, ...] = ()
    requests: str = ""
    keep_ends: float | None = None
    frozen: str = ""
    spent: str = ""

    @property
    def objects(self) -> tuple[Object, ...]:
        """All on which somebody may have written what is to be done: the pods, their owners, and the namespace.

        Not a Deployment's ReplicaSet: that has copies of what is on the Deployment, also of what was removed there.
        """
        chain = _written_on(self.found.chain) if self.found else ()
        target = (self.target.obj,) if isinstance(self.target, StopTarget) else ()
        return (*self.pods, *reversed(chain), *target, *((self.namespace,) if self.namespace else ()))


def _written_on(chain: Sequence[Object]) -> tuple[Object, ...]:
    """Of a pod's controllers those whose annotations are somebody's own word."""
    copies = {"ReplicaSet"} if any(one.get("kind") == "Deployment" for one in chain) else set[str]()
    return tuple(one for one in chain if one.get("kind") not in copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """``number`` is the order in the documentation; ``stops`` gives why nothing may be done, "" where it may."""

    number: int
    name: str
    means: str
    stops: Callable[[GuardFacts], str]


@dataclass(frozen=True, slots=True)
class GuardAnswer:
    """What a guard says: ``why`` is "" where it lets pass."""

    guard: Guard
    why: str

    @property
    def passed(self) -> bool:
        """Whether it lets pass."""
        return not self.why


# 1. The policy


def _mode(facts: GuardFacts) -> str:
    mode = facts.policy.mode
    return (
        ""
        if mode is ReclaimMode.RECLAIM
        else f"the mode is {mode}{'' if facts.policy.name else ': there is no policy'}"
    )


def _system(facts: GuardFacts) -> str:
    space = facts.workload.ref.namespace
    return f"{space} is never touched" if space in {*SYSTEM_NAMESPACES, facts.own_namespace} else ""


def _namespace(facts: GuardFacts) -> str:
    space = facts.workload.ref.namespace
    if not facts.policy.covers(space):
        return f"no policy names the namespace {space}"
    if facts.namespace is None:
        return f"the namespace {space} could not be read"
    word = labels_of(facts.namespace).get(names.RECLAIM_LABEL)
    return "" if word == ENABLED else (
        f"the namespace {space} has not the label {names.RECLAIM_LABEL}={ENABLED}" if word != NEVER
        else f"the namespace {space} has the label {names.RECLAIM_LABEL}={NEVER}"
    )  # fmt: skip


def _schedule(facts: GuardFacts) -> str:
    schedule = facts.policy.schedule
    local = dt.datetime.fromtimestamp(facts.now, time_zone(schedule.time_zone))
    begin, _, end = schedule.hours.partition("-")
    if f"{local:%a}" in schedule.days and begin <= f"{local:%H:%M}" < end:
        return ""
    return f"it is {local:%a %H:%M}, outside {','.join(schedule.days)} {schedule.hours} {schedule.time_zone}"


def _protected(facts: GuardFacts) -> str:
    protect, ref = facts.policy.protect, facts.workload.ref
    if ref.namespace in protect.namespaces:
        return f"the policy protects the namespace {ref.namespace}"
    kinds = {ref.kind, *(str(one.get("kind")) for one in (facts.found.chain if facts.found else ()))}
    barred = sorted(kind for kind in kinds if kind.lower() in map(str.lower, protect.kinds))
    if barred:
        return f"the policy protects the kind {barred[0]}"
    name = f"{ref.kind}/{ref.name}".lower()
    if any(owner.lower() in {name, f"{ref.namespace}/{name}"} for owner in protect.owners):
        return f"the policy protects {ref.title}"
    for obj in facts.objects:
        for key, value in protect.labels.items():
            if labels_of(obj).get(key) == value:
                return f"{title_of(obj)} has the label {key}={value}, which is protected"
    return ""


# 2. The data


def _data(facts: GuardFacts) -> str:
    workload, rules = facts.workload, facts.policy.stop
    after = max(rules.window, idle_after(facts.objects, facts.policy))
    if facts.unwatched:
        return f"nothing says that its pod {one_line(facts.unwatched[0], 100)} is idle"
    if workload.state is UsageState.UNKNOWN:
        why = next((one.verdict.why for one in workload.held if one.verdict.state not in WASTED), "nothing is held")
        return f"its state is unknown: {why}"
    if workload.too_young:
        held = "" if workload.held_since is None else f", of which {span(facts.now - workload.held_since)} have passed"
        return f"not known yet: it has to hold its GPUs for {span(rules.window + rules.warm_up)}{held}"
    if not workload.idle:
        return f"it is {workload.state}"
    if workload.state is UsageState.HUNG:
        return "its gang hangs: people have to look at it"
    if workload.coverage < rules.coverage:
        return f"readings cover {workload.coverage:.0%} of the time, not {rules.coverage:.0%}"
    since = workload.idle_since
    if since is None:
        return "it is not known since when it is idle"
    return "" if facts.now - since >= after else f"it is idle since {stamp_of(since)}, for less than {span(after)}"


def _frozen(facts: GuardFacts) -> str:
    return facts.frozen


# 3. What people and other programs have written


def _annotations(facts: GuardFacts) -> str:
    return kept_by(facts.objects, facts.policy, facts.now, facts.keep_ends)


# 4. to 8. The workload


def opted_in(objects: tuple[Object, ...]) -> bool:
    """Whether people have written that this one may be reclaimed."""
    return any(
        annotations_of(obj).get(names.IDLE_POLICY) == "reclaim" for obj in objects if obj.get("kind") != "Namespace"
    )


def _owner(facts: GuardFacts) -> str:
    if not facts.pods:
        return "none of its pods could be read"
    for obj in (*facts.pods, *(facts.found.chain if facts.found else ())):
        metadata = obj.get("metadata") or {}
        if metadata.get("deletionTimestamp"):
            return f"{title_of(obj)} is being deleted already"
        if obj.get("kind") == "DaemonSet" or any(
            one.get("kind") in {"DaemonSet", "Node"} for one in metadata.get("ownerReferences") or ()
        ):
            return f"{title_of(obj)} belongs to its node"
        if MIRROR_ANNOTATION in annotations_of(obj):
            return f"{title_of(obj)} is a static pod"
    held = next((pod for pod in facts.pods if (pod.get("metadata") or {}).get("finalizers")), None)
    if held is not None:
        return f"{title_of(held)} has finalizers, which may hold it"
    if isinstance(facts.target, str):
        return facts.target
    if facts.target.way is StopWay.EVICT and not (facts.policy.bare_pods and opted_in(facts.objects)):
        return "nothing would make it anew: it has no owner"
    return ""


def _gang(facts: GuardFacts) -> str:
    objects = facts.objects
    kinds = [str(one.get("kind")) for one in (facts.found.chain if facts.found else ()) if one.get("kind") in GANGS]
    grouped = any(gang_of(pod) is not None for pod in facts.pods)
    if not kinds and not grouped:
        return ""
    if opted_in(objects) or (
        kinds == ["Job"] and any(annotations_of(one).get(names.CHECKPOINT) == "true" for one in objects)
    ):
        return ""
    what = f"a {kinds[-1]}" if kinds else "part of a gang"
    return f"it is {what}: its work may be lost (the annotation {names.IDLE_POLICY}: reclaim allows it)"


def _scalers(facts: GuardFacts) -> str:
    return f"{facts.scalers[0]} sets its replicas" if facts.scalers else ""


_GITOPS_MANAGERS: Final = re.compile(r"argocd|flux|kustomize-controller|helm-controller|^helm$", re.IGNORECASE)
_GITOPS_KEYS: Final = (
    "argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/", names.HELM_RELEASE_ANNOTATION,
)  # fmt: skip


def _gitops(facts: GuardFacts) -> str:
    for obj in (*(facts.found.chain if facts.found else ()), *facts.pods[:1]):
        for entry in (obj.get("metadata") or {}).get("managedFields") or ():
            if _GITOPS_MANAGERS.search(str(entry.get("manager"))):
                return f"{title_of(obj)} is managed by {one_line(str(entry['manager']), 60)}, which would set it back"
        for key in (*annotations_of(obj), *labels_of(obj)):
            if str(key).startswith(_GITOPS_KEYS):
                return f"{title_of(obj)} has {one_line(str(key), 80)}: who deploys it would set it back"
    return ""


def _disruption(facts: GuardFacts) -> str:
    return next(_disruptions(facts), "")


def _disruptions(facts: GuardFacts) -> Iterator[str]:
    for name in facts.disruption_budgets:
        yield f"the PodDisruptionBudget {one_line(name, 100)} allows no disruption now"
    for pod in facts.pods:
        if int((pod.get("spec") or {}).get("priority") or 0) >= facts.policy.protect.priority_at_least:
            yield f"{title_of(pod)} has the priority {pod['spec']['priority']}"
        started = moment_of((pod.get("status") or {}).get("startTime"))
        if started is None:
            yield f"{title_of(pod)} has not started"
        elif facts.now - started < facts.policy.stop.warm_up:
            yield f"{title_of(pod)} is younger than {span(facts.policy.stop.warm_up)}"
    if isinstance(facts.target, StopTarget) and _rolls_out(facts.target.obj):
        yield f"a rollout of {facts.target.title} is in progress"


def _rolls_out(obj: Object) -> bool:
    status, spec = obj.get("status") or {}, obj.get("spec") or {}
    observed = status.get("observedGeneration")
    if observed is not None and int(observed) < int((obj.get("metadata") or {}).get("generation") or 0):
        return True
    updated = status.get("updatedReplicas")
    return updated is not None and int(updated) != int(spec.get("replicas", 1))


# 9. and 10.


def _budget(facts: GuardFacts) -> str:
    return facts.spent


def _traffic(facts: GuardFacts) -> str:
    return facts.workload.kept[0] if facts.workload.kept else facts.requests or _user(facts)


def _user(facts: GuardFacts) -> str:
    """Of a Kubeflow Notebook, whose user may read what no GPU is needed for: when somebody was there last, as its
    controller writes. One of which that is not known is only stopped if somebody has asked for it.
    """
    if not isinstance(facts.target, StopTarget) or facts.target.way is not StopWay.NOTEBOOK:
        return ""
    value, window = annotations_of(facts.target.obj).get(names.NOTEBOOK_LAST_ACTIVITY), facts.policy.stop.window
    seen = moment_of(value)
    if seen is not None and seen <= facts.now + CLOCKS_DIFFER:
        ago = max(0.0, facts.now - seen)
        return f"{facts.target.title} was used by somebody {span(ago)} ago" if ago < window else ""
    if opted_in(facts.objects):
        return ""
    said = f"{names.NOTEBOOK_LAST_ACTIVITY} is {one_line(str(value), 60)}" if value is not None else "culling is off"
    return (
        f"nothing says when somebody used {facts.target.title} last: {said} (the annotation {names.IDLE_POLICY}: "
        "reclaim allows it)"
    )


def seen_by_guard_10(facts: GuardFacts) -> str:
    """What the last guard has looked at, so that nobody takes silence for absence."""
    requests = "requests" if facts.policy.watches_requests else "no requests (spec.requests.watch is off)"
    notebook = isinstance(facts.target, StopTarget) and facts.target.way is StopWay.NOTEBOOK
    users = "the notebook's last activity" if notebook else "no users (they are known of Kubeflow's Notebooks alone)"
    return f"it looked at {requests}, and at {users}"


GUARDS: Final = (
    Guard(number=1, name="mode", means="the policy reclaims", stops=_mode),
    Guard(number=1, name="system", means="its namespace is not the system's nor kgpu's own", stops=_system),
    Guard(number=1, name="namespace", means="the policy and the namespace's label allow it", stops=_namespace),
    Guard(number=1, name="schedule", means="it is a time at which workloads may be stopped", stops=_schedule),
    Guard(number=1, name="protect", means="the policy does not protect it", stops=_protected),
    Guard(number=2, name="data", means="all that it holds was seen idle for long enough", stops=_data),
    Guard(number=2, name="freeze", means="nothing is wrong with the data as a whole", stops=_frozen),
    Guard(number=3, name="annotations", means="nobody has written that it is to be kept", stops=_annotations),
    Guard(number=4, name="owner", means="it has an owner that kgpu can stop and resume", stops=_owner),
    Guard(number=5, name="gang", means="no work is lost with it", stops=_gang),
    Guard(number=6, name="scaler", means="no other program sets its replicas", stops=_scalers),
    Guard(number=7, name="gitops", means="no other program would set it back", stops=_gitops),
    Guard(number=8, name="disruption", means="it may be disrupted now", stops=_disruption),
    Guard(number=9, name="budget", means="the budget is not spent", stops=_budget),
    Guard(
        number=10,
        name="traffic",
        means="no requests or users are known of, where they are watched",
        stops=_traffic,
    ),
)
ONLY_AT_THE_ACT: Final = frozenset({"schedule", "budget"})
"""Guards that hold up the act alone: a warning is given at any time."""
OF_THE_POLICY: Final = frozenset({"mode", "namespace", "schedule", "budget"})
"""Guards that a person's own command passes by."""


def answers(facts: GuardFacts) -> tuple[GuardAnswer, ...]:
    """What every guard says, in order."""
    return tuple(GuardAnswer(guard, guard.stops(facts)) for guard in GUARDS)


def obstacle(facts: GuardFacts, *, without: frozenset[str] = frozenset()) -> str:
    """Why it may not be stopped, by the first guard that says so but for those left out; "" where it may."""
    return next((one.why for one in answers(facts) if one.why and one.guard.name not in without), "")


def span(seconds: float) -> str:
    """A time for people: 45m, 2h 30m, 3d 4h."""
    if seconds == float("inf"):
        return "ever"
    minutes = int(seconds) // 60
    days, hours, rest = minutes // 1440, minutes // 60 % 24, minutes % 60
    parts = [(days, "d"), (hours, "h"), (rest, "m")]
    told = [f"{count}{unit}" for count, unit in parts if count][:2]
    return " ".join(told) or f"{int(seconds)}s"
