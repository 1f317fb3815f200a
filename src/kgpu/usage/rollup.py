"""Pure: an hour's lines of a device as one, so that a year of a cluster fits a disk.

Counters only grow, so the last line says what all of them say but for holders that have ended: their last counters are
taken over. Lines of another boot or with other partitions stay. What is lost is when within the hour something was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from kgpu.formats.usage import RecordedGpu, RecordedHolder

HOUR: Final = 3600


def rolled_up(lines: Sequence[RecordedGpu]) -> list[RecordedGpu]:
    """One device's lines of an hour, in order of time, as few as say the same at the hour's end."""
    found: list[RecordedGpu] = []
    before: RecordedGpu | None = None
    for line in lines:
        if before is not None and _goes_on(before, line):
            found[-1] = msgspec.structs.replace(line, holders=_holders((*found[-1].holders, *line.holders)))
        else:
            # What went before is kept as it was, too: by it a reader knows who had ended.
            if before is not None and found[-1] is not before:
                found.append(before)
            found.append(line)
        before = line
    return found


def _goes_on(before: RecordedGpu, line: RecordedGpu) -> bool:
    """Whether the line says all that the one before it does. A first line says when counters began, and so does one
    with a holder that was not there before: it may have come back, and counts anew.
    """
    held = {holder.key: holder.held_us for holder in before.holders}
    return (
        before.boot == line.boot
        and sum(before.states_us.values()) > 0
        and before.uptime_us <= line.uptime_us
        and [part.id for part in before.partitions] == [part.id for part in line.partitions]
        and all(held.get(holder.key, holder.held_us + 1) <= holder.held_us for holder in line.holders)
    )


def _holders(holders: Iterable[RecordedHolder]) -> tuple[RecordedHolder, ...]:
    return tuple({holder.key: holder for holder in holders}.values())
