"""Checks that the settings that kgpu reads from an engine's config have the type that the engine accepts.

A config that parses may still say ``runtimes = "x"``. Its engine refuses that, so it is an error here that names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.host.engines.toml_text import Path, key_text

ANY: Final = "*"
Rows = Sequence[tuple[Path, type, str]]
"""The path (``*`` is any name), the expected Python type, and that type in words."""


def check_shape(data: Any, rows: Rows, source: str, below: Path = ()) -> None:
    """Raise ConfigError for the first setting of another type; missing settings are fine."""
    for pattern, kind, words in rows:
        for path, value in _found(data, pattern, ()):
            if not isinstance(value, kind):
                raise ConfigError(
                    f"{source}: {key_text((*below, *path))} is {value!r:.60}", words, "correct that setting by hand"
                )


def _found(data: Any, pattern: Path, at: Path) -> Iterator[tuple[Path, Any]]:
    if not pattern:
        yield at, data
    elif isinstance(data, Mapping):
        for name in data if pattern[0] == ANY else (pattern[0],):
            if name in data:
                yield from _found(data[name], pattern[1:], (*at, name))
