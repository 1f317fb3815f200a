"""What is to be done about a GPU, the mildest first: kgpu's own words, for people and between its programs."""

from __future__ import annotations

import enum
from typing import Final


class Action(enum.StrEnum):
    """What a verdict or a piece of evidence calls for, the mildest first."""

    IGNORE = "ignore"
    RESTART_APP = "restart-app"  # only the program that used the GPU is concerned
    INSPECT = "inspect"  # a person should look: cables, cooling, firmware, support; nothing to automate
    DRAIN = "drain"  # let the work on NVLink end and start none; the driver says what comes then
    RESET_GPU = "reset-gpu"
    REBOOT = "reboot"
    REPLACE = "replace"

    @property
    def rank(self) -> int:
        """Larger is stronger."""
        return _RANKS[self]

    @property
    def withdraws(self) -> bool:
        """True when the GPU should get no new work until it is done."""
        return self.rank >= _RANKS[Action.DRAIN]


CURED_BY_RESET: Final = frozenset({Action.RESTART_APP, Action.DRAIN, Action.RESET_GPU})
"""What is over once the GPU was reset."""

_RANKS: Final = {action: rank for rank, action in enumerate(Action)}

WORDS: Final = {
    Action.IGNORE: "nothing to do",
    Action.RESTART_APP: "restart the program",
    Action.INSPECT: "have a look at it",
    Action.DRAIN: "drain the GPU",
    Action.RESET_GPU: "reset the GPU",
    Action.REBOOT: "reboot the node",
    Action.REPLACE: "replace the GPU",
}
