"""Counts of Xids and clock events, over a window and in all. They do not latch.

``DCGM_FI_DEV_XID_ERRORS`` keeps the last Xid for ever; these counts say when it was and how often. A restart does not
reset the count of Xids where the health role counts them. Memory is bounded: at most ``MOST_EVENTS`` of a window are
kept and ``MOST_KINDS`` different ones counted.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from kgpu.exporter.model import ComputedSample, Unit

MOST_EVENTS: Final = 10_000
MOST_KINDS: Final = 2_000
XID_COUNT, XID_TOTAL = "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_XID_ERRORS_TOTAL"
CLOCK_COUNT, CLOCK_TOTAL = "DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_CLOCK_EVENTS_TOTAL"

# Bits of NVML's clocks event reasons.
CLOCK_EVENTS: Final = (
    ("gpu_idle", 0x1), ("clocks_setting", 0x2), ("power_cap", 0x4), ("hw_slowdown", 0x8), ("sync_boost", 0x10),
    ("sw_thermal", 0x20), ("hw_thermal", 0x40), ("hw_power_brake", 0x80), ("display_clocks", 0x100),
)  # fmt: skip


class Window:
    """Counts of events by unit, within the last ``seconds`` and in all."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.total: Tally[tuple[Unit, str]] = Tally()
        self._recent: Tally[tuple[Unit, str]] = Tally()
        self._order: deque[tuple[float, tuple[Unit, str]]] = deque()

    def add(self, at: float, unit: Unit, what: str, *, total: bool = True) -> None:
        """Count one event. ``total`` False: in the window only."""
        key = (unit, what)
        if total and (key in self.total or len(self.total) < MOST_KINDS):
            self.total[key] += 1
        if len(self._order) >= MOST_EVENTS:
            self._forget()
        self._order.append((at, key))
        self._recent[key] += 1

    def recent(self, now: float) -> Mapping[tuple[Unit, str], int]:
        """Counts within the window that ends now."""
        while self._order and self._order[0][0] <= now - self.seconds:
            self._forget()
        return self._recent

    def _forget(self) -> None:
        _, key = self._order.popleft()
        self._recent[key] -= 1
        if not self._recent[key]:
            del self._recent[key]


class Xids:
    """The node's Xids: the last of each unit, and counts."""

    def __init__(self, window: float = 300.0) -> None:
        self.last: dict[Unit, int] = {}
        self._window = Window(window)
        self._counted: Mapping[tuple[Unit, str], int] | None = None
        self._before: dict[tuple[Unit, str], int] = {}  # what was shown and not heard here
        self._shown: dict[tuple[Unit, str], int] = {}

    def recall(self, counted: Mapping[tuple[Unit, str], int] | None) -> None:
        """Take the health role's counts since the boot; None when it does not count any more."""
        if counted is None and self._counted is not None:
            self._before = {key: count - self._window.total[key] for key, count in self._totals().items()}
        self._counted = counted

    def _totals(self) -> dict[tuple[Unit, str], int]:
        """Counts in all, never less than was shown before: the health role may have lost its counts."""
        heard, counted = self._window.total, self._counted
        for key in {**heard, **self._before, **(counted or {})}:
            heard_here = heard[key] + (self._before.get(key, 0) if counted is None else 0)
            if key in self._shown or len(self._shown) < MOST_KINDS:
                self._shown[key] = max(self._shown.get(key, 0), heard_here, (counted or {}).get(key, 0))
        return self._shown

    def add(self, at: float, unit: Unit, code: int) -> None:
        """One Xid, of a GPU or of one of its instances."""
        if unit in self.last or len(self.last) < MOST_KINDS:
            self.last[unit] = code
        self._window.add(at, unit, str(code))

    def samples(self, now: float, units: Iterable[Unit]) -> dict[str, tuple[ComputedSample, ...]]:
        """Samples of both metrics; a unit without Xids in the window has one 0 without ``xid``, as users know it."""
        size = ("window_size_in_ms", str(int(self._window.seconds * 1000)))
        counts = self._window.recent(now)
        recent = [ComputedSample(unit, (size, ("xid", code)), float(count)) for (unit, code), count in _sorted(counts)]
        having = {unit for unit, _ in counts}
        recent += [ComputedSample(unit, (size,), 0.0) for unit in units if unit not in having]
        total = [
            ComputedSample(unit, (("xid", code),), float(count)) for (unit, code), count in _sorted(self._totals())
        ]
        return {XID_COUNT: tuple(recent), XID_TOTAL: tuple(total)}


class ClockWindow:
    """Reasons that hold clocks back: in how many readings of the window, and how often each began."""

    def __init__(self, window: float = 300.0) -> None:
        self._window = Window(window)
        self._before: dict[Unit, int] = {}

    def add(self, at: float, unit: Unit, reasons: int) -> None:
        """Take one reading of the reasons' bits. Reasons in the first reading do not count as begun."""
        before = self._before.get(unit, reasons)
        self._before[unit] = reasons
        for name, bit in CLOCK_EVENTS:
            if reasons & bit:
                self._window.add(at, unit, name, total=not before & bit)

    def samples(self, now: float) -> dict[str, tuple[ComputedSample, ...]]:
        """Samples of both metrics."""
        size = ("window_size_in_ms", str(int(self._window.seconds * 1000)))
        recent = _sorted(self._window.recent(now))
        total = _sorted(self._window.total)
        return {
            CLOCK_COUNT: tuple(
                ComputedSample(unit, (("clock_event", name), size), float(n)) for (unit, name), n in recent
            ),
            CLOCK_TOTAL: tuple(ComputedSample(unit, (("clock_event", name),), float(n)) for (unit, name), n in total),
        }


def _sorted(counts: Mapping[tuple[Unit, str], int]) -> list[tuple[tuple[Unit, str], int]]:
    return sorted(counts.items(), key=lambda row: (row[0][0].order, row[0][1]))
