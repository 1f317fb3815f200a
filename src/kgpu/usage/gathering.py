"""Pure: from looks at a node's devices to the lines of its recording. Read it after ``formats/usage.py``.

What lies between two looks is accounted once and whole: to those who held the device at its beginning, and to the
state that the second look shows. Longer than a minute between two looks was not observed. All counters are whole
microseconds (microjoules, MiB times milliseconds), so that the states of a device sum to the time since its first look.
What has to go on after a restart is ``Gathered``, plain data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from kgpu.formats.usage import (
    HolderSharing,
    RecordedGpu,
    RecordedHolder,
    RecordedPartition,
    UsageState,
)
from kgpu.formats.usage_now import BUCKET_US, UsageBucket, UsageSource
from kgpu.usage.looks import LookedDevice, LookedHolder, LookedPart, UsageLook
from kgpu.usage.states import (
    USUAL_RULES,
    IdleRules,
    UsageReading,
    UsageVerdict,
    WatchedDevice,
    activity,
    gang_key,
    judge,
    judge_gangs,
    ratio,
)
from kgpu.usage.watching import LONGEST_GAP_US, Watch

WRITE_US: Final = 300_000_000
"""A line is written at least that often,"""
SOONEST_US: Final = 60_000_000
"""and for a changed state alone no sooner than that: a state that flickers must not fill the disk."""
LINGER_US: Final = 60_000_000
"""What is left on a device this long after nobody holds it is a leak, not an end, nor a check of kgpu's own."""
GONE_US: Final = 3_600_000_000
"""A device that has not been there for so long is forgotten."""
WORKED_US: Final = 60_000_000
"""A pod that has been busy for so long has worked."""

_NOT_HELD: Final = frozenset({UsageState.FREE, UsageState.DOWN, UsageState.UNKNOWN})

UnitKey: TypeAlias = tuple[str, str, str]
"""Device, partition and holder's key; the latter two are "" for the device itself."""


class TrackedHolder(msgspec.Struct, kw_only=True):
    """A holder's counters. ``who`` says who; the counters there mean nothing."""

    who: RecordedHolder
    since_us: int
    held_us: int = 0
    busy_us: int | None = None
    sm_us: int | None = None
    memory_mib_ms: int | None = None
    watch: Watch = msgspec.field(default_factory=Watch)

    def recorded(self) -> RecordedHolder:
        """As it is written."""
        return msgspec.structs.replace(
            self.who, held_us=self.held_us, busy_us=self.busy_us, sm_us=self.sm_us, memory_mib_ms=self.memory_mib_ms
        )


class TrackedUnit(msgspec.Struct, kw_only=True):
    """A device, or a partition of it: its states' counters, and what was seen. ``busy_us``: when it was last busy, None
    where it never was while it was watched; stretches are kept for a window alone.
    """

    states_us: dict[UsageState, int] = msgspec.field(default_factory=dict)
    profile: str = ""
    memory_mib: float = 0.0
    source: UsageSource = UsageSource.NOTHING
    watch: Watch = msgspec.field(default_factory=Watch)
    state: UsageState = UsageState.UNKNOWN
    why: str = ""
    idle_since_us: int | None = None
    busy_us: int | None = None
    alone_us: int = 0
    """Since when nobody holds it."""

    @property
    def idle_since(self) -> float | None:
        """In seconds."""
        return None if self.idle_since_us is None else self.idle_since_us / 1e6


class TrackedGpu(msgspec.Struct, kw_only=True):
    """A device. ``seen_us``: the last look; ``meter_mj``: its meter then. ``known``: who held it then is known."""

    product: str = ""
    memory_mib: int = 0
    usable: bool = True
    idle_limit_w: float | None = None
    seen_us: int = 0
    there_us: int = 0
    written_us: int = 0
    known: bool = True
    energy_uj: int | None = None
    meter_mj: float | None = None
    unit: TrackedUnit = msgspec.field(default_factory=TrackedUnit)
    parts: dict[str, TrackedUnit] = msgspec.field(default_factory=dict)
    holders: dict[str, TrackedHolder] = msgspec.field(default_factory=dict)
    written: tuple[str, ...] = ()
    """The states of the last line."""

    @property
    def states(self) -> tuple[str, ...]:
        """The states now."""
        return (self.unit.state, *(part.state for part in self.parts.values()))

    def units(self) -> Iterator[tuple[str, TrackedUnit]]:
        """Itself, and its partitions."""
        yield "", self.unit
        yield from self.parts.items()

    def of(self, partition: str) -> list[TrackedHolder]:
        """Who holds it, or that partition."""
        return [holder for holder in self.holders.values() if holder.who.partition == partition]


