"""Schedules: every time that fits is found and no other, whatever the fields, also over changes of clocks."""

from __future__ import annotations

import datetime as dt
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.lab.embedded.controllers.cron_schedule import Every, ScheduleError, parse
from kgpu.lab.embedded.types.validate.cron import schedule_error
from tests.budget import tries

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "America/Sao_Paulo", "Australia/Lord_Howe")


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


@st.composite
def fields(draw: st.DrawFn, low: int, high: int) -> str:
    first = draw(st.integers(low, high))
    last = draw(st.integers(first, high))
    step = draw(st.integers(1, 20))
    simple = ("*", f"*/{step}", str(first), f"{first}-{last}", f"{first}-{last}/{step}", f"{first}/{step}")
    return ",".join(draw(st.lists(st.sampled_from(simple), min_size=1, max_size=2)))


schedules = st.tuples(fields(0, 59), fields(0, 23), fields(1, 31), fields(1, 12), fields(0, 6)).map(" ".join)


def values(field: str, low: int, high: int) -> set[int]:
    """The slow way: ask each value."""
    found = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        start = low if first == "*" else int(first)
        end = high if first == "*" or (step and not dash) else int(last or first)
        found |= {
            value for value in range(low, high + 1) if start <= value <= end and (value - start) % int(step or 1) == 0
        }
    return found


def fits(schedule: str, here: dt.datetime) -> bool:
    minute, hour, day, month, weekday = schedule.split()
    in_month, in_week = here.day in values(day, 1, 31), here.isoweekday() % 7 in values(weekday, 0, 6)
    starred = any(part in ("*", "*/1") for field in (day, weekday) for part in field.split(","))
    return (
        here.minute in values(minute, 0, 59)
        and here.hour in values(hour, 0, 23)
        and here.month in values(month, 1, 12)
        and ((in_month and in_week) if starred else (in_month or in_week))
    )


@tries(60)
@given(schedules, st.sampled_from(ZONES), st.datetimes(dt.datetime(2025, 1, 1), dt.datetime(2027, 12, 31)))
def test_the_next_time_is_the_first_minute_that_fits(schedule: str, zone: str, start: dt.datetime):
    begin = start.replace(tzinfo=dt.UTC)
    found = parse(schedule, zone).after(begin)
    there = zoneinfo.ZoneInfo(zone)
    minute = begin.replace(second=0, microsecond=0) + dt.timedelta(minutes=1)
    # All minutes of two days are asked; a time that is later only has to fit.
    for _ in range(2 * 24 * 60):
        if fits(schedule, minute.astimezone(there)):
            assert found == minute
            return
        minute += dt.timedelta(minutes=1)
    assert found is None or (found >= minute and fits(schedule, found.astimezone(there)))


@given(st.text("0123456789*/,-@? JANsunTZevry=hms", max_size=24))
def test_what_the_validation_takes_can_be_read(text: str):
    try:
        parse(text)
    except ScheduleError:
        return
    assert schedule_error(text) == ""


@pytest.mark.parametrize(
    ("schedule", "zone", "start", "times"),
    [
        ("@hourly", "UTC", "2026-01-01T00:00:00", ["2026-01-01T01:00:00", "2026-01-01T02:00:00"]),
        ("0 0 13 * 5", "UTC", "2026-11-01T00:00:00", ["2026-11-06T00:00:00", "2026-11-13T00:00:00"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00:00", ["2028-02-29T00:00:00", "2032-02-29T00:00:00"]),
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00", ["2026-03-30T00:30:00"]),  # no 2:30 on the 29th
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00", ["2026-10-25T00:30:00", "2026-10-25T01:30:00"]),
        ("TZ=Asia/Kolkata 0 6 * * *", "UTC", "2026-01-01T00:00:00", ["2026-01-01T00:30:00"]),
        ("0 9 * jan mon-fri", "UTC", "2026-01-02T10:00:00", ["2026-01-05T09:00:00"]),
    ],
)
def test_known_times(schedule: str, zone: str, start: str, times: list[str]):
    found = at(start)
    for time in times:
        found = parse(schedule, zone).after(found)
        assert found == at(time)


def test_a_day_that_never_comes_is_no_time():
    assert parse("59 23 31 2 *").after(at("2026-01-01T00:00:00")) is None


def test_every_so_often_counts_whole_seconds_and_at_least_one():
    assert parse("@every 1h30m") == Every(5400)
    assert parse("@every 10ms") == Every(1)
    assert parse("@every 2.5s") == Every(2)


@pytest.mark.parametrize(("text", "zone"), [("* * * *", None), ("61 * * * *", None), ("* * * * *", "Mars/Base")])
def test_nonsense_is_refused(text: str, zone: str | None):
    with pytest.raises(ScheduleError):
        parse(text, zone)


def test_zones_are_known_where_the_system_has_none():
    zoneinfo.reset_tzpath([])
    zoneinfo.ZoneInfo.clear_cache()
    try:
        found = parse("0 12 * * *", "Pacific/Auckland").after(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    finally:
        zoneinfo.reset_tzpath()
        zoneinfo.ZoneInfo.clear_cache()
    assert found == dt.datetime(2026, 1, 1, 23, tzinfo=dt.UTC)
