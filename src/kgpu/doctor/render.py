"""A report as text, JSON, YAML or SARIF. Text is for people: a sentence, the proof, what to do; roots first."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from kgpu import __version__
from kgpu.base.printable import all_counted, one_line
from kgpu.base.remedy import is_command
from kgpu.doctor.model import Finding, Level, NodeRow, Report
from kgpu.doctor.rule import Rule
from kgpu.doctor.secrets import cleaned

MAX_EVIDENCE: Final = 8
MAX_CONSEQUENCES: Final = 5
MAX_FINDINGS: Final = 20
MAX_MISSING: Final = 8
MARKS: Final = {Level.PROBLEM: "✘", Level.WAIT: "…", Level.NOTE: "·"}
_WIDEST: Final = ("the cluster", "the cluster")
_ORDER: Final = (
    _WIDEST, ("a node", "nodes"), ("a claim", "claims"), ("a workload", "workloads"), ("a pod", "pods"),
)  # fmt: skip
_WIDTHS: Final = {
    "Node": _ORDER[1], "ResourceClaim": _ORDER[2], "ResourceClaimTemplate": _ORDER[2], "Pod": _ORDER[4],
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob"), _ORDER[3]),
}  # fmt: skip
_SARIF_LEVELS: Final = {Level.PROBLEM: "error", Level.WAIT: "warning", Level.NOTE: "note"}


def as_json(report: Report) -> str:
    return json.dumps(report.data(), indent=2, ensure_ascii=False)


def as_yaml(report: Report) -> str:
    from kgpu.formats import yaml

    return yaml.dump(report.data()).rstrip("\n")


def as_text(report: Report, width: int = 100, *, verbose: bool = False) -> str:
    """For a terminal; nothing is coloured, so that it can be pasted. ``verbose``: missing evidence in full, always."""
    return "\n".join(_text(report, width, verbose=verbose))


def _text(report: Report, width: int, *, verbose: bool) -> Iterator[str]:
    findings = report.findings
    yield from _trace(report, width)
    yield from headline(report, width)
    for one in findings[:MAX_FINDINGS]:
        yield ""
        yield from full(one, width)
    if len(findings) > MAX_FINDINGS:
        yield f"\n… and {len(findings) - MAX_FINDINGS} more: -o json has them all"
    yield from _missing(report, width, verbose=verbose)


def _trace(report: Report, width: int) -> Iterator[str]:
    """A pod's way, a line for each step, with the proof below it."""
    if not report.trace:
        return
    yield f"{report.scope}, step by step:"
    name = max(len(step.name) for step in report.trace)
    state = max(len(step.state) for step in report.trace)
    for number, step in enumerate(report.trace, 1):
        head = f"{number} {step.name.ljust(name)}  {step.state.ljust(state)}  {step.said}".rstrip()
        yield from _wrapped(head, width, "  ", "      ")
        for row in step.evidence[:MAX_EVIDENCE]:
            yield from _wrapped(str(row), width, "      ")
    yield ""


def headline(report: Report, width: int) -> Iterator[str]:
    """The cause; of several the surest, after how many there are and of what. Else what was looked at."""
    real = report.real
    looked = all_counted({"rules": report.checked, **report.looked})
    if len(real) == 1:
        yield real[0].cause
    elif real:
        yield f"{len(real)} findings{_by_subject(real)}. The first to mend: {real[0].cause}"
    elif report.unjudged:
        head = f"Nothing was found, but no nodes are known, so this can't be judged: {report.unjudged}"
        yield from _wrapped(f"{head} ({report.scope}; {looked}).", width, "")
    else:
        who = "pod or node with GPUs is" if report.stuck == 1 else "pods or nodes with GPUs are"
        waits = f"; {report.stuck} {who} not ready yet" if report.stuck else ""
        yield f"Nothing is wrong as far as can be seen{waits} ({report.scope}; {looked})."


def _by_subject(findings: Iterable[Finding]) -> str:
    """``: 2 of the cluster, 1 of a node, 3 of pods``; `` of pods`` where all are."""
    counts = Counter(_WIDTHS.get(one.subject.kind, _WIDEST) for one in findings)
    if len(counts) == 1:
        return f" of {next(iter(counts))[1]}"
    return ": " + ", ".join(
        f"{counts[words]} of {words[0] if counts[words] == 1 else words[1]}" for words in _ORDER if counts[words]
    )


