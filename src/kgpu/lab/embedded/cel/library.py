"""Kubernetes' CEL functions as rows of signature and implementation, and the declarations for the evaluator.

Expressions are checked against the signatures as written. At run time the evaluator picks an implementation by the
coarse kind of each argument (every message is one kind), so that overloads which differ only in message share one.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from cel_expr_python import cel

from kgpu.base.quantity import NANO
from kgpu.lab.embedded.cel import authorizer as cel_authorizer
from kgpu.lab.embedded.cel import scope as cel_scope
from kgpu.lab.embedded.cel import strings, values
from kgpu.lab.embedded.cel.patterns import go_pattern

_T: Final = cel.Type
_MESSAGES: Final = {
    "Quantity": values.QUANTITY, "Semver": values.SEMVER, "URL": values.URL, "IP": values.IP, "CIDR": values.CIDR,
    "Format": values.FORMAT, "Authorizer": values.AUTHORIZER, "PathCheck": values.PATH_CHECK,
    "GroupCheck": values.GROUP_CHECK, "ResourceCheck": values.RESOURCE_CHECK, "Decision": values.DECISION,
}  # fmt: skip
_SIMPLE: Final = {
    "bool": _T.BOOL, "int": _T.INT, "uint": _T.UINT, "double": _T.DOUBLE, "string": _T.STRING, "bytes": _T.BYTES,
    "duration": _T.DURATION, "timestamp": _T.TIMESTAMP, "dyn": _T.DYN, "null": _T.NULL,
}  # fmt: skip
_ANY_MESSAGE: Final = _T(values.QUANTITY)
_KINDS: Final = (*(kind for name, kind in _SIMPLE.items() if name != "dyn"), _T.LIST, _T.MAP, _ANY_MESSAGE)
_COMPARABLE: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_SUMMABLE: Final = ("int", "uint", "double", "duration")
_NUMERIC: Final = ("int", "uint", "double")

Row = tuple[str, Callable[..., Any] | None]


def _compare(one: Any, other: Any) -> int:
    """-1, 0 or 1 of two quantities or two semantic versions."""
    if values.kind_of(one) == values.SEMVER:
        left: Any = values.semver_parts(one.text)
        right: Any = values.semver_parts(other.text)
    else:
        left, right = values.nanos(one), values.nanos(other)
    return int(left > right) - int(left < right)


def _valid(make: Callable[..., Any]) -> Callable[..., bool]:
    def check(*arguments: Any) -> bool:
        try:
            make(*arguments)
        except ValueError:
            return False
        return True

    return check


def _extreme(pick: Callable[..., Any], name: str) -> Callable[[list[Any]], Any]:
    def find(items: list[Any]) -> Any:
        if not items:
            raise ValueError(f"{name} called on empty list")
        return pick(items)

    return find


def _total(items: list[Any]) -> Any:
    total = items[0] if items else 0
    for item in items[1:]:
        total = total + item
    return total


def _index(items: Any, item: Any, *offset: int) -> int:
    if isinstance(items, str):
        return strings.index_of(items, item, *offset)
    return next((at for at, candidate in enumerate(items) if candidate == item and type(candidate) is type(item)), -1)


def _last_index(items: Any, item: Any, *offset: int) -> int:
    if isinstance(items, str):
        return strings.last_index_of(items, item, *offset)
    return next((at for at in range(len(items) - 1, -1, -1) if items[at] == item), -1)


def _find(text: str, pattern: str) -> str:
    return next(iter(_find_all(text, pattern)), "")


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    try:
        matches = go_pattern(pattern).all_in(text)
    except ValueError as error:
        raise ValueError(f"illegal regex: {error}") from error
    return matches if limit < 0 else matches[:limit]


def _amount(value: Any) -> int:
    return value * NANO if isinstance(value, int) else values.nanos(value)


def _whole(value: Any) -> int:
    amount, rest = divmod(values.nanos(value), NANO)
    if rest or not -(2**63) <= amount < 2**63:
        raise ValueError("cannot convert value to integer")
    return amount


def _contains(network: Any, other: Any, make: Callable[[str], Any]) -> bool:
    inner = values.interface(make(other) if isinstance(other, str) else other)
    outer = values.interface(network).network
    return inner.version == outer.version and inner.network.subnet_of(outer)  # type: ignore[arg-type]


def _host(value: Any) -> str:
    return values.url_parts(value).netloc.rpartition("@")[2]


def _query(value: Any) -> dict[str, list[str]]:
    from urllib.parse import parse_qs

    return parse_qs(values.url_parts(value).query, keep_blank_values=True)


def _as_text(value: Any) -> str:
    return str(value.text)


def rows() -> Iterator[Row]:
    """All functions. An implementation of None means the evaluator's own."""
    yield from cel_authorizer.rows()
    yield from (
        ("quantity(string)->Quantity", values.quantity),
        ("isQuantity(string)->bool", _valid(values.quantity)),
        ("sign(Quantity)->int", lambda left: (values.nanos(left) > 0) - (values.nanos(left) < 0)),
        ("Quantity.isInteger()->bool", _valid(_whole)),
        ("Quantity.asInteger()->int", _whole),
        ("Quantity.asApproximateFloat()->double", values.approximate),
        ("Quantity.add(Quantity)->Quantity", lambda left, right: values.of_nanos(values.nanos(left) + _amount(right))),
        ("Quantity.add(int)->Quantity", lambda left, right: values.of_nanos(values.nanos(left) + _amount(right))),
        ("Quantity.sub(Quantity)->Quantity", lambda left, right: values.of_nanos(values.nanos(left) - _amount(right))),
        ("Quantity.sub(int)->Quantity", lambda left, right: values.of_nanos(values.nanos(left) - _amount(right))),
        ("semver(string)->Semver", values.semver),
        ("semver(string,bool)->Semver", values.semver),
        ("isSemver(string)->bool", _valid(values.semver)),
        ("isSemver(string,bool)->bool", _valid(values.semver)),
        ("Semver.major()->int", lambda left: values.semver_parts(left.text)[0]),
        ("Semver.minor()->int", lambda left: values.semver_parts(left.text)[1]),
        ("Semver.patch()->int", lambda left: values.semver_parts(left.text)[2]),
        ("ip(string)->IP", values.ip_address),
        ("isIP(string)->bool", _valid(values.ip_address)),
        ("ip.isCanonical(string)->bool", lambda text: values.ip_address(text).text == text),
        ("IP.family()->int", lambda left: values.address(left).version),
        ("IP.isUnspecified()->bool", lambda left: values.address(left).is_unspecified),
        ("IP.isLoopback()->bool", lambda left: values.address(left).is_loopback),
        ("IP.isLinkLocalMulticast()->bool", lambda left: str(values.address(left)).startswith(("224.0.0.", "ff02:"))),
        ("IP.isLinkLocalUnicast()->bool", lambda left: values.address(left).is_link_local),
        ("IP.isGlobalUnicast()->bool", _global_unicast),
        ("cidr(string)->CIDR", values.cidr),
        ("isCIDR(string)->bool", _valid(values.cidr)),
        ("CIDR.containsIP(string)->bool", lambda left, right: _contains(left, right, values.ip_address)),
        ("CIDR.containsIP(IP)->bool", lambda left, right: _contains(left, right, values.ip_address)),
        ("CIDR.containsCIDR(string)->bool", lambda left, right: _contains(left, right, values.cidr)),
        ("CIDR.containsCIDR(CIDR)->bool", lambda left, right: _contains(left, right, values.cidr)),
        ("CIDR.ip()->IP", lambda left: values.make(values.IP, str(values.interface(left).ip))),
        ("CIDR.prefixLength()->int", lambda left: values.interface(left).network.prefixlen),
        ("CIDR.masked()->CIDR", lambda left: values.make(values.CIDR, str(values.interface(left).network))),
        ("url(string)->URL", values.url),
        ("isURL(string)->bool", _valid(values.url)),
        ("URL.getScheme()->string", lambda left: values.url_parts(left).scheme),
        ("URL.getHost()->string", _host),
        ("URL.getHostname()->string", lambda left: values.url_parts(left).hostname or ""),
        ("URL.getPort()->string", lambda left: str(values.url_parts(left).port or "")),
        ("URL.getEscapedPath()->string", lambda left: values.url_parts(left).path),
        ("URL.getQuery()->map", _query),
        ("string.find(string)->string", _find),
        ("string.findAll(string)->list(string)", _find_all),
        ("string.findAll(string,int)->list(string)", _find_all),
        ("list(dyn).indexOf(dyn)->int", _index),
        ("list(dyn).lastIndexOf(dyn)->int", _last_index),
        ("string.indexOf(string)->int", _index),
        ("string.indexOf(string,int)->int", _index),
        ("string.lastIndexOf(string)->int", _last_index),
        ("string.lastIndexOf(string,int)->int", _last_index),
        ("string.charAt(int)->string", strings.char_at),
        ("string.format(list(dyn))->string", strings.format_text),
        ("list(string).join()->string", strings.join),
        ("list(string).join(string)->string", strings.join),
        ("string.lowerAscii()->string", strings.lower_ascii),
        ("string.upperAscii()->string", strings.upper_ascii),
        ("string.replace(string,string)->string", strings.replace),
        ("string.replace(string,string,int)->string", strings.replace),
        ("string.split(string)->list(string)", strings.split),
        ("string.split(string,int)->list(string)", strings.split),
        ("string.substring(int)->string", strings.substring),
        ("string.substring(int,int)->string", strings.substring),
        ("string.trim()->string", str.strip),
        ("strings.quote(string)->string", strings.quote),
    )
    for name, accepts in (("isGreaterThan", (1,)), ("isLessThan", (-1,))):
        for kind in ("Quantity", "Semver"):
            yield f"{kind}.{name}({kind})->bool", lambda left, right, accepts=accepts: _compare(left, right) in accepts
    for kind in ("Quantity", "Semver"):
        yield f"{kind}.compareTo({kind})->int", _compare
    for kind in _COMPARABLE:
        yield (
            f"list({kind}).isSorted()->bool",
            lambda items: all(a <= b for a, b in itertools.pairwise(items)),
        )
        yield f"list({kind}).min()->{kind}", _extreme(min, "min")
        yield f"list({kind}).max()->{kind}", _extreme(max, "max")
    for kind in _SUMMABLE:
        yield f"list({kind}).sum()->{kind}", _total
    for kind in ("IP", "CIDR"):
        yield f"string({kind})->string", _as_text
    for kind in (*_COMPARABLE,):
        yield f"string({kind})->string", None
    for operator in ("_<_", "_<=_", "_>_", "_>=_"):
        for kind in _COMPARABLE:
            yield f"{operator}({kind},{kind})->bool", None
        for left in _NUMERIC:
            for right in _NUMERIC:
                if left != right:
                    yield f"{operator}({left},{right})->bool", None


