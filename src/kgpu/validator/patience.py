"""How long what is not as it should be may stay so before that counts: waits, a Node that lags, an empty Node.

Pure but for the times that it keeps; ``now`` is of a monotonic clock, in seconds.
"""

from __future__ import annotations

from typing import Final

from kgpu.validator import plan
from kgpu.validator.checks.plugin import EMPTY_SECONDS
from kgpu.validator.model import Check, CheckResult, Status

DIFFERENT_SECONDS: Final = 30.0
"""How long a Node that was in order may differ from what is offered: a kubelet writes its status every 10 s."""

SOON_SECONDS: Final = 0.25
SOON_SHARE: Final = 0.25
"""Of the time that the plugin was waited for already."""


class Patience:
    """One validator's."""

    def __init__(self) -> None:
        self._differs: float | None = None  # since when the Node is other than what is offered
        self._empty: float | None = None  # since when nothing is allocatable
        self._since: dict[tuple[Check, str], float] = {}

    def empty_for(self, now: float, *, empty: bool) -> float:
        """Seconds since when nothing is allocatable, 0 when something is or nothing is meant to be."""
        self._empty = None if not empty else now if self._empty is None else self._empty
        return 0.0 if self._empty is None else now - self._empty

    def pause(self, now: float, calm: float) -> float:
        """``calm``, or the shorter time after which an empty Node, or what is waited for, counts as a failure."""
        ends = [when + plan.PATIENCE[check] for (check, _), when in self._since.items() if check in plan.PATIENCE]
        if self._empty is not None:
            ends.append(self._empty + EMPTY_SECONDS)
        return min([calm, *(end - now for end in ends if end > now)])

    def soon(self, now: float) -> float:
        """How soon to look at the Node again while the device plugin alone is waited for: at once at first, for the
        kubelet writes what it has heard of within a second, and then ever later.
        """
        begin = next((when for (check, _), when in self._since.items() if check is Check.PLUGIN), now)
        return max(SOON_SECONDS, SOON_SHARE * (now - begin))

    def settled(self, before: CheckResult | None, now_found: CheckResult, now: float) -> CheckResult:
        """A Node that was in order stays so while the kubelet may just be about to write."""
        if now_found.status is not Status.WAITING or before is None or before.status is not Status.PASSED:
            self._differs = None
            return now_found
        self._differs = now if self._differs is None else self._differs
        return before if now - self._differs < DIFFERENT_SECONDS else now_found

    def with_limit(self, result: CheckResult, now: float) -> CheckResult:
        """Patience begins anew when something else is waited for."""
        key = (result.check, result.trouble.what if result.trouble else "")
        begin = self._since.get(key, now)
        self._since = {other: when for other, when in self._since.items() if other[0] is not result.check}
        if result.status is not Status.WAITING:
            return result
        self._since[key] = begin
        return plan.impatient(result, now - begin)
