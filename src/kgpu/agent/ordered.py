"""What the operator has ordered of this node's GPUs now, for the roles: which are withdrawn, and whether the driver is
released. ``node_orders`` sets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kgpu.base.change_notifier import ChangeNotifier

_NONE: Final[Mapping[str, str]] = {}


class OrderedGpus:
    """Read the attributes; wait with ``changed``."""

    def __init__(self) -> None:
        self._news = ChangeNotifier()
        self.withdrawn: Mapping[str, str] = _NONE
        """The GPUs that are offered to no pod, by UUID, and why."""
        self.released = ""
        """Why nothing here may open the driver, "" while it may."""

    def set(self, withdrawn: Mapping[str, str] = _NONE, released: str = "") -> None:
        """Apply what is ordered from now on."""
        if (withdrawn, released) != (self.withdrawn, self.released):
            self.withdrawn, self.released = withdrawn, released
            self._news.notify()

    @property
    def revision(self) -> int:
        """Grows with every change."""
        return self._news.revision

    async def changed(self, after: int) -> int:
        """Wait until ``revision`` differs from ``after``; returns it."""
        return await self._news.changed(after)
