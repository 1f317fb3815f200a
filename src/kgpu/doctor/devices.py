"""Devices of dynamic resource allocation: what slices offer, what claims want, and how each device stands to a request.

Selectors are evaluated with CEL on each device. What can't be evaluated here (a function that is not known) is told as
"unjudged", never guessed. Total: slices and claims of any shape, of any version of the API group.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.plain import items, mapping, number, text
from kgpu.base.quantity import Quantity, QuantityError
from kgpu.doctor.objects import Obj
from kgpu.doctor.snapshot import Snapshot
from kgpu.fit.selectors import PodToleration, Taint, tolerated

MAX_DEVICES: Final = 2000
"""At most this many devices are judged for one request."""
_DOMAIN: Final = re.compile(r"(?:attributes|capacity)\s*\[\s*[\"']([^\"']{1,253})[\"']\s*\]")
_NO_KEY: Final = re.compile(r"(?:Key not found in map|no such key)\D*?:? *\"?(?P<key>[\w./-]+)")
_NUMBERS: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of a slice. ``node`` is "" where any node can use it; ``path`` where it stands in ``slice``."""

    slice: Obj
    path: str
    driver: str
    pool: str
    name: str
    node: str
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    capacity: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.driver, self.pool, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """One request of a claim (or one choice of it), with the selectors of its class."""

    claim: Obj
    path: str
    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    class_selectors: tuple[str, ...] = ()
    count: int = 1
    tolerations: tuple[PodToleration, ...] = ()
    admin: bool = False


