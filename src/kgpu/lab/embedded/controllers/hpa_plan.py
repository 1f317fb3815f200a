"""How fast a horizontal pod autoscaler may follow its metrics: bounds, stabilization windows, scaling policies.

Reasons and messages are kube-controller-manager's. Without ``spec.behavior`` it may double, and goes down once the
highest recommendation of five minutes allows it. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.kube.port import Object
from kgpu.lab.embedded.controllers.hpa_replicas_plan import Tolerance, millis

DOWNSCALE_STABILIZATION: Final = 300.0  # seconds; --horizontal-pod-autoscaler-downscale-stabilization
_DOUBLE: Final = 2
_AT_LEAST: Final = 4  # replicas to which it may go at once without a behavior

_READY: Final = ("ReadyForNewScale", "recommended size matches current size")
_DOWN_STABILIZED: Final = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
)  # fmt: skip
_UP_STABILIZED: Final = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
)  # fmt: skip
_WITHIN: Final = ("DesiredWithinRange", "the desired count is within the acceptable range")
_TOO_MANY: Final = ("TooManyReplicas", "the desired replica count is more than the maximum replica count")
_TOO_FEW: Final = ("TooFewReplicas", "the desired replica count is less than the minimum replica count")
_UP_LIMIT: Final = ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate")
_DOWN_LIMIT: Final = ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate")

Why = tuple[str, str]
"""Reason and message of a condition."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A recommendation, or the size of a change, and when (seconds of any clock)."""

    at: float
    replicas: int


@dataclass(slots=True, kw_only=True)
class History:
    """What one autoscaler remembers: recommendations, and by how many pods it went up and down."""

    recommendations: list[Moment] = field(default_factory=list)
    ups: list[Moment] = field(default_factory=list)
    downs: list[Moment] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The replicas to have, and what the conditions AbleToScale and ScalingLimited say."""

    replicas: int
    able: Why
    limited: bool
    limit: Why


def decide(spec: Object, history: History, current: int, wanted: int, now: float) -> Decision:
    """What becomes of the ``wanted`` replicas; remembers them as a recommendation."""
    up, down = rules_of(spec, "scaleUp"), rules_of(spec, "scaleDown")
    up_window = float((up or {}).get("stabilizationWindowSeconds") or 0)
    seconds = (down or {}).get("stabilizationWindowSeconds")
    down_window = DOWNSCALE_STABILIZATION if seconds is None else float(seconds)
    if spec.get("behavior") is None:
        recent = [one.replicas for one in history.recommendations if one.at > now - down_window]
        stable = max((wanted, *recent))
        able = _READY if stable == wanted else _DOWN_STABILIZED
        number, limit = _bounded(spec, current, stable)
    else:
        stable = _stabilized(history.recommendations, current, wanted, (now - up_window, now - down_window))
        able = _READY if stable == wanted else _UP_STABILIZED if stable < wanted else _DOWN_STABILIZED
        number, limit = _at_rate(spec, history, current, stable, now)
    kept = [one for one in history.recommendations if one.at > now - max(up_window, down_window)]
    history.recommendations = [*kept, Moment(now, wanted)]
    return Decision(replicas=number, able=able, limited=number != stable, limit=limit)


def rules_of(spec: Object, direction: str) -> Object | None:
    """``scaleUp`` or ``scaleDown`` of the behavior, if it has one."""
    rules: Object | None = (spec.get("behavior") or {}).get(direction)
    return rules


def tolerance_of(spec: Object) -> Tolerance:
    """That of the behavior, else a tenth."""
    given = {
        name: millis(str(rules["tolerance"])) / 1000
        for name, direction in (("up", "scaleUp"), ("down", "scaleDown"))
        if (rules := rules_of(spec, direction)) is not None and rules.get("tolerance") is not None
    }
    return Tolerance(**given)


def least(spec: Object) -> int:
    """``minReplicas``, 1 without one."""
    value = spec.get("minReplicas")
    return 1 if value is None else int(value)


def remember_change(spec: Object, history: History, before: int, after: int, now: float) -> None:
    """Note that the target was scaled, for the policies; events that no policy looks back to are dropped."""
    if spec.get("behavior") is None:
        return
    events, direction = (history.ups, "scaleUp") if after > before else (history.downs, "scaleDown")
    longest = max((policy["periodSeconds"] for policy in _policies(rules_of(spec, direction))), default=0)
    events[:] = [event for event in events if event.at > now - longest]
    events.append(Moment(now, abs(after - before)))


def _policies(rules: Object | None) -> Sequence[Object]:
    return (rules or {}).get("policies") or ()


def _bounded(spec: Object, current: int, wanted: int) -> tuple[int, Why]:
    """Without a behavior: between the bounds, and not much more than doubled."""
    low, most = least(spec), int(spec["maxReplicas"])
    fastest = max(_DOUBLE * current, _AT_LEAST)
    high, why = (fastest, _UP_LIMIT) if most > fastest else (most, _TOO_MANY)
    if wanted < low:
        return low, _TOO_FEW
    return (high, why) if wanted > high else (wanted, _WITHIN)


def _stabilized(
    recommendations: Iterable[Moment], current: int, wanted: int, cutoffs: tuple[float, float]
) -> int:  # fmt: skip
    """The current replicas, moved as far as all recommendations of the windows agree."""
    up = min((wanted, *(one.replicas for one in recommendations if one.at > cutoffs[0])))
    down = max((wanted, *(one.replicas for one in recommendations if one.at > cutoffs[1])))
    return min(max(current, up), down)


def _at_rate(spec: Object, history: History, current: int, wanted: int, now: float) -> tuple[int, Why]:
    """With a behavior: between the bounds, and as fast as the policies allow."""
    low, most = least(spec), int(spec["maxReplicas"])
    if wanted > current:
        fastest = max(current, _limit(rules_of(spec, "scaleUp"), history, current, now, up=True))
        high, why = (fastest, _UP_LIMIT) if most > fastest else (most, _TOO_MANY)
        return (high, why) if wanted > high else (wanted, _WITHIN)
    if wanted < current:
        slowest = min(current, _limit(rules_of(spec, "scaleDown"), history, current, now, up=False))
        floor, why = (slowest, _DOWN_LIMIT) if low < slowest else (low, _TOO_FEW)
        return (floor, why) if wanted < floor else (wanted, _WITHIN)
    return wanted, _WITHIN


def _limit(rules: Object | None, history: History, current: int, now: float, *, up: bool) -> int:
    """The most replicas (``up``), or the fewest, that the policies allow now; a Min policy the other way round."""
    select = (rules or {}).get("selectPolicy")
    if select == "Disabled":
        return current
    sign, whole = (1, math.ceil) if up else (-1, int)
    proposals = []
    for policy in _policies(rules):
        begun = _begun(history, current, policy, now)
        change = sign * policy["value"]
        proposals.append(begun + change if policy["type"] == "Pods" else whole(begun * (1 + change / 100)))
    choose = max if up == (select != "Min") else min
    return choose(proposals, default=current)


def _begun(history: History, current: int, policy: Object, now: float) -> int:
    """The replicas at the beginning of the policy's period."""
    cutoff = now - policy["periodSeconds"]

    def changed(events: Iterable[Moment]) -> int:
        return sum(event.replicas for event in events if event.at > cutoff)

    return current - changed(history.ups) + changed(history.downs)
