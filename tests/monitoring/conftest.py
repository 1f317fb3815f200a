"""Debian's Prometheus and promtool, for the session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.monitoring import programs


@pytest.fixture(scope="session")
def prometheus_bin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with ``prometheus`` and ``promtool``."""
    return programs.unpacked(tmp_path_factory.mktemp("prometheus"))
