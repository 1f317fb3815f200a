"""Pure: from pages at moments to the lines of a recording, as an agent would have written them.

Promises: counters go through as they are, so that a scrape that is missing loses no time; time in which a device was
held and nobody is known to have held it (who came and went between two scrapes) is unknown, never idle; a figure that
can't be is left out and counted. Stretches in which nothing changed become one line, of an hour at most.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from msgspec import structs

from kgpu.base.times import LAST_MOMENT
from kgpu.formats.usage import RecordedGpu, RecordedHolder, RecordedNode, RecordedPartition, UsageState
from kgpu.usage.prometheus.scrapes import (
    BUSY,
    HELD,
    MEMORY,
    SM,
    BootId,
    HolderId,
    ScrapedPage,
    Source,
    UnitId,
    whole,
)

LONGEST_LINE_US: Final = 3_600_000_000
MOST_UPTIME_S: Final = 100 * 365 * 86_400
CLOCK_OFF_S: Final = 86_400.0
"""How far a node's clock may be off Prometheus' own."""
SLACK_S: Final = 120.0
ROUNDING_US: Final = 1000
_Key = TypeVar("_Key")
_Grown: TypeAlias = tuple[tuple[str, frozenset[UsageState]], ...]
_NOT_HELD: Final = frozenset({UsageState.FREE, UsageState.DOWN, UsageState.UNKNOWN})


class Reach(NamedTuple):
    """From when to when a node's pages are, in milliseconds since 1970; the longest time between two, and its begin."""

    first: int
    last: int
    gap: int = 0
    gap_begins: int = 0


_Amounts: TypeAlias = Mapping[UsageState, int]


@dataclass(slots=True)
class _FollowedGpu:
    """A device: its newest line, which is ``written`` or not yet, and what it was made of. The first one waits for
    another that bears it out.
    """

    line: RecordedGpu
    at: int
    raw: Mapping[str, _Amounts]
    """Its states by partition, as they were told."""
    moved: dict[str, dict[UsageState, int]] = field(default_factory=dict)
    """What was put from one state into another since the counters began."""
    grown: _Grown | None = None
    """In which states time has passed before the line."""
    written: bool = False
    written_us: int = 0


