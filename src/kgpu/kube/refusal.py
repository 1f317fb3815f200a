"""What an API server says of a refusal beyond its message."""

from __future__ import annotations

from typing import Any, Final

from kgpu.base.plain import items, mapping, text

MAX_CAUSES: Final = 8
"""Details of a refusal that are kept."""


def causes_of(details: Any) -> tuple[tuple[str, str], ...]:
    """The causes in a Status object's ``details``: each a word and a message."""
    rows = map(mapping, items(mapping(details).get("causes"))[:MAX_CAUSES])
    return tuple((text(cause.get("reason")), text(cause.get("message"))) for cause in rows)