class Gathered(msgspec.Struct, kw_only=True):
    """Everything that goes on after a restart within the same boot. ``boot`` is the name of these counters."""

    boot: str
    uptime_us: int = 0
    devices: dict[str, TrackedGpu] = msgspec.field(default_factory=dict)


class Accounted(msgspec.Struct):
    """What a look led to: lines, and stretches that are closed."""

    lines: list[RecordedGpu] = []
    buckets: list[tuple[UnitKey, UsageBucket]] = []


class _Step(NamedTuple):
    """A device between two looks; ``now`` is what the second one has shown of it, None where it was not there."""

    name: str
    gpu: TrackedGpu
    now: LookedDevice | None
    look: UsageLook
    begin_us: int

    @property
    def end_us(self) -> int:
        return self.look.uptime_us

    @property
    def length_us(self) -> int:
        return self.look.uptime_us - self.begin_us

    @property
    def seen(self) -> bool:
        """Whether what lies between was observed."""
        return self.length_us <= LONGEST_GAP_US

    @property
    def found(self) -> tuple[LookedHolder, ...] | None:
        """Who holds it now; None where nobody can say."""
        if self.look.holders is None:
            return None
        return tuple(self._as_known(one) for one in self.look.holders.get(self.name, ()))

    def _as_known(self, one: LookedHolder) -> LookedHolder:
        """With the uid by which it is followed where only its name is known, as after a start: the API may be slow."""
        if one.uid != one.by_name:
            return one
        place = (one.namespace, one.pod, one.container, one.partition)
        for holder in self.gpu.holders.values():
            who = holder.who
            if (who.namespace, who.pod, who.container, who.partition) == place:
                return msgspec.structs.replace(
                    one, uid=who.uid, owner=one.owner or who.owner, labels=one.labels or who.labels
                )
        return one

    def shown(self, partition: str) -> LookedDevice | LookedPart | None:
        """What was seen of it, or of that partition."""
        if self.now is None or not partition:
            return self.now
        return next((part for part in self.now.parts if part.id == partition), None)


