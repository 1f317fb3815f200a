"""Go durations in and out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.duration import INFINITE, format_duration, parse_duration

SECOND = 10**9


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0), ("0s", 0), ("60s", 60 * SECOND), ("1m0s", 60 * SECOND), ("1h30m", 5400 * SECOND),
        ("1.5s", 1_500_000_000), ("250ms", 250_000_000), ("1us", 1000), ("1µs", 1000), ("3ns", 3),
        ("-2s", -2 * SECOND), ("+2s", 2 * SECOND), (".5s", SECOND // 2), ("1.s", SECOND), ("infinite", INFINITE),
        ("0.1ns", 0),
    ],
)  # fmt: skip
def test_go_spellings(text: str, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    "text", ["", "60", "s", "1x", "1 s", "1s ", "..s", "--1s", "1e3s", "9999999h", "\uff11s", "infinity"]
)
def test_what_go_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="invalid duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0s"), (5, "5ns"), (1500, "1.5µs"), (60 * SECOND, "1m0s"), (3600 * SECOND, "1h0m0s"), (INFINITE, "infinite")],
)
def test_gos_own_form(nanoseconds: int, text: str) -> None:
    assert format_duration(nanoseconds) == text


@given(st.integers(-INFINITE, INFINITE))
def test_round_trip(nanoseconds: int) -> None:
    assert parse_duration(format_duration(nanoseconds)) == nanoseconds


@given(st.text(max_size=200))
def test_any_text_is_a_duration_or_a_three_part_error(text: str) -> None:
    parts, value = None, 0
    try:
        value = parse_duration(text)
    except ConfigError as problem:
        parts = problem
    assert abs(value) <= INFINITE
    assert parts is None or (parts.expected and parts.remedy)