class Stand(enum.Enum):
    """How a device stands to a request."""

    FREE = "free"
    TAKEN = "taken"
    TAINTED = "tainted"
    FALSE = "a selector is false"
    ERROR = "a selector fails"
    UNJUDGED = "can't be judged"
    OTHER = "of another class"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``why`` is who holds it, the taint, or the selector's error, for people; ``key`` is the taint's key, or the
    attribute that the device lacks.
    """

    device: Device
    stand: Stand
    why: str = ""
    selector: str = ""
    key: str = ""


def devices(snapshot: Snapshot) -> tuple[Device, ...]:
    """Every device that a slice offers."""
    return snapshot.once(_devices)


def _devices(snapshot: Snapshot) -> tuple[Device, ...]:
    return tuple(device for obj in snapshot.all("ResourceSlice") for device in _of_slice(obj))


def _of_slice(obj: Obj) -> Iterator[Device]:
    driver = obj.text("spec.driver")
    for position, row in enumerate(items(obj.at("spec.devices"))):
        entry = mapping(row)
        basic = mapping(entry.get("basic")) or entry
        name = text(entry.get("name"))
        if not name:
            continue
        yield Device(
            slice=obj, path=f"spec.devices[{position}]", driver=driver, pool=obj.text("spec.pool.name"), name=name,
            node=obj.text("spec.nodeName") or text(basic.get("nodeName")),
            attributes=_by_domain(basic.get("attributes"), driver, _attribute),
            capacity=_by_domain(basic.get("capacity"), driver, _amount),
            taints=tuple(_taint(mapping(taint)) for taint in items(basic.get("taints"))),
        )  # fmt: skip


def _taint(row: Mapping[str, Any]) -> Taint:
    return Taint(text(row.get("key")), text(row.get("value")), text(row.get("effect")))


def _by_domain(value: Any, driver: str, read: Any) -> dict[str, dict[str, Any]]:
    by_domain: dict[str, dict[str, Any]] = {}
    for key, said in mapping(value).items():
        domain, slash, name = str(key).rpartition("/")
        read_value = read(said)
        if read_value is not None:
            by_domain.setdefault(domain if slash else driver, {})[name] = read_value
    return by_domain


def _attribute(said: Any) -> Any:
    """``{string: x}``, ``{int: 1}``, ``{bool: true}`` or ``{version: 1.2.3}``."""
    return next((one for one in mapping(said).values() if isinstance(one, str | int | bool)), None)


def _amount(said: Any) -> int | None:
    value = mapping(said).get("value") if isinstance(said, dict) else said
    try:
        return Quantity.parse(value).value if isinstance(value, str | int) else None
    except QuantityError:
        return None


def requests(snapshot: Snapshot, claim: Obj) -> tuple[ClaimRequest, ...]:
    """What a claim asks for; of a request with choices, each choice."""
    claim_requests: list[ClaimRequest] = []
    for position, row in enumerate(items(claim.at("spec.devices.requests"))):
        entry = mapping(row)
        path = f"spec.devices.requests[{position}]"
        choices = items(entry.get("firstAvailable"))
        if choices:
            rows = [(mapping(choice), f"{path}.firstAvailable[{at}]") for at, choice in enumerate(choices)]
        elif isinstance(entry.get("exactly"), dict):
            rows = [(mapping(entry["exactly"]), f"{path}.exactly")]
        else:
            rows = [(entry, path)]
        for ask, where in rows:
            claim_requests.append(_request(snapshot, claim, text(entry.get("name")), ask, where))
    return tuple(claim_requests)


def _request(snapshot: Snapshot, claim: Obj, name: str, ask: Mapping[str, Any], path: str) -> ClaimRequest:
    device_class = text(ask.get("deviceClassName"))
    known = snapshot.get("DeviceClass", device_class)
    return ClaimRequest(
        claim=claim, path=path, name=name, device_class=device_class,
        selectors=_selectors(ask.get("selectors")),
        class_selectors=_selectors(known.at("spec.selectors")) if known else (),
        count=max(number(ask.get("count"), 1), 1),
        tolerations=tuple(
            PodToleration(*(text(mapping(toleration).get(key)) for key in ("key", "operator", "value", "effect")))
            for toleration in items(ask.get("tolerations"))
        ),
        admin=ask.get("adminAccess") is True,
    )  # fmt: skip


def _selectors(value: Any) -> tuple[str, ...]:
    rows = (text(mapping(mapping(row).get("cel")).get("expression")) for row in items(value))
    return tuple(expression for expression in rows if expression)


def taken(snapshot: Snapshot) -> Mapping[tuple[str, str, str], str]:
    """Which claim (``namespace/name``) holds each device, by driver, pool and device."""
    return snapshot.once(_taken)


def _taken(snapshot: Snapshot) -> dict[tuple[str, str, str], str]:
    claims: dict[tuple[str, str, str], str] = {}
    for claim in snapshot.all("ResourceClaim"):
        for row in items(claim.at("status.allocation.devices.results")):
            result = mapping(row)
            if result.get("adminAccess") is not True:
                claims[tuple(text(result.get(key)) for key in ("driver", "pool", "device"))] = claim.path  # type: ignore[index]
    return claims


def judge(snapshot: Snapshot, request: ClaimRequest) -> tuple[Verdict, ...]:
    """Every device (up to a bound) with how it stands to the request. Devices of other classes are ``OTHER``."""
    held = taken(snapshot)
    key = (request.class_selectors, request.selectors)
    known = snapshot.once(_memory)
    if key not in known:  # claims made from one template ask alike
        known[key] = tuple(_selected(device, request) for device in devices(snapshot)[:MAX_DEVICES])
    return tuple(_standing(verdict, request, held) for verdict in known[key])


def _memory(_: Snapshot) -> dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Verdict, ...]]:
    return {}


def _selected(device: Device, request: ClaimRequest) -> Verdict:
    """What the selectors say; ``FREE`` where all are true."""
    for expression in request.class_selectors:
        verdict = evaluate(expression, device)
        if verdict is not True:
            return Verdict(device, Stand.OTHER if verdict is False else Stand.UNJUDGED, selector=expression)
    for expression in request.selectors:
        verdict = evaluate(expression, device)
        if verdict is None:
            return Verdict(device, Stand.UNJUDGED, "", expression)
        if isinstance(verdict, str):
            return Verdict(device, Stand.ERROR, f"no such key: {verdict}", expression, key=verdict)
        if not verdict:
            return Verdict(device, Stand.FALSE, selector=expression)
    return Verdict(device, Stand.FREE)


def _standing(found: Verdict, request: ClaimRequest, held: Mapping[tuple[str, str, str], str]) -> Verdict:
    device = found.device
    if found.stand is not Stand.FREE:
        return found
    if device.key in held and not request.admin:
        return Verdict(device, Stand.TAKEN, held[device.key])
    bad = [taint for taint in device.taints if taint.hard and not tolerated(taint, request.tolerations)]
    return Verdict(device, Stand.TAINTED, str(bad[0]), key=bad[0].key) if bad else found


def evaluate(expression: str, device: Device) -> bool | str | None:
    """True or False; the key that a device lacks, where that makes it fail; None where it can't be judged here."""
    program = _program(expression)
    if program is None:
        return None
    domains = _DOMAIN.findall(expression)
    data = {
        "driver": device.driver,
        "attributes": {**{key: {} for key in domains}, **device.attributes},
        "capacity": {**{key: {} for key in domains}, **device.capacity},
        "allowMultipleAllocations": False,
    }
    try:
        value = program.eval(data={"device": data}).plain_value()
    except Exception as error:
        value = str(error)
    if isinstance(value, bool):
        return value
    missing = _NO_KEY.search(str(value))
    return missing["key"] if missing else None


