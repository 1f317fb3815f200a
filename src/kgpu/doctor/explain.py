"""What ``--explain ID`` tells: what a rule means, how it is found, what to do, and where more of it stands.

Proof and remedy depend on the objects at fault, so they are shown of an example: ``explained.json``, which
tools/explanations.py makes of the doctor's own tests.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kgpu.doctor.rule import Rule

WIDTH: Final = 100
_FILE: Final = Path(__file__).with_name("explained.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A rule as asked for by ``asked``, with the example: its cause, its proof, its remedy; ``pages`` of the docs."""

    asked: str
    rule: Rule
    cause: str = ""
    evidence: tuple[str, ...] = ()
    remedy: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """As JSON, in the order for reading."""
        rule = self.rule
        return {
            "id": self.asked,
            "title": rule.title,
            "place": rule.place.title,
            "meaning": rule.explain,
            "example": {"cause": self.cause, "evidence": list(self.evidence), "remedy": list(self.remedy)},
            "explains": list(rule.explains),
            "covers": list(rule.also),
            "rests_on": list(rule.rests_on),
            "pages": list(self.pages),
        }


def about(rule: Rule, asked: str) -> Explanation:
    """One rule, by its own id or one that it covers too."""
    row = json.loads(_FILE.read_text(encoding="utf-8")).get(rule.id, {})
    return Explanation(
        asked=asked, rule=rule, cause=row.get("cause", ""), evidence=tuple(row.get("evidence", ())),
        remedy=tuple(row.get("remedy", ())), pages=tuple(f"docs/answers/{page}.md" for page in row.get("pages", ())),
    )  # fmt: skip


def as_text(explanation: Explanation) -> str:
    """For a terminal."""
    return "\n".join(_lines(explanation))


def _lines(explanation: Explanation) -> Iterator[str]:
    rule = explanation.rule
    yield f"{explanation.asked}: {rule.title}"
    yield f"place: {rule.place.title}"
    yield ""
    yield "What it means:"
    yield from _wrapped(rule.explain)
    if explanation.cause:
        yield ""
        yield "How it is told, for example:"
        yield from _wrapped(explanation.cause)
    if explanation.evidence:
        yield ""
        yield "How it is found there:"
        for row in explanation.evidence:
            yield from _wrapped(row)
    if explanation.remedy:
        yield ""
        yield "What to do there:"
        for step in explanation.remedy:
            yield from (f"  {line}" for line in step.split("\n"))  # never broken: it is pasted
    yield ""
    if rule.explains:
        yield f"explains: {', '.join(rule.explains)}"
    if rule.also and explanation.asked == rule.id:
        yield f"covers too: {', '.join(rule.also)}"
    for source in rule.rests_on:
        yield f"rests on: {source}"
    for page in explanation.pages:
        yield f"more: {page}"


def _wrapped(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
