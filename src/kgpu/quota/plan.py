"""Rows by namespace and resource, and what passes a namespace's quota by. Pure.

Of extended resources a quota counts keys with the prefix ``requests.`` alone, one for each resource name: those of MIG
slices and shares are others than ``nvidia.com/gpu``. Devices of claims are counted by device class
(``<class>.deviceclass.resource.k8s.io/devices``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kgpu.base.plain import mapping, text
from kgpu.base.quantity import NANO
from kgpu.fit import PodView, read
from kgpu.fit.devices.read import taken_devices
from kgpu.fit.model import ClaimView, NodeView, QuotaView
from kgpu.formats.accelerators import is_accelerator, vendor_of
from kgpu.quota.model import QuotaGap, QuotaRow

Object = Mapping[str, Any]
_REQUESTS: Final = "requests."
CLASS_KEY: Final = ".deviceclass.resource.k8s.io/devices"
READS: Final = (
    "Node", "Pod", "Namespace", "ResourceQuota", "LimitRange", "ResourceClaim", "DeviceClass", "ResourceSlice",
)  # fmt: skip
"""The kinds that matter."""


class QuotaBook:
    """What the objects say; made once for an answer."""

    def __init__(self, objects: Iterable[Object]) -> None:
        known = list(objects)
        views = read.views(known)
        self.quotas = [view for view in views if isinstance(view, QuotaView)]
        self.pods = [view for view in views if isinstance(view, PodView) and not view.terminal]
        self.claims = [view for view in views if isinstance(view, ClaimView)]
        nodes = [view for view in views if isinstance(view, NodeView)]
        self.offered = {
            name for node in nodes for name, many in node.allocatable.items() if many and is_accelerator(name)
        }
        self.classes = {
            text(mapping(obj.get("metadata")).get("name")) for obj in known if obj.get("kind") == "DeviceClass"
        } - {""}  # fmt: skip
        self.namespaces = {text(mapping(obj.get("metadata")).get("name")) for obj in known
                           if obj.get("kind") == "Namespace"} - {""}  # fmt: skip
        self.devices = _devices_by_claim(obj for obj in known if obj.get("kind") == "ResourceClaim")

    def spaces(self) -> set[str]:
        """Every namespace that is there, or that something is in."""
        spaces = self.namespaces | {quota.namespace for quota in self.quotas}
        return spaces | {pod.namespace for pod in self.pods} | {claim.namespace for claim in self.claims}


def _devices_by_claim(claims: Iterable[Object]) -> dict[tuple[str, str], int]:
    """How many devices each claim has."""
    found: dict[tuple[str, str], int] = {}
    for obj in claims:
        metadata = mapping(obj.get("metadata"))
        found[text(metadata.get("namespace")), text(metadata.get("name"))] = len(tuple(taken_devices((obj,))))
    return found


def rows(book: QuotaBook, namespace: str = "") -> tuple[QuotaRow, ...]:
    """All rows of accelerators, or those of one namespace, by namespace and resource."""
    spaces = sorted(book.spaces()) if not namespace else [namespace]
    return tuple(row for space in spaces for row in (*_by_resource(book, space), *_by_class(book, space)))


def _by_resource(book: QuotaBook, space: str) -> Iterator[QuotaRow]:
    held, waiting = Counter[str](), Counter[str]()
    for pod in book.pods:
        if pod.namespace == space:
            for name, many in (pod.used if pod.node else pod.requests).items():
                if is_accelerator(name) and many:
                    (held if pod.node else waiting)[name] += many
    counted = {key.removeprefix(_REQUESTS) for quota in _quotas(book, space) for key in quota.hard
               if key.startswith(_REQUESTS)}  # fmt: skip
    for name in sorted({*held, *waiting, *filter(is_accelerator, counted)}):
        key = _REQUESTS + name
        yield _row(book, space, name, key, (held[name], waiting[name]))


def _by_class(book: QuotaBook, space: str) -> Iterator[QuotaRow]:
    held, waiting = Counter[str](), Counter[str]()
    for claim in book.claims:
        if claim.namespace == space:
            devices = book.devices.get(claim.key, 0)
            for name in set(claim.classes.values()) - {""}:
                (held if claim.allocated else waiting)[name] += (devices or 1) if claim.allocated else 1
    counted = {key.removesuffix(CLASS_KEY) for quota in _quotas(book, space) for key in quota.hard
               if key.endswith(CLASS_KEY)}  # fmt: skip
    for name in sorted({*held, *waiting, *counted}):
        yield _row(book, space, f"{name} (claims)", name + CLASS_KEY, (held[name], waiting[name]))


def _quotas(book: QuotaBook, space: str) -> list[QuotaView]:
    return [quota for quota in book.quotas if quota.namespace == space]


def _row(book: QuotaBook, space: str, resource: str, key: str, many: tuple[int, int]) -> QuotaRow:
    """The quota that leaves least is the one that counts. ``many``: held, and waited for."""
    limits = [quota for quota in _quotas(book, space) if key in quota.hard]
    tight = min(limits, key=lambda quota: (quota.hard[key] - quota.used.get(key, 0), quota.name), default=None)
    return QuotaRow(
        namespace=space, resource=resource, key=key, held=many[0], waiting=many[1],
        hard=tight.hard[key] // NANO if tight else None,
        used=tight.used.get(key, 0) // NANO if tight else None,
        quota=tight.name if tight else "",
    )  # fmt: skip


def gaps(book: QuotaBook, namespace: str = "") -> tuple[QuotaGap, ...]:
    """What of the cluster passes by the quotas of namespaces that count some accelerators."""
    found: list[QuotaGap] = []
    for space in sorted({quota.namespace for quota in book.quotas if not namespace or quota.namespace == namespace}):
        quotas = _quotas(book, space)
        keys = {key for quota in quotas for key in quota.hard}
        counted = {key.removeprefix(_REQUESTS) for key in keys if key.startswith(_REQUESTS)}
        vendors = {vendor_of(name) for name in counted} - {""}
        if vendors:
            name = next(quota.name for quota in quotas if any(map(is_accelerator, _bare(quota))))
            found += _resources_past(book, space, name, counted, vendors)
            found += _classes_past(book, space, name, keys)
    return tuple(found)


def _bare(quota: QuotaView) -> list[str]:
    return [key.removeprefix(_REQUESTS) for key in quota.hard if key.startswith(_REQUESTS)]


def _resources_past(
    book: QuotaBook, space: str, quota: str, counted: set[str], vendors: set[str]
) -> Iterator[QuotaGap]:  # fmt: skip
    for name in sorted(book.offered - counted):
        if vendor_of(name) in vendors:
            what = f"nodes offer {name}, which the namespace's quotas do not count"
            yield QuotaGap(namespace=space, quota=quota, resource=name, key=_REQUESTS + name, what=what)


def _classes_past(book: QuotaBook, space: str, quota: str, keys: set[str]) -> Iterator[QuotaGap]:
    for name in sorted(book.classes):
        if name + CLASS_KEY not in keys:
            what = f"claims of device class {name} are counted by no quota of the namespace"
            yield QuotaGap(namespace=space, quota=quota, resource=name, key=name + CLASS_KEY, what=what)
