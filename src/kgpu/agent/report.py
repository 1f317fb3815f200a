"""The agent's report on its Node: makes the annotation ``kgpu.dev/roles`` and keeps it up to date.

An agent for a single role writes ``kgpu.dev/roles.<role>``, so that several processes of a node do not overwrite each
other. The whole agent has no such neighbours and removes the annotations that they have left behind. A change is
written half a second later, so that changes that come together cost one write; a reason that keeps changing costs one
write in ten seconds. What others remove or overwrite is restored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from kgpu import __version__
from kgpu.agent.driver_place import DriverPlace
from kgpu.agent.role_decisions import LEAVING, LEAVING_NODE, RoleDecision
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import UserError
from kgpu.base.supervise import RoleHandle, RoleState, RoleStatus
from kgpu.formats import names
from kgpu.formats.agent_report import AgentReport, RoleReport, annotation, encode, ended, manager, role
from kgpu.formats.config_choice import REFUSED, ConfigClashError
from kgpu.hw.port import DriverReleasedError, Inventory
from kgpu.kube.port import NODES, KubeApi, Object

log = logging.getLogger(__name__)

DEBOUNCE: Final = 0.5  # seconds between two looks at whether something has changed
CHATTER: Final = 10.0  # seconds between two writes that differ only in reasons
SETTLE: Final = 2.0  # seconds until an unexpected value counts as another writer's, not as the watch's delay
LEFT: Final = "left"
BAD_ARGUMENTS: Final = "BadArguments"
_RETRY: Final = BackoffPolicy(first=0.5, cap=30.0)
_WHY: Final[Mapping[RoleState, str]] = {
    RoleState.WAITING: "Waiting",
    RoleState.FAILED: "Failed",
    RoleState.STARTING: "Starting",
}


def role_report(
    wanted: RoleDecision,
    status: RoleStatus | None,
    problem: UserError | None = None,
    *,
    left: bool = False,
    released: str = "",
) -> RoleReport:
    """Report one role. ``status`` is None if it does not run; ``problem`` is why it can't be started as wanted;
    ``released`` is why it may not open the driver now, "" if it may.
    """
    if left:
        return role(LEFT)
    if wanted in (LEAVING, LEAVING_NODE):  # not "stopped": whoever waits for this node must not think that it is done
        return role(RoleState.WAITING, wanted.reason, wanted.why)
    if not wanted.run:
        if wanted.lingers:
            return role(RoleState.WAITING, f"{wanted.lingers}; then it stops: {wanted.reason}", wanted.why)
        ending = "" if status is None else "it is being stopped: "
        return role(RoleState.STOPPED, ending + wanted.reason, wanted.why)
    if status is None or status.state is RoleState.STOPPED:
        if problem is not None:
            return role(RoleState.WAITING, problem.statement, _why_not(problem), problem.remedy)
        return role(RoleState.STARTING, "", _WHY[RoleState.STARTING])
    if problem is not None:
        reason = f"{problem.statement}; it goes on as it was told before"
        return role(status.state, reason, _why_not(problem), problem.remedy)
    if released and status.state is RoleState.RUNNING:
        return role(status.state, released, DriverReleasedError.REASON)
    return role(status.state, status.reason, status.why or _WHY.get(status.state, ""), status.remedy)


def _why_not(problem: UserError) -> str:
    return REFUSED if isinstance(problem, ConfigClashError) else BAD_ARGUMENTS


def agent_report(
    roles: Mapping[str, RoleReport], *, generation: int, inventory: Inventory | None, place: DriverPlace | None
) -> AgentReport:
    """The whole report. ``inventory`` is the last valid reading, None if nothing reads the driver."""
    cuda = inventory.cuda_version if inventory is not None else None
    return AgentReport(
        version=__version__,
        generation=generation,
        roles=dict(roles),
        vendor=inventory.vendor if inventory is not None else names.NVIDIA,
        driver=inventory.driver_version if inventory is not None else "",
        driver_source=place.source if place is not None and place.found else "",
        cuda=".".join(map(str, cuda)) if cuda else "",
        gpus=len(inventory.accelerators) if inventory is not None else 0,
    )


class OwnNode(Protocol):
    """What is known about the Node: its ``uid`` ("" while unknown), and the ``reports`` on it by annotation."""

    uid: str
    reports: Mapping[str, str]


class AnnotationWriter:
    """Keeps the annotation equal to what ``make`` returns. ``run`` is a service."""

    def __init__(
        self,
        api: Callable[[], KubeApi],
        own: OwnNode,
        *,
        node: str,
        make: Callable[[], AgentReport | None],
        part: str = "",
        clock: Clock | None = None,
    ) -> None:
        """``part`` is the (first) role of a process for that role alone, "" for the whole agent."""
        self._api = api
        self._own = own
        self._node = node
        self._make = make
        self._part = part
        self._key = annotation(part)
        self._clock = clock or SystemClock()
        self._written: AgentReport | None = None
        self._at = float("-inf")

    async def run(self, handle: RoleHandle) -> None:
        """Write reports until cancelled; errors of the API server are retried."""
        backoff = Backoff(_RETRY)
        while True:
            await self._clock.sleep(DEBOUNCE)
            report = self._make()
            if report is None or not self._own.uid:
                continue
            try:
                for other in () if self._part else self._strays():
                    await self._api().apply(NODES, self._object(), manager=manager(other))
                if not self._due(report):
                    continue
                await self._write(report)
            except UserError as error:
                handle.waiting(error)
                await self._clock.sleep(backoff.next_delay())
                continue
            self._written, self._at = report, self._clock.monotonic()
            backoff.reset()
            handle.running()

    async def end(self, last: AgentReport) -> None:
        """Write the final report, once ``run`` has ended; ``last`` is the last regular one. Raises UserError."""
        if self._own.uid and self._written is not None:
            await self._write(ended(last))

    async def withdraw(self) -> None:
        """Remove the report instead of ``end``, so that nobody expects the process to come back. Raises UserError."""
        if self._own.uid:
            await self._api().apply(NODES, self._object(), manager=manager(self._part))

    async def _write(self, report: AgentReport) -> None:
        annotations = {self._key: encode(report)}
        await self._api().apply(NODES, self._object(annotations=annotations), manager=manager(self._part))

    def _strays(self) -> list[str]:
        """The roles of single-role processes whose reports are still on the Node."""
        prefix = names.ROLES_ANNOTATION_PREFIX
        return sorted(key.removeprefix(prefix) for key in self._own.reports if key.startswith(prefix))

    def _due(self, report: AgentReport) -> bool:
        live, written = self._own.reports.get(self._key), self._written
        if live == encode(report):
            self._written = report
            return False
        if written is None or _without_reasons(report) != _without_reasons(written):
            return True
        # It is ours with other reasons, another writer's, or ours before the watch has delivered it.
        pause = CHATTER if live == encode(written) else SETTLE
        return self._clock.monotonic() - self._at >= pause

    def _object(self, **metadata: Any) -> Object:
        # With the uid, the apply does not recreate a Node that was deleted meanwhile.
        return {"metadata": {"name": self._node, "uid": self._own.uid, **metadata}}


def _without_reasons(report: AgentReport) -> AgentReport:
    import msgspec

    bare = {name: RoleReport(state=role.state, why=role.why) for name, role in report.roles.items()}
    return msgspec.structs.replace(report, roles=bare)
