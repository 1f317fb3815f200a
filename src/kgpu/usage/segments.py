"""Pure: from a recording's lines to stretches of time, whatever order, gaps, resets and clocks they have.

Times within a boot are taken from the clock that never jumps, set by the wall clock as it was last read; so a clock
that is put right changes when something was, never how long. Counters that begin anew count from 0. Stretches of a
device never overlap. What was bearable but wrong is told, once for each kind and node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.formats.usage import RecordedGpu, RecordedHolder, RecordedNode, UsageState
from kgpu.usage.gang_time import with_waiting
from kgpu.usage.model import DeviceKey, HolderUse, NodeHistory, PartitionUse, Segment
from kgpu.usage.recording import UsageRecording

CLOCK_TOLERANCE_US: Final = 2_000_000
"""How far a clock may drift, or ``at`` be rounded, before it counts as having been set."""
LONGEST_BOOT_US: Final = 7 * 86_400_000_000
"""Between two boots; what is longer is a clock that was wrong, or a machine that was away, and nobody's cost."""
SILENT_US: Final = 3_600_000_000
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Timeline:
    """All stretches by device, in order; the nodes; and what has to be told."""

    devices: Mapping[DeviceKey, Sequence[Segment]]
    nodes: Mapping[str, NodeHistory]
    advice: tuple[Advice, ...]


_TOLD: Final = {
    "ClockJumped": ("the clock was set", "times are as it said last; durations are right"),
    "LinesOutOfOrder": ("lines were not in order of time", "they were put in order"),
    "CountersReset": ("counters began anew without a new boot", "what they counted between may be missing"),
    "TimesOverlap": ("two boots say something about the same time", "the earlier one counts"),
    "LongBoot": ("a boot seems to have taken more than a week", "only what was watched since counts"),
    "TimeExceeded": ("states have more time than has passed", "they were shortened to what has passed"),
}


def timeline(recording: UsageRecording) -> Timeline:
    """The stretches of every device of a recording."""
    told: Counter[tuple[str, str]] = Counter()
    offsets = _offsets(recording.devices, lambda node: told.update([("ClockJumped", node)]))
    by_device: dict[DeviceKey, list[RecordedGpu]] = {}
    for record in recording.devices:
        by_device.setdefault((record.node, record.device), []).append(record)
    devices = {
        key: list(_segments(records, offsets, lambda what, node=key[0]: told.update([(what, node)])))  # type: ignore[misc]
        for key, records in by_device.items()
    }
    return Timeline(
        with_waiting(devices), _nodes(recording, devices), (*recording.advice, *_advice(told), *_silent(devices))
    )


def _silent(devices: Mapping[DeviceKey, Sequence[Segment]]) -> Iterator[Advice]:
    """One for all nodes whose lines end early: gone or silent, their time since then is in no row."""
    ends: dict[str, int] = {}
    for (node, _), segments in devices.items():
        ends[node] = max([ends.get(node, 0), *(segment.end_us for segment in segments)])
    last = max(ends.values(), default=0)
    early = sorted(node for node, end in ends.items() if last - end > SILENT_US)
    if early:
        more = f" and {len(early) - _NAMED} more" if len(early) > _NAMED else ""
        yield Advice(
            what=f"{len(early)} of {len(ends)} nodes have no lines in the recording's last hour: "
            f"{', '.join(early[:_NAMED])}{more}",
            why="they are gone, or nothing records there: what they cost since is in no row",
            severity=Severity.WARNING, reason="NodesSilent",
        ).printable()  # fmt: skip


def _advice(told: Mapping[tuple[str, str], int]) -> Iterator[Advice]:
    for (reason, node), count in sorted(told.items()):
        what, so = _TOLD[reason]
        times = "once" if count == 1 else f"{count} times"
        yield Advice(
            subject=node, what=f"{node}: {what} ({times}): {so}", severity=Severity.WARNING, reason=reason
        ).printable()


def _nodes(recording: UsageRecording, devices: Iterable[DeviceKey]) -> dict[str, NodeHistory]:
    seen = Counter(node for node, _ in devices)
    lines: dict[str, list[RecordedNode]] = {}
    for line in recording.nodes:
        lines.setdefault(line.node, []).append(line)
    found = {}
    for name in sorted({*seen, *lines}):
        own = sorted(lines.get(name, ()), key=lambda line: line.at)
        said = max((line.gpus for line in own), default=0)
        found[name] = NodeHistory(name=name, lines=tuple(own), gpus=said or seen[name])
    return found