class Gathering:
    """The counters of one node. ``closed`` are the stretches that are still needed to judge by, of a run before."""

    def __init__(
        self, node: str, gathered: Gathered, closed: Mapping[UnitKey, Iterable[UsageBucket]] | None = None,
        rules: IdleRules = USUAL_RULES,
    ) -> None:  # fmt: skip
        self.node = node
        self.gathered = gathered
        self.closed: dict[UnitKey, list[UsageBucket]] = {key: list(found) for key, found in (closed or {}).items()}
        self._rules = rules

    def take(self, look: UsageLook) -> Accounted:
        """Account for what has passed since the look before."""
        out = Accounted()
        there = {one.device: one for one in look.devices}
        tracked = self.gathered.devices
        steps = [
            _Step(name, gpu, there.get(name), look, gpu.seen_us)
            for name, gpu in tracked.items() if gpu.seen_us < look.uptime_us
        ]  # fmt: skip
        for step in steps:
            for partition, unit in step.gpu.units():
                self._judge(step, partition, unit, out)
            self._hold(step, out)
        self._gangs()
        for step in steps:
            self._finish(step, out)
        for name in there.keys() - tracked.keys():
            self._begin(_Step(name, TrackedGpu(written_us=look.uptime_us), there[name], look, look.uptime_us), out)
        self.gathered.uptime_us = look.uptime_us
        return out

    def _begin(self, step: _Step, out: Accounted) -> None:
        """A device that was not there before; its first line says from when on its counters count."""
        self.gathered.devices[step.name] = step.gpu
        step.gpu.seen_us = step.end_us
        energy = step.now is not None and (step.now.energy_mj is not None or _power(step.now) is not None)
        step.gpu.energy_uj = 0 if energy else None
        self._update(step)
        out.lines.append(self._line(step, first=True))

    # --- what has passed ---

    def _judge(self, step: _Step, partition: str, unit: TrackedUnit, out: Accounted) -> None:
        """Take what was seen, and judge the state."""
        shown = step.shown(partition)
        reading = shown.reading if shown is not None and step.seen else None
        device = WatchedDevice(
            held_since=max((holder.since_us / 1e6 for holder in step.gpu.of(partition)), default=None),
            memory_mib=unit.memory_mib, idle_floor_w=None if partition else _floor(step.gpu, self._rules),
            usable=step.gpu.usable if step.now is None else step.now.usable,
        )  # fmt: skip
        key = (step.name, partition, "")
        self._close(key, unit.watch.add(reading, step.begin_us, step.end_us, device), step.end_us, out)
        if reading is not None and (activity(reading) or 0.0) >= self._rules.idle_below:
            unit.busy_us = step.end_us
        _set(unit, self._verdict(step, partition, unit, device, read=reading is not None))

    def _verdict(
        self, step: _Step, partition: str, unit: TrackedUnit, device: WatchedDevice, *, read: bool
    ) -> UsageVerdict:
        if device.usable and step.seen and not partition and step.gpu.parts and device.held_since is None:
            return UsageVerdict(state=UsageState.FREE, why="what is in no partition can't be held")
        shown, was_held = step.shown(partition), unit.state not in _NOT_HELD
        checked = shown is not None and shown.checked and was_held == (device.held_since is not None)
        if device.usable and step.seen and checked:  # as before, for these seconds
            return UsageVerdict(state=unit.state, why=unit.why, idle_since=unit.idle_since)
        if device.usable and not (step.seen and read):
            return UsageVerdict(state=UsageState.UNKNOWN, why="it was not read")
        if device.usable and not step.gpu.known:
            return UsageVerdict(state=UsageState.UNKNOWN, why="nobody can say who holds it")
        readings = unit.watch.readings(self.closed.get((step.name, partition, ""), ()), _seconds)
        lingers = step.end_us - unit.alone_us < LINGER_US or unit.source is UsageSource.CARD
        if device.held_since is None and lingers:
            readings = [msgspec.structs.replace(one, processes=frozenset(), memory_mib=0.0) for one in readings]
        busy = None if unit.busy_us is None else unit.busy_us / 1e6
        return judge(readings, step.end_us / 1e6, device, self._rules, last_busy=busy)

    def _close(self, key: UnitKey, bucket: UsageBucket | None, now_us: int, out: Accounted) -> None:
        if bucket is None:
            return
        out.buckets.append((key, bucket))
        oldest = now_us - int(self._rules.window * 1e6) - 2 * BUCKET_US
        self.closed[key] = [one for one in (*self.closed.get(key, ()), bucket) if one.end_us >= oldest]

    def _gangs(self) -> None:
        """Devices and partitions of one gang are judged together, as far as they are this node's."""
        units = [
            (unit, gpu.of(partition))
            for gpu in self.gathered.devices.values() for partition, unit in gpu.units()
        ]  # fmt: skip
        worked = {_key(holder) for _, holders in units for holder in holders if (holder.busy_us or 0) >= WORKED_US}
        given = [UsageVerdict(state=unit.state, why=unit.why, idle_since=unit.idle_since) for unit, _ in units]
        judged = judge_gangs(given, [list(map(_key, holders)) for _, holders in units], worked)
        for (unit, _), before, verdict in zip(units, given, judged, strict=True):
            if verdict is not before:
                _set(unit, verdict)

    def _hold(self, step: _Step, out: Accounted) -> None:
        """What the holders at the stretch's beginning have had and used of it."""
        found = {one.key: one for one in step.found or ()}
        parts = _parts(step, found)
        for key, holder in step.gpu.holders.items():
            looked = found.get(key)
            if not step.seen and looked is None:
                continue  # it ended at some time that nobody saw
            holder.held_us += step.length_us
            if not step.seen:
                continue
            partition = holder.who.partition
            shown = step.shown(partition)
            alone = len(step.gpu.of(partition)) == 1 and (shown is None or shown.source is not UsageSource.CARD)
            own = _own(looked, parts.get(key), shown.reading if alone and shown is not None else None)
            _add(holder, own, step.length_us)
            if holder.who.sharing is not HolderSharing.WHOLE:
                closed = holder.watch.add(own, step.begin_us, step.end_us, WatchedDevice())
                self._close((step.name, partition, key), closed, step.end_us, out)

    # --- what is now ---

    def _finish(self, step: _Step, out: Accounted) -> None:
        """Count the stretch for its states, write a line where one is due, and take over what is now."""
        gpu = step.gpu
        for _, unit in gpu.units():
            unit.states_us[unit.state] = unit.states_us.get(unit.state, 0) + step.length_us
        _meter(step)
        gpu.seen_us = step.end_us
        gone = step.now is None and step.end_us - gpu.there_us > GONE_US
        if gone or _due(step):
            out.lines.append(self._line(step))
        if gone:
            del self.gathered.devices[step.name]
            self.closed = {key: found for key, found in self.closed.items() if key[0] != step.name}
        else:
            self._update(step)

    def _update(self, step: _Step) -> None:
        gpu, now = step.gpu, step.now
        if now is not None:
            gpu.product, gpu.memory_mib, gpu.usable = now.product, int(now.memory_mib), now.usable
            gpu.idle_limit_w, gpu.there_us = now.idle_limit_w, step.end_us
            gpu.meter_mj = now.energy_mj if now.energy_mj is not None else gpu.meter_mj
            gpu.unit.memory_mib, gpu.unit.source = now.memory_mib, now.source
            gpu.parts = {part.id: _part(gpu.parts.get(part.id), part, step.end_us) for part in now.parts}
        gpu.known = step.found is not None
        if step.found is None:
            return
        found = [one for one in step.found if not one.partition or one.partition in gpu.parts]
        gpu.holders = {one.key: _holder(gpu.holders.get(one.key), one, step.end_us) for one in found}
        for partition, unit in gpu.units():
            if gpu.of(partition):
                unit.alone_us = step.end_us
        kept = {(step.name, one.partition, one.key) for one in found}
        self.closed = {
            key: seen for key, seen in self.closed.items() if key[0] != step.name or not key[2] or key in kept
        }

    def _line(self, step: _Step, *, first: bool = False) -> RecordedGpu:
        gpu = step.gpu
        gpu.written_us, gpu.written = step.end_us, gpu.states
        return RecordedGpu(
            node=self.node, device=step.name, at=step.look.at, boot=self.gathered.boot, uptime_us=step.end_us,
            product=gpu.product, memory_mib=gpu.memory_mib, states_us=dict(gpu.unit.states_us), energy_uj=gpu.energy_uj,
            partitions=tuple(
                RecordedPartition(id=name, profile=part.profile, states_us=dict(part.states_us))
                for name, part in gpu.parts.items()
            ),
            holders=() if first else tuple(holder.recorded() for holder in gpu.holders.values()),
        )  # fmt: skip


