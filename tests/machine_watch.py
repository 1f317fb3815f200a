"""Pytest's hooks around ``machine_state``: a run says what was on the machine before it, and fails for what it leaves.

It looks before the first test and after the last.
"""

from __future__ import annotations

import contextlib
import time
from typing import Final

import pytest

from tests import machine_state
from tests.machine_state import Stock

NOT_CLEAN: Final = "the machine was not clean"
# What has been told to end may need a moment; on a machine that does much else it needs many.
PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.1


class MachineWatch:
    """The hooks. ``patience_s``: for so long what is there at the end may still go."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._run = machine_state.own_mark()
        self._before = machine_state.take()
        self._dirt = machine_state.dirt(self._before, self._run) + machine_state.shortages()
        self._left: list[str] = []
        self._perhaps: list[str] = []
        self._marked = contextlib.ExitStack()
        self._marked.enter_context(machine_state.marked(self._run))

    def pytest_report_header(self) -> list[str]:
        beside = self._before.others(self._run)
        runs = sorted({"/".join(one.runs) or "a lab" for one in beside})
        lines = [f"beside this run: {', '.join(runs)} with {len(beside)} processes"] if beside else []
        return [*lines, *(f"{NOT_CLEAN}: {one}" for one in self._dirt)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            wrong = [*self._dirt, *machine_state.shortages()]
            if wrong:
                report.sections.append((NOT_CLEAN, "\n".join(wrong)))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._marked.close()
        self._left, self._perhaps = settled(self._before, self._run, self._patience_s)
        if self._left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        rows = (
            (NOT_CLEAN, self._dirt),
            ("LEFT BEHIND by this run: each test must end what it starts", self._left),
            ("left behind by this run or by one beside it", self._perhaps),
        )
        for title, lines in rows:
            if lines:
                terminalreporter.section(title, red=lines is self._left, yellow=lines is not self._left)
                for line in lines:
                    terminalreporter.line(line)


def settled(before: Stock, run: str, patience_s: float) -> tuple[list[str], list[str]]:
    """``machine_state.left``, once nothing is, or when patience ends."""
    until = time.monotonic() + patience_s
    while True:
        found = machine_state.left(before, machine_state.take(), run)
        if not found[0] or time.monotonic() > until:
            return found
        time.sleep(_POLL_S)
