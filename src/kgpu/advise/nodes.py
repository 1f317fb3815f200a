"""What a Node object tells of its GPUs, read from labels and capacity. Pure.

Anybody may have written a label: a value that can't be one counts as absent, and nothing here raises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kgpu.advise.model import ModelOnNode, ResourceShares, SharingWay, Version
from kgpu.base.plain import mapping, strings, text
from kgpu.base.printable import one_line
from kgpu.formats import names
from kgpu.formats.mig_geometry import geometry_of
from kgpu.formats.product_label import gpu_product
from kgpu.formats.support import parse

MAX_VALUE: Final = 63
"""The most characters of a label's value (Kubernetes), and of a name that is shown."""
_DIGITS: Final = 5
_STRATEGIES: Final = ("single", "mixed")
_MODEL_COUNT: Final = (names.KGPU_LABEL_MODEL_PREFIX, names.LABEL_COUNT)


def gpus_of(node: Mapping[str, Any]) -> Iterator[ModelOnNode]:
    """The NVIDIA GPUs of a node, one entry for each model; none for a node that is not known to have any."""
    labels = strings(mapping(node.get("metadata")).get("labels"))
    status = mapping(node.get("status"))
    offered = _offered(mapping(status.get("capacity")))
    product = labels.get(names.LABEL_GPU_PRODUCT, "")
    if not (product or offered or any(labels.get(key) == "true" for key in names.NFD_PCI_NVIDIA)):
        return
    models = tuple(_models(labels))
    common: dict[str, Any] = {
        "node": one_line(text(mapping(node.get("metadata")).get("name")), 253),
        "mig_capable": {"true": True, "false": False}.get(labels.get(names.LABEL_MIG_CAPABLE, "")),
        "mig_strategy": _one_of(labels.get(names.LABEL_MIG_STRATEGY, ""), _STRATEGIES),
        "offered": offered,
        "shares": tuple(_shares(labels)),
        "driver": parse(labels.get(names.LABEL_CUDA_DRIVER_VERSION_FULL, "")),
        "kubelet": parse(text(mapping(status.get("nodeInfo")).get("kubeletVersion"))),
    }
    if len(models) > 1:
        for key, count in models:
            compute = _compute(labels, names.KGPU_LABEL_MODEL_PREFIX + key)
            yield _own(
                ModelOnNode(product=one_line(key, MAX_VALUE), count=count, compute=compute, beside=True, **common)
            )
        return
    name, slices = _model(product)
    yield ModelOnNode(
        product=name, count=_number(labels.get(names.LABEL_GPU_COUNT, "")), slices=slices,
        compute=_compute(labels, names.GPU_RESOURCE), **common,
    )  # fmt: skip


def _own(gpus: ModelOnNode) -> ModelOnNode:
    """Without the slices that only another model of the node can have."""
    geometry = geometry_of(gpus.product)
    rows = geometry.rows if geometry is not None else ()
    mine = {names.MIG_RESOURCE_PREFIX + row.name.replace("+", ".") for row in rows}

    def can_be(resource: str) -> bool:
        return not resource.startswith(names.MIG_RESOURCE_PREFIX) or resource.removesuffix(names.SHARED_SUFFIX) in mine

    return dataclasses.replace(
        gpus,
        offered=tuple(row for row in gpus.offered if can_be(row[0])),
        shares=tuple(row for row in gpus.shares if can_be(row.resource)),
    )


def _model(product: str) -> tuple[str, str]:
    """The model behind a product's label, and the profile of the slices that it stands for."""
    found = gpu_product(one_line(product, MAX_VALUE))
    return found.model, found.profile


def _models(labels: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """The models of a node with several, each with its number of GPUs."""
    start, end = _MODEL_COUNT
    for key in sorted(labels):
        if key.startswith(start) and key.endswith(end) and len(key) > len(start) + len(end):
            yield key[len(start) : -len(end)], _number(labels[key])


def _shares(labels: Mapping[str, str]) -> Iterator[ResourceShares]:
    for key in sorted(labels):
        resource = key.removesuffix(names.LABEL_SHARING_STRATEGY)
        if resource == key or not _is_ours(resource):
            continue
        way = {"time-slicing": SharingWay.TIME_SLICING, "mps": SharingWay.MPS}.get(labels[key])
        if way is not None:
            replicas = _number(labels.get(resource + names.LABEL_REPLICAS, ""))
            yield ResourceShares(resource=one_line(resource, MAX_VALUE), way=way, replicas=replicas)


def _offered(capacity: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    found = ((str(name), _number(str(amount))) for name, amount in capacity.items() if _is_ours(str(name)))
    return tuple(sorted((one_line(name, MAX_VALUE), amount) for name, amount in found if amount))


def _is_ours(resource: str) -> bool:
    whole = {names.GPU_RESOURCE, names.GPU_RESOURCE + names.SHARED_SUFFIX}
    return resource in whole or resource.startswith(names.MIG_RESOURCE_PREFIX)


def _compute(labels: Mapping[str, str], prefix: str) -> Version:
    """The compute capability as (major, minor); () where there is none, or none that is two numbers."""
    parts = [labels.get(prefix + end, "") for end in (names.LABEL_COMPUTE_MAJOR, names.LABEL_COMPUTE_MINOR)]
    return tuple(map(int, parts)) if all(map(_is_number, parts)) else ()


def _one_of(value: str, known: tuple[str, ...]) -> str:
    return value if value in known else ""


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdecimal() and len(value) <= _DIGITS


def _number(value: str) -> int:
    return int(value) if _is_number(value) else 0
