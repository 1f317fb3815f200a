"""The advice for a workload as text and as data, with its evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from kgpu.advise.strategy import (
    ENOUGH_HOURS,
    WorkloadCase,
    WorkloadFigures,
    WorkloadStrategy,
    besides,
    changing,
    choose,
)
from kgpu.base.printable import counted, one_line
from kgpu.formats.usage import MILLION

VERSION: Final = 1
MONTH_HOURS: Final = 730
MOST_SOURCES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadAdvice:
    """``why_not`` says why there is none, "" where ``chosen`` is one. Prices are millionths of the currency an hour;
    ``price_sources`` says by which lists, those that count most first.
    """

    name: str
    case: WorkloadCase
    chosen: WorkloadStrategy | None = None
    why_not: str = ""
    per_gpu_hour: int = 0
    currency: str = ""
    price_sources: tuple[str, ...] = ()

    def month(self, share: float) -> float:
        """What so much of a GPU costs in a month."""
        return self.per_gpu_hour * MONTH_HOURS * share / MILLION


def advise(
    name: str, case: WorkloadCase, *, per_gpu_hour: int = 0, currency: str = "", price_sources: tuple[str, ...] = ()
) -> WorkloadAdvice:
    """The advice, or why there is none."""
    chosen = choose(case)
    why_not = _too_short(case.use)
    if not why_not and chosen is None:
        why_not = "too little is known: memory and activity were not recorded"
    return WorkloadAdvice(
        name=name, case=case, chosen=None if why_not else chosen, why_not=why_not, per_gpu_hour=per_gpu_hour,
        currency=currency, price_sources=price_sources,
    )  # fmt: skip


def _too_short(use: WorkloadFigures) -> str:
    """Why there is not enough to go by, and when there will be, "" where there is."""
    watched = use.hours if use.activity is None else use.watched_hours
    if watched >= ENOUGH_HOURS:
        return ""
    found = f"not enough data ({int(watched)} h of {ENOUGH_HOURS})"
    if watched < int(use.hours):
        return f"{found}: it held GPUs for {use.hours:.0f} h, and what ran on them is known of {watched:.0f} h"
    rate = watched / use.recorded_hours if use.recorded_hours else 0.0
    if not rate:
        return found
    days = math.ceil((ENOUGH_HOURS - watched) / rate / 24)
    return (
        f"{found}: it held GPUs in {rate:.0%} of the {use.recorded_hours:.0f} h that are recorded, so there is enough "
        f"in {counted(days, 'more day')} like these"
    )


def as_text(found: WorkloadAdvice) -> str:
    """For people."""
    return "\n".join(_lines(found))


def _lines(found: WorkloadAdvice) -> Iterator[str]:
    chosen = found.chosen
    if chosen is None:
        yield one_line(f"{found.name}: {found.why_not}")
    else:
        yield one_line(f"{found.name}: {chosen.what}, as {chosen.why} (row {chosen.row})")
    yield ""
    yield "By the recording:"
    yield from (f"  {name}: {value}" for name, value in _evidence(found))
    if chosen is None:
        return
    yield ""
    yield "To change:"
    yield f"  resources.limits of its containers: {chosen.resource}: {found.case.use.gpus_per_pod}"
    if chosen.setting:
        yield f"  {chosen.setting}"
    if found.per_gpu_hour:
        gpus = found.case.use.gpus_per_pod
        yield (
            f"  cost of a pod in a month: {found.month(gpus):.2f} {found.currency} for whole GPUs, "
            f"{found.month(gpus * chosen.share):.2f} so"
        )
        yield from (f"  {one_line(row)}" for row in _price(found))
    for title, rows in (("Risks", chosen.risks), ("Besides", tuple(besides(found.case))),
                        ("What would change this", tuple(changing(found.case, chosen)))):  # fmt: skip
        if rows:
            yield ""
            yield f"{title}:"
            yield from (f"  - {row}" for row in rows)


def _price(found: WorkloadAdvice) -> Iterator[str]:
    """An hour of a whole GPU where it ran, and by which lists."""
    more = len(found.price_sources) - MOST_SOURCES
    told = [*found.price_sources[:MOST_SOURCES], *([f"and {more} more"] if more > 0 else [])]
    yield f"by {found.per_gpu_hour / MILLION:.3f} {found.currency} for an hour of a GPU where it ran: {'; '.join(told)}"


def _evidence(found: WorkloadAdvice) -> Iterator[tuple[str, str]]:
    use = found.case.use
    yield "hours", f"{use.hours:.0f} of the {use.recorded_hours:.0f} that are recorded; {ENOUGH_HOURS} are needed"
    yield "hours of which it is known what ran", f"{use.watched_hours:.0f}"
    card = f"{use.card_mib} MiB" if use.card_mib else "memory unknown"
    yield "GPU", one_line(f"{use.product or 'unknown'}, {card}" + (f", slice {use.profile}" if use.profile else ""))
    yield "GPUs in a pod", str(use.gpus_per_pod)
    yield "memory, 99th percentile", "unknown" if use.memory_mib is None else f"{use.memory_mib} MiB"
    yield "activity, 95th percentile", _percent(use.activity)
    yield "active multiprocessors, 95th percentile", _percent(use.multiprocessors)
    yield "held and nothing ran", _percent(use.idle)
    yield "neighbours", "trusted, as --neighbours says" if found.case.trusted else "not trusted"


def _percent(part: float | None) -> str:
    return "unknown" if part is None else f"{part:.0%}"


def as_data(found: WorkloadAdvice) -> dict[str, Any]:
    """For programs; null is what is not known."""
    use, chosen = found.case.use, found.chosen
    return {
        "version": VERSION, "workload": found.name, "advice": None if chosen is None else {
            "row": chosen.row, "way": str(chosen.way), "what": chosen.what, "why": chosen.why,
            "resource": chosen.resource, "count": use.gpus_per_pod, "setting": chosen.setting or None,
            "share": round(chosen.share, 4), "risks": list(chosen.risks),
        },
        "whyNot": found.why_not or None,
        "evidence": {
            "hours": round(use.hours, 1), "watchedHours": round(use.watched_hours, 1),
            "recordedHours": round(use.recorded_hours, 1), "product": use.product or None,
            "cardMiB": use.card_mib or None, "slice": use.profile or None, "gpusPerPod": use.gpus_per_pod,
            "memoryMiB": use.memory_mib, "activity": use.activity, "multiprocessors": use.multiprocessors,
            "idle": use.idle, "neighboursTrusted": found.case.trusted,
        },
        "besides": list(besides(found.case)), "wouldChange": list(changing(found.case, chosen)) if chosen else [],
        "perMonth": {
            "currency": found.currency, "whole": round(found.month(use.gpus_per_pod), 2),
            "so": round(found.month(use.gpus_per_pod * chosen.share), 2),
            "perGpuHour": found.per_gpu_hour / MILLION, "priceSources": list(found.price_sources),
        } if chosen and found.per_gpu_hour else None,
    }  # fmt: skip
