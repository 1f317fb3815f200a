"""What GPUs did since kgpu top started: activity for the bars, since when each is idle, and when it had an Xid."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kgpu.top.model import GpuNode, ShownGpu

KEPT: Final = 60
"""How many readings of each GPU are kept."""
BUSY: Final = ("utilization_percent", "sm_percent", "engine_percent")


class IdleTime(NamedTuple):
    """How long a GPU has done nothing; ``at_least``: it was idle when kgpu top started."""

    seconds: float
    at_least: bool


@dataclass(slots=True)
class _Track:
    began: float
    busy_at: float | None = None
    idle: bool = False
    seen_at: float = 0.0
    activity: bytearray = field(default_factory=bytearray)  # a deque of them takes five times as much


@dataclass(slots=True)
class LastXid:
    """The last Xid, which an exporter shows for ever; ``came_at`` is None for one from before kgpu top started.

    ``told_at``: when a reading first had it, in seconds since the epoch.
    """

    code: int
    seen_at: float
    came_at: float | None = None
    told_at: float = 0.0


class GpuHistory:
    """Times are seconds of a clock that only grows."""

    def __init__(self) -> None:
        self._tracks: dict[str, _Track] = {}
        self._xids: dict[str, LastXid] = {}
        self._read_at: dict[str, float] = {}
        self.whole: deque[int] = deque(maxlen=KEPT)

    def add(self, node: GpuNode, now: float) -> None:
        """Add a node that has just been read; values that its exporter has given before are ignored."""
        told_at = node.read_at or node.at
        for gpu in node.gpus:
            self._take_xid(gpu, now, told_at)  # an Xid is told at once, between two readings of everything else
        if node.read_at and self._read_at.get(node.name) == node.read_at:
            for gpu in node.gpus:
                if gpu.uuid in self._tracks:
                    self._tracks[gpu.uuid].seen_at = now
            return
        self._read_at[node.name] = node.read_at
        for gpu in node.gpus:
            active = activity(gpu)
            if active is None:
                continue
            track = self._tracks.get(gpu.uuid)
            if track is None:
                track = self._tracks[gpu.uuid] = _Track(now)
            track.activity.append(min(255, max(0, round(active))))
            del track.activity[:-KEPT]
            track.idle = not _works(gpu)
            track.seen_at = now
            if not track.idle:
                track.busy_at = now

    def _take_xid(self, gpu: ShownGpu, now: float, told_at: float) -> None:
        if not gpu.values:
            return  # it did not answer: what it had before counts on
        code, known = int(gpu.values.get("last_xid", 0)), self._xids.get(gpu.uuid)
        if known is None:
            self._xids[gpu.uuid] = LastXid(code, now)
        elif known.code == code:
            known.seen_at = now
        else:
            self._xids[gpu.uuid] = LastXid(code, now, now if code else None, told_at)

    def round_ends(self, mean_percent: float | None, now: float, forget_after: float = 600.0) -> None:
        """A round is over: the whole's activity, and GPUs that have been gone for long are forgotten."""
        if mean_percent is not None:
            self.whole.append(round(mean_percent))
        for uuid in [uuid for uuid, track in self._tracks.items() if now - track.seen_at > forget_after]:
            del self._tracks[uuid]
        for uuid in [uuid for uuid, xid in self._xids.items() if now - xid.seen_at > forget_after]:
            del self._xids[uuid]

    def xid_age(self, uuid: str, now: float) -> float | None:
        """Seconds since the GPU's last Xid came; None where it had none since kgpu top started."""
        xid = self._xids.get(uuid)
        return None if xid is None or xid.came_at is None else max(0.0, now - xid.came_at)

    def last_xid(self, uuid: str) -> LastXid | None:
        """The GPU's last Xid, of code 0 where it had none; None for a GPU that was not read."""
        return self._xids.get(uuid)

    def activity(self, uuid: str) -> tuple[int, ...]:
        """Percent at each of the last readings, the oldest first."""
        track = self._tracks.get(uuid)
        return tuple(track.activity) if track else ()

    def idle(self, uuid: str, now: float) -> IdleTime | None:
        """How long the GPU has been idle; None while it is busy or nothing is known."""
        track = self._tracks.get(uuid)
        if track is None or not track.idle:
            return None
        since = track.began if track.busy_at is None else track.busy_at
        return IdleTime(max(0.0, now - since), track.busy_at is None)


def _works(gpu: ShownGpu) -> bool:
    """Whether any measure shows work: one may miss what another sees, such as a copy without a kernel."""
    return any(values.get(name, 0.0) > 0 for values in (gpu.values, *(p.values for p in gpu.parts)) for name in BUSY)


def activity(gpu: ShownGpu) -> float | None:
    """The GPU's utilisation in percent, by the first measure that it has; with MIG the busiest instance's."""
    own = busy(gpu.values)
    if own is not None:
        return own
    return max((percent for part in gpu.parts if (percent := busy(part.values)) is not None), default=None)


def busy(values: Mapping[str, float]) -> float | None:
    """Utilisation in percent by the first measure that there is; None without one."""
    return next((values[name] for name in BUSY if name in values), None)
