"""Xids that keep no claim away, from the text of a flag."""

from __future__ import annotations

from kgpu.base.errors import ConfigError


def read_xids(text: str) -> frozenset[int]:
    """Numbers with commas between them. Raises ConfigError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) < 10):
            raise ConfigError(
                f'--additional-xids-to-ignore: "{word}" is no Xid', "numbers with commas between them, such as 13,31",
                "correct it",
            )  # fmt: skip
    return frozenset(map(int, words))