def _global_unicast(value: Any) -> bool:
    address = values.address(value)
    return not (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
        or str(address) == "255.255.255.255"
    )


VARIABLE: Final = "kgpu_variable"
"""The function that returns a variable of the scope; users' expressions can't call it."""
# Declared here with more overloads than in the evaluator's own declarations; its implementations are kept.
REDECLARED: Final = ("string", "_<_", "_<=_", "_>_", "_>=_")
_SIGNATURE: Final = re.compile(r"(?:([A-Z]\w*|string|list\(\w+\))\.)?([^()]+)\((.*)\)->(.+)")


def parsed(signature: str) -> tuple[str, bool, list[str], str]:
    """Function name, whether it is a method, the types of its parameters with the receiver's first, the result's."""
    match = _SIGNATURE.fullmatch(signature)
    assert match is not None, signature
    receiver, name, parameters, result = match.groups()
    types = [kind for kind in parameters.split(",") if kind]
    return name, receiver is not None, ([receiver] if receiver else []) + types, result


def _type(text: str) -> Any:
    if text.startswith("list("):
        return _T.List(_type(text[5:-1]))
    if text == "map":
        return _T.Map(_T.STRING, _T.List(_T.STRING))
    return _T(_MESSAGES[text]) if text in _MESSAGES else _SIMPLE[text]


