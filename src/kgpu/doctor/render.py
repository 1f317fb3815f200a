"""A report as text, JSON, YAML or SARIF. Text is for people: a sentence, the proof, what to do; roots first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from kgpu import __version__
from kgpu.base.printable import one_line
from kgpu.doctor.model import Finding, Level, NodeRow, Report
from kgpu.doctor.rule import Rule
from kgpu.doctor.secrets import cleaned

MAX_EVIDENCE: Final = 8
MAX_CONSEQUENCES: Final = 5
MAX_FINDINGS: Final = 20
MAX_MISSING: Final = 8
WHY_PENDING: Final = "why pods are Pending"
"""How evidence that is missing begins where pods wait and nobody can say why."""
_MARKS: Final = {Level.PROBLEM: "✘", Level.WAIT: "…", Level.NOTE: "·"}
_SARIF_LEVELS: Final = {Level.PROBLEM: "error", Level.WAIT: "warning", Level.NOTE: "note"}


def as_json(report: Report) -> str:
    return json.dumps(report.data(), indent=2, ensure_ascii=False)


def as_yaml(report: Report) -> str:
    from kgpu.formats import yaml

    return yaml.dump(report.data()).rstrip("\n")


def as_text(report: Report, width: int = 100) -> str:
    """For a terminal; nothing is coloured, so that it can be pasted."""
    return "\n".join(_text(report, width))


def _text(report: Report, width: int) -> Iterator[str]:
    findings = report.findings
    real = [one for one in findings if one.level is not Level.NOTE]
    looked = ", ".join(f"{count} {what}" for what, count in report.looked.items() if count)
    open_question = unjudged(report)
    if not real and open_question:
        head = f"Nothing was found, but no nodes are known, so this can't be judged: {open_question}"
        yield from _wrapped(f"{head} ({report.scope}; {report.checked} rules, {looked}).", width, "")
    elif not real:
        yield f"Nothing is wrong as far as can be seen ({report.scope}; {report.checked} rules, {looked})."
    else:
        more = "" if len(real) == 1 else f" (and {len(real) - 1} more)"
        yield f"{real[0].cause}{more}"
    for one in findings[:MAX_FINDINGS]:
        yield ""
        yield from _finding(one, width)
    if len(findings) > MAX_FINDINGS:
        yield f"\n… and {len(findings) - MAX_FINDINGS} more: -o json has them all"
    if report.missing:
        yield "\nNot looked at:"
        for gap in report.missing[:MAX_MISSING]:
            why = f" ({gap.why})" if gap.why else ""
            yield from _wrapped(f"{gap.what}{why}", width, "  - ")
            if gap.how:
                yield from _wrapped(f"to get it: {gap.how}", width, "    ")
        if len(report.missing) > MAX_MISSING:
            yield f"  … and {len(report.missing) - MAX_MISSING} more"


def unjudged(report: Report) -> str:
    """What nobody can say without nodes, "" where there are some, or a host's own facts."""
    waiting = next((gap.what for gap in report.missing if gap.what.startswith(WHY_PENDING)), "")
    if waiting or report.looked.get("nodes") or report.looked.get("hosts"):
        return waiting
    return "whether nodes offer their accelerators" if report.looked else ""


def _finding(one: Finding, width: int) -> Iterator[str]:
    since = f", since {one.since}" if one.since else ""
    yield from _wrapped(f"{_MARKS[one.level]} {one.id} {one.subject} ({one.sureness}{since})", width, "")
    yield from _wrapped(one.cause, width, "  ")
    if one.expected:
        yield from _wrapped(f"waiting is right: {one.expected}", width, "  ")
    if one.table:
        yield from _table(one.table, width)
    for row in one.evidence[:MAX_EVIDENCE]:
        yield from _wrapped(str(row), width, "    ")
    if one.remedy:
        yield "  to do:"
        for step in one.remedy:
            for line in step.split("\n"):
                yield f"    {line}"
    if one.consequences:
        every = [each for child in one.consequences for each in child.all()]
        yield f"  this explains {len(every)} more:"
        for child in every[:MAX_CONSEQUENCES]:
            yield from _wrapped(f"{child.id} {child.cause}", width, "    ")
        if len(every) > MAX_CONSEQUENCES:
            yield f"    … and {len(every) - MAX_CONSEQUENCES} more"


def _table(rows: tuple[NodeRow, ...], width: int) -> Iterator[str]:
    heads = ("node", "product", "capacity", "allocatable", "used", "free")
    cells = [
        (one_line(row.node), one_line(row.product) or "-", str(row.capacity), str(row.allocatable), str(row.used),
         str(max(row.allocatable - row.used, 0)))
        for row in rows
    ]  # fmt: skip
    sizes = [min(max(len(row[i]) for row in (heads, *cells)), 40) for i in range(len(heads))]
    yield "    " + "  ".join(head.ljust(size) for head, size in zip(heads, sizes, strict=True)).rstrip()
    for row, line in zip(rows, cells, strict=True):
        yield "    " + "  ".join(cell.ljust(size) for cell, size in zip(line, sizes, strict=True)).rstrip()
        for reason in row.reasons:
            yield from _wrapped(one_line(cleaned(reason)), width, "      - ")


def _wrapped(text: str, width: int, before: str) -> Iterator[str]:
    import textwrap

    after = " " * len(before)
    lines = textwrap.wrap(text, max(width, 40), initial_indent=before, subsequent_indent=after, break_long_words=False)
    yield from lines or [before]


def as_sarif(report: Report, rules: tuple[Rule, ...]) -> str:
    """SARIF 2.1.0; objects of the cluster are logical locations."""
    every = [one for root in report.findings for one in root.all()]
    used = {one.id for one in every}
    found = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "kgpu doctor",
                        "version": __version__,
                        "rules": [
                            {
                                "id": rule.id,
                                "name": rule.title,
                                "shortDescription": {"text": rule.title},
                                "fullDescription": {"text": rule.explain},
                            }
                            for rule in rules
                            if rule.id in used
                        ],
                    }
                },
                "results": [_result(one) for one in every],
            }
        ],
    }
    return json.dumps(found, indent=2, ensure_ascii=False)


def _result(one: Finding) -> dict[str, Any]:
    steps = "".join(f"\n- {step}" for step in one.remedy)
    return {
        "ruleId": one.id,
        "level": _SARIF_LEVELS[one.level],
        "message": {"text": one.cause + (f"\nTo do:{steps}" if steps else "")},
        "locations": [
            {
                "logicalLocations": [
                    {"fullyQualifiedName": str(one.subject), "name": one.subject.name, "kind": one.subject.kind}
                ]
            }
        ],
        "rank": round(one.confidence * 100, 1),
        "properties": {"evidence": [row.data() for row in one.evidence], "remedy": list(one.remedy)},
    }


def explained(rule: Rule, asked: str) -> str:
    """What ``--explain ID`` prints."""
    import textwrap

    lines = [f"{asked}: {rule.title}", f"place: {rule.place.title}", ""]
    lines += textwrap.wrap(rule.explain, 100)
    if rule.explains:
        lines += ["", f"explains: {', '.join(rule.explains)}"]
    if rule.also and asked == rule.id:
        lines += ["", f"covers too: {', '.join(rule.also)}"]
    return "\n".join(lines)
