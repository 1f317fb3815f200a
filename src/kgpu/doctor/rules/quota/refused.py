"""Rows QTA: what the API server or a quota refuses, and what a manifest asks for by mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.plain import mapping
from kgpu.base.remedy import Remedy
from kgpu.doctor import hami, matching, remedies
from kgpu.doctor.kinds import Event, Pod
from kgpu.doctor.model import CERTAIN, Finding, Level, Place, Subject
from kgpu.doctor.objects import Obj, plain, seconds
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names

_EXCEEDED: Final = re.compile(
    r"exceeded quota: (?P<quota>[^,\s]+), requested: (?P<asked>\S+?=\S+?)(?:, ?used: (?P<used>[^,\s]+))?"
    r"(?:, ?limited: (?P<limit>[^,\s]+))?(?:,|\s|$)"
)
_RANGER: Final = "kubernetes.io/limit-ranger"
_MAKERS: Final = frozenset({"ReplicaSet", "Job", "StatefulSet", "DaemonSet", "ReplicationController"})
_LIMIT: Final = re.compile(
    r"(?P<which>maximum|minimum) (?P<resource>\S+) usage per (?P<per>Container|Pod) is (?P<most>[^,]+), but \w+ is "
    r"(?P<asked>[^.\s]+)"
)
_FRACTION: Final = re.compile(
    r"(?P<resource>[\w.-]+/[\w.-]+)\]?: Invalid value: \"?(?P<value>[^\":]+)\"?: must be an integer"
)
_NO_LIMIT: Final = re.compile(
    r"(?:(?P<resource>[\w.-]+/[\w.-]+)\])?: Required value: Limit must be set for non overcommitable resources"
)
"""The API server does not always name the resource."""
_UNEQUAL: Final = re.compile(
    r"Invalid value: \"?(?P<value>[^\":]+)\"?: must be equal to (?P<resource>\S+) limit(?: of (?P<limit>\d+))?"
)
_UNNAMED: Final = {"resource": "a device"}


def refused(snapshot: Snapshot) -> Iterator[Event]:
    """Events of controllers whose pods the API server refuses, one for each controller that still lacks pods."""
    failures = (
        event for event in snapshot.all_events() if event.about[0] in _MAKERS and event.reason == "FailedCreate"
    )
    for (kind, namespace, name), event in matching.latest(failures).items():
        maker = snapshot.get(kind, name, namespace)
        # Events stay for an hour after what they are about is over.
        if _lacks_pods(maker) and not _made_since(snapshot, maker, event) if maker else not snapshot.knows(kind):
            yield event


def _made_since(snapshot: Snapshot, maker: Obj, event: Event) -> bool:
    """Whether a controller has made a pod since it was refused one, which ends the refusal whatever became of it."""
    return any((seconds(pod.created) or 0.0) > event.when for pod in snapshot.pods_of(maker))


def _lacks_pods(maker: Obj) -> bool:
    """Whether a controller still has fewer pods than it wants, as far as it says."""
    if maker.kind == "Job":
        ended = any(
            condition.type in ("Complete", "SuccessCriteriaMet") and condition.status == "True"
            for condition in maker.conditions()
        )
        had = maker.number("status.active") + maker.number("status.succeeded")
        return not ended and had < maker.number("spec.parallelism", 1)
    if maker.kind == "DaemonSet":
        had = max(maker.number("status.currentNumberScheduled"), maker.number("status.numberReady"))
        return had < maker.number("status.desiredNumberScheduled", 1)
    return maker.number("status.replicas") < maker.number("spec.replicas", 1)


def maker_of(snapshot: Snapshot, event: Event) -> Subject:
    """The Deployment behind a ReplicaSet where it is known."""
    kind, namespace, name = event.about
    maker = snapshot.get(kind, name, namespace)
    owner = maker.owner if maker else ""
    if owner:
        kind, _, name = owner.partition("/")
    return Subject(kind, name, namespace)


@rule("QTA-04", "The quota is used up", Place.CLUSTER)
def over_quota(snapshot: Snapshot) -> Iterator[Finding]:
    """There is no pod to describe: the event is at the ReplicaSet or Job. Free what the namespace holds, or raise the
    quota.
    """
    for event in refused(snapshot):
        hit = _EXCEEDED.search(event.message)
        resource = hit["asked"].split("=", 1)[0].removeprefix("requests.") if hit else ""
        if not hit or not (matching.is_accelerator(resource) or "deviceclass" in resource):
            continue
        subject = maker_of(snapshot, event)
        quota = snapshot.get("ResourceQuota", hit["quota"], subject.namespace)
        key = hit["asked"].split("=", 1)[0]
        holders = [
            pod for pod in snapshot.pods.values()
            if pod.namespace == subject.namespace and not pod.ended and resource in matching.accelerators(pod)
        ]  # fmt: skip
        held = f"; held by {', '.join(pod.name for pod in holders[:5])}" if holders else ""
        amounts = f", {hit['used']} used, {hit['limit']} allowed" if hit["used"] and hit["limit"] else ""
        alone = _amount(hit["asked"]) > _amount(hit["limit"] or "") >= 0
        why = "allows less than one pod asks for" if alone else "is used up"
        yield Finding(
            subject=subject,
            cause=(
                f"{subject} lacks pods: quota {hit['quota']} of namespace {subject.namespace} {why} ({hit['asked']} "
                f"asked{amounts}){held}"
            ),
            evidence=(
                event.quote(),
                *((quota.cite(f"status.used[{key}]"), quota.cite(f"spec.hard[{key}]")) if quota else ()),
            ),
            remedy=(
                *((Remedy("ask for {} at most in each pod", _amount(hit["limit"] or "")),) if alone else ()),
                *(
                    remedies.delete_pod(pod.namespace, pod.name).why("if it is idle")
                    for pod in holders[:1]
                    if not alone
                ),
                Remedy("or raise the quota:") if holders or alone else Remedy("raise the quota:"),
                remedies.edit(subject.namespace, "resourcequota", hit["quota"]),
            ),
            confidence=CERTAIN,
            since=event.first,
            pods=(),
        )


def _amount(quantity: str) -> int:
    """The number in ``resource=number``, -1 where there is none."""
    number = quantity.rpartition("=")[2]
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else -1


@rule("QTA-08", "A LimitRange forbids as much", Place.CLUSTER)
def limit_range(snapshot: Snapshot) -> Iterator[Finding]:
    """LimitRange max holds for each container or pod."""
    for event in refused(snapshot):
        hit = _LIMIT.search(event.message)
        if not hit or not matching.is_accelerator(hit["resource"]):
            continue
        subject = maker_of(snapshot, event)
        ranges = [limit for limit in snapshot.all("LimitRange") if limit.namespace == subject.namespace]
        yield Finding(
            subject=subject,
            cause=(
                f"{subject} has no pods: a LimitRange of namespace {subject.namespace} allows {hit['which']} "
                f"{hit['most']} {hit['resource']} for one {hit['per'].lower()}, and {hit['asked']} are asked for"
            ),
            evidence=(event.quote(), *(limit.cite("spec.limits") for limit in ranges[:2])),
            remedy=(
                Remedy("ask for less in each container, or raise the LimitRange:"),
                Remedy("kubectl -n {} edit limitrange", subject.namespace),
            ),
            confidence=CERTAIN,
            since=event.first,
        )


@rule("QTA-01", "Part of a device", Place.CLUSTER)
def fraction(snapshot: Snapshot) -> Iterator[Finding]:
    """The API server refuses pods whose template asks for a fraction of a device; it says so in the events of what
    makes the pods.
    """
    what = "asks for a part of a device ({resource} {value}): devices are counted whole"
    remedy = (Remedy("ask for a whole number, and share GPUs by time-slicing, MPS or MIG"),)
    yield from _refusals(snapshot, _FRACTION, what, remedy)


@rule(
    "QTA-02",
    "Requests without limits",
    Place.CLUSTER,
    rests_on=("kubernetes/kubernetes, API validation",),
)
def no_limit(snapshot: Snapshot) -> Iterator[Finding]:
    """The API server refuses pods whose template names a device in requests alone; it says so in the events of what
    makes the pods.
    """
    remedy = (
        Remedy("put what is in resources.requests into resources.limits as well"),
        Remedy("where the template asks for none: a LimitRange's defaultRequest needs a default beside it"),
    )
    yield from _refusals(snapshot, _NO_LIMIT, "asks for {resource} in requests alone", remedy)


@rule(
    "QTA-03",
    "Requests that differ from limits",
    Place.CLUSTER,
    rests_on=("kubernetes/kubernetes, API validation",),
)
def unequal(snapshot: Snapshot) -> Iterator[Finding]:
    """The API server refuses pods whose template has other requests than limits; it says so in the events of what
    makes the pods.
    """
    what = "asks for {value} {resource} in requests and for {limit} in limits"
    remedy = (Remedy("make both equal, or leave the request out"),)
    yield from _refusals(snapshot, _UNEQUAL, what, remedy)


def _refusals(snapshot: Snapshot, pattern: re.Pattern[str], what: str, remedy: tuple[Remedy, ...]) -> Iterator[Finding]:
    for event in refused(snapshot):
        hit = pattern.search(event.message)
        if hit is None:
            continue
        subject = maker_of(snapshot, event)
        words = {key: value or _UNNAMED.get(key, "?") for key, value in hit.groupdict().items()}
        yield Finding(
            subject=subject,
            cause=f"{subject} has no pods, because its template {what.format_map(words)}",
            evidence=(event.quote(),),
            remedy=remedy,
            confidence=CERTAIN,
            since=event.first,
        )


@rule("QTA-05", "A quota that counts nothing", Place.CLUSTER)
def wrong_prefix(snapshot: Snapshot) -> Iterator[Finding]:
    """A ResourceQuota counts extended resources only under keys that begin with requests. HAMi's scheduler reads
    limits.nvidia.com/gpu by itself.
    """
    # A quota on limits of an extended resource, or on the resource by its bare name, which is not counted.
    for quota in snapshot.all("ResourceQuota"):
        hard = quota.map("spec.hard")
        for key in hard:
            resource = str(key).removeprefix("limits.")
            if str(key).startswith("requests.") or not matching.is_accelerator(resource):
                continue
            by_hami = str(key) == f"limits.{names.GPU_RESOURCE}" and any(
                hami.cards(node) is not None for node in snapshot.nodes.values()
            )
            if f"requests.{resource}" in hard:
                if not by_hami:
                    yield _counted_beside(quota, str(key), resource)
                continue
            yield Finding(
                subject=quota.subject,
                cause=f"{quota} limits {key}, which HAMi's scheduler alone counts: Kubernetes does not"
                if by_hami
                else f"{quota} limits {key}, which is never counted: of such resources only the prefix requests. is",
                evidence=(quota.cite(f"spec.hard[{key}]"), quota.cite(f"status.used[{key}]")),
                remedy=(
                    (
                        remedies.patch(
                            quota.namespace,
                            "resourcequota",
                            quota.name,
                            {"spec": {"hard": {f"requests.{plain(resource)}": plain(str(hard[key]))}}},
                        )
                    ),
                ),
                confidence=CERTAIN,
                level=Level.NOTE if by_hami else Level.PROBLEM,
            )


def _counted_beside(quota: Obj, key: str, resource: str) -> Finding:
    """Of a key that counts nothing beside the one that does: nobody passes by, but what it says is not so."""
    hard, counts = quota.map("spec.hard"), f"requests.{resource}"
    return Finding(
        subject=quota.subject,
        cause=(
            f"{quota} says {plain(str(hard[key]))} for {plain(key)}, which is never counted: what holds is "
            f"{plain(counts)}, {plain(str(hard[counts]))}"
        ),
        evidence=(quota.cite(f"spec.hard[{key}]"), quota.cite(f"spec.hard[{counts}]")),
        remedy=(
            Remedy("take it out, so that nobody relies on it:"),
            remedies.patch(quota.namespace, "resourcequota", quota.name, {"spec": {"hard": {plain(key): None}}}),
        ),
        confidence=CERTAIN,
        level=Level.NOTE,
    )


def _was_given(pod: Pod, resource: str) -> bool:
    """Whether the LimitRanger plugin added the resource, by its annotation; without one any waiting pod that asks."""
    annotation = pod.annotations.get(_RANGER)
    return resource in annotation if annotation is not None else pod.unplaced and resource in matching.accelerators(pod)


@rule("QTA-07", "A LimitRange gives GPUs to everybody", Place.CLUSTER, explains=("SCH-01", "SCH-02"))
def default_gpu(snapshot: Snapshot) -> Iterator[Finding]:
    """A default for a GPU in a LimitRange is put into every container that does not ask for any."""
    for limit in snapshot.all("LimitRange"):
        for position, row in enumerate(limit.list("spec.limits")):
            limits = row if isinstance(row, dict) else {}
            for field in ("default", "defaultRequest"):
                defaults = mapping(limits.get(field))
                resources = [key for key in defaults if matching.is_accelerator(str(key))]
                if not resources or str(defaults[resources[0]]) == "0":
                    continue
                pods = tuple(
                    pod.path for pod in snapshot.pods.values()
                    if pod.namespace == limit.namespace and not pod.ended and _was_given(pod, resources[0])
                )  # fmt: skip
                yield Finding(
                    subject=limit.subject,
                    cause=(
                        f"{limit} gives {defaults[resources[0]]} {resources[0]} to every container in namespace "
                        f"{limit.namespace} that does not ask for any"
                    ),
                    evidence=(limit.cite(f"spec.limits[{position}].{field}[{resources[0]}]"),),
                    remedy=(
                        Remedy("set {} in default and defaultRequest to 0, and keep max:", resources[0]),
                        remedies.edit(limit.namespace, "limitrange", limit.name),
                        Remedy("a max without a default is taken for the default too"),
                    ),
                    confidence=CERTAIN,
                    level=Level.PROBLEM if pods else Level.NOTE,
                    pods=pods,
                )
                break
