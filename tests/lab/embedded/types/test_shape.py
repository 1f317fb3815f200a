"""Times as they are stored: RFC 3339 in UTC, years of four digits."""

from __future__ import annotations

import pytest

from kgpu.lab.embedded.types.shape import _moment


@pytest.mark.parametrize(
    ("given", "micro", "stored"),
    [
        ("2026-01-02T03:04:05Z", False, "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05.123456+02:00", True, "2026-01-02T01:04:05.123456Z"),
        ("0001-01-01T00:00:02.000000Z", True, "0001-01-01T00:00:02.000000Z"),
        ("0999-01-01T00:00:02Z", False, "0999-01-01T00:00:02Z"),
    ],
)
def test_times_are_stored_in_utc_with_years_of_four_digits(given: str, micro: bool, stored: str) -> None:
    assert _moment(given, micro=micro) == stored
