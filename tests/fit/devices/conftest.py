"""The allocator of kube-scheduler, built when Go is there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kgpu.base.errors import LabError
from tests import on_real
from tests.fit.devices import oracle


@pytest.fixture(scope="session")
def scheduler() -> Iterator[oracle.Oracle]:
    """Tests that need it are skipped with the reason where it can't be had."""
    try:
        path = oracle.program()
    except (LabError, oracle.NoOracleError) as error:
        on_real.unavailable(str(error), what="allocator of kube-scheduler")
    asked = oracle.Oracle(path)
    try:
        yield asked
    finally:
        asked.close()