def _runtime_kinds(text: str) -> Sequence[Any]:
    if text == "dyn":
        return _KINDS
    return (_T.LIST if text.startswith("list(") else _ANY_MESSAGE if text in _MESSAGES else _SIMPLE[text],)


@functools.cache
def checked() -> list[Any]:
    """Declarations for the checker."""
    functions: dict[str, list[Any]] = {}
    for number, (signature, _) in enumerate(rows()):
        name, member, parameters, result = parsed(signature)
        overload = cel.Overload(
            f"k{number}_{name}", _type(result), [_type(parameter) for parameter in parameters], is_member=member
        )
        functions.setdefault(name, []).append(overload)
    return [cel.FunctionDecl(name, overloads) for name, overloads in functions.items()]


@functools.cache
def evaluated() -> list[Any]:
    """Declarations with implementations, for expressions that have been checked."""
    functions: dict[str, dict[tuple[bool, tuple[str, ...]], Any]] = {}
    for signature, implementation in (*rows(), (f"{VARIABLE}(string)->dyn", cel_scope.variable)):
        name, member, parameters, _ = parsed(signature)
        if implementation is None:
            continue
        for kinds in _combinations([_runtime_kinds(parameter) for parameter in parameters]):
            key = member, tuple(kind.name() for kind in kinds)
            overloads = functions.setdefault(name, {})
            if key not in overloads:
                ident = f"{name}_{'_'.join(key[1])}_{member}"
                overloads[key] = cel.Overload(ident, _T.DYN, kinds, is_member=member, impl=implementation)
    return [cel.FunctionDecl(name, list(overloads.values())) for name, overloads in functions.items()]


def _combinations(choices: list[Sequence[Any]]) -> Iterator[list[Any]]:
    if not choices:
        yield []
        return
    for first in choices[0]:
        for rest in _combinations(choices[1:]):
            yield [first, *rest]
