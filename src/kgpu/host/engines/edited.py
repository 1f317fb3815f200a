"""The common part of editing TOML and JSON files: the text and its data, and nested tables by path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.host.engines.model import MAX_FILE_BYTES
from kgpu.host.engines.toml_text import Path, key_text

MISSING: Final = object()


class EditedFile:
    """A file being edited: ``text`` is its content and ``data`` the parsed content, which the subclass sets."""

    data: dict[str, Any]

    def __init__(self, raw: bytes | None, source: str) -> None:
        self.source = source
        self.text = decode(raw or b"", source)
        self._newline = "\r\n" if "\r\n" in self.text else "\n"

    def encode(self) -> bytes:
        return self.text.encode()

    def get(self, path: Path, default: Any = None) -> Any:
        """The value at the path, or ``default``."""
        return lookup(self.data, path, default)


def decode(raw: bytes, source: str) -> str:
    """The bytes as text. Raises ConfigError if they are too many or not UTF-8."""
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(
            f"{source} has {len(raw)} bytes",
            f"a config file of at most {MAX_FILE_BYTES} bytes",
            "see what has filled it",
        )
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{source} isn't UTF-8 text (byte {error.start})",
            "a text file",
            "repair the file, or restore it from a backup",
        ) from error


def lookup(data: Any, path: Path, default: Any = None) -> Any:
    """The value at a path of nested tables, or ``default``."""
    for part in path:
        if not isinstance(data, Mapping) or part not in data:
            return default
        data = data[part]
    return data


def put(data: dict[str, Any], path: Path, value: Any, source: str) -> None:
    """Set a value in nested tables. Raises ConfigError if something on the path isn't a table."""
    for depth, part in enumerate(path[:-1]):
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise ConfigError(
                f"{source}: {key_text(path[: depth + 1])} isn't a table",
                "a table there",
                "correct that setting by hand",
            )
    data[path[-1]] = value


def same(one: Any, other: Any) -> bool:
    """Whether both are equal in value and type; NaN equals itself."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))  # noqa: PLR0124 - NaN
