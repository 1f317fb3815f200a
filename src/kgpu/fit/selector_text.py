"""Label selectors as people write them for ``kubectl --selector``: ``a=b,c!=d,e in (f,g),h notin (i),j,!k``. Pure.

The grammar is that of apimachinery's labels package, without its comparisons of numbers, which no selector of pods in
a driver's upgrade policy needs.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from kgpu.fit.selectors import EVERYTHING, LABEL_OPERATORS, LabelSelector, Requirement, problem

MAX_TEXT: Final = 4096
_KEY: Final = r"(?P<key>[^\s,=!()]+)"
_PART: Final = re.compile(
    rf"\s*(?:(?P<absent>!)\s*{_KEY.replace('key', 'missing')}"
    rf"|{_KEY}\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\)"
    rf"|{_KEY.replace('key', 'compared')}\s*(?P<sign>==|=|!=)\s*(?P<value>[^\s,=!()]*)"
    rf"|{_KEY.replace('key', 'present')})\s*(?:,|$)",
    re.ASCII,
)
_SIGNS: Final = {"in": "In", "notin": "NotIn", "=": "In", "==": "In", "!=": "NotIn"}


@functools.lru_cache(maxsize=256)
def parse_selector(text: str) -> LabelSelector:
    """The selector; "" selects everything. One that can't be parsed matches nothing and says why in ``error``."""
    if len(text) > MAX_TEXT:
        return LabelSelector(nothing=True, error=f"it has more than {MAX_TEXT} characters")
    if not text.strip():
        return EVERYTHING
    rows: list[Requirement] = []
    at = 0
    while at < len(text):
        hit = _PART.match(text, at)
        if hit is None:
            return LabelSelector(nothing=True, error=f"{text[at : at + 60]!r} is no part of a label selector")
        rows.append(_requirement(hit))
        at = hit.end()
    if text.rstrip().endswith(","):
        return LabelSelector(nothing=True, error="it ends with a comma")
    wrong = (problem(row.key, row.operator, row.values, LABEL_OPERATORS) for row in rows)
    error = next((why for why in wrong if why), "")
    return LabelSelector(nothing=True, error=error) if error else LabelSelector(tuple(rows))


def _requirement(hit: re.Match[str]) -> Requirement:
    if hit["absent"]:
        return Requirement(hit["missing"], "DoesNotExist")
    if hit["word"]:
        values = tuple(dict.fromkeys(value.strip() for value in hit["values"].split(",")))
        return Requirement(hit["key"], _SIGNS[hit["word"]], values)
    if hit["sign"]:
        return Requirement(hit["compared"], _SIGNS[hit["sign"]], (hit["value"],))
    return Requirement(hit["present"], "Exists")
