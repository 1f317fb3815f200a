"""The kinds of value that Kubernetes adds to CEL: quantities, versions, URLs, addresses, formats, authorization.

In expressions they are protobuf messages with one field (the evaluator knows no other foreign values); the text is
canonical, so that equal values are equal messages.
"""

from __future__ import annotations

import datetime as dt
import functools
import ipaddress
import re
from fractions import Fraction
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, struct_pb2, timestamp_pb2

from kgpu.base.quantity import NANO, Quantity, QuantityError

QUANTITY: Final = "kubernetes.Quantity"
SEMVER: Final = "kubernetes.Semver"
URL: Final = "kubernetes.URL"
IP: Final = "net.IP"
CIDR: Final = "net.CIDR"
FORMAT: Final = "kubernetes.NamedFormat"
AUTHORIZER: Final = "kubernetes.authorization.Authorizer"
PATH_CHECK: Final = "kubernetes.authorization.PathCheck"
GROUP_CHECK: Final = "kubernetes.authorization.GroupCheck"
RESOURCE_CHECK: Final = "kubernetes.authorization.ResourceCheck"
DECISION: Final = "kubernetes.authorization.Decision"
_STRING_FIELD: Final = 9
_FILES: Final = {
    "kubernetes": (QUANTITY, SEMVER, URL, FORMAT),
    "net": (IP, CIDR),
    "kubernetes.authorization": (AUTHORIZER, PATH_CHECK, GROUP_CHECK, RESOURCE_CHECK, DECISION),
}


def fresh_pool() -> descriptor_pool.DescriptorPool:
    """Protobuf descriptors of these values and of the well-known types; others may be added to it."""
    pool = descriptor_pool.DescriptorPool()
    for module in (struct_pb2, timestamp_pb2, duration_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for package, names in _FILES.items():
        file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        for name in names:
            message = file.message_type.add(name=name.rpartition(".")[2])
            message.field.add(name="text", number=1, type=_STRING_FIELD, label=1)
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL: Final = fresh_pool()
_CLASSES: Final = {
    name: message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))
    for names in _FILES.values()
    for name in names
}


def kind_of(value: Any) -> str:
    """Which of the types above, "" for other values."""
    descriptor = getattr(value, "DESCRIPTOR", None)
    return str(descriptor.full_name) if descriptor is not None else ""


def make(name: str, text: str) -> Any:
    return _CLASSES[name](text=text)


def timestamp(moment: dt.datetime) -> Any:
    """A google.protobuf.Timestamp, which is how a time goes into an expression; it comes out as a datetime."""
    found = timestamp_pb2.Timestamp()
    found.FromDatetime(moment)
    return found


def duration(seconds: float) -> Any:
    """A google.protobuf.Duration; it comes out as a timedelta."""
    message = duration_pb2.Duration()
    message.FromNanoseconds(round(seconds * NANO))
    return message


def inward(value: Any) -> Any:
    """The result of an expression in the form that another takes as input."""
    match value:
        case dt.datetime():
            return timestamp(value if value.tzinfo else value.replace(tzinfo=dt.UTC))
        case dt.timedelta():
            return duration(value.total_seconds())
        case list():
            return [inward(item) for item in value]
        case dict():
            return {key: inward(item) for key, item in value.items()}
    return value


def quantity(text: str) -> Any:
    """A kubernetes.Quantity. Raises ValueError as the API server words it."""
    try:
        return make(QUANTITY, str(Quantity.parse(text).nanos))
    except QuantityError as error:
        raise ValueError(error.reason) from error


def nanos(value: Any) -> int:
    return int(value.text)


def of_nanos(amount: int) -> Any:
    return make(QUANTITY, str(amount))


def approximate(value: Any) -> float:
    return float(Fraction(nanos(value), NANO))


_NUMBER: Final = r"(0|[1-9][0-9]*)"
_SEMVER: Final = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-((?:[0-9A-Za-z-]+)(?:\.[0-9A-Za-z-]+)*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)


@functools.lru_cache(maxsize=1024)
def semver_parts(text: str) -> tuple[int, int, int, tuple[tuple[int, int, str], ...]]:
    """Major, minor, patch and a sort key of the pre-release; raises ValueError. Build metadata doesn't order."""
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise ValueError(_semver_complaint(text))
    major, minor, patch, before, _ = match.groups()
    # Without a pre-release a version is greater than with one.
    key: tuple[tuple[int, int, str], ...] = ((2, 0, ""),)
    if before is not None:
        words = before.split(".")
        if any(word.isdigit() and len(word) > 1 and word[0] == "0" for word in words):
            raise ValueError(f'Numeric PreRelease version must not contain leading zeroes "{before}"')
        key = tuple((0, int(word), "") if word.isdigit() else (1, 0, word) for word in words)
    return int(major), int(minor), int(patch), key


def _semver_complaint(text: str) -> str:
    if not text:
        return "Version string empty"
    parts = text.split("-", 1)[0].split("+", 1)[0].split(".")
    if len(parts) != 3:
        return "No Major.Minor.Patch elements found"
    for name, part in zip(("major", "minor", "patch"), parts, strict=True):
        if not part.isdigit():
            return f'Invalid character(s) found in {name} number "{part}"'
        if len(part) > 1 and part[0] == "0":
            return f'{name.capitalize()} number must not contain leading zeroes "{part}"'
    return "Invalid character(s) found in version"


def semver(text: str, normalize: bool = False) -> Any:
    """A kubernetes.Semver; ``normalize`` drops a v in front and leading zeros and adds what is missing."""
    if normalize:
        core = re.match(r"v?([0-9.]*)(.*)", text, re.DOTALL)
        assert core is not None
        numbers = [part.lstrip("0") or "0" for part in core[1].split(".")] if core[1] else [""]
        text = ".".join(([*numbers, "0", "0"])[: max(3, len(numbers))]) + core[2]
    semver_parts(text)
    return make(SEMVER, text)


def ip_address(text: str) -> Any:
    """A net.IP; IPv4-mapped IPv6, zones and leading zeros are refused as netip and the library do."""
    wrong = f'IP Address "{text}" parse error during conversion from string: '
    if "%" in text:
        raise ValueError(f'IP address "{text}" with zone value is not allowed')
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError as error:
        raise ValueError(f'{wrong}ParseAddr("{text}"): unable to parse IP') from error
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        raise ValueError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return make(IP, str(parsed))


def address(value: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(value.text)


def cidr(text: str) -> Any:
    """A net.CIDR; host bits are kept."""
    try:
        parsed = ipaddress.ip_interface(text)
        if "/" not in text:
            raise ValueError(text)
    except ValueError as error:
        raise ValueError(
            f"network address parse error during conversion from string: netip.ParsePrefix(\"{text}\"): no '/'"
            if "/" not in text
            else f"network address parse error during conversion from string: {text}"
        ) from error
    return make(CIDR, str(parsed))


def interface(value: Any) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    return ipaddress.ip_interface(value.text)


def url(text: str) -> Any:
    """A kubernetes.URL: absolute, or an absolute path."""
    if not text or not (text.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text)):
        raise ValueError(f'URL parse error during conversion from string: parse "{text}": invalid URI for request')
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f'URL parse error during conversion from string: parse "{text}": {error}') from error
    return make(URL, text)


def url_parts(value: Any) -> SplitResult:
    parts: SplitResult = urlsplit(value.text)
    return parts
