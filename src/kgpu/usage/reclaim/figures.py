"""Pure: what idleness has cost, and amounts as people read them."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

from kgpu.formats.usage import MILLION
from kgpu.usage.reclaim.record import ReclaimNotice


def waste(notice: ReclaimNotice, now: float) -> int | None:
    """What it has cost so far, in millionths of the currency; None where it is not known since when."""
    return None if notice.since is None else int(notice.per_hour * max(0.0, now - notice.since) / 3600)


def amount(millionths: int, currency: str) -> str:
    """An amount for people: 24.48 USD."""
    return f"{(Decimal(millionths) / MILLION).quantize(Decimal('0.01'), ROUND_HALF_UP):,} {currency}"