def _due(step: _Step) -> bool:
    """Whether a line is: holders or partitions change, a state has, or it is time."""
    gpu = step.gpu
    since = step.end_us - gpu.written_us
    if since >= WRITE_US or (gpu.states != gpu.written and since >= SOONEST_US):
        return True
    parted = step.now is not None and {part.id for part in step.now.parts} != set(gpu.parts)
    return parted or (step.found is not None and {one.key for one in step.found} != set(gpu.holders))


def _set(unit: TrackedUnit, verdict: UsageVerdict) -> None:
    unit.state, unit.why = verdict.state, verdict.why
    unit.idle_since_us = None if verdict.idle_since is None else int(verdict.idle_since * 1e6)


def _seconds(uptime_us: int) -> float:
    return uptime_us / 1e6


def _floor(gpu: TrackedGpu, rules: IdleRules) -> float | None:
    """The floor that makes the device's limit with the rules' margin."""
    return None if gpu.idle_limit_w is None else gpu.idle_limit_w / (1 + rules.power_margin)


def _power(now: LookedDevice) -> float | None:
    return None if now.reading is None else now.reading.power_w


def _key(holder: TrackedHolder) -> str:
    return gang_key(holder.who.namespace, holder.who.gang, holder.who.uid)


_AVERAGED: Final = frozenset({UsageSource.COUNTERS, UsageSource.SAMPLES})


