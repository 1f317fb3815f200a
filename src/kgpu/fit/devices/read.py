"""From API dictionaries of resource.k8s.io (v1, v1beta2, v1beta1) to the views of ``kgpu.fit.devices.model``.

v1beta1 keeps a device's details in ``basic`` and has requests without ``exactly``. Defaults that the API server fills
in are filled in here. Hostile input gives a view, not an error; what could not be read is told in ``problems``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from kgpu.base.plain import items, mapping, number, text, texts
from kgpu.base.quantity import Quantity, QuantityError
from kgpu.fit.devices.model import (
    EXACT_COUNT,
    AttributeValue,
    CapacityPolicy,
    CapacityValue,
    ClaimDemand,
    ClassRules,
    ConfigView,
    ConstraintView,
    CounterUse,
    DeviceAsk,
    DeviceKey,
    DeviceSlice,
    NodeReach,
    RequestView,
    SliceDevice,
    TaintRule,
    TakenDevice,
)
from kgpu.fit.read import node_terms
from kgpu.fit.selectors import PodToleration, Taint

Object = Mapping[str, Any]
_KINDS: Final[Mapping[str, type]] = {"string": str, "int": int, "bool": bool, "version": str}


def quantity(value: Any) -> Quantity | None:
    """A quantity, or None for what is none."""
    if not isinstance(value, (str, int, float)):
        return None
    try:
        return Quantity.parse(value)
    except QuantityError:
        return None


def quantities(value: Any) -> dict[str, Quantity]:
    """A map of quantities, each alone or under ``value``; what is none is left out."""
    read = {name: quantity(mapping(said).get("value", said)) for name, said in mapping(value).items()}
    return {name: amount for name, amount in read.items() if amount is not None}


def device_slice(obj: Object) -> DeviceSlice | None:
    """A ResourceSlice from its API object; None without a name."""
    name = text(mapping(obj.get("metadata")).get("name"))
    spec = mapping(obj.get("spec"))
    pool = mapping(spec.get("pool"))
    if not name:
        return None
    per_device = spec.get("perDeviceNodeSelection")
    problems: list[str] = []
    return DeviceSlice(
        name=name,
        driver=text(spec.get("driver")),
        pool=text(pool.get("name")),
        generation=number(pool.get("generation")),
        slice_count=number(pool.get("resourceSliceCount"), 1),
        reach=_reach(spec),
        per_device=per_device if isinstance(per_device, bool) else None,
        devices=tuple(_device(mapping(entry), problems) for entry in items(spec.get("devices"))),
        counter_sets=tuple(
            (text(entry.get("name")), quantities(entry.get("counters")))
            for entry in map(mapping, items(spec.get("sharedCounters")))
        ),
        problems=tuple(problems),
    )


def _reach(value: Object) -> NodeReach:
    node_name, selector = value.get("nodeName"), value.get("nodeSelector")
    return NodeReach(
        node_name if isinstance(node_name, str) else None,
        value.get("allNodes") is True,
        node_terms(selector),
        selector if isinstance(selector, dict) else None,
    )


def _device(entry: Object, problems: list[str]) -> SliceDevice:
    basic = entry.get("basic")
    details = basic if isinstance(basic, dict) else entry
    name = text(entry.get("name"))
    capacity: dict[str, CapacityValue] = {}
    for key, said in mapping(details.get("capacity")).items():
        amount = quantity(mapping(said).get("value", said))
        if amount is None:
            problems.append(f"capacity {key} of device {name} is not a quantity")
        else:
            capacity[key] = CapacityValue(amount, _policy(mapping(said).get("requestPolicy")))
    return SliceDevice(
        name=name,
        attributes={key: _attribute(said) for key, said in mapping(details.get("attributes")).items()},
        capacity=capacity,
        taints=tuple(_taint(mapping(taint)) for taint in items(details.get("taints"))),
        consumes=tuple(
            CounterUse(text(use.get("counterSet")), quantities(use.get("counters")))
            for use in map(mapping, items(details.get("consumesCounters")))
        ),
        reach=_reach(details),
        shareable=details.get("allowMultipleAllocations") is True,
        binds_to_node=details.get("bindsToNode") is True,
        binding_conditions=_optional_texts(details.get("bindingConditions")),
        binding_failures=_optional_texts(details.get("bindingFailureConditions")),
    )


def _taint(value: Object) -> Taint:
    return Taint(text(value.get("key")), text(value.get("value")), text(value.get("effect")))


def taint_rule(obj: Object) -> TaintRule | None:
    """A DeviceTaintRule from its API object; None without a name."""
    name, spec = text(mapping(obj.get("metadata")).get("name")), mapping(obj.get("spec"))
    selector = spec.get("deviceSelector")
    wanted = {key: text(value) for key, value in mapping(selector).items() if key in ("driver", "pool", "device")}
    return (
        TaintRule(name, _taint(mapping(spec.get("taint"))), selects=isinstance(selector, dict), **wanted)
        if name
        else None
    )


def tainted(piece: DeviceSlice, rules: Iterable[TaintRule]) -> DeviceSlice:
    """The slice with the taints that rules give to its devices, behind their own."""
    mine = [rule for rule in rules if rule.concerns(DeviceKey(piece.driver, piece.pool, rule.device or ""))]
    if not mine:
        return piece
    devices = tuple(
        replace(
            device,
            taints=(*device.taints, *(rule.taint for rule in mine if rule.concerns(piece.device_key(device)))),
        )
        for device in piece.devices
    )
    return replace(piece, devices=devices)


def _optional_texts(value: Any) -> tuple[str, ...] | None:
    return texts(value) if isinstance(value, list) else None


def _attribute(said: Any) -> AttributeValue:
    for kind, wanted in _KINDS.items():
        value = mapping(said).get(kind)
        if isinstance(value, wanted) and (wanted is not int or not isinstance(value, bool)):
            return AttributeValue(kind, value)
    return AttributeValue("")


def _policy(said: Any) -> CapacityPolicy | None:
    if not isinstance(said, dict):
        return None
    ranged, values = said.get("validRange"), said.get("validValues")
    bounds = mapping(ranged)
    return CapacityPolicy(
        default=quantity(said.get("default")),
        ranged=isinstance(ranged, dict),
        minimum=quantity(bounds.get("min")),
        maximum=quantity(bounds.get("max")),
        step=quantity(bounds.get("step")),
        values=tuple(amount for value in values if (amount := quantity(value)) is not None)
        if isinstance(values, list)
        else None,
    )


def claim_demand(namespace: str, name: str, devices: Object, uid: str = "") -> ClaimDemand:
    """What a claim asks for, from its ``spec.devices``."""
    problems: list[str] = []
    return ClaimDemand(
        namespace=namespace,
        name=name,
        uid=uid,
        requests=tuple(_request(entry, problems) for entry in map(mapping, items(devices.get("requests")))),
        constraints=tuple(_constraint(entry) for entry in map(mapping, items(devices.get("constraints")))),
        configs=_configs(devices.get("config")),
        problems=tuple(problems),
    )


def _request(entry: Object, problems: list[str]) -> RequestView:
    name = text(entry.get("name"))
    choices = tuple(_ask(mapping(choice), None, problems) for choice in items(entry.get("firstAvailable")))
    if choices:
        return RequestView(name, None, choices)
    exactly = entry.get("exactly")
    if isinstance(exactly, dict):
        return RequestView(name, _ask(exactly, name, problems))
    # v1beta1, where the ask is the request itself.
    return RequestView(name, _ask(entry, name, problems))


def _ask(entry: Object, name: str | None, problems: list[str]) -> DeviceAsk:
    """``name`` is the request's; a choice has its own, and never admin access."""
    own = text(entry.get("name")) if name is None else name
    admin = entry.get("adminAccess") if name is not None else None
    requirements = entry.get("capacity")
    wanted = mapping(mapping(requirements).get("requests"))
    amounts = quantities(wanted)
    problems.extend(f"capacity {key} of request {own} is not a quantity" for key in wanted if key not in amounts)
    raw = tuple(map(mapping, items(entry.get("tolerations"))))
    return DeviceAsk(
        name=own,
        device_class=text(entry.get("deviceClassName")),
        selectors=_selectors(entry.get("selectors")),
        mode=text(entry.get("allocationMode")) or EXACT_COUNT,
        count=number(entry.get("count")) or 1,
        admin=admin if isinstance(admin, bool) else None,
        tolerations=tuple(
            PodToleration(*(text(toleration.get(key)) for key in ("key", "operator", "value", "effect")))
            for toleration in raw
        ),
        raw_tolerations=raw,
        capacity=amounts if isinstance(requirements, dict) else None,
    )


