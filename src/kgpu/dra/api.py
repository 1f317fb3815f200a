"""What the API server takes of a ResourceSlice: versions of the API, limits, and its rules. Pure.

The rules are Kubernetes' own validation of ``resource.k8s.io``. A slice is checked by them before it is sent, because
one that is refused leaves the node without devices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import ConfigError, KubeError
from kgpu.base.quantity import Quantity, QuantityError
from kgpu.base.suggest import did_you_mean
from kgpu.kube.port import KubeDiscovery, Object, Resource

DRA_GROUP: Final = "resource.k8s.io"
API_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
MAX_DEVICES: Final = 128
MAX_DEVICES_WITH_MORE: Final = 64
"""Where a device of the slice has a taint or consumes counters."""
MAX_COUNTER_SETS: Final = 8
MAX_COUNTERS: Final = 32
MAX_CONSUMPTIONS: Final = 2
MAX_FACTS: Final = 32
"""Attributes and capacities of a device together."""
MAX_TEXT: Final = 64
MAX_TAINTS: Final = 16
MAX_OLD_TAINTS: Final = 4
OLDEST: Final = (1, 32)
SPLIT: Final = (1, 35)
"""Since then a slice has either devices or counters, and a taint may have no effect."""

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*", re.ASCII)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}", re.ASCII)
_KEY: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_SEMVER: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_VALUES: Final = frozenset({"string", "version", "int", "bool"})
_MAX_NAME: Final = 253
_MAX_DOMAIN: Final = 63
_PLACES: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraApi:
    """How an API server has ResourceSlices: the version of the group, and that of Kubernetes.

    ``taints`` and ``counters`` are False for a server that drops these fields, because a feature gate of it is off.
    """

    version: str = "v1"
    kubernetes: tuple[int, int] = SPLIT
    taints: bool = True
    counters: bool = True

    @property
    def resource(self) -> Resource:
        """ResourceSlices in this version."""
        return Resource(DRA_GROUP, self.version, "resourceslices", "ResourceSlice", namespaced=False)

    @property
    def claims(self) -> Resource:
        """The kind of claims, in the same version."""
        return Resource(DRA_GROUP, self.version, "resourceclaims", "ResourceClaim")

    @property
    def split(self) -> bool:
        """Whether counters are in slices of their own."""
        return self.kubernetes >= SPLIT

    @property
    def seen_taints(self) -> bool:
        """Whether a taint may have no effect."""
        return self.kubernetes >= SPLIT

    @property
    def max_taints(self) -> int:
        """The most taints of one device."""
        return MAX_TAINTS if self.kubernetes >= SPLIT else MAX_OLD_TAINTS


def read_api(version: str, kubernetes: str) -> DraApi:
    """From ``v1`` and ``1.35``. Raises ConfigError."""
    if version not in API_VERSIONS:
        hint = did_you_mean(version, API_VERSIONS)
        raise ConfigError(
            f'{DRA_GROUP} has no version "{version}"' + (f"; {hint}" if hint else ""),
            f"one of: {', '.join(API_VERSIONS)}", "choose one of them",
        )  # fmt: skip
    found = re.fullmatch(r"v?([0-9]{1,3})\.([0-9]{1,3})(?:[.+-].*)?", kubernetes, re.ASCII)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise ConfigError(
            f'"{kubernetes}" is no version of Kubernetes that publishes devices so',
            f"{OLDEST[0]}.{OLDEST[1]} or later, such as 1.35", "correct it, or leave it out",
        )  # fmt: skip
    return DraApi(version=version, kubernetes=(int(found[1]), int(found[2])))


async def served_api(discovery: KubeDiscovery) -> DraApi:
    """How the API server has ResourceSlices. Raises KubeError, also where it has none."""
    served = await discovery.discover()
    wanted = [one for one in served.resources if (one.group, one.plural) == (DRA_GROUP, "resourceslices")]
    version = next((name for name in API_VERSIONS for one in wanted if one.version == name), "")
    if version:
        return DraApi(version=version, kubernetes=served.version)
    major, minor = served.version
    raise KubeError(
        f"the API server, of Kubernetes {major}.{minor}, has no ResourceSlices in a version that kgpu knows",
        f"{DRA_GROUP} in one of: {', '.join(API_VERSIONS)}",
        "upgrade to Kubernetes 1.34 or later, or turn the feature gate DynamicResourceAllocation and the API group on",
    )


def problems(slices: Iterable[Object], api: DraApi) -> list[str]:
    """What the API server would refuse of a pool's slices, and what would make its scheduler ignore the pool."""
    slices = list(slices)
    found = [f"{one['metadata'].get('name', '')}: {what}" for one in slices for what in _slice(one, api)]
    return [*found, *_pool(slices)]


