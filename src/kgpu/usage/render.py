"""Pure: a report as a table for people, as CSV, and as JSON of a stable form.

``version`` grows when a key goes or changes its meaning; keys may be added. Null, and nothing in CSV, is what is not
known. Names of pods' making are hostile: they reach a terminal on one line and printable, and CSV never as a formula.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.printable import one_line
from kgpu.base.times import stamp_of
from kgpu.formats.usage import MILLION
from kgpu.usage.plan import HOUR_US, UsageReport, UsageRow, ratio, waste_ratio
from kgpu.usage.prices import energy_cost, per_useful_hour
from kgpu.usage.shares import PayerKind

VERSION: Final = 1
_MIB_MS_PER_GIB_H: Final = 1024 * 3_600_000
_UJ_PER_KWH: Final = 3_600_000 * MILLION
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_WIDEST_NAME: Final = 60
_COLUMNS: Final = (
    ("GPU-HOURS", "gpu_hours"), ("HELD", "held_hours"), ("BUSY", "busy_ratio"), ("EFFECTIVE", "effective_ratio"),
    ("WASTED", "wasted_hours"), ("COST", "cost"), ("OF IT WASTED", "wasted_cost"),
)  # fmt: skip
_ENERGY_COLUMNS: Final = (("KWH", "energy_kwh"), ("POWER COST", "energy_cost"))


class EnergyTariff:
    """What a kWh costs, and the power of the building over the machines'; ``tariff`` None where that is not known."""

    def __init__(self, tariff: Fraction | None = None, pue: Fraction = Fraction(1)) -> None:
        self.tariff = tariff
        self.pue = pue

    def cost(self, energy_uj: int | None) -> float | None:
        """In the currency; None where energy or tariff is not known."""
        if self.tariff is None or energy_uj is None:
            return None
        return energy_cost(energy_uj, tariff=self.tariff, pue=self.pue) / MILLION

    def advice(self, report: UsageReport) -> tuple[Advice, ...]:
        """What to know of the costs of power: for which part of the time there are none."""
        sums = report.total.sums
        missing = sums.gpu_us - sums.metered_us
        if self.tariff is None or missing <= 0:
            return ()
        what = f"energy is not recorded for {_hours(missing):,.1f} of {_hours(sums.gpu_us):,.1f} GPU hours"
        return (
            Advice(
                what=what, why="the driver of those GPUs does not tell it, or the recording has no energy_uj",
                severity=Severity.WARNING, reason="EnergyUnknown",
                remedy="take the costs of power for those of the other hours alone",
            ).printable(),
        )  # fmt: skip


def as_data(report: UsageReport, by: str, tariff: EnergyTariff) -> dict[str, Any]:
    """The report as JSON data."""
    lost = waste_ratio(report)
    return {
        "version": VERSION,
        "from": _time(report.begin_us),
        "to": _time(report.end_us),
        "by": by,
        "currency": report.currency,
        "rows": [_row_data(row, tariff) for row in report.rows],
        "total": {**_row_data(report.total, tariff), "kind": None, "name": None, "waste_ratio": _round(lost)},
        "prices": [
            {
                "per_gpu_hour": price.per_gpu_hour / MILLION, "basis": price.basis.value, "source": price.source,
                "assumed": price.assumed or None, "gpu_hours": _hours(spent),
            }
            for price, spent in sorted(report.prices.items(), key=lambda item: (-item[1], item[0].source))
        ],
        "notes": [{"reason": one.reason, "what": one.what, "todo": one.remedy or None} for one in report.advice],
    }  # fmt: skip


