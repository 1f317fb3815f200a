"""Devices of dynamic resource allocation: what slices offer, what claims want, and how each device stands to a request.

Selectors are evaluated on each device as the scheduler does it. What can't be evaluated here (a function that is not
known) is told as "unjudged", never guessed. Total: slices and claims of any shape, of any version of the API group.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.plain import items, mapping, number, text
from kgpu.doctor.objects import Obj
from kgpu.doctor.snapshot import Snapshot
from kgpu.fit.devices import read
from kgpu.fit.devices.model import DeviceKey, SliceDevice
from kgpu.fit.devices.selector import SelectorEngine, SelectorFault
from kgpu.fit.selectors import PodToleration, Taint, tolerated
from kgpu.formats import names

MAX_DEVICES: Final = 2000
"""At most this many devices are judged for one request."""
_DRIVERS: Final = {names.GAUDI_DOMAIN: names.DRA_GAUDI_DRIVER}
"""The DRA driver by the domain of a device plugin's resources, where its name does not end with that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of a slice. ``node`` is "" where any node can use it; ``path`` where it stands in ``slice``."""

    slice: Obj
    path: str
    driver: str
    pool: str
    name: str
    node: str
    offered: SliceDevice

    @property
    def taints(self) -> tuple[Taint, ...]:
        return self.offered.taints

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
    piece = read.device_slice(obj.data)
    for position, offered in enumerate(piece.devices if piece is not None else ()):
        if offered.name and piece is not None:
            node = piece.reach.node_name or offered.reach.node_name or ""
            yield Device(
                slice=obj, path=f"spec.devices[{position}]", driver=piece.driver, pool=piece.pool, name=offered.name,
                node=node, offered=offered,
            )  # fmt: skip


def is_driver_of(driver: str, resource: str) -> bool:
    """Whether a DRA driver offers the devices that an extended resource counts; that of ComputeDomains does not."""
    domain = resource.split("/", 1)[0]
    ours = f".{driver}".endswith(f".{domain}") or driver == _DRIVERS.get(domain)
    return ours and "compute-domain" not in driver


def by_claims(snapshot: Snapshot, node: str, resource: str) -> bool:
    """Whether a node's slices offer the devices that an extended resource counts."""
    return any(device.node == node and is_driver_of(device.driver, resource) for device in devices(snapshot))


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
        engine = snapshot.once(_engine)
        known[key] = tuple(_selected(engine, device, request) for device in devices(snapshot)[:MAX_DEVICES])
    return tuple(_standing(verdict, request, held) for verdict in known[key])


def _memory(_: Snapshot) -> dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Verdict, ...]]:
    return {}


def _selected(engine: SelectorEngine | None, device: Device, request: ClaimRequest) -> Verdict:
    """What the selectors say; ``FREE`` where all are true."""
    for expression in request.class_selectors:
        verdict = _verdict(engine, expression, device)
        if verdict is not True:
            return Verdict(device, Stand.OTHER if verdict is False else Stand.UNJUDGED, selector=expression)
    for expression in request.selectors:
        verdict = _verdict(engine, expression, device)
        if verdict is None:
            return Verdict(device, Stand.UNJUDGED, "", expression)
        if isinstance(verdict, SelectorFault):
            return Verdict(device, Stand.ERROR, verdict.message, expression, key=verdict.missing)
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


def _verdict(engine: SelectorEngine | None, expression: str, device: Device) -> bool | SelectorFault | None:
    """True or False, or how the selector fails; None where it can't be judged here."""
    if engine is None:
        return None
    key = DeviceKey(device.driver, device.pool, device.name)
    found = engine.evaluate(expression, key, device.offered)
    return None if isinstance(found, SelectorFault) and found.compiling else found


def _engine(_: Snapshot) -> SelectorEngine | None:
    """None where CEL is not installed."""
    try:
        from kgpu.fit.devices.cel import CelSelectors
    except ImportError:
        return None
    return CelSelectors()
