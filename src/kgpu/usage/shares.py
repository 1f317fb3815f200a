"""Pure: who had a stretch of a GPU's time: its holders, the idle pool, the platform. Read it first.

All of the time goes to somebody and nothing twice: the parts sum to the stretch in whole microseconds, whatever the
recording says. The rows of ``RIGHTS`` say what a holder asks of the device, or of its partition, while it holds it;
where all together ask for more than there is, each gets less in proportion, and what nobody asks for is idle. Time in
which the device was down or not observed is the platform's, never a holder's.

Wasted is what was free, down, or held and not used, by what the device or partition did. How much that is does not
depend on who pays: other rules of sharing, or payment for busy time alone, only move it between holders and idle pool.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

from kgpu.formats.usage import MILLION, HolderSharing, RecordedHolder, UsageState
from kgpu.usage.apportion import Weight, apportion
from kgpu.usage.model import HolderUse, Segment
from kgpu.usage.partitions import partition_parts
from kgpu.usage.states import WASTED


class PayerKind(enum.StrEnum):
    """Whose a part of the time is."""

    HELD = "held"
    IDLE = "idle"
    DOWN = "down"
    UNKNOWN = "unknown"


class SharingMode(enum.StrEnum):
    """What a tenant of a time-sliced GPU pays while others could be there and are not."""

    RESERVE = "reserve"
    """Its shares of all replicas; the others' are idle."""
    PRESENT = "present"
    """Its shares of those that are held."""
    USAGE = "usage"
    """Its shares of all replicas, and of the rest by busy time."""


class Basis(enum.StrEnum):
    """What a holder pays: all that it held, or of that in which the GPU was busy; the rest is then idle."""

    HELD = "held"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class TimeShare:
    """A part of a stretch: whole microseconds of one GPU. ``wasted_us``: of it while free, down, or not used."""

    kind: PayerKind
    gpu_us: int
    use: HolderUse | None = None
    wasted_us: int = 0


Asks: TypeAlias = Callable[[RecordedHolder, SharingMode, int], Weight]


def _whole(holder: RecordedHolder, mode: SharingMode, users: int) -> Weight:
    del holder, mode, users
    return 1


def _shares(holder: RecordedHolder, mode: SharingMode, users: int) -> Weight:
    """Of those that are present each asks for all, in proportion to its shares: there is no more than there is."""
    del users
    return holder.units if mode is SharingMode.PRESENT else Fraction(holder.units, holder.replicas)


def _limits(holder: RecordedHolder, mode: SharingMode, users: int) -> Weight:
    """A part that its limits fix, if it has some."""
    return _dearest(holder) if holder.portions else _shares(holder, mode, users)


def _claim(holder: RecordedHolder, mode: SharingMode, users: int) -> Weight:
    """The claim's part, divided among the pods that use it."""
    del mode
    return (_dearest(holder) if holder.portions else Fraction(1)) / users


def _fraction(holder: RecordedHolder, mode: SharingMode, users: int) -> Weight:
    """What the scheduler counts it as; all of the device where it says nothing."""
    del mode, users
    return _dearest(holder) if holder.portions else 1


def _nothing(holder: RecordedHolder, mode: SharingMode, users: int) -> Weight:
    del holder, mode, users
    return 0


def _dearest(holder: RecordedHolder) -> Fraction:
    return Fraction(max(holder.portions.values()), MILLION)


RIGHTS: Final[Mapping[HolderSharing, Asks]] = {
    HolderSharing.WHOLE: _whole,
    HolderSharing.TIME_SLICING: _shares,
    HolderSharing.MPS: _limits,
    HolderSharing.CLAIM: _claim,
    HolderSharing.FRACTION: _fraction,
    HolderSharing.RESERVATION: _nothing,
}
"""What a holder asks of the device or partition; the number is of the holders that use the same claim."""


def split(segment: Segment, mode: SharingMode = SharingMode.PRESENT, basis: Basis = Basis.HELD) -> list[TimeShare]:
    """Whose the stretch was. The parts' time sums to the stretch's length; none is negative."""
    found: list[TimeShare] = []
    parts = partition_parts(segment.product, tuple(part.profile for part in segment.partitions))
    weights: list[Weight] = [*parts, 1 - sum(parts, Fraction(0)) if parts else 1]
    lengths = apportion(segment.length_us, weights)
    portions = [(part.id, part.states_us) for part in segment.partitions] + [("", segment.states_us)]
    for (name, states), length in zip(portions, lengths, strict=True):
        holders = [use for use in segment.holders if use.holder.partition == name]
        if length or holders:
            found += _portion(segment.length_us, length, states, holders, mode)
    return [by_busy for share in found for by_busy in _on_basis(share, basis)]


