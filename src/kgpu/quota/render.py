"""The answer of ``kgpu quota`` as text and as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from kgpu.base.printable import one_line
from kgpu.quota.model import NamespaceUse, QuotaFinding, QuotaGap, QuotaRow

VERSION: Final = 1
_HEAD: Final = ("NAMESPACE", "RESOURCE", "HARD", "USED", "HELD", "WAITING", "BUSY", "IDLE", "QUOTA")


def as_text(
    rows: Sequence[QuotaRow], gaps: Sequence[QuotaGap], findings: Sequence[QuotaFinding],
    use: Mapping[str, NamespaceUse] | None = None,
) -> str:  # fmt: skip
    """A table, and below it what is wrong with the quotas."""
    lines = list(_table(rows, use)) if rows else ["No namespace holds, waits for or has a quota of accelerators."]
    for finding in findings:
        lines += ["", one_line(f"{finding.id}: {finding.cause}")]
        lines += [f"  {one_line(step)}" for step in finding.remedy]
    for gap in gaps:
        lines += ["", one_line(f"{gap.namespace}: {gap.what}")]
        lines.append(
            f"  count it: put {one_line(gap.key)} into spec.hard of quota {one_line(gap.quota)}, or 0 to forbid it"
        )
    return "\n".join(lines)


def _table(rows: Sequence[QuotaRow], use: Mapping[str, NamespaceUse] | None) -> Iterator[str]:
    cells = [_HEAD, *(_cells(row, use) for row in rows)]
    shown = [at for at, name in enumerate(_HEAD) if use is not None or name not in ("BUSY", "IDLE")]
    widths = [max(len(row[at]) for row in cells) for at in shown]
    for row in cells:
        parts = (
            row[at].ljust(width) if at in (0, 1, 8) else row[at].rjust(width)
            for at, width in zip(shown, widths, strict=True)
        )
        yield "  ".join(parts).rstrip()


def _cells(row: QuotaRow, use: Mapping[str, NamespaceUse] | None) -> tuple[str, ...]:
    recorded = use.get(row.namespace) if use else None
    return (
        one_line(row.namespace, 63), one_line(row.resource, 80), _count(row.hard), _count(row.used), str(row.held),
        str(row.waiting), _part(recorded.busy if recorded else None), _part(recorded.idle if recorded else None),
        one_line(row.quota, 63) + (" (used up)" if row.full else ""),
    )  # fmt: skip


def _count(amount: int | None) -> str:
    return "-" if amount is None else str(amount)


def _part(amount: Fraction | None) -> str:
    return "-" if amount is None else f"{float(amount):.1f}"


def as_data(
    rows: Sequence[QuotaRow], gaps: Sequence[QuotaGap], findings: Sequence[QuotaFinding],
    use: Mapping[str, NamespaceUse] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """For programs; null is what is not known."""
    return {
        "version": VERSION,
        "rows": [
            {
                "namespace": row.namespace, "resource": row.resource, "key": row.key, "hard": row.hard,
                "used": row.used, "held": row.held, "waiting": row.waiting, "quota": row.quota or None,
            }
            for row in rows
        ],
        "use": {
            name: {"held": _number(one.held), "busy": _number(one.busy), "idle": _number(one.idle)}
            for name, one in sorted((use or {}).items())
        },
        "gaps": [
            {"namespace": gap.namespace, "quota": gap.quota, "resource": gap.resource, "key": gap.key, "what": gap.what}
            for gap in gaps
        ],
        "findings": [
            {"id": one.id, "namespace": one.namespace, "cause": one.cause, "remedy": list(one.remedy)}
            for one in findings
        ],
    }  # fmt: skip


def _number(amount: Fraction | None) -> float | None:
    return None if amount is None else round(float(amount), 3)
