"""How long the operator rests between two plans, so that planning takes at most a share of a core.

Unused time is saved up to a limit, so that the first steps of an installation don't wait for each other; a cluster
whose plans take long, or that changes all the time, is planned for as often as the share allows.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.1  # of a core
SHARE_BUSY: Final = 0.05  # while Nodes are being written: changes that the plan itself has made
SAVED_MOST: Final = 0.5  # seconds of planning
REST_MOST: Final = 3.0  # seconds


class Pace:
    """The pace of one leader; ``now`` is of a monotonic clock, in seconds."""

    def __init__(self, now: float) -> None:
        self._saved = SAVED_MOST
        self._share = SHARE
        self._since = now

    def spent(self, now: float, seconds: float) -> None:
        """Account for a plan that took ``seconds`` and has been carried out."""
        self._save(now)
        self._saved = max(-REST_MOST * SHARE, self._saved - seconds)

    def rest(self, now: float, *, busy: bool) -> float:
        """Seconds until the next plan may be made, 0 for at once. ``busy``: Nodes are being written."""
        self._save(now)
        self._share = SHARE_BUSY if busy else SHARE
        return min(REST_MOST, max(0.0, -self._saved / self._share))

    def _save(self, now: float) -> None:
        self._saved = min(SAVED_MOST, self._saved + self._share * (now - self._since))
        self._since = now
