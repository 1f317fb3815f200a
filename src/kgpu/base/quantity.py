"""Kubernetes quantities: ``500m``, ``4Gi``, ``1e3``. Exact integers of nanos inside, the API server's text outside.

``Quantity.parse`` takes all that the API server takes and refuses the rest with its words; ``str`` gives what it would
store. Comparison and arithmetic are exact. Rules: apimachinery's resource package.

Two deviations, both where Go loses the value: what is above 999E prints as so many E (Go drops the suffix), and
exponents beyond 1000 and texts beyond 1000 characters are refused.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kgpu.base.errors import ConfigError

NANO: Final = 10**9
_MAX_INT64: Final = 2**63 - 1
_MAX_EXPONENT: Final = 1000
_MAX_LENGTH: Final = 1000
_FORMAT_WRONG: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_SUFFIX_WRONG: Final = "unable to parse quantity's suffix"
# Wider than the expression that the message quotes, as Go's hand-written parser is: "." and "m" are zero.
_SHAPE: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)", re.ASCII)
_EXPONENT: Final = re.compile(r"[eE]([+-]?[0-9]+)", re.ASCII)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_BY_EXPONENT: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_BY_STEP: Final = ("", *_BINARY)

Number: TypeAlias = "str | int | float"
"""What JSON and YAML may have where a quantity is meant."""


class QuantityError(ConfigError):
    """Not a quantity; ``reason`` is the API server's wording."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(
            f"{text!r} is not a quantity: {reason}",
            "a number with an optional suffix, such as 2, 500m, 4Gi or 1e3",
            "correct the quantity",
        )
        self.reason = reason


class Format(enum.Enum):
    """Which suffixes a quantity is written with."""

    DECIMAL_EXPONENT = "DecimalExponent"
    BINARY = "BinarySI"
    DECIMAL = "DecimalSI"


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An amount. Equality, order and hash go by the amount alone: 1, 1000m and 1e0 are equal."""

    nanos: int
    format: Format = field(default=Format.DECIMAL, compare=False)
    text: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: Number) -> Quantity:
        """Read a manifest's value. Raises QuantityError."""
        if isinstance(text, bool):
            raise QuantityError(str(text).lower(), _FORMAT_WRONG)
        return _parse((text if isinstance(text, str) else repr(text)).strip())

    @classmethod
    def of(cls, units: int, form: Format = Format.DECIMAL) -> Quantity:
        """The quantity of that many whole units: bytes, cores, devices."""
        return cls(units * NANO, form)

    @classmethod
    def of_milli(cls, millis: int, form: Format = Format.DECIMAL) -> Quantity:
        """The quantity of that many thousandths."""
        return cls(millis * (NANO // 1000), form)

    @property
    def value(self) -> int:
        """Whole units, rounded away from zero."""
        return self.scaled(0)

    @property
    def milli(self) -> int:
        """Thousandths, rounded away from zero."""
        return self.scaled(-3)

    @property
    def is_integer(self) -> bool:
        return self.nanos % NANO == 0

    def scaled(self, exponent: int) -> int:
        """In units of 10**exponent, -9 or more, rounded away from zero."""
        unit = int(10 ** (9 + exponent))
        return -(-self.nanos // unit) if self.nanos >= 0 else self.nanos // unit

    def rounded(self, exponent: int) -> Quantity:
        """Rounded away from zero to a multiple of 10**exponent; its own text is kept when that changes nothing."""
        unit = int(10 ** (9 + exponent))
        return self if self.nanos % unit == 0 else Quantity(self.scaled(exponent) * unit, self.format)

    def __str__(self) -> str:
        return self.text or _canonical(self.nanos, self.format)

    @property
    def canonical(self) -> str:
        """The shortest text; ``str`` keeps a few others that the API server keeps too, such as 1.500."""
        return _canonical(self.nanos, self.format)

    def __bool__(self) -> bool:
        return self.nanos != 0

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos + other.nanos, self.format if self.nanos else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos - other.nanos, self.format if self.nanos else other.format)

    def __mul__(self, times: int) -> Quantity:
        return Quantity(self.nanos * times, self.format)

    def __neg__(self) -> Quantity:
        return Quantity(-self.nanos, self.format)


ZERO: Final = Quantity(0)


def total(quantities: Iterable[Quantity]) -> Quantity:
    """The sum, zero of none."""
    return sum(quantities, start=ZERO)


def parse_map(amounts: Mapping[str, Number] | None) -> dict[str, Quantity]:
    """A resource list, such as ``limits`` or ``allocatable``. Raises QuantityError."""
    return {name: Quantity.parse(amount) for name, amount in (amounts or {}).items()}


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> Quantity:
    shape = _SHAPE.fullmatch(text) if 0 < len(text) <= _MAX_LENGTH else None
    if shape is None:
        raise QuantityError(text, _FORMAT_WRONG)
    sign, whole, fraction, suffix = shape.groups(default="")
    whole = whole.lstrip("0") or "0"
    digits = whole + fraction
    if suffix in _BINARY:
        exponent, form = _BINARY[suffix], Format.BINARY
        keeps_text = not fraction and len(whole) + int(exponent * 0.3) <= 14 and int(whole) & 7 != 0
        scaled, divisor = (int(digits) << exponent) * NANO, 10 ** len(fraction)
    else:
        exponent, form = _decimal(text, suffix)
        scale = exponent - len(fraction)
        keeps_text = (
            len(digits) <= 18 and scale >= -9 and scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
        )
        power = scale + 9
        scaled, divisor = int(digits) * 10 ** max(power, 0), 10 ** max(-power, 0)
    nanos = -(-scaled // divisor)
    if form is Format.BINARY:
        nanos = min(nanos, _MAX_INT64 * NANO)
        if 0 < nanos < NANO:
            form = Format.DECIMAL
    return Quantity(-nanos if sign == "-" else nanos, form, text if keeps_text else "")


def _decimal(text: str, suffix: str) -> tuple[int, Format]:
    if suffix in _DECIMAL:
        return _DECIMAL[suffix], Format.DECIMAL
    match = _EXPONENT.fullmatch(suffix)
    if match is None or len(match[1]) > 9 or abs(int(match[1])) > _MAX_EXPONENT:
        raise QuantityError(text, _SUFFIX_WRONG)
    return int(match[1]), Format.DECIMAL_EXPONENT


def _canonical(nanos: int, form: Format) -> str:
    if nanos == 0:
        return "0"
    if form is Format.BINARY and abs(nanos) >= 1024 * NANO and nanos % NANO == 0:
        amount, step = nanos // NANO, 0
        while amount % 1024 == 0 and step < len(_BINARY):
            amount, step = amount // 1024, step + 1
        return f"{amount}{_BINARY_BY_STEP[step]}"
    amount, exponent = nanos, -9
    while amount % 1000 == 0 and (exponent < 18 or form is Format.DECIMAL_EXPONENT):
        amount, exponent = amount // 1000, exponent + 3
    if form is Format.DECIMAL_EXPONENT:
        return f"{amount}e{exponent}" if exponent else str(amount)
    return f"{amount}{_DECIMAL_BY_EXPONENT[exponent]}"