def bare(device: Object) -> Object:
    """The device's own fields, which are in ``basic`` in v1beta1."""
    return device["basic"] if isinstance(device.get("basic"), dict) else device


def _pool(slices: list[Object]) -> Iterator[str]:
    """Rules about all slices of one pool together."""
    devices = [device for one in slices for device in one["spec"].get("devices") or ()]
    sets = [one for each in slices for one in each["spec"].get("sharedCounters") or ()]
    for kind, names in (("device", (one["name"] for one in devices)), ("counter set", (one["name"] for one in sets))):
        yield from (f"the pool has {n} of {kind} {name}" for name, n in Counter(names).items() if n > 1)
    counters = {one["name"]: set(one["counters"]) for one in sets}
    for device in devices:
        for taken in bare(device).get("consumesCounters") or ():
            missing = set(taken["counters"]) - counters.get(taken["counterSet"], set())
            if missing:
                yield f"{device['name']} consumes {', '.join(sorted(missing))}, which {taken['counterSet']} has not"
    pools = [one["spec"]["pool"] for one in slices]
    if any(pool["resourceSliceCount"] != len(slices) for pool in pools):
        yield f"resourceSliceCount is not {len(slices)} everywhere"
    if len({(pool["name"], pool["generation"]) for pool in pools}) > 1:
        yield "the slices are of several pools or generations"


def _slice(one: Object, api: DraApi) -> Iterator[str]:
    spec = one["spec"]
    name = one["metadata"].get("name", "")
    if len(name) > _MAX_NAME or not _SUBDOMAIN.fullmatch(name):
        yield f"metadata.name {name!r} is no DNS subdomain"
    if len(spec["driver"]) > _MAX_DOMAIN or not _SUBDOMAIN.fullmatch(spec["driver"]):
        yield f"spec.driver {spec['driver']!r} is no DNS subdomain of at most {_MAX_DOMAIN} characters"
    for path in ("pool.name", "nodeName"):
        value = spec["pool"]["name"] if path == "pool.name" else spec.get("nodeName", "")
        if len(value) > _MAX_NAME or not _SUBDOMAIN.fullmatch(value):
            yield f"spec.{path} {value!r} is no DNS subdomain"
    if spec["pool"]["resourceSliceCount"] < 1 or spec["pool"]["generation"] < 0:
        yield "spec.pool has no positive count, or a negative generation"
    if sum(1 for field in _PLACES if spec.get(field)) != 1:
        yield f"spec has not exactly one of {', '.join(_PLACES)}"
    devices, sets = spec.get("devices") or [], spec.get("sharedCounters") or []
    if api.split and "devices" in spec and "sharedCounters" in spec:
        yield "spec has both devices and sharedCounters"
    more = any(bare(device).get("taints") or bare(device).get("consumesCounters") for device in devices)
    most = MAX_DEVICES_WITH_MORE if more else MAX_DEVICES
    if len(devices) > most:
        yield f"spec.devices has {len(devices)}, more than {most}"
    if len(sets) > MAX_COUNTER_SETS:
        yield f"spec.sharedCounters has {len(sets)}, more than {MAX_COUNTER_SETS}"
    if not api.split and sum(len(one["counters"]) for one in sets) > MAX_COUNTERS:
        yield f"spec.sharedCounters has more than {MAX_COUNTERS} counters in all"
    for counter_set in sets:
        yield from _counters(f"counter set {counter_set['name']}", counter_set["name"], counter_set["counters"])
    for device in devices:
        yield from (f"device {device['name']}: {what}" for what in _device(device, api))