def _portion(
    wall: int, length: int, states: Mapping[UsageState, int], holders: Sequence[HolderUse], mode: SharingMode
) -> Iterable[TimeShare]:
    """The shares of ``length`` microseconds of GPU, which are ``wall`` microseconds of a device or partition."""
    down = states.get(UsageState.DOWN, 0)
    seen = sum(amount for state, amount in states.items() if state is not UsageState.UNKNOWN)
    usable = seen - down
    # Holders share what was not free; but what one of them held was not, whatever the state says.
    longest = max((min(use.held_us, usable) for use in holders), default=0)
    occupied = max(usable - states.get(UsageState.FREE, 0), longest)
    wasted = min(occupied, sum(states.get(state, 0) for state in WASTED))

    def divided(sharing: SharingMode) -> tuple[list[int], list[int]]:
        """The parts: down, unknown, idle, and each holder's; and what of them was wasted, if idle ones are free."""
        asked = _asked(holders, occupied, sharing)
        parts = apportion(length, [down, wall - seen, usable - sum(asked), *asked])
        return parts, [parts[0], 0, parts[2], *(part * wasted // occupied if occupied else 0 for part in parts[3:])]

    parts, lost = divided(mode)
    if mode is not SharingMode.PRESENT:
        lost = _as_lost(sum(divided(SharingMode.PRESENT)[1][2:]), parts, lost)
    for kind, part, unused in zip(_PLATFORMS, parts, lost, strict=False):
        if part:
            yield TimeShare(kind, part, None, unused)
    for use, part, unused in zip(holders, parts[3:], lost[3:], strict=True):
        yield TimeShare(PayerKind.HELD, part, use, unused)


_PLATFORMS: Final = (PayerKind.DOWN, PayerKind.UNKNOWN, PayerKind.IDLE)


def _as_lost(total: int, parts: Sequence[int], lost: Sequence[int]) -> list[int]:
    """What was wasted of the parts, so that of the idle and held ones it is ``total``: the idle pool's as far as it has
    so much, and else the holders', who then pay for time in which nobody held it.
    """
    down, unknown, _, *held = lost
    rest = max(0, total - sum(held))
    idle = min(parts[2], rest)
    used = [part - unused for part, unused in zip(parts[3:], held, strict=True)]
    more = apportion(min(rest - idle, sum(used)), used)  # rounding may leave a microsecond that nobody has
    return [down, unknown, idle, *(unused + moved for unused, moved in zip(held, more, strict=True))]


def _asked(holders: Sequence[HolderUse], occupied: int, mode: SharingMode) -> list[Weight]:
    """How much of the time in which it was not free each holder gets; together no more than that."""
    users: dict[str, int] = {}
    for use in holders:
        if use.holder.claim:
            users[use.holder.claim] = users.get(use.holder.claim, 0) + 1
    asked: list[Weight] = [
        min(use.held_us, occupied) * RIGHTS[use.holder.sharing](use.holder, mode, users.get(use.holder.claim, 1))
        for use in holders
    ]
    total = sum(asked)
    if total > occupied:
        return [Fraction(amount) * occupied / total for amount in asked]
    return _with_rest(holders, asked, occupied) if mode is SharingMode.USAGE else asked


def _with_rest(holders: Sequence[HolderUse], asked: list[Weight], occupied: int) -> list[Weight]:
    """Besides what they reserve, tenants of a shared GPU have its rest by busy time."""
    busy = [(use.busy_us or 0) if use.holder.sharing in _BY_TURNS and not use.holder.portions else 0 for use in holders]
    total, rest = sum(busy), occupied - sum(asked)
    if not total:
        return asked
    return [amount + Fraction(rest * part) / total for amount, part in zip(asked, busy, strict=True)]


_BY_TURNS: Final = (HolderSharing.TIME_SLICING, HolderSharing.MPS)


def _on_basis(share: TimeShare, basis: Basis) -> Iterable[TimeShare]:
    """The share as it is charged: of unknown activity, all that was held."""
    use = share.use
    if basis is Basis.HELD or use is None or use.busy_us is None or not use.held_us:
        return (share,)
    busy = share.gpu_us * min(use.busy_us, use.held_us) // use.held_us
    idle = share.gpu_us - busy
    unused = min(idle, share.wasted_us)
    return (
        TimeShare(PayerKind.HELD, busy, use, share.wasted_us - unused),
        TimeShare(PayerKind.IDLE, idle, None, unused),
    )
