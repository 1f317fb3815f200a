"""Pure: of a recording's stretches, the time in which a gang's GPU stood still while others of the gang worked.

An agent knows its own node. Read together, time in which a device was wasted becomes ``waiting`` as far as any other
device of the gang, on any node, worked meanwhile. Of two stretches that lie beside one another it is not known which
moments were which: as much as can have been waiting is. The time in all states together stays the same.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from kgpu.formats.usage import MILLION, UsageState
from kgpu.usage.model import DeviceKey, HolderUse, PartitionUse, Segment
from kgpu.usage.states import WASTED, WORKING

_UnitKey: TypeAlias = tuple[str, str, str]
"""Node, device, partition."""
_ORDER: Final = (UsageState.HELD_IDLE, UsageState.HELD_EMPTY, UsageState.HUNG)
"""What is turned into waiting first."""


@dataclass(slots=True)
class GangWork:
    """How much a gang's devices worked, over time: between two moments, which did most of it, and the next one.

    Parts are millionths of the time.
    """

    events: list[tuple[int, bool, int, _UnitKey]] = field(default_factory=list)
    moments: list[int] = field(default_factory=list)
    most: list[tuple[int, _UnitKey | None, int]] = field(default_factory=list)
    """From each moment on: the largest part, whose it is (None where it is several's), the largest of others."""

    def add(self, key: _UnitKey, begin_us: int, end_us: int, part: int) -> None:
        """A device has worked for that part of a stretch."""
        self.events += [(begin_us, True, part, key), (end_us, False, part, key)]

    def close(self) -> None:
        """All is added."""
        active: list[tuple[int, _UnitKey]] = []
        for moment, begins, part, key in sorted(self.events):
            if begins:
                bisect.insort(active, (part, key))
            else:
                active.pop(bisect.bisect_left(active, (part, key)))
            first, second = active[-1] if active else (0, None), active[-2][0] if len(active) > 1 else 0
            row = (first[0], None if first[0] == second else first[1], second)
            if self.moments and self.moments[-1] == moment:
                self.moments.pop()
                self.most.pop()
            if not self.most or self.most[-1] != row:
                self.moments.append(moment)
                self.most.append(row)
        self.events.clear()

    def by_others(self, key: _UnitKey, begin_us: int, end_us: int) -> int:
        """For how long any other device of the gang worked between the two moments, in microseconds."""
        total = 0
        for at in range(max(0, bisect.bisect_right(self.moments, begin_us) - 1), len(self.moments)):
            begin = max(begin_us, self.moments[at])
            end = min(end_us, self.moments[at + 1] if at + 1 < len(self.moments) else end_us)
            if begin >= end_us:
                break
            part, whose, next_part = self.most[at]
            total += max(0, end - begin) * (next_part if whose == key else part)
        return total // MILLION


def with_waiting(devices: Mapping[DeviceKey, Sequence[Segment]]) -> dict[DeviceKey, list[Segment]]:
    """The same stretches, with ``waiting`` for what only looked wasted."""
    work: dict[str, GangWork] = {}
    for segments in devices.values():
        for segment in segments:
            for partition, states in _units(segment):
                part = sum(states.get(state, 0) for state in WORKING) * MILLION // segment.length_us
                for gang in _gangs(segment.holders, partition) if part else ():
                    key = (segment.node, segment.device, partition)
                    work.setdefault(gang, GangWork()).add(key, segment.begin_us, segment.end_us, part)
    for one in work.values():
        one.close()
    return {key: [_waited(segment, work) for segment in segments] for key, segments in devices.items()}


def _units(segment: Segment) -> Iterator[tuple[str, Mapping[UsageState, int]]]:
    yield "", segment.states_us
    yield from ((part.id, part.states_us) for part in segment.partitions)


def _gangs(holders: Iterable[HolderUse], partition: str) -> set[str]:
    """Whose the device or partition was in the stretch; "" for a pod that works alone."""
    own = (use.holder for use in holders if use.holder.partition == partition)
    return {f"{one.namespace}/{one.gang}" if one.gang else "" for one in own}


def _waited(segment: Segment, work: Mapping[str, GangWork]) -> Segment:
    if not work or not any(use.holder.gang for use in segment.holders):
        return segment
    parts = tuple(
        PartitionUse(id=part.id, profile=part.profile, states_us=_told(segment, part.id, part.states_us, work))
        for part in segment.partitions
    )
    return replace(segment, states_us=_told(segment, "", segment.states_us, work), partitions=parts)


def _told(
    segment: Segment, partition: str, states: Mapping[UsageState, int], work: Mapping[str, GangWork]
) -> Mapping[UsageState, int]:
    gangs = _gangs(segment.holders, partition)
    if len(gangs) != 1 or not any(states.get(state) for state in WASTED):
        return states
    gang = work.get(gangs.pop())
    key = (segment.node, segment.device, partition)
    left = gang.by_others(key, segment.begin_us, segment.end_us) if gang is not None else 0
    found = dict(states)
    for state in _ORDER:
        moved = min(left, found.get(state, 0))
        if moved:
            found[state] -= moved
            found[UsageState.WAITING] = found.get(UsageState.WAITING, 0) + moved
            left -= moved
    return found
