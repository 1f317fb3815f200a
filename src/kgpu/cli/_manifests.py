"""The objects of manifests that a command is given with ``-f``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.plain import text

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


def by_key(value: Any) -> Any:
    """Objects in the order of their keys, in which kubectl sends them and an API server names what is wrong."""
    if isinstance(value, dict):
        return {key: by_key(value[key]) for key in sorted(value)}
    return [by_key(one) for one in value] if isinstance(value, list) else value


def named(obj: Mapping[str, Any]) -> str:
    """``Deployment/train``: the object's kind and name."""
    from kgpu.placement.workloads import own_name

    return f"{text(obj.get('kind'))}/{own_name(obj)}"
