"""What a recording becomes before it is divided and priced: stretches of a device's time, and what was used in each.

Moments and durations are whole microseconds, moments since 1970; all amounts are those of the stretch alone, never of a
counter. None is what was not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kgpu.formats.usage import RecordedHolder, RecordedNode, UsageState

DeviceKey: TypeAlias = tuple[str, str]
"""Node and device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderUse:
    """What a container used in a stretch; ``holder`` says who and by which right; its counters mean nothing here."""

    holder: RecordedHolder
    held_us: int
    starting_us: int = 0
    busy_us: int | None = None
    sm_us: int | None = None
    memory_mib_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionUse:
    """A partition, and how long it was in each state."""

    id: str
    profile: str = ""
    states_us: Mapping[UsageState, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a device's time, as long as between two of its lines at most."""

    node: str
    device: str
    begin_us: int
    end_us: int
    product: str = ""
    memory_mib: int = 0
    states_us: Mapping[UsageState, int] = field(default_factory=dict)
    energy_uj: int | None = None
    partitions: tuple[PartitionUse, ...] = ()
    holders: tuple[HolderUse, ...] = ()

    @property
    def length_us(self) -> int:
        return self.end_us - self.begin_us

    def within(self, begin_us: int, end_us: int) -> Segment | None:
        """What of it lies between two moments, its amounts in proportion, rounded down; None where nothing does."""
        begin, end = max(self.begin_us, begin_us), min(self.end_us, end_us)
        if begin >= end:
            return None
        if (begin, end) == (self.begin_us, self.end_us):
            return self
        part, whole = end - begin, self.length_us

        def cut(amount: int) -> int:
            return amount * part // whole

        def cut_known(amount: int | None) -> int | None:
            return None if amount is None else cut(amount)

        def cut_states(states: Mapping[UsageState, int]) -> dict[UsageState, int]:
            return {state: cut(amount) for state, amount in states.items()}

        return replace(
            self, begin_us=begin, end_us=end, energy_uj=cut_known(self.energy_uj), states_us=cut_states(self.states_us),
            partitions=tuple(replace(one, states_us=cut_states(one.states_us)) for one in self.partitions),
            holders=tuple(
                replace(
                    use, held_us=cut(use.held_us), starting_us=cut(use.starting_us), busy_us=cut_known(use.busy_us),
                    sm_us=cut_known(use.sm_us), memory_mib_ms=cut_known(use.memory_mib_ms),
                )
                for use in self.holders
            ),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """What was known of a node, the oldest first, and how many GPUs it has: as its lines say, else as were seen."""

    name: str
    lines: tuple[RecordedNode, ...] = ()
    gpus: int = 0

    def at(self, moment_us: int) -> RecordedNode | None:
        """What counted then: the last line until then, or the first one. None where there is none."""
        chosen = None
        for line in self.lines:
            if chosen is not None and line.at.timestamp() * 1e6 > moment_us:
                break
            chosen = line
        return chosen