@dataclass(slots=True)
class LinesMade:
    """All devices' lines, made moment by moment; ``take`` wants moments in order, ``finish`` ends it."""

    step_s: int
    devices: list[RecordedGpu] = field(default_factory=list)
    nodes: list[RecordedNode] = field(default_factory=list)
    reach: dict[str, Reach] = field(default_factory=dict)
    impossible: int = 0
    """Looks that can't have been."""
    _followed: dict[tuple[str, str], _FollowedGpu] = field(default_factory=dict)
    _known: dict[str, RecordedNode] = field(default_factory=dict)

    def take(self, at: int, pages: Mapping[Source, ScrapedPage]) -> None:
        """What all scrapes of a moment, in milliseconds since 1970, have said."""
        merged: dict[tuple[int, ...], ScrapedPage] = {}
        for device, (boot, several) in newest(pages).items():
            which = tuple(map(id, several))
            page = merged.get(which) or merged.setdefault(which, together(several))
            line = self._line(at, device, boot, page)
            if line is None:
                self.impossible += 1
                continue
            self._about(boot[0], page, line.at)
            self._reached(boot[0], at)
            self._add(at, line)

    def finish(self) -> None:
        """Write what waits."""
        for followed in self._followed.values():
            self._write(followed)

    def _line(self, at: int, device: str, boot: BootId, page: ScrapedPage) -> RecordedGpu | None:
        looked, uptime = page.looked[boot], page.uptime[boot]
        if (
            not 0 < looked < LAST_MOMENT
            or abs(looked - at / 1000) > CLOCK_OFF_S + self.step_s
            or uptime > MOST_UPTIME_S
        ):
            return None
        labels = page.devices[device, *boot]
        holders = list(_holders(device, boot, page))
        profiles = {part: profile for (of, part), profile in sorted(page.partitions.items()) if of == device}
        profiles |= {one.partition: "" for one in holders if one.partition and one.partition not in profiles}
        energy = page.energy.get(device)
        return RecordedGpu(
            node=boot[0], device=device, at=dt.datetime.fromtimestamp(looked, dt.UTC), boot=boot[1],
            uptime_us=_micro(uptime), product=labels.get("product", ""), memory_mib=whole(labels.get("memory_mib", "")),
            states_us=_states(page, (device, "")), energy_uj=None if energy is None else _micro(energy),
            partitions=tuple(
                RecordedPartition(id=part, profile=profile, states_us=_states(page, (device, part)))
                for part, profile in list(profiles.items())[:64]
            ),
            holders=tuple(holders),
        )  # fmt: skip

    def _add(self, at: int, line: RecordedGpu) -> None:
        key = line.node, line.device
        followed = self._followed.get(key)
        if followed is None or followed.line.boot != line.boot:
            if followed is not None:
                self._write(followed)
            self._followed[key] = _begun(at, line)
            return
        passed_us, most_us = line.uptime_us - followed.line.uptime_us, self._most_us(at - followed.at)
        if -most_us <= passed_us <= 0:
            return  # nobody has looked since
        if not 0 < passed_us <= most_us:
            self.impossible += 1
            if followed.grown is None:  # of the first two nobody knows which can't be: the third shows it
                self._followed[key] = _begun(at, line)
            return
        adjusted, grown = _accounted(followed, line)
        quiet = grown == followed.grown and _same(followed.line, line)
        if not quiet or line.uptime_us - followed.written_us > LONGEST_LINE_US:
            self._write(followed)
        followed.line, followed.at, followed.raw, followed.grown = adjusted, at, _by_part(line), grown
        followed.written = False

    def _most_us(self, passed_ms: int) -> float:
        """How much a machine's uptime may have grown between two moments."""
        return (passed_ms / 1000 + self.step_s + SLACK_S) * 1e6

    def _write(self, followed: _FollowedGpu) -> None:
        if not followed.written:
            self.devices.append(followed.line)
            followed.written, followed.written_us = True, followed.line.uptime_us

    def _about(self, node: str, page: ScrapedPage, at: dt.datetime) -> None:
        said = page.nodes.get(node)
        if said is not None and said != self._known.get(node):
            self._known[node] = said
            self.nodes.append(structs.replace(said, at=at))

    def _reached(self, node: str, at: int) -> None:
        before = self.reach.get(node)
        if before is None:
            self.reach[node] = Reach(at, at)
        elif at - before.last > before.gap:
            self.reach[node] = Reach(before.first, at, at - before.last, before.last)
        else:
            self.reach[node] = before._replace(last=at)


def newest(pages: Mapping[Source, ScrapedPage]) -> dict[str, tuple[BootId, list[ScrapedPage]]]:
    """By device the node and boot that it was seen in last, and all pages whose counters are of it."""
    of_page: list[tuple[ScrapedPage, dict[str, BootId]]] = []
    last: dict[str, tuple[float, BootId]] = {}
    for page in pages.values():
        own: dict[str, tuple[float, BootId]] = {}
        for device, node, name in page.devices:
            boot = node, name
            if boot in page.looked and boot in page.uptime:
                own[device] = max(own.get(device, (-1.0, boot)), (page.looked[boot], boot))
        of_page.append((page, {device: boot for device, (_, boot) in own.items()}))
        for device, seen in own.items():
            last[device] = max(last.get(device, seen), seen)
    return {
        device: (boot, [page for page, own in of_page if own.get(device) == boot])
        for device, (_, boot) in last.items()
    }  # fmt: skip


def together(pages: list[ScrapedPage]) -> ScrapedPage:
    """What several pages of the same counters say: of each counter the newest, which is the largest."""
    if len(pages) == 1:
        return pages[0]
    whole_page = ScrapedPage()
    for page in pages:
        whole_page.devices |= page.devices
        whole_page.partitions |= page.partitions
        whole_page.holders |= page.holders
        whole_page.nodes |= page.nodes
        _largest(whole_page.uptime, page.uptime)
        _largest(whole_page.looked, page.looked)
        _largest(whole_page.energy, page.energy)
        _largest(whole_page.counters, page.counters)
        for unit, states in page.states.items():
            _largest(whole_page.states.setdefault(unit, {}), states)
    return whole_page


def _largest(into: dict[_Key, float], more: Mapping[_Key, float]) -> None:
    for key, value in more.items():
        into[key] = max(into.get(key, 0.0), value)


def _micro(seconds: float) -> int:
    return round(seconds * 1e6)