def _row_data(row: UsageRow, tariff: EnergyTariff) -> dict[str, Any]:
    sums = row.sums
    held, observed = row.kind is PayerKind.HELD, row.kind is not PayerKind.UNKNOWN
    busy, effective = ratio(sums.busy_us, sums.watched_us), ratio(sums.sm_us, sums.measured_us)
    return {
        "name": row.name, "kind": row.kind.value, "gpu_hours": _hours(sums.gpu_us),
        "held_hours": _hours(sums.held_us) if held else None,
        "starting_hours": _hours(sums.starting_us) if held else None,
        "busy_ratio": _round(busy), "effective_ratio": _round(effective),
        "memory_gib_hours": _in(sums.memory_mib_ms, _MIB_MS_PER_GIB_H) if held else None,
        "wasted_hours": _hours(sums.wasted_us) if observed else None,
        "cost": row.cost / MILLION, "idle_cost": row.idle_cost / MILLION if held else None,
        "wasted_cost": row.wasted_cost / MILLION if observed else None,
        "cost_per_useful_hour": _useful(row, effective),
        "energy_kwh": _in(sums.energy_uj, _UJ_PER_KWH), "energy_cost": tariff.cost(sums.energy_uj),
    }  # fmt: skip


def _useful(row: UsageRow, effective: float | None) -> float | None:
    """What an hour of all multiprocessors at work has cost."""
    sums = row.sums
    if effective is None or not sums.gpu_us:
        return None
    hour = Fraction(row.cost, MILLION) * HOUR_US / sums.gpu_us
    found = per_useful_hour(hour, Fraction(sums.sm_us, sums.measured_us))
    return None if found is None else round(float(found), 2)


def as_csv(report: UsageReport, tariff: EnergyTariff) -> str:
    """The rows under the keys of JSON; without the total, as sums are the reader's."""
    out = io.StringIO()
    rows = [_row_data(row, tariff) for row in report.rows]
    keys = list(_row_data(report.total, tariff))
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*keys, "currency"])
    for row in rows:
        writer.writerow([*(_cell(row[key]) for key in keys), report.currency])
    return out.getvalue()


def _cell(value: Any) -> Any:
    """A spreadsheet takes a text that begins like a formula for one."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = one_line(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def as_table(report: UsageReport, by: str, tariff: EnergyTariff) -> list[str]:
    """Lines for people: when, the rows, the total, and what part of all was wasted. None where there are no rows."""
    if not report.rows:
        return []
    columns = (*_COLUMNS, *(_ENERGY_COLUMNS if tariff.tariff is not None else ()))
    head = [by.upper(), *(title for title, _ in columns)]
    body = [_cells(_row_data(row, tariff), columns, row.name) for row in report.rows]
    total = _cells({**_row_data(report.total, tariff)}, columns, "TOTAL")
    lost = waste_ratio(report)
    last = f"wasted: {_percent(lost)} of all GPU time was free, down, or held and not used"
    return [
        f"{_time(report.begin_us)} to {_time(report.end_us)}, costs in {report.currency}",
        "",
        *_aligned([head, *body, total]),
        "",
        last,
    ]


def nothing_there(report: UsageReport) -> str:
    """Why there are no rows: where the recording lies beside what was asked for."""
    first, last = report.recorded
    if not last:
        return "nothing is recorded of that time; a device's first line only begins to count"
    return (
        f"there is nothing from {_time(report.begin_us)} to {_time(report.end_us)}; "
        f"the recording is from {_time(first)} to {_time(last)}"
    )


def _cells(row: Mapping[str, Any], columns: Iterable[tuple[str, str]], name: str) -> list[str]:
    return [one_line(name, _WIDEST_NAME) or "-", *(_shown(key, row[key]) for _, key in columns)]


def _shown(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key.endswith("_ratio"):
        return _percent(value)
    return f"{value:,.2f}" if key.endswith("cost") else f"{value:,.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f}%"


def _aligned(rows: list[list[str]]) -> list[str]:
    """Names to the left, numbers to the right, two blanks between."""
    from rich.cells import cell_len

    widths = [max(cell_len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        pads = [" " * (width - cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        cells = [row[0] + pads[0], *(pad + cell for pad, cell in zip(pads[1:], row[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def _hours(microseconds: int) -> float:
    return round(microseconds / HOUR_US, 6)


def _in(amount: int | None, unit: int) -> float | None:
    return None if amount is None else _round(amount / unit)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _time(moment_us: int) -> str:
    return stamp_of(moment_us / MILLION)
