"""The world as the page needs it: nodes, what kgpu's own commands say, pods that wait, and who may see what.

``FakeWorld`` is for tests of the code that uses the port.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kgpu.base.errors import UserError
from kgpu.overview.model import HardwareError, NamespaceLimit, PendingPod, ToldIdleness, ToldReport


class OverviewWorld(Protocol):
    """What is asked again and again. Every method raises UserError when it can't be said."""

    async def report(self) -> ToldReport:
        """What ``kgpu doctor`` says now."""
        ...

    async def idleness(self) -> ToldIdleness:
        """What ``kgpu idle`` says now."""
        ...

    async def waiting(self) -> tuple[PendingPod, ...]:
        """The pods that ask for accelerators and do not run yet."""
        ...

    async def limits(self) -> tuple[NamespaceLimit, ...]:
        """What namespaces may have by their quotas, in the order of ``kgpu quota``."""
        ...

    async def events(self) -> tuple[HardwareError, ...]:
        """The hardware errors of the last 24 hours in Events of Nodes."""
        ...

    async def verdicts(self) -> tuple[HardwareError, ...]:
        """Those that kgpu's health reports on Nodes, and that began within the last 24 hours."""
        ...

    async def may_see(self, namespace: str) -> bool:
        """Whether the viewer may see the pods of a namespace, "" for all of them, by the API server's rules."""
        ...


class FakeWorld:
    """A world that a test sets; with ``trouble`` nothing can be said."""

    def __init__(
        self, report: ToldReport | None = None, idleness: ToldIdleness | None = None,
        waiting: Iterable[PendingPod] = (), sees: Iterable[str] = ("",), limits: Iterable[NamespaceLimit] = (),
        *, events: Iterable[HardwareError] = (), verdicts: Iterable[HardwareError] = (),
    ) -> None:  # fmt: skip
        self.told_report = report or ToldReport()
        self.told_idleness = idleness or ToldIdleness()
        self.told_waiting = tuple(waiting)
        self.told_limits = tuple(limits)
        self.told_events, self.told_verdicts = tuple(events), tuple(verdicts)
        self.sees = set(sees)
        self.trouble: UserError | None = None
        self.asked: list[str] = []

    def _say(self, what: str) -> None:
        self.asked.append(what)
        if self.trouble is not None:
            raise self.trouble

    async def report(self) -> ToldReport:
        self._say("report")
        return self.told_report

    async def idleness(self) -> ToldIdleness:
        self._say("idleness")
        return self.told_idleness

    async def waiting(self) -> tuple[PendingPod, ...]:
        self._say("waiting")
        return self.told_waiting

    async def limits(self) -> tuple[NamespaceLimit, ...]:
        self._say("limits")
        return self.told_limits

    async def events(self) -> tuple[HardwareError, ...]:
        self._say("events")
        return self.told_events

    async def verdicts(self) -> tuple[HardwareError, ...]:
        self._say("verdicts")
        return self.told_verdicts

    async def may_see(self, namespace: str) -> bool:
        self._say(f"may see {namespace}")
        return namespace in self.sees
