"""Labels as the lines of a feature file."""

from __future__ import annotations

from collections.abc import Mapping


def as_lines(labels: Mapping[str, str]) -> str:
    """``key=value`` lines, sorted by key, as a feature file has them."""
    return "".join(f"{key}={value}\n" for key, value in sorted(labels.items()))


def from_lines(text: str) -> dict[str, str]:
    """The labels in a feature file; lines without ``=`` and comments are ignored."""
    pairs = (line.strip().partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {key: value for key, equals, value in pairs if equals}