@functools.lru_cache(maxsize=512)
def _program(expression: str) -> Any:
    if len(expression) > 10_000:
        return None
    try:
        return _environment().compile(expression)
    except Exception:
        return None


@functools.cache
def _environment() -> Any:
    """CEL with what Kubernetes adds for devices, as far as selectors use it. Quantities are whole numbers here."""
    from cel_expr_python import cel

    kinds = cel.Type
    rows: Iterable[tuple[str, Any, list[Any], Any]] = (
        ("compareTo", kinds.INT, [kinds.INT, kinds.INT], _compare),
        ("compareTo", kinds.INT, [kinds.STRING, kinds.STRING], _compare_versions),
        ("isGreaterThan", kinds.BOOL, [kinds.INT, kinds.INT], lambda left, right: left > right),
        ("isLessThan", kinds.BOOL, [kinds.INT, kinds.INT], lambda left, right: left < right),
        ("isGreaterThan", kinds.BOOL, [kinds.STRING, kinds.STRING], lambda a, b: _compare_versions(a, b) > 0),
        ("isLessThan", kinds.BOOL, [kinds.STRING, kinds.STRING], lambda a, b: _compare_versions(a, b) < 0),
        ("lowerAscii", kinds.STRING, [kinds.STRING], str.lower),
        ("upperAscii", kinds.STRING, [kinds.STRING], str.upper),
    )
    by_name: dict[str, list[Any]] = {}
    for position, (name, returns, takes, function) in enumerate(rows):
        by_name.setdefault(name, []).append(
            cel.Overload(f"{name}_{position}", return_type=returns, parameters=takes, is_member=True, impl=function)
        )
    functions = [cel.FunctionDecl(name, overloads) for name, overloads in by_name.items()]
    for name, returns, function in (("quantity", kinds.INT, _bytes), ("semver", kinds.STRING, str)):
        only = cel.Overload(f"{name}_of", return_type=returns, parameters=[kinds.STRING], impl=function)
        functions.append(cel.FunctionDecl(name, [only]))
    return cel.NewEnv(variables={"device": kinds.DYN}, functions=functions)


def _compare(one: int, other: int) -> int:
    return int(one > other) - int(one < other)


def _compare_versions(one: str, other: str) -> int:
    left, right = ([int(part) for part in _NUMBERS.findall(text_)[:3]] for text_ in (one, other))
    return int(left > right) - int(left < right)


def _bytes(said: str) -> int:
    return Quantity.parse(said).value
