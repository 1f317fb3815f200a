"""A preflight's report as text: what will fail and what to do, then notes, then what nobody knows, each said once."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

from kgpu.base.printable import one_line
from kgpu.doctor.preflight.model import Prediction, PreflightReport, Unknown

SHOWN: Final = 5
"""Nodes that are named."""


def as_json(report: PreflightReport) -> str:
    return json.dumps(report.data(), indent=2, ensure_ascii=False)


def as_text(report: PreflightReport, width: int) -> str:
    """For a terminal. Remedies are never broken: they are pasted."""
    return "\n".join(_lines(report, width))


def _lines(report: PreflightReport, width: int) -> Iterator[str]:
    yield from _wrapped(headline(report), width, "")
    for one in report.predictions:
        yield ""
        yield from _prediction(one, width)
    if report.unknown:
        yield "\nNot known:"
    for how, gaps in _by_how(report.unknown).items():
        for gap in gaps:
            nodes = f" of {_of(gap.nodes)}" if gap.nodes else ""
            yield from _wrapped(f"{gap.check}{nodes}: {gap.what} ({gap.why})", width, "  - ")
        if how:
            yield f"    to get it: {how}"


def headline(report: PreflightReport) -> str:
    """One sentence: how many nodes, what will fail, and what was taken for the configuration."""
    count = f"{len(report.nodes)} {'node' if len(report.nodes) == 1 else 'nodes'} with GPUs"
    where = f"({report.source}, namespace {report.namespace})"
    if report.failures:
        things = "1 thing" if len(report.failures) == 1 else f"{len(report.failures)} things"
        return f"{things} will fail on {count} {where}. The first to mend: {report.failures[0].what}"
    if not report.nodes:
        return f"No node is known to have NVIDIA GPUs, so there is nothing to predict {where}."
    rest = ", as far as is known" if report.unknown else ""
    return f"Nothing is predicted to fail on {count}{rest} {where}."


def _prediction(one: Prediction, width: int) -> Iterator[str]:
    mark = "·" if one.is_note else "✘"
    yield from _wrapped(f"{mark} {one.id} {_of(one.nodes) or one.subject} ({one.sureness})", width, "")
    yield from _wrapped(one.what, width, "  ")
    for row in one.evidence:
        yield from _wrapped(row, width, "    ")
    if one.steps:
        yield "  to do:"
        yield from (f"    {line}" for step in one.steps for line in step.split("\n"))


def _by_how(unknown: Iterable[Unknown]) -> dict[str, list[Unknown]]:
    """What one look would tell stands together."""
    found: dict[str, list[Unknown]] = {}
    for gap in unknown:
        found.setdefault(gap.how, []).append(gap)
    return found


def _of(nodes: Iterable[str]) -> str:
    """``node a``; ``nodes a, b and 3 more``."""
    named = [one_line(name) for name in nodes]
    if not named:
        return ""
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return f"{'node' if len(named) == 1 else 'nodes'} {', '.join(named[:SHOWN])}{more}"


def _wrapped(text: str, width: int, before: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text, max(width, 40), initial_indent=before, subsequent_indent=" " * len(before), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
