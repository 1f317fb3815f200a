"""The string formats that the API server checks, by their names without dashes. Rules: kube-openapi's strfmt."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import ipaddress
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from kgpu.lab.embedded.cel.patterns import go_pattern

_HEX: Final = "[0-9a-fA-F]"


def _full(pattern: str, flags: int = re.ASCII) -> Callable[[str], bool]:
    compiled = re.compile(pattern, flags)
    return lambda text: compiled.fullmatch(text) is not None


def _uuid(version: str) -> Callable[[str], bool]:
    third = f"{version}{_HEX}{{3}}" if version else f"{_HEX}{{4}}"
    fourth = f"[89abAB]{_HEX}{{3}}" if version in {"4", "5"} else f"{_HEX}{{4}}"
    return _full(f"{_HEX}{{8}}-?{_HEX}{{4}}-?{third}-?{fourth}-?{_HEX}{{12}}")


def _ipv4(text: str) -> bool:
    parts = text.split(".")
    return len(parts) == 4 and all(re.fullmatch(r"[0-9]{1,3}", part, re.ASCII) and int(part) < 256 for part in parts)


def _ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text


def _cidr(text: str) -> bool:
    address, slash, length = text.partition("/")
    if not slash or not re.fullmatch(r"[0-9]{1,3}", length, re.ASCII):
        return False
    return (_ipv4(address) and int(length) <= 32) or (_ipv6(address) and int(length) <= 128)


def _uri(text: str) -> bool:
    if not text or (not text.startswith("/") and not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text)):
        return False
    try:
        _ = urlsplit(text).port
    except ValueError:
        return False
    return not re.search(r"[\x00-\x20\x7f]", text)


def _email(text: str) -> bool:
    from email.utils import parseaddr

    local, at, domain = parseaddr(text)[1].rpartition("@")
    return bool(local and at and domain) and not re.search(r"\s", domain) and not domain.startswith(".")


_LETTER: Final = r"a-zA-Z\p{L}"
_NAME: Final = rf"0-9{_LETTER}\p{{S}}"
# A name of one character or with one dash at most, or labels and a last one of letters alone.
_HOSTNAME: Final = (
    rf"^([{_NAME}]((-?[{_NAME}]{{0,62}})?)|([{_NAME}](([{_NAME}-]{{0,61}}[{_NAME}])?)(\.)){{1,}}([{_LETTER}]){{2,63}})$"
)


def _hostname(text: str) -> bool:
    if not go_pattern(_HOSTNAME).found_in(text):
        return False
    return len(text) <= 255 and all(len(part) <= 63 for part in text.split("."))


def _date(text: str) -> bool:
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        return False
    return re.fullmatch(r"\d{4}-\d{2}-\d{2}", text, re.ASCII) is not None


_DATETIME: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})[tT ](\d{2}):(\d{2}):(\d{2})(?:\.\d+)?(?:[zZ]|[+-]\d{2}:?\d{2})", re.ASCII
)


def _datetime(text: str) -> bool:
    match = _DATETIME.fullmatch(text)
    return match is not None and _date(match[1]) and int(match[2]) < 24 and int(match[3]) < 60 and int(match[4]) < 60


_GO_DURATION: Final = re.compile(r"[+-]?(?:0|(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
_UNITS: Final = re.compile(
    r"ns|us|µs|ms|s|m|h|d|w|nano.*|micro.*|milli.*|sec.*|min.*|hr|hour.*|day.*|wk|week.*", re.IGNORECASE
)


def _duration(text: str) -> bool:
    if _GO_DURATION.fullmatch(text):
        return True
    return any(_UNITS.fullmatch(unit) for _, unit in re.findall(r"(\d+)\s*([A-Za-zµ]+)", text))


def _byte(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return bool(text)


def _isbn(length: int) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        digits = re.sub(r"[ -]", "", text)
        if length == 10:
            if not re.fullmatch(r"[0-9]{9}[0-9X]", digits, re.ASCII):
                return False
            return sum((10 - at) * (10 if digit == "X" else int(digit)) for at, digit in enumerate(digits)) % 11 == 0
        if not re.fullmatch(r"[0-9]{13}", digits, re.ASCII):
            return False
        return sum((3 if at % 2 else 1) * int(digit) for at, digit in enumerate(digits)) % 10 == 0

    return check


def _credit_card(text: str) -> bool:
    digits = re.sub(r"[^0-9]+", "", text)
    shape = (
        r"(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|(222[1-9]|22[3-9][0-9]|2[3-6][0-9]{2}|27[01][0-9]|2720)[0-9]{12}"
        r"|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35\d{3})\d{11}"
        r"|6[27][0-9]{14})"
    )
    if not re.fullmatch(shape, digits, re.ASCII):
        return False
    doubled = [int(digit) * (2 if at % 2 else 1) for at, digit in enumerate(reversed(digits))]
    return sum(digit // 10 + digit % 10 for digit in doubled) % 10 == 0


_BYTE: Final = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PAIR: Final = f"{_HEX}{{2}}"
_QUAD: Final = f"{_HEX}{{4}}"
_MAC: Final = _full(
    "|".join(f"{_PAIR}({mark}{_PAIR}){{{more}}}" for mark in "-:" for more in (5, 7, 19))
    + "|"
    + "|".join(rf"{_QUAD}(\.{_QUAD}){{{more}}}" for more in (2, 3, 9))
)
_SHORT_NAME: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"

FORMATS: Final[dict[str, Callable[[str], bool]]] = {
    "bsonobjectid": _full(f"{_HEX}{{24}}"),
    "uri": _uri,
    "email": _email,
    "hostname": _hostname,
    "ipv4": _ipv4,
    "ipv6": _ipv6,
    "cidr": _cidr,
    "mac": _MAC,
    "uuid": _uuid(""),
    "uuid3": _uuid("3"),
    "uuid4": _uuid("4"),
    "uuid5": _uuid("5"),
    "isbn": lambda text: _isbn(10)(text) or _isbn(13)(text),
    "isbn10": _isbn(10),
    "isbn13": _isbn(13),
    "creditcard": _credit_card,
    "ssn": _full(r"\d{3}[- ]?\d{2}[- ]?\d{4}"),
    "hexcolor": _full(f"#?({_HEX}{{3}}|{_HEX}{{6}})"),
    "rgbcolor": _full(rf"rgb\(\s*{_BYTE}\s*,\s*{_BYTE}\s*,\s*{_BYTE}\s*\)"),
    "byte": _byte,
    "password": lambda _: True,
    "date": _date,
    "duration": _duration,
    "datetime": _datetime,
    "k8sshortname": lambda text: len(text) <= 63 and _full(_SHORT_NAME)(text),
    "k8slongname": lambda text: len(text) <= 253 and _full(rf"{_SHORT_NAME}(\.{_SHORT_NAME})*")(text),
}


def normalized(name: str) -> str:
    """The format's key in ``FORMATS``, "" for a format that the API server ignores."""
    short = name.replace("-", "")
    return short if short in FORMATS else ""