def _missing(report: Report, width: int, *, verbose: bool) -> Iterator[str]:
    """What could have changed the answer; the rest as a number."""
    shown = report.missing if verbose else report.gaps_that_count
    if shown:
        yield "\nNot looked at:"
        for gap in shown if verbose else shown[:MAX_MISSING]:
            why = f" ({gap.why})" if gap.why else ""
            yield from _wrapped(f"{gap.what}{why}", width, "  - ")
            if gap.how:
                yield from _wrapped(f"to get it: {gap.how}", width, "    ")
        if len(shown) > MAX_MISSING and not verbose:
            yield f"  … and {len(shown) - MAX_MISSING} more: -v shows them"
    slight = len(report.missing) - len(shown)
    if slight:
        number = "1 thing that is" if slight == 1 else f"{slight} things that are"
        yield f"\nNot looked at: {number} not there, and would not have changed this (-v shows it)."


def full(finding: Finding, width: int) -> Iterator[str]:
    """One finding in the report."""
    since = f", since {finding.since}" if finding.since else ""
    yield from _wrapped(f"{MARKS[finding.level]} {finding.id} {finding.subject} ({finding.sureness}{since})", width, "")
    yield from _wrapped(finding.cause, width, "  ")
    yield from body(finding, width)


def body(finding: Finding, width: int) -> Iterator[str]:
    """What stands below the cause: how long to wait, the table, the proof, what to do, and what follows from it."""
    if finding.expected:
        yield from _wrapped(f"waiting is right: {finding.expected}", width, "  ")
    if finding.table:
        yield from _table(finding.table, width)
    for row in finding.evidence[:MAX_EVIDENCE]:
        yield from _wrapped(str(row), width, "    ")
    if finding.remedy:
        yield "  to do:"
        for step in finding.remedy:
            yield from _step(step, width)
    if finding.consequences:
        every = [each for child in finding.consequences for each in child.all()]
        yield f"  this explains {len(every)} more:"
        for child in every[:MAX_CONSEQUENCES]:
            yield from _wrapped(f"{child.id} {child.cause}", width, "    ")
        if len(every) > MAX_CONSEQUENCES:
            yield f"    … and {len(every) - MAX_CONSEQUENCES} more"


def _step(step: str, width: int) -> Iterator[str]:
    """Sentences are wrapped; commands, which are to be copied, keep their lines."""
    if is_command(step):
        yield from (f"    {line}" for line in step.split("\n"))
    else:
        yield from _wrapped(step, width, "    ")


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


def _wrapped(text: str, width: int, before: str, after: str | None = None) -> Iterator[str]:
    """``before`` begins the first line, ``after`` the others: as many blanks where it is not given."""
    import textwrap

    after = " " * len(before) if after is None else after
    lines = textwrap.wrap(text, max(width, 40), initial_indent=before, subsequent_indent=after, break_long_words=False)
    yield from lines or [before]


def as_sarif(report: Report, rules: tuple[Rule, ...]) -> str:
    """SARIF 2.1.0; objects of the cluster are logical locations."""
    every = [finding for root in report.findings for finding in root.all()]
    used = {finding.id for finding in every}
    document = {
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
                "results": [_result(finding) for finding in every],
            }
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _result(finding: Finding) -> dict[str, Any]:
    steps = "".join(f"\n- {step}" for step in finding.remedy)
    return {
        "ruleId": finding.id,
        "level": _SARIF_LEVELS[finding.level],
        "message": {"text": finding.cause + (f"\nTo do:{steps}" if steps else "")},
        "locations": [
            {
                "logicalLocations": [
                    {
                        "fullyQualifiedName": str(finding.subject),
                        "name": finding.subject.name,
                        "kind": finding.subject.kind,
                    }
                ]
            }
        ],
        "rank": round(finding.confidence * 100, 1),
        "properties": {
            "evidence": [row.data() for row in finding.evidence],
            "remedy": [str(step) for step in finding.remedy],
        },
    }
