"""Moments as Kubernetes writes them, and time zones."""

from __future__ import annotations

import datetime as dt
import zoneinfo

import pytest

from kgpu.base.times import LAST_MOMENT, moment_of, stamp_of, time_zone


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


@pytest.mark.parametrize(
    ("stamp", "utc"),
    [
        ("2026-01-01T00:01:00Z", "2026-01-01T00:01:00+00:00"),
        ("2026-01-01T01:01:00.5+01:00", "2026-01-01T00:01:00.500000+00:00"),
        ("2026-01-01T00:01:00", "2026-01-01T00:01:00+00:00"),
        ("2026-02-30T00:00:00Z", None),
        ("soon", None),
        ("", None),
        (None, None),
        (1767225660, None),
        (["2026-01-01T00:01:00Z"], None),
    ],
)
def test_a_moment_is_read_in_utc_or_not_at_all(stamp: object, utc: str | None) -> None:
    found = moment_of(stamp)
    assert (found and found.astimezone(dt.UTC).isoformat()) == utc


def test_a_zone_by_its_name() -> None:
    at = dt.datetime(2026, 7, 1, tzinfo=dt.UTC)
    assert at.astimezone(time_zone("Europe/Berlin")).hour == 2


@pytest.mark.parametrize("name", ["Mars/Base", "", "../../etc/passwd", "/etc/localtime", "Europe", "x" * 300, "a\0b"])
def test_what_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        time_zone(name)


def test_utc_needs_no_database_of_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", missing)
    assert time_zone("UTC") is dt.UTC
    with pytest.raises(ValueError, match="Europe/Berlin"):
        time_zone("Europe/Berlin")
