"""Pieces of a line: bars, curves and numbers in few characters, and text of a given width in terminal cells.

Korean or Chinese characters take two cells each; nothing here counts characters where cells are meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS: Final = "_.-=+*#@"


def bar(part: float | None, width: int, *, ascii_only: bool = False) -> str:
    """``part`` of 1 as a bar of ``width`` cells; blanks where it is not known."""
    if part is None or width <= 0:
        return " " * max(0, width)
    part = min(1.0, max(0.0, part))
    if ascii_only:
        full = round(part * width)
        return "#" * full + "." * (width - full)
    eighths = round(part * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width, "░")


def curve(percents: Sequence[int], width: int, *, ascii_only: bool = False) -> str:
    """The last ``width`` readings, the newest on the right."""
    levels = _ASCII_LEVELS if ascii_only else _LEVELS
    shown = percents[-width:] if width > 0 else ()
    text = "".join(levels[min(7, max(0, reading) * 8 // 101)] for reading in shown)
    return text.rjust(max(0, width))


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Exactly ``width`` cells; what is cut ends in an ellipsis."""
    length = cell_len(text)
    if length > width:
        return "" if width <= 0 else set_cell_size(text, width - 1) + "…"
    return " " * (width - length) + text if right else text + " " * (width - length)


def percent(value: float | None) -> str:
    """``63%``."""
    return "-" if value is None else f"{value:.0f}%"


def gib(mib: float | None) -> str:
    """MiB as GiB: ``0.4``, ``40.1``, ``512``."""
    if mib is None:
        return "-"
    size = mib / 1024
    return f"{size:.0f}" if size >= 99.95 or size == 0 else f"{size:.1f}"


def of_total(used: str, total: str, unit: str) -> str:
    """``40.1/79.1G``; only what is known."""
    if used == "-":
        return "-"
    return f"{used}{unit}" if total == "-" else f"{used}/{total}{unit}"


def watts(value: float | None) -> str:
    """``70``, ``16.8k``, ``2432k``."""
    if value is None:
        return "-"
    digits = 0 if value >= 100_000 else 1
    return f"{value / 1000:.{digits}f}k" if value >= 10_000 else f"{value:.0f}"


def span(seconds: float) -> str:
    """``12s``, ``5m``, ``3h``, ``2d``."""
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{letter}"
    return f"{int(seconds)}s"


def short_model(name: str) -> str:
    """``NVIDIA H100 80GB HBM3`` without what every line would repeat."""
    words = [word for word in name.split() if word not in {"NVIDIA", "Tesla", "GeForce"}]
    return " ".join(words) or name


width_of = cell_len
