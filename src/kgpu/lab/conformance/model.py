"""Tests, skips with their reasons, and results, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_SIG: Final = re.compile(r"\[sig-([a-z-]+)\]")
CONFORMANCE: Final = "[Conformance]"
# Tests with these marks disturb others, so they run alone.
SERIAL: Final = ("[Serial]", "[Disruptive]")


class ResultState(StrEnum):
    """How a test ended. LEFT_OUT: not started, for a reason of our own table; SKIPPED: the test itself said no."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Test:
    """One test by its full name, as ``e2e.test --list-tests`` prints it."""

    __test__ = False  # no class of pytest's
    name: str

    @property
    def sig(self) -> str:
        """The group of Kubernetes' developers that it belongs to, such as ``api-machinery``; "" for none."""
        hit = _SIG.match(self.name)
        return hit[1] if hit else ""

    @property
    def title(self) -> str:
        """Its name without the part that all conformance tests share."""
        return _SIG.sub("", self.name, count=1).replace(CONFORMANCE, "").strip()

    @property
    def serial(self) -> bool:
        """Whether it has to run alone."""
        return any(mark in self.name for mark in SERIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Tests that are not started on ``labs``: those in whose name ``pattern`` is found."""

    pattern: str
    reason: str
    labs: tuple[str, ...]

    def takes(self, test: Test, lab: str) -> bool:
        """Whether it is about that test on that kind of lab."""
        return lab in self.labs and re.search(self.pattern, test.name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceResult:
    """The result of one test on one kind of lab; ``message`` is the failure's, or the reason of a skip."""

    lab: str
    test: Test
    state: ResultState
    seconds: float = 0.0
    message: str = ""
