"""Moments as Kubernetes writes them."""

from __future__ import annotations

import pytest

from kgpu.base.times import LAST_MOMENT, stamp_of


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1.999, "1970-01-01T00:00:01Z"),
        (1767225660.0, "2026-01-01T00:01:00Z"),
        (LAST_MOMENT, "9999-12-31T23:59:59Z"),
        (LAST_MOMENT + 0.5, "9999-12-31T23:59:59Z"),
        (float("inf"), "9999-12-31T23:59:59Z"),
    ],
)
def test_a_moment_as_kubernetes_writes_it(moment: float, text: str) -> None:
    assert stamp_of(moment) == text
