"""Flaws of CDI specs on a node, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

AGAIN: Final = "generate it again: `kgpu cdi generate --output FILE`"


class FlawSeverity(StrEnum):
    """How bad a flaw is."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """What is wrong in file ``path``, of the devices in ``where`` ("" for the file itself), and what to do about it."""

    severity: FlawSeverity
    path: str
    where: str = ""
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {f'{self.where}: ' if self.where else ''}{self.what}"
