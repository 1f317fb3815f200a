"""Debian's Prometheus and promtool, unpacked for the session; without them tests are skipped with the reason.

With ``KGPU_REQUIRE_REAL=1`` they fail instead.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests import debian, on_real

CACHE = Path.home() / ".cache" / "kgpu" / "tests" / "prometheus"
unavailable = partial(on_real.unavailable, what="Prometheus")


@pytest.fixture(scope="session")
def prometheus_bin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with ``prometheus`` and ``promtool``."""
    folder = tmp_path_factory.mktemp("prometheus")
    try:
        debian.unpack(debian.package("prometheus", CACHE), folder)
    except debian.NotToBeHad as error:
        unavailable(str(error))
    return folder / "usr" / "bin"
