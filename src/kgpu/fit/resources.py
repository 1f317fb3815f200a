"""How much a pod asks for and takes: containers, init containers, sidecars, overhead, pod-level resources, resizes.

Sums are exact and rounded up once at the end, as the scheduler does: cpu to thousandths of a core, everything else to
whole units. What is not a quantity counts as nothing and is listed in ``problems``. Rules: component-helpers' resource
package, API defaults of requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from kgpu.base.plain import items, mapping, text
from kgpu.base.quantity import NANO, Quantity, QuantityError
from kgpu.fit.model import CPU, MEMORY, PODS, STORAGE

Nanos: TypeAlias = dict[str, int]
"""Amounts by resource in billionths, exact."""

_MILLI: Final = NANO // 1000
_POD_LEVEL: Final = frozenset({CPU, MEMORY})
_LIMITED: Final = (CPU, MEMORY, STORAGE)
_HUGE_PAGES: Final = "hugepages-"
# What scores count for a container that asks for none.
_FLOOR: Final = {CPU: NANO // 10, MEMORY: 200 * 1024 * 1024 * NANO}


def nanos(value: Any, problems: list[str], where: str = "") -> Nanos:
    """A resource list in billionths."""
    exact: Nanos = {}
    for name, amount in mapping(value).items():
        try:
            exact[str(name)] = Quantity.parse(amount if isinstance(amount, (str, int, float)) else str(amount)).nanos
        except QuantityError as error:
            problems.append(f"{where}{name}: {error.reason}")
    return exact


def amounts(exact: Mapping[str, int]) -> dict[str, int]:
    """As the scheduler counts: rounded up, cpu in thousandths; resources that it does not know are left out."""
    return {name: -(-value // (_MILLI if name == CPU else NANO)) for name, value in exact.items() if is_counted(name)}


def is_counted(name: str) -> bool:
    """True for what the scheduler compares at all: the four basic ones, and names with a domain or a known prefix."""
    if name in (CPU, MEMORY, PODS, STORAGE):
        return True
    if name.startswith((_HUGE_PAGES, "attachable-volumes-")):
        return True
    return "/" in name and not name.startswith("requests.")


def pod_requests(spec: Mapping[str, Any], problems: list[str]) -> Nanos:
    """What a pod asks for that is to be placed."""
    return _total(spec, {}, problems, floor=False, infeasible=False)


def pod_used(spec: Mapping[str, Any], status: Mapping[str, Any], problems: list[str]) -> Nanos:
    """What a bound pod takes: the larger of what it asks for and what its containers have."""
    conditions = [mapping(item) for item in items(status.get("conditions"))]
    pending = next((item for item in conditions if item.get("type") == "PodResizePending"), {})
    statuses = {
        text(item.get("name")): item
        for key in ("containerStatuses", "initContainerStatuses")
        for item in map(mapping, items(status.get(key)))
    }
    return _total(spec, statuses, problems, floor=False, infeasible=pending.get("reason") == "Infeasible")


def pod_nonzero(spec: Mapping[str, Any], problems: list[str]) -> Nanos:
    """Cpu and memory with the floor for containers that ask for none."""
    requests = _total(spec, {}, problems, floor=True, infeasible=False)
    return {name: requests.get(name, 0) for name in _FLOOR}


def _total(
    spec: Mapping[str, Any], statuses: Mapping[str, Mapping[str, Any]], problems: list[str], *, floor: bool,
    infeasible: bool,
) -> Nanos:  # fmt: skip
    def requests_of(container: Mapping[str, Any], *, resized: bool) -> Nanos:
        requests = container_requests(container, problems)
        if resized:
            requests = _effective(
                requests, statuses.get(text(container.get("name")), {}), problems, infeasible=infeasible
            )
        return {**_FLOOR, **requests} if floor else requests

    running: Nanos = {}
    for container in map(mapping, items(spec.get("containers"))):
        _add(running, requests_of(container, resized=True))
    sidecars: Nanos = {}
    starting: Nanos = {}
    for container in map(mapping, items(spec.get("initContainers"))):
        stays = container.get("restartPolicy") == "Always"
        own = requests_of(container, resized=stays)
        if stays:
            _add(running, own)
            _add(sidecars, own)
            _raise(starting, sidecars)
        else:
            _add(own, sidecars)
            _raise(starting, own)
    _raise(running, starting)
    running.update(_pod_level(mapping(spec.get("resources")), running, problems))
    _add(running, nanos(spec.get("overhead"), problems, "spec.overhead."))
    return running


def pod_limits(spec: Mapping[str, Any]) -> Nanos:
    """What limits of cpu, memory and ephemeral storage add up to, as quotas count them."""
    limited = {
        **spec,
        **{field: [_only_limits(row) for row in map(mapping, items(spec.get(field)))]
           for field in ("containers", "initContainers")},
        "resources": {"requests": mapping(mapping(spec.get("resources")).get("limits"))}, "overhead": {},
    }  # fmt: skip
    found = _total(limited, {}, [], floor=False, infeasible=False)
    overhead = nanos(spec.get("overhead"), [])
    return {name: found[name] + overhead.get(name, 0) for name in _LIMITED if name in found}


def _only_limits(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**container, "resources": {"requests": mapping(mapping(container.get("resources")).get("limits"))}}


def unsaid(spec: Mapping[str, Any]) -> frozenset[str]:
    """Requests and limits of cpu and memory that a container leaves out, as ``requests.cpu``; none where the pod has
    amounts of its own. A limit stands in for a missing request.
    """
    if mapping(spec.get("resources")):
        return frozenset()
    found: set[str] = set()
    for container in (*items(spec.get("containers")), *items(spec.get("initContainers"))):
        resources = mapping(mapping(container).get("resources"))
        limits = mapping(resources.get("limits"))
        said = {"limits": limits, "requests": {**limits, **mapping(resources.get("requests"))}}
        found |= {f"{kind}.{name}" for kind, amounts in said.items() for name in _POD_LEVEL if name not in amounts}
    return frozenset(found)


def container_requests(container: Mapping[str, Any], problems: list[str]) -> Nanos:
    """One container's requests; a limit stands in for a missing request, as the API server fills it in."""
    resources = mapping(container.get("resources"))
    where = f"container {text(container.get('name'))}: resources."
    limits = nanos(resources.get("limits"), problems, f"{where}limits.")
    return {**limits, **nanos(resources.get("requests"), problems, f"{where}requests.")}


