"""Debian's Prometheus and promtool, unpacked; without them tests are skipped with the reason.

With ``KGPU_REQUIRE_REAL=1`` they fail instead.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests import debian, on_real

CACHE = Path.home() / ".cache" / "kgpu" / "tests" / "prometheus"
unavailable = partial(on_real.unavailable, what="Prometheus")


def unpacked(folder: Path) -> Path:
    """The folder below that one with ``prometheus`` and ``promtool``."""
    try:
        debian.unpack(debian.package("prometheus", CACHE), folder)
    except debian.NotToBeHad as error:
        unavailable(str(error))
    return folder / "usr" / "bin"
