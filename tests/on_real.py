"""What the folders of tests on real programs share: their mark, their time limit, and what happens where they can't run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import pytest

T = TypeVar("T")
REQUIRE: Final = "KGPU_REQUIRE_REAL"
# A cold build of Kubernetes belongs to the first test's setup.
TIMEOUT_S: Final = 3000
FIRST_PAUSE_S: Final = 0.1
LAST_PAUSE_S: Final = 0.3


def mark(items: list[pytest.Item], conftest: str) -> None:
    """Mark every test in the folder of this conftest as one for real programs."""
    here = Path(conftest).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.real)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


def unavailable(reason: str, *, what: str = "real cluster") -> NoReturn:
    """Skip with the reason, or fail where it is required."""
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{REQUIRE}=1, and the {what} can't be had: {reason}")
    pytest.skip(f"no {what} here: {reason}")


def looked_for(condition: Callable[[], T], deadline_s: float) -> T | None:
    """The first true value of ``condition``, None where there was none within so many seconds.

    It is looked at less and less often, down to three times a second: what a cluster's answers cost is taken from what
    is waited for, and a look five times a second was a fifth of an API server's work. What lasts for less than a second
    must still be seen.
    """
    end, pause = time.monotonic() + deadline_s, FIRST_PAUSE_S
    while not (found := condition()):
        if time.monotonic() > end:
            return None
        time.sleep(pause)
        pause = min(pause * 1.3, LAST_PAUSE_S)
    return found
