"""What the operator has ordered of this node's GPUs now, for the roles: which are withdrawn, whether the driver is
released, and how they are to be cut. ``node_orders`` sets it; the role that cuts GPUs answers here, and withholds those
that are not cut yet as they were before a reboot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kgpu.base.change_notifier import ChangeNotifier

if TYPE_CHECKING:
    from kgpu.formats.node_order import ChangeResult, NodeOrder

_NONE: Final[Mapping[str, str]] = {}


class OrderedGpus:
    """Read the attributes; wait with ``changed``."""

    def __init__(self) -> None:
        self._news = ChangeNotifier()
        self._answered: tuple[str, ChangeResult] | None = None
        self.answers = ChangeNotifier()
        """Counts the answers to orders of changes."""
        self._ordered_back: Mapping[str, str] = _NONE
        self._withheld: dict[str, Mapping[str, str]] = {}
        self.released = ""
        """Why nothing here may open the driver, "" while it may."""
        self.held = ""
        """Why no test may run on this node's GPUs, "" while it may: one is to be cut, and has to be unused for it."""
        self.change: NodeOrder | None = None
        """The order by whose layouts GPUs are to be cut now, None without one or once that was answered."""
        self.verifies = False
        """Whether GPUs that were reset or cut are waited for: all who judge them look at once."""

    def set(
        self, withdrawn: Mapping[str, str] = _NONE, released: str = "", change: NodeOrder | None = None, held: str = "",
        *, verifies: bool = False,
    ) -> None:  # fmt: skip
        """Apply what is ordered from now on."""
        wanted = (withdrawn, released, change, held, verifies)
        if wanted != (self._ordered_back, self.released, self.change, self.held, self.verifies):
            self._ordered_back, self.released, self.change, self.held, self.verifies = wanted
            self._news.notify()

    def withhold(self, gpus: Mapping[str, str], *, by: str = "") -> None:
        """Offer these GPUs to no pod without an order, by UUID, and why; in place of those that ``by`` named before."""
        if gpus != self._withheld.get(by, _NONE):
            self._withheld[by] = dict(gpus)
            self._news.notify()

    @property
    def withdrawn(self) -> Mapping[str, str]:
        """The GPUs that are offered to no pod, by UUID, and why."""
        return {**{uuid: why for named in self._withheld.values() for uuid, why in named.items()}, **self._ordered_back}

    def answer(self, act: str, result: ChangeResult) -> None:
        """Say what has come of the change that the act ``act`` orders."""
        self._answered = act, result
        self.answers.notify()

    def answered(self, act: str) -> ChangeResult | None:
        """What was said of that act last, None for nothing yet."""
        return self._answered[1] if self._answered is not None and self._answered[0] == act else None

    @property
    def revision(self) -> int:
        """Grows with every change."""
        return self._news.revision

    async def changed(self, after: int) -> int:
        """Wait until ``revision`` differs from ``after``; returns it."""
        return await self._news.changed(after)