def _states(page: ScrapedPage, unit: UnitId) -> dict[UsageState, int]:
    return {state: _micro(amount) for state, amount in sorted(page.states.get(unit, {}).items())}


def _holders(device: str, boot: BootId, page: ScrapedPage) -> Iterator[RecordedHolder]:
    """Who held it, with counters."""
    for (holder, name), who in sorted(page.holders.items(), key=lambda item: item[0]):
        held = page.counters.get((HELD, holder))
        if holder[0] != device or name != boot[1] or held is None:
            continue
        memory = page.counters.get((MEMORY, holder))
        yield structs.replace(
            who, held_us=_micro(held), busy_us=_known(page, BUSY, holder), sm_us=_known(page, SM, holder),
            memory_mib_ms=None if memory is None else round(memory * 1024e3),
        )  # fmt: skip


def _known(page: ScrapedPage, metric: str, holder: HolderId) -> int | None:
    amount = page.counters.get((metric, holder))
    return None if amount is None else _micro(amount)


def _by_part(line: RecordedGpu) -> dict[str, _Amounts]:
    return {"": line.states_us, **{part.id: part.states_us for part in line.partitions}}


def _begun(at: int, line: RecordedGpu) -> _FollowedGpu:
    """The first line of a boot: its counters began at 0."""
    followed = _FollowedGpu(structs.replace(line, holders=(), states_us={}, partitions=()), at, {})
    followed.line, _ = _accounted(followed, line)
    followed.raw = _by_part(line)
    return followed


def _accounted(followed: _FollowedGpu, line: RecordedGpu) -> tuple[RecordedGpu, _Grown]:
    """The line with unknown time where a device was held by nobody who is known; and which states have grown."""
    held_before = {one.key: one.held_us for one in followed.line.holders}
    claimed: dict[str, int] = {}
    for one in line.holders:
        claimed[one.partition] = claimed.get(one.partition, 0) + _growth(one.held_us, held_before.get(one.key, 0))
    adjusted: dict[str, dict[UsageState, int]] = {}
    grown_in: list[tuple[str, frozenset[UsageState]]] = []
    for part, states in _by_part(line).items():
        old = followed.raw.get(part, {})
        grown = {state: _growth(amount, old.get(state, 0)) for state, amount in states.items()}
        moved = followed.moved.setdefault(part, {})
        _move(grown, claimed.get(part, 0), moved)
        adjusted[part] = {
            state: max(0, states.get(state, 0) + moved.get(state, 0)) for state in (*states, *(moved.keys() - states))
        }
        grown_in.append((part, frozenset(state for state, amount in grown.items() if amount)))
    partitions = tuple(structs.replace(part, states_us=adjusted[part.id]) for part in line.partitions)
    return structs.replace(line, states_us=adjusted[""], partitions=partitions), tuple(grown_in)


def _growth(now: int, before: int) -> int:
    return now - before if now >= before else now


def _move(grown: dict[UsageState, int], claimed: int, moved: dict[UsageState, int]) -> None:
    """What was held for longer than its holders have held it becomes unknown."""
    held = [state for state in grown if state not in _NOT_HELD]
    left = sum(grown[state] for state in held) - claimed
    if left <= ROUNDING_US:
        return
    for state in held:
        part = min(left, grown[state])
        left -= part
        grown[state] -= part
        moved[state] = moved.get(state, 0) - part
        moved[UsageState.UNKNOWN] = moved.get(UsageState.UNKNOWN, 0) + part
        grown[UsageState.UNKNOWN] = grown.get(UsageState.UNKNOWN, 0) + part


def _same(one: RecordedGpu, other: RecordedGpu) -> bool:
    """Whether they differ in nothing but counters, and no gang is at work: there moments count."""
    return (
        one.product == other.product
        and [_profile(part) for part in one.partitions] == [_profile(part) for part in other.partitions]
        and [_identity(who) for who in one.holders] == [_identity(who) for who in other.holders]
        and not any(who.gang for who in one.holders)
    )  # fmt: skip


def _profile(part: RecordedPartition) -> tuple[str, str]:
    return part.id, part.profile


def _identity(who: RecordedHolder) -> tuple[object, ...]:
    return who.key, who.owner, who.labels, who.sharing, who.replicas, who.units, who.claim, who.busy_us is None
