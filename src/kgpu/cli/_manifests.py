"""The objects of manifests that a command is given with ``-f``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import ConfigError

STDIN: Final = "-"


def read_manifests(files: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    """The objects of the files, Lists taken apart; () without files. Raises ConfigError."""
    from kgpu.formats import yaml

    found: list[dict[str, Any]] = []
    for path in files:
        try:
            content = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(f"{path} can't be read: {why}", "a manifest of pods", "correct -f") from error
        for document in yaml.load_all(content, source=path):
            rows = document.get("items") if isinstance(document, dict) and "items" in document else [document]
            found += [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if files and not found:
        raise ConfigError(f"{', '.join(files)} has no objects", "a manifest of pods", "correct -f")
    return tuple(found)
