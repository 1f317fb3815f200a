"""How long a deviation may last before it counts: waiting checks, a Node that lags, a Node without allocatable devices.

It has no side effects but keeps times; ``now`` is monotonic seconds.
"""

from __future__ import annotations

from typing import Final

from kgpu.validator import plan
from kgpu.validator.checks.plugin import EMPTY_SECONDS
from kgpu.validator.model import Check, CheckResult, Status

DIFFERENT_SECONDS: Final = 30.0
"""How long a Node that was right may differ from what is offered: a kubelet writes its status every 10 s."""

SOON_SECONDS: Final = 0.25
SOON_SHARE: Final = 0.25
"""The share of the time that the check has waited for the plugin."""


class Patience:
    """The times of one validator."""

    def __init__(self) -> None:
        self._differs: float | None = None  # since when the Node has differed from what is offered
        self._empty: float | None = None  # since when nothing has been allocatable
        self._since: dict[tuple[Check, str], float] = {}

    def empty_for(self, now: float, *, empty: bool) -> float:
        """For how many seconds nothing has been allocatable; 0 if ``empty`` is False."""
        self._empty = None if not empty else now if self._empty is None else self._empty
        return 0.0 if self._empty is None else now - self._empty

    def pause(self, now: float, calm: float) -> float:
        """Seconds until the next look: ``calm``, or less if an empty Node or a waiting check counts as failed before
        that.
        """
        ends = [when + plan.PATIENCE[check] for (check, _), when in self._since.items() if check in plan.PATIENCE]
        if self._empty is not None:
            ends.append(self._empty + EMPTY_SECONDS)
        return min([calm, *(end - now for end in ends if end > now)])

    def soon(self, now: float) -> float:
        """How soon to look at the Node again while only the device plugin is missing: at first at once, as the kubelet
        writes news within a second, and then at growing intervals.
        """
        begin = next((when for (check, _), when in self._since.items() if check is Check.PLUGIN), now)
        return max(SOON_SECONDS, SOON_SHARE * (now - begin))

    def settled(self, before: CheckResult | None, now_found: CheckResult, now: float) -> CheckResult:
        """The plugin check's result: a pass stays for as long as the kubelet may be about to write."""
        if now_found.status is not Status.WAITING or before is None or before.status is not Status.PASSED:
            self._differs = None
            return now_found
        self._differs = now if self._differs is None else self._differs
        return before if now - self._differs < DIFFERENT_SECONDS else now_found

    def with_limit(self, result: CheckResult, now: float) -> CheckResult:
        """The result, failed if it has waited too long; the time starts again when it waits for something else."""
        key = (result.check, result.trouble.what if result.trouble else "")
        begin = self._since.get(key, now)
        self._since = {other: when for other, when in self._since.items() if other[0] is not result.check}
        if result.status is not Status.WAITING:
            return result
        self._since[key] = begin
        return plan.impatient(result, now - begin)
