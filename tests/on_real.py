"""What the folders of tests on real programs share: their mark, their time limit, and what happens where they can't run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NoReturn

import pytest

REQUIRE: Final = "KGPU_REQUIRE_REAL"
# A cold build of Kubernetes belongs to the first test's setup.
TIMEOUT_S: Final = 3000


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