def _parts(step: _Step, found: Mapping[str, LookedHolder]) -> dict[str, float]:
    """The part of the activity that is of each holder's own processes. Their samples are of different moments: where
    what they share is measured over the whole time, they have together no more than that.
    """
    parts: dict[str, float] = {}
    for partition in {one.partition for one in found.values()}:
        own = {
            key: part
            for key, one in found.items()
            if one.partition == partition and (part := ratio(one.sm)) is not None
        }
        shown = step.shown(partition)
        whole = activity(shown.reading) if shown is not None and shown.reading and shown.source in _AVERAGED else None
        together = sum(own.values())
        scale = 1.0 if whole is None or together <= whole else whole / together
        parts |= {key: part * scale for key, part in own.items()}
    return parts


def _own(looked: LookedHolder | None, part: float | None, alone: UsageReading | None) -> UsageReading:
    """A holder's activity, multiprocessors and memory: its processes' own, all there is where it is ``alone``."""
    active, sm = part, None
    memory, peak = (looked.memory_mib, ratio(looked.sm)) if looked is not None else (None, None)
    if alone is not None:
        whole = activity(alone)
        if whole is not None:
            active, peak = whole, ratio(alone.peak)
        sm = ratio(alone.sm)
        memory = alone.memory_mib if memory is None else memory
    return UsageReading(at=0.0, gpu_util=active, peak=peak, sm=sm, memory_mib=memory)


def _add(holder: TrackedHolder, own: UsageReading, length_us: int) -> None:
    active = ratio(own.gpu_util)
    if active is not None:
        holder.busy_us = (holder.busy_us or 0) + int(active * length_us)
    if own.sm is not None:
        holder.sm_us = (holder.sm_us or 0) + int(own.sm * length_us)
    if own.memory_mib is not None:
        holder.memory_mib_ms = (holder.memory_mib_ms or 0) + int(own.memory_mib) * length_us // 1000


def _meter(step: _Step) -> None:
    """Energy by the board's meter, which begins anew with its driver; else by power."""
    gpu, now = step.gpu, step.now
    if now is None:
        return
    power = _power(now)
    if now.energy_mj is not None:
        grown = now.energy_mj - gpu.meter_mj if gpu.meter_mj is not None else 0.0
        gpu.energy_uj = (gpu.energy_uj or 0) + int((grown if grown >= 0 else now.energy_mj) * 1000)
    elif gpu.meter_mj is None and step.seen and power is not None:
        gpu.energy_uj = (gpu.energy_uj or 0) + int(max(0.0, power) * step.length_us)


def _part(before: TrackedUnit | None, now: LookedPart, now_us: int) -> TrackedUnit:
    unit = before or TrackedUnit(alone_us=now_us)
    unit.profile, unit.memory_mib, unit.source = now.profile, now.memory_mib, now.source
    return unit


def _holder(before: TrackedHolder | None, now: LookedHolder, now_us: int) -> TrackedHolder:
    who = RecordedHolder(
        namespace=now.namespace, pod=now.pod, uid=now.uid, container=now.container, partition=now.partition,
        owner=now.owner, gang=now.gang, labels=dict(now.labels), sharing=now.sharing, replicas=now.replicas,
        units=now.units, claim=now.claim, held_us=0,
    )  # fmt: skip
    if before is None:
        return TrackedHolder(who=who, since_us=now_us)
    before.who = who
    return before
