"""Quantities: what is parsed, what is printed, exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.quantity import NANO, ZERO, Format, Quantity, QuantityError, parse_map, total

# Text, canonical text, whole units rounded up: seen on a real API server (tests/lab/real/test_embedded_validation.py).
KNOWN = [
    ("0", "0", 0), ("1", "1", 1), ("0.5", "500m", 1), ("500m", "500m", 1), ("1000m", "1", 1), ("1100m", "1100m", 2),
    ("1.5Gi", "1536Mi", 1610612736), ("1024Ki", "1Mi", 1048576), ("0.5Ki", "512", 512), ("1e3", "1e3", 1000),
    ("1.5e3", "1500", 1500), ("12e6", "12e6", 12000000), ("1E", "1E", 10**18), ("0.1n", "1n", 1), ("100u", "100u", 1),
    ("1000k", "1M", 10**6), ("1.2345678912n", "2n", 1), ("0.1Mi", "104857600m", 104858), ("9Ei", "9223372036854775807", 2**63 - 1),
    ("-1.5Gi", "-1536Mi", -1610612736), ("1000000", "1M", 10**6), ("1e-3", "1e-3", 1),
]  # fmt: skip
AMOUNTS = st.from_regex(r"\A-?[0-9]{1,9}(\.[0-9]{1,6})?(n|u|m|k|M|G|T|Ki|Mi|Gi|Ti|e-?[0-9]|)\Z")


@pytest.mark.parametrize(("text", "canonical", "value"), KNOWN)
def test_known(text: str, canonical: str, value: int) -> None:
    parsed = Quantity.parse(text)
    assert str(parsed) == canonical
    assert parsed.value == value


# Go keeps these as they were written; only arithmetic makes them canonical.
@pytest.mark.parametrize(("text", "canonical"), [("+1", "1"), ("01", "1"), ("1.500", "1500m"), ("1E3", "1e3")])
def test_text_that_is_kept(text: str, canonical: str) -> None:
    parsed = Quantity.parse(text)
    assert (str(parsed), parsed.canonical, str(parsed + ZERO)) == (text, canonical, canonical)


@pytest.mark.parametrize(
    "text", ["", "x", "1xi", "1 2", "1KiB", "1..2", "--1", "0x1", "\u0661", "1e", "1m5", "1e99999999999"]
)
def test_refused(text: str) -> None:
    with pytest.raises(QuantityError) as error:
        Quantity.parse(text)
    assert "quantit" in error.value.reason


def test_long_texts_end_in_time() -> None:
    with pytest.raises(QuantityError):
        Quantity.parse("1" * 100_000)


def test_numbers_of_json() -> None:
    assert Quantity.parse(2) == Quantity.parse("2")
    assert str(Quantity.parse(0.5)) == "500m"
    with pytest.raises(QuantityError):
        Quantity.parse(True)


@given(AMOUNTS)
def test_printing_loses_nothing(text: str) -> None:
    parsed = Quantity.parse(text)
    assert Quantity.parse(str(parsed)) == parsed
    assert Quantity.parse(parsed.canonical) == parsed
    assert Quantity.parse(parsed.canonical).canonical == parsed.canonical


@given(AMOUNTS, AMOUNTS)
def test_arithmetic_is_exact(left: str, right: str) -> None:
    a, b = Quantity.parse(left), Quantity.parse(right)
    assert Fraction((a + b).nanos, NANO) == Fraction(a.nanos, NANO) + Fraction(b.nanos, NANO)
    assert a + b - b == a
    assert (a < b) == (a.nanos < b.nanos)
    assert hash(a) == hash(Quantity(a.nanos, Format.BINARY))


@given(AMOUNTS)
def test_whole_units_round_away_from_zero(text: str) -> None:
    parsed = Quantity.parse(text)
    exact = Fraction(parsed.nanos, NANO)
    assert abs(parsed.value) >= abs(exact)
    assert abs(parsed.value - exact) < 1
    assert (parsed.value == exact) == parsed.is_integer


def test_the_first_one_s_format_wins() -> None:
    assert str(Quantity.parse("1Gi") + Quantity.parse("1G")) == "2073741824"
    assert str(ZERO + Quantity.parse("1Gi")) == "1Gi"
    assert str(total([Quantity.parse("512Mi")] * 4)) == "2Gi"
    assert parse_map({"nvidia.com/gpu": 2, "cpu": "1500m"}) == {
        "nvidia.com/gpu": Quantity.of(2),
        "cpu": Quantity.of_milli(1500),
    }
