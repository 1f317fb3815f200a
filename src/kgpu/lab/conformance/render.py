"""The results as a table by sig, as JSON and as Markdown; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from kgpu.lab.conformance.model import ConformanceResult, ResultState

_HEAD: Final = ("sig", "passed", "failed", "skipped", "left out", "seconds")
_LINES: Final = 6  # of a failure's message


def counts(results: Iterable[ConformanceResult]) -> list[tuple[str, str, str, str, str, str]]:
    """A row per sig in the order of their names, and one for all."""
    every = list(results)
    rows = [
        _row(sig, [result for result in every if result.test.sig == sig])
        for sig in sorted({result.test.sig for result in every})
    ]
    return [*rows, _row("all", every)]


def _row(sig: str, results: Sequence[ConformanceResult]) -> tuple[str, str, str, str, str, str]:
    passed, failed, skipped, left_out = (
        str(sum(result.state is state for result in results))
        for state in (ResultState.PASSED, ResultState.FAILED, ResultState.SKIPPED, ResultState.LEFT_OUT)
    )
    return sig, passed, failed, skipped, left_out, f"{sum(result.seconds for result in results):.0f}"


def text(lab: str, results: Sequence[ConformanceResult], *, wall_s: float) -> str:
    """What a person reads: the table, each failure with its message, each skip with its reason."""
    rows = [_HEAD, *counts(results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [f"Kubernetes' conformance tests on the {lab} lab, {wall_s:.0f} s"]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells))
    for result in _of(results, ResultState.FAILED):
        lines += ["", f"FAILED [{result.test.sig}] {result.test.title} ({result.seconds:.0f} s)"]
        lines += [f"    {line}" for line in result.message.splitlines()[:_LINES]]
    for reason, titles in reasons(results):
        lines += ["", f"not run: {reason}", *(f"    {title}" for title in titles)]
    return "\n".join(lines)


def _of(results: Iterable[ConformanceResult], *states: ResultState) -> list[ConformanceResult]:
    return sorted((result for result in results if result.state in states), key=lambda result: result.test.name)


def reasons(results: Iterable[ConformanceResult]) -> list[tuple[str, list[str]]]:
    """Why tests were not run, with the tests: the table's reasons and what tests said themselves."""
    by_message: dict[str, list[str]] = {}
    for result in _of(results, ResultState.LEFT_OUT, ResultState.SKIPPED):
        by_message.setdefault(result.message, []).append(f"[{result.test.sig}] {result.test.title}")
    return sorted(by_message.items())


def to_builtins(lab: str, results: Sequence[ConformanceResult], *, wall_s: float) -> dict[str, Any]:
    """As JSON-ready data."""
    return {
        "lab": lab,
        "seconds": round(wall_s, 1),
        "sigs": [dict(zip(_HEAD, (row[0], *map(int, row[1:])), strict=True)) for row in counts(results)],
        "tests": [
            {
                "sig": result.test.sig,
                "name": result.test.name,
                "state": str(result.state),
                "seconds": round(result.seconds, 1),
                "message": result.message,
            }
            for result in sorted(results, key=lambda result: result.test.name)
        ],
    }
