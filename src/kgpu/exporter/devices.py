"""Which GPUs and GPU instances are exported: the replaced exporter's selector, ``f``, ``g[:ids]`` or ``i[:ids]``.

``f`` is every GPU, and of a GPU with MIG its instances too. ``g:0,2-3`` are GPUs by the driver's index. ``i:0,4`` are
instances, counted through all GPUs in order. ``g`` and ``i`` may be joined with ``+``. Ids are a comma list of numbers
and ranges; none, or -1, means all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import ConfigError

MOST: Final = 4096
"""More devices than a node can have; a range up to 10^9 is a typing error."""
_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_FORM: Final = "f, g, g:0,2-3, i, i:0-6, or g:... and i:... joined with +"


@dataclass(frozen=True, slots=True)
class DeviceIds:
    """The devices of a kind that are selected: all of them, or the given ids."""

    all: bool = False
    ids: frozenset[int] = frozenset()

    def has(self, number: int) -> bool:
        """Whether the device is selected."""
        return self.all or number in self.ids


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSelector:
    """``flexible``: all GPUs, and their instances where MIG is on; the other two are then ignored."""

    flexible: bool = True
    gpus: DeviceIds = DeviceIds()
    instances: DeviceIds = DeviceIds()

    def gpu(self, index: int) -> bool:
        """Whether the metrics of the whole GPU are exported."""
        return self.flexible or self.gpus.has(index)

    def instance(self, position: int) -> bool:
        """Whether the metrics of the instance at this place in the node's order are exported."""
        return self.flexible or self.instances.has(position)


def parse_selector(text: str, where: str = "--devices") -> DeviceSelector:
    """Parse a selector. Raises ConfigError that names ``where``."""
    words = [word.strip() for word in text.strip().split("+")]
    if words == ["f"]:
        return DeviceSelector()
    by_letter: dict[str, DeviceIds] = {}
    for word in words:
        letter, colon, ids = word.partition(":")
        if letter not in {"g", "i"} or letter in by_letter:
            why = "f takes no ids" if letter == "f" else f"{word[:40]!r} is no kind of device, or is there twice"
            raise ConfigError(f"{where}: {why}", _FORM, f"correct {where}")
        by_letter[letter] = _ids(ids, where) if colon else DeviceIds(all=True)
    return DeviceSelector(
        flexible=False, gpus=by_letter.get("g", DeviceIds()), instances=by_letter.get("i", DeviceIds())
    )


def _ids(text: str, where: str) -> DeviceIds:
    if text.strip() == "-1":
        return DeviceIds(all=True)
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        if not _NUMBER.fullmatch(first) or (dash and not _NUMBER.fullmatch(last)):
            raise ConfigError(f"{where}: {part[:40]!r} is no number or range", _FORM, f"correct {where}")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high > MOST:
            raise ConfigError(
                f"{where}: {part[:40]!r} is no range of devices", f"numbers up to {MOST}, the smaller first",
                f"correct {where}",
            )  # fmt: skip
        chosen.update(range(low, high + 1))
    return DeviceIds(ids=frozenset(chosen))
