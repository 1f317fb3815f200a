"""Pytest's hooks that write each test's processor time into the JUnit file, where the run has a control group."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tools.suite import cpu


class CpuWatch:
    """The hooks. A test has the time of its fixtures, too: a shared one's counts for the test that made it."""

    def __init__(self) -> None:
        folder = os.environ.get(cpu.FOLDER)
        self._group = Path(folder) if folder else None
        self._told = self._now()

    def _now(self) -> float:
        return (self._group and cpu.seconds(self._group)) or 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        if self._group and call.when == "teardown":
            now = self._now()
            item.user_properties.append(("cpu", f"{now - self._told:.3f}"))
            self._told = now
        return (yield)