def _counters(at: str, name: str, counters: Object) -> Iterator[str]:
    if not _LABEL.fullmatch(name):
        yield f"{at}: {name!r} is no DNS label"
    if not 0 < len(counters) <= MAX_COUNTERS:
        yield f"{at}: {len(counters)} counters, not 1 to {MAX_COUNTERS}"
    yield from (f"{at}: {counter!r} is no DNS label" for counter in counters if not _LABEL.fullmatch(counter))
    yield from (f"{at}: {counter} is no quantity" for counter, one in counters.items() if not _is_amount(one))


def _device(device: Object, api: DraApi) -> Iterator[str]:
    body = bare(device)
    if not _LABEL.fullmatch(device["name"]):
        yield "its name is no DNS label"
    if (api.version == "v1beta1") != ("basic" in device):
        yield "basic is of v1beta1, and only of that"
    attributes, capacity = body.get("attributes") or {}, body.get("capacity") or {}
    if len(attributes) + len(capacity) > MAX_FACTS:
        yield f"{len(attributes) + len(capacity)} attributes and capacities, more than {MAX_FACTS}"
    yield from (f"{name!r} is no name" for name in (*attributes, *capacity) if not _is_qualified(name))
    yield from (f"attribute {name}: {what}" for name, one in attributes.items() if (what := _attribute(one)))
    yield from (f"capacity {name} is no quantity" for name, one in capacity.items() if not _is_amount(one))
    taints = body.get("taints") or ()
    if len(taints) > api.max_taints:
        yield f"{len(taints)} taints, more than {api.max_taints}"
    yield from (what for one in taints if (what := _taint(one, api)))
    consumed = body.get("consumesCounters") or ()
    if len(consumed) > MAX_CONSUMPTIONS or len({one["counterSet"] for one in consumed}) < len(consumed):
        yield f"it consumes of more than {MAX_CONSUMPTIONS} counter sets, or of one twice"
    for one in consumed:
        yield from _counters("consumesCounters", one["counterSet"], one["counters"])


def _attribute(one: Object) -> str:
    if len(one) != 1 or not set(one) <= _VALUES:
        return "not exactly one value"
    ((kind, value),) = one.items()
    if kind in {"string", "version"} and len(value.encode()) > MAX_TEXT:
        return f"longer than {MAX_TEXT} bytes"
    return "no semver" if kind == "version" and not _SEMVER.fullmatch(value) else ""


def _taint(one: Object, api: DraApi) -> str:
    prefix, slash, key = one["key"].rpartition("/")
    if not _KEY.fullmatch(key) or (slash and not _SUBDOMAIN.fullmatch(prefix)):
        return f"taint {one['key']!r} is no label key"
    if one.get("value") and not _KEY.fullmatch(one["value"]):
        return f"taint {one['key']}: {one['value']!r} is no label value"
    effects = {"NoSchedule", "NoExecute"} | ({"None"} if api.seen_taints else set())
    return "" if one["effect"] in effects else f"taint {one['key']}: no effect {one['effect']!r}"


def _is_qualified(name: str) -> bool:
    """``identifier`` or ``domain/identifier``, with an identifier of C."""
    domain, slash, identifier = name.rpartition("/")
    legal = not slash or (len(domain) <= _MAX_DOMAIN and _SUBDOMAIN.fullmatch(domain) is not None)
    return legal and _IDENTIFIER.fullmatch(identifier) is not None


def _is_amount(one: Any) -> bool:
    try:
        Quantity.parse(one["value"])
    except (QuantityError, KeyError, TypeError):
        return False
    return True
