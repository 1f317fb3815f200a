"""Values of flags and environment variables as Go programs read them, so that a user's manifests keep their meaning."""

from __future__ import annotations

from typing import Any, Final

from kgpu.base.errors import ConfigError

TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
FALSE: Final = frozenset({"", "0", "f", "F", "false", "FALSE", "False"})


def read_bool(value: Any, where: str) -> bool:
    """Go's spellings of true and false; the empty text is false. ``where`` names the flag. Raises ConfigError."""
    if isinstance(value, bool):
        return value
    text = str(value)
    if text in TRUE:
        return True
    if text in FALSE:
        return False
    raise ConfigError(f"{where}: {text!r} is not a boolean", "true or false", f"correct {where}")
