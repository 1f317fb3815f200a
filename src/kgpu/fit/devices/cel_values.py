"""Quantities and versions inside CEL, and the functions on them that Kubernetes adds: rows of signature and code.

In expressions both are protobuf messages with one field of text, as the evaluator knows no other foreign values. The
text of a quantity is canonical, so that equal quantities are equal messages.

No function takes a list or a value of any type: the engine crashes when it hands an optional value to Python.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from kgpu.base.quantity import NANO, Quantity, QuantityError
from kgpu.fit.devices.semver import SemanticVersion, completed, parse_version

QUANTITY: Final = "kubernetes.Quantity"
SEMVER: Final = "kubernetes.Semver"
SAME_TEXT: Final = "kgpu_same_text"
"""Stands for ``==`` between an attribute and a string; users' expressions can't call it."""
_STRING_FIELD: Final = 9


def _descriptors() -> Any:
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="kubernetes/devices.proto", package="kubernetes", syntax="proto3")
    for name in (QUANTITY, SEMVER):
        message = file.message_type.add(name=name.rpartition(".")[2])
        message.field.add(name="text", number=1, type=_STRING_FIELD, label=1)
    pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL: Final = _descriptors()
_CLASSES: Final = {
    name: message_factory.GetMessageClass(POOL.FindMessageTypeByName(name)) for name in (QUANTITY, SEMVER)
}


def of_quantity(amount: Quantity) -> Any:
    return _CLASSES[QUANTITY](text=str(amount.nanos))


def of_version(text: str) -> Any:
    """Raises ValueError for what is no semantic version."""
    parse_version(text)
    return _CLASSES[SEMVER](text=text)


def _same_text(value: Any, text: str) -> bool:
    """An attribute and a string; a version is none, which is a mistake worth telling."""
    if isinstance(value, _CLASSES[SEMVER]):
        raise TypeError("no such overload")
    return bool(value == text)


def _quantity(text: str) -> Any:
    try:
        return of_quantity(Quantity.parse(text))
    except QuantityError as error:
        raise ValueError(error.reason) from error


def _semver(text: str, normalize: bool = False) -> Any:
    return of_version(completed(text) if normalize else text)


def _ordered(value: Any) -> int | SemanticVersion:
    return parse_version(value.text) if value.DESCRIPTOR.full_name == SEMVER else int(value.text)


def _compare(one: Any, other: Any) -> int:
    left: Any = _ordered(one)
    right: Any = _ordered(other)
    if type(left) is not type(right):
        raise ValueError("no such overload")
    return int(left > right) - int(left < right)


def _nanos(value: Any) -> int:
    return value * NANO if isinstance(value, int) else int(value.text)


def _whole(value: Any) -> int:
    amount, rest = divmod(_nanos(value), NANO)
    if rest or not -(2**63) <= amount < 2**63:
        raise ValueError("cannot convert value to integer")
    return amount


def _valid(make: Callable[..., Any]) -> Callable[..., bool]:
    def check(*arguments: Any) -> bool:
        try:
            make(*arguments)
        except ValueError:
            return False
        return True

    return check


def _sum(one: Any, other: Any) -> Any:
    return of_quantity(Quantity(_nanos(one) + _nanos(other)))


def _difference(one: Any, other: Any) -> Any:
    return of_quantity(Quantity(_nanos(one) - _nanos(other)))


def _part(position: int) -> Callable[[Any], int]:
    def part(value: Any) -> int:
        version = parse_version(value.text)
        return (version.major, version.minor, version.patch)[position]

    return part


Row = tuple[str, str, tuple[str, ...], Callable[..., Any]]
"""Name, type of the result, types of the parameters, code. A name that starts with a dot is a method."""


@functools.cache
def rows() -> tuple[Row, ...]:
    return (
        ("quantity", QUANTITY, ("string",), _quantity),
        ("isQuantity", "bool", ("string",), _valid(_quantity)),
        ("sign", "int", (QUANTITY,), lambda value: (_nanos(value) > 0) - (_nanos(value) < 0)),
        (".isInteger", "bool", (QUANTITY,), _valid(_whole)),
        (".asInteger", "int", (QUANTITY,), _whole),
        (".asApproximateFloat", "double", (QUANTITY,), lambda value: _nanos(value) / NANO),
        (".add", QUANTITY, (QUANTITY, QUANTITY), _sum),
        (".add", QUANTITY, (QUANTITY, "int"), _sum),
        (".sub", QUANTITY, (QUANTITY, QUANTITY), _difference),
        (".sub", QUANTITY, (QUANTITY, "int"), _difference),
        ("semver", SEMVER, ("string",), _semver),
        ("semver", SEMVER, ("string", "bool"), _semver),
        ("isSemver", "bool", ("string",), _valid(_semver)),
        ("isSemver", "bool", ("string", "bool"), _valid(_semver)),
        (".major", "int", (SEMVER,), _part(0)),
        (".minor", "int", (SEMVER,), _part(1)),
        (".patch", "int", (SEMVER,), _part(2)),
        *_comparisons(),
    )


def text_rows() -> tuple[Row, ...]:
    """For expressions as they are evaluated: SAME_TEXT of what an attribute may be."""
    kinds = ("string", "int", "bool", SEMVER)
    return tuple((SAME_TEXT, "bool", (kind, "string"), _same_text) for kind in kinds)


def _comparisons() -> Iterator[Row]:
    for kind in (QUANTITY, SEMVER):
        yield ".compareTo", "int", (kind, kind), _compare
        yield ".isGreaterThan", "bool", (kind, kind), lambda one, other: _compare(one, other) > 0
        yield ".isLessThan", "bool", (kind, kind), lambda one, other: _compare(one, other) < 0