def _selectors(value: Any) -> tuple[str | None, ...]:
    return tuple(
        text(mapping(entry["cel"]).get("expression")) if isinstance(entry.get("cel"), dict) else None
        for entry in map(mapping, items(value))
    )


def _constraint(entry: Object) -> ConstraintView:
    match, distinct = entry.get("matchAttribute"), entry.get("distinctAttribute")
    return ConstraintView(
        frozenset(texts(entry.get("requests"))),
        match if isinstance(match, str) else None,
        distinct if isinstance(distinct, str) else None,
    )


def _configs(value: Any) -> tuple[ConfigView, ...]:
    return tuple(
        ConfigView(texts(entry.get("requests")), {key: said for key, said in entry.items() if key != "requests"})
        for entry in map(mapping, items(value))
    )


def class_rules(name: str, spec: Object) -> ClassRules:
    """A device class, from its ``spec``."""
    return ClassRules(name=name, selectors=_selectors(spec.get("selectors")), configs=_configs(spec.get("config")))


def taken_devices(claims: Iterable[Object]) -> tuple[TakenDevice, ...]:
    """The devices that claims hold by their ``status.allocation``. Admin access holds nothing."""
    return tuple(device for claim in claims for device in _taken(claim))


def _taken(claim: Object) -> Iterable[TakenDevice]:
    metadata = mapping(claim.get("metadata"))
    owner = f"{text(metadata.get('namespace')) or 'default'}/{text(metadata.get('name'))}"
    allocation = mapping(mapping(claim.get("status")).get("allocation"))
    for result in map(mapping, items(mapping(allocation.get("devices")).get("results"))):
        if result.get("adminAccess") is True:
            continue
        key = DeviceKey(text(result.get("driver")), text(result.get("pool")), text(result.get("device")))
        consumed = result.get("consumedCapacity")
        yield TakenDevice(
            key, owner, text(result.get("shareID")), quantities(consumed) if isinstance(consumed, dict) else None
        )