def _offsets(records: Iterable[RecordedGpu], jumped: Callable[[str], None]) -> dict[tuple[str, str], int]:
    """What the steady clock of a node's boot lacks to the wall clock: by the newest line of that boot."""
    newest: dict[tuple[str, str], tuple[int, int]] = {}
    extremes: dict[tuple[str, str], tuple[int, int]] = {}
    for record in records:
        key = record.node, record.boot
        offset = _wall_us(record) - record.uptime_us
        newest[key] = max(newest.get(key, (-1, 0)), (record.uptime_us, offset))
        least, most = extremes.get(key, (offset, offset))
        extremes[key] = min(least, offset), max(most, offset)
    for (node, _), (least, most) in extremes.items():
        if most - least > CLOCK_TOLERANCE_US:
            jumped(node)
    return {key: offset for key, (_, offset) in newest.items()}


def _wall_us(record: RecordedGpu) -> int:
    at = record.at
    return int(at.replace(microsecond=0).timestamp()) * 1_000_000 + at.microsecond


def _segments(
    records: Sequence[RecordedGpu], offsets: Mapping[tuple[str, str], int], tell: Callable[[str], None]
) -> Iterator[Segment]:
    boots: dict[str, list[tuple[int, RecordedGpu]]] = {}
    for record in records:
        at = record.uptime_us + offsets[record.node, record.boot]
        boots.setdefault(record.boot, []).append((at, record))
    before: tuple[int, RecordedGpu] | None = None
    end: int | None = None
    for placed in sorted(boots.values(), key=lambda items: min(at for at, _ in items)):
        ordered = sorted(placed, key=lambda item: item[0])
        if ordered != placed:
            tell("LinesOutOfOrder")
        for at, record in ordered:
            if before is not None and end is not None:
                if at < end:
                    tell("TimesOverlap")
                # What a device's line is about began with the line before, or with the boot.
                yield from _between(before, (at, record), end, tell)
            before, end = (at, record), max(at, end if end is not None else at)


def _between(
    before: tuple[int, RecordedGpu], now: tuple[int, RecordedGpu], end: int, tell: Callable[[str], None]
) -> Iterator[Segment]:
    """The stretch that the line ``now`` is about, as far as it lies after ``end``."""
    (began, old), (at, record) = before, now
    began = min(began, at)
    if at <= began:
        return
    same = old.boot == record.boot
    if not same and at - began > LONGEST_BOOT_US:
        tell("LongBoot")
        began = max(began, at - sum(record.states_us.values()))
        if began >= at:
            return
    deltas = _Deltas(tell)
    length = at - began
    parts = {part.id: part.states_us for part in old.partitions} if same else {}
    holders = {holder.key: holder for holder in old.holders} if same else {}
    energy = None if record.energy_uj is None else record.energy_uj
    if energy is not None and same:
        energy = None if old.energy_uj is None else deltas.of(energy, old.energy_uj)
    whole = Segment(
        node=record.node, device=record.device, begin_us=began, end_us=at,
        product=record.product, memory_mib=record.memory_mib, energy_uj=energy,
        states_us=deltas.states(record.states_us, old.states_us if same else {}, length),
        partitions=tuple(
            PartitionUse(
                id=part.id, profile=part.profile,
                states_us=deltas.states(part.states_us, parts.get(part.id, {}), length),
            )
            for part in record.partitions
        ),
        holders=tuple(deltas.use(holder, holders.get(holder.key), length) for holder in record.holders),
    )  # fmt: skip
    deltas.finish()
    found = whole.within(max(began, end), at)
    if found is not None:
        yield found


class _Deltas:
    """What counters grew by. One that is smaller than before has begun anew; that is told once for a line."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._found: set[str] = set()

    def finish(self) -> None:
        for what in sorted(self._found):
            self._tell(what)

    def of(self, now: int, before: int) -> int:
        if now >= before:
            return now - before
        self._found.add("CountersReset")
        return now

    def known(self, now: int | None, before: int | None, most: int) -> int | None:
        """At most ``most``: activity is never longer than the time in which it was."""
        return None if now is None else min(most, self.of(now, before or 0))

    def states(
        self, now: Mapping[UsageState, int], before: Mapping[UsageState, int], length: int
    ) -> dict[UsageState, int]:
        grown = {state: self.of(amount, before.get(state, 0)) for state, amount in now.items()}
        total = sum(grown.values())
        if total <= length:
            return grown
        if total - length > CLOCK_TOLERANCE_US:
            self._found.add("TimeExceeded")
        return {state: amount * length // total for state, amount in grown.items()}

    def use(self, now: RecordedHolder, before: RecordedHolder | None, length: int) -> HolderUse:
        held = min(length, self.of(now.held_us, before.held_us if before else 0))
        memory = None
        if now.memory_mib_ms is not None:
            memory = self.of(now.memory_mib_ms, (before.memory_mib_ms if before else None) or 0)
        return HolderUse(
            holder=now, held_us=held, memory_mib_ms=memory,
            starting_us=min(held, self.of(now.starting_us, before.starting_us if before else 0)),
            busy_us=self.known(now.busy_us, before.busy_us if before else None, held),
            sm_us=self.known(now.sm_us, before.sm_us if before else None, held),
        )  # fmt: skip