def _pod_level(resources: Mapping[str, Any], containers: Nanos, problems: list[str]) -> Nanos:
    """The pod's own requests for cpu, memory and huge pages, which replace the containers' sum."""
    limits = nanos(resources.get("limits"), problems, "spec.resources.limits.")
    requests = nanos(resources.get("requests"), problems, "spec.resources.requests.")
    for name, limit in limits.items():
        requests.setdefault(name, containers.get(name, limit) if name in _POD_LEVEL else limit)
    return {name: value for name, value in requests.items() if name in _POD_LEVEL or name.startswith(_HUGE_PAGES)}


def _effective(spec: Nanos, status: Mapping[str, Any], problems: list[str], *, infeasible: bool) -> Nanos:
    if not status.get("resources"):
        return spec
    effective = {} if infeasible else dict(spec)
    _raise(effective, nanos(mapping(status.get("resources")).get("requests"), problems, "status."))
    _raise(effective, nanos(status.get("allocatedResources"), problems, "status."))
    return effective


def _add(into: Nanos, more: Mapping[str, int]) -> None:
    for name, value in more.items():
        into[name] = into.get(name, 0) + value


def _raise(into: Nanos, floor: Mapping[str, int]) -> None:
    for name, value in floor.items():
        if value > into.get(name, -1):
            into[name] = value


def say(name: str, amount: int) -> str:
    """An amount as people write it: ``500m``, ``4Gi``, ``2``."""
    if name == CPU:
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if name in (MEMORY, STORAGE) or name.startswith(_HUGE_PAGES):
        return _binary(amount)
    return str(amount)


def _binary(amount: int) -> str:
    for suffix, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if amount and amount % size == 0:
            return f"{amount // size}{suffix}"
        if abs(amount) >= 10 * size:
            return f"{amount / size:.1f}{suffix}"
    return str(amount)


def sum_amounts(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of several amounts."""
    total: dict[str, int] = {}
    for part in parts:
        _add(total, part)
    return total
