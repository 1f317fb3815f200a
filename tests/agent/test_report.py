"""The annotation's text: what each role says, and when it is written."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import pytest

from kgpu.agent.report import CHATTER, DEBOUNCE, AnnotationWriter, role_report
from kgpu.agent.role_decisions import DISABLED, LEAVING, RUN, RoleDecision
from kgpu.base.clock import VirtualClock
from kgpu.base.errors import ConfigError
from kgpu.base.supervise import RoleHandle, RoleState, RoleStatus
from kgpu.formats import names
from kgpu.formats.agent_report import AgentReport, RoleReport, decode
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES

PAUSED = RoleDecision(run=False, why="Paused", reason="the label says so")


BAD = ConfigError("bad flag", "one of two", "take it out")


def status(state, reason="", remedy=""):
    return RoleStatus(name="x", state=state, reason=reason, remedy=remedy, since=0, restarts=0)


@pytest.mark.parametrize(
    ("wanted", "found", "problem", "said"),
    [
        (RUN, status(RoleState.RUNNING, "8 GPUs"), None, ("running", "8 GPUs", "")),
        (RUN, status(RoleState.WAITING, "no driver", "load it"), None, ("waiting", "no driver", "Waiting", "load it")),
        (RUN, status(RoleState.FAILED, "KeyError"), None, ("failed", "KeyError", "Failed")),
        (RUN, None, None, ("starting", "", "Starting")),
        (RUN, None, BAD, ("waiting", "bad flag; expected one of two", "BadArguments", "take it out")),
        (
            RUN,
            status(RoleState.RUNNING),
            BAD,
            (
                "running",
                "bad flag; expected one of two; it goes on as it was told before",
                "BadArguments",
                "take it out",
            ),
        ),
        (PAUSED, None, None, ("stopped", "the label says so", "Paused")),
        (PAUSED, status(RoleState.RUNNING), None, ("stopped", "it is being stopped: the label says so", "Paused")),
        (DISABLED, None, None, ("stopped", DISABLED.reason, "Disabled")),
        (LEAVING, None, None, ("waiting", LEAVING.reason, "Leaving")),
    ],
)
def test_what_a_role_says(wanted, found, problem, said):
    report = role_report(wanted, found, problem)
    assert (report.state, report.reason, report.why, report.remedy) == (*said, "")[:4]


def test_left():
    assert role_report(LEAVING, None, left=True) == RoleReport(state="left")


@dataclass
class Own:
    uid: str = ""
    reports: dict[str, str] = field(default_factory=dict)


class Written:
    """A writer on a clock that the test moves."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.own = Own(self.api.put(NODES, {"metadata": {"name": "n"}})["metadata"]["uid"])
        self.report = AgentReport(version="1", roles={"a": RoleReport(state="running", reason="1")})
        self.clock = VirtualClock()
        self.handle = RoleHandle("report", self.clock)
        self.writer = AnnotationWriter(lambda: self.api, self.own, node="n", make=lambda: self.report, clock=self.clock)

    @contextlib.asynccontextmanager
    async def running(self):
        task = asyncio.create_task(self.writer.run(self.handle))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])

    @property
    def there(self):
        """What is on the Node now; the writer hears of it as through its informer."""
        metadata = self.api._objects[(NODES, "", "n")].obj["metadata"]
        text = (metadata.get("annotations") or {}).get(names.ROLES_ANNOTATION)
        self.own.reports = {} if text is None else {names.ROLES_ANNOTATION: text}
        return None if text is None else decode(text)

    def applies(self):
        return sum(1 for verb, _, _ in self.api.calls if verb == "apply")


async def test_written_after_a_moment_and_then_left_alone():
    async with Written().running() as written:
        await written.clock.advance(DEBOUNCE)
        assert written.there == written.report
        await written.clock.advance(60)
        assert written.applies() == 1


async def test_reasons_alone_are_told_seldom_and_states_at_once():
    async with Written().running() as written:
        await written.clock.advance(DEBOUNCE)
        for number in range(20):
            written.report = AgentReport(version="1", roles={"a": RoleReport(state="running", reason=f"r{number}")})
            await written.clock.advance(CHATTER / 20)
            assert written.there is not None
        assert written.applies() <= 3
        written.report = AgentReport(version="1", roles={"a": RoleReport(state="waiting", reason="x")})
        await written.clock.advance(DEBOUNCE)
        assert written.there == written.report


async def test_an_api_server_that_is_away_is_asked_again():
    written = Written()
    written.api.set_down(True)
    async with written.running():
        await written.clock.advance(5)
        assert written.handle.status.state is RoleState.WAITING
        written.api.set_down(False)
        await written.clock.advance(60)
        assert written.there == written.report
        assert written.handle.status.state is RoleState.RUNNING


async def test_nothing_is_written_to_a_node_that_is_not_known():
    written = Written()
    written.own.uid = ""
    async with written.running():
        await written.clock.advance(5)
        assert written.applies() == 0
