"""How many pods a metric asks for: the replica calculator of the horizontal pod autoscaler. Amounts are in thousandths.

Rules: Kubernetes' documentation of horizontal pod autoscaling, "Algorithm details". Pods without a sample count
against the direction in which the others point, and pods that are not ready use nothing when the others ask for more.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.quantity import Quantity, QuantityError
from kgpu.base.times import moment_of
from kgpu.kube.port import Object, name_of
from kgpu.lab.embedded.controllers.meta import condition, deleting, spec_of, status_of
from kgpu.lab.embedded.controllers.pods import phase_of

CPU_INITIALIZATION: Final = dt.timedelta(minutes=5)
INITIAL_READINESS: Final = dt.timedelta(seconds=30)
_TOLERANCE: Final = 0.1


class NoReplicasError(Exception):
    """There is no number of replicas; the text is Kubernetes'."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a pod uses, in thousandths of the unit, at a time over a window."""

    value: int
    at: dt.datetime
    window: dt.timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far the ratio of use to target may be from 1 without a change."""

    up: float = _TOLERANCE
    down: float = _TOLERANCE

    def holds(self, ratio: float) -> bool:
        return 1.0 - self.down <= ratio <= 1.0 + self.up


@dataclass(frozen=True, slots=True, kw_only=True)
class UseTarget:
    """What is wanted: ``utilization`` in percent of the pods' requests, or ``average`` of each pod in thousandths."""

    utilization: int | None = None
    average: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The replicas that a metric asks for, and the use that it found."""

    replicas: int
    average: int
    utilization: int | None = None


@dataclass(slots=True)
class _Groups:
    ready: int = 0
    unready: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    ignored: set[str] = field(default_factory=set)


def replicas(
    current: int, target: UseTarget, samples: Mapping[str, Sample], pods: Sequence[Object], *, resource: str,
    now: dt.datetime, container: str = "", tolerance: Tolerance = Tolerance(),
) -> Measured:  # fmt: skip
    """The replicas of ``current`` that ``pods`` with these ``samples`` (by name) need. Raises NoReplicasError."""
    if not pods:
        raise NoReplicasError("no pods returned by selector while calculating replica count")
    groups = _group(pods, samples, resource, now)
    values = {name: sample.value for name, sample in samples.items() if name not in groups.ignored | groups.unready}
    if not values:
        raise NoReplicasError("did not receive metrics for targeted pods (pods might be unready)")
    requests = requests_of(pods, container, resource) if target.utilization is not None else {}
    ratio, found = _ratio(values, requests, target)

    def measured(number: int) -> Measured:
        return Measured(replicas=number, average=found.average, utilization=found.utilization)

    with_unready = bool(groups.unready) and ratio > 1.0
    if not with_unready and not groups.missing:
        return measured(current if tolerance.holds(ratio) else math.ceil(ratio * groups.ready))
    values |= _assumed(groups, ratio, requests, target)
    careful, _ = _ratio(values, requests, target)
    if tolerance.holds(careful) or (ratio < 1.0 < careful) or (careful < 1.0 < ratio):
        return measured(current)
    number = math.ceil(careful * len(values))
    turned = (careful < 1.0 and number > current) or (careful > 1.0 and number < current)
    return measured(current if turned else number)


def _assumed(groups: _Groups, ratio: float, requests: Mapping[str, int], target: UseTarget) -> dict[str, int]:
    """What pods without a usable sample are assumed to use."""
    assumed: dict[str, int] = {}
    if ratio > 1.0:
        assumed |= dict.fromkeys((*groups.missing, *groups.unready), 0)
    elif ratio < 1.0 and target.utilization is not None:
        percent = max(100, target.utilization)
        assumed |= {name: requests.get(name, 0) * percent // 100 for name in groups.missing}
    elif ratio < 1.0:
        assumed |= dict.fromkeys(groups.missing, target.average)
    return assumed


def _ratio(values: Mapping[str, int], requests: Mapping[str, int], target: UseTarget) -> tuple[float, Measured]:
    """Use through target, and the use itself."""
    if target.utilization is None:
        average = sum(values.values()) // len(values)
        return average / target.average, Measured(replicas=0, average=average)
    known = [name for name in values if name in requests]
    asked = sum(requests[name] for name in known)
    if not asked:
        raise NoReplicasError("no metrics returned matched known pods")
    used = sum(values[name] for name in known)
    utilization = used * 100 // asked
    return utilization / target.utilization, Measured(replicas=0, average=used // len(known), utilization=utilization)


def _group(pods: Sequence[Object], samples: Mapping[str, Sample], resource: str, now: dt.datetime) -> _Groups:
    groups = _Groups()
    for pod in pods:
        name = name_of(pod)
        if deleting(pod) or phase_of(pod) == "Failed":
            groups.ignored.add(name)
        elif phase_of(pod) == "Pending":
            groups.unready.add(name)
        elif name not in samples:
            groups.missing.add(name)
        elif resource == "cpu" and _is_starting(pod, samples[name], now):
            groups.unready.add(name)
        else:
            groups.ready += 1
    return groups


def _is_starting(pod: Object, sample: Sample, now: dt.datetime) -> bool:
    """Whether the pod's use of CPU says nothing of its work yet."""
    ready, start = condition(pod, "Ready"), moment_of(status_of(pod).get("startTime"))
    if ready is None or start is None:
        return True
    since = moment_of(ready.get("lastTransitionTime")) or start
    if start + CPU_INITIALIZATION > now:
        return ready.get("status") == "False" or sample.at < since + sample.window
    return ready.get("status") == "False" and start + INITIAL_READINESS > since


def requests_of(pods: Sequence[Object], container: str, resource: str) -> dict[str, int]:
    """What each pod's containers (or the one of that name) request. Raises NoReplicasError when one has no request."""
    found = {}
    for pod in pods:
        spec = spec_of(pod)
        sidecars = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
        total = 0
        for one in (*(spec.get("containers") or ()), *sidecars):
            if container and one.get("name") != container:
                continue
            request = ((one.get("resources") or {}).get("requests") or {}).get(resource)
            if request is None:
                raise NoReplicasError(
                    f"missing request for {resource} in container {one.get('name')} of Pod {name_of(pod)}"
                )
            total += millis(request)
        found[name_of(pod)] = total
    return found


def millis(quantity: str) -> int:
    """A quantity in thousandths; 0 for what is none."""
    try:
        return Quantity.parse(quantity).milli
    except QuantityError:
        return 0
