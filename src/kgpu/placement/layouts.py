"""What a node offers after another MIG layout or another number of shares: names and counts of its resources. Pure.

Counts come from the model's own geometry (``kgpu.formats.mig_geometry``), names from the node's MIG strategy and its
sharing labels, as the device plugin offers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.fit.model import NodeView
from kgpu.formats import names
from kgpu.formats.accelerators import is_accelerator, vendor_of
from kgpu.formats.mig_geometry import Geometry, InstanceProfile, find, fits, geometry_of
from kgpu.formats.mig_profile import parse_mig_profile, parse_mig_resource
from kgpu.formats.product_label import GpuProduct, gpu_product

OFF: Final = ("all-disabled", "disabled")
BALANCED: Final = "all-balanced"
_ALL: Final = "all-"
_SINGLE: Final = "single"
MAX_REPLICAS: Final = 1000


def cards_of(node: NodeView) -> int:
    """The GPUs of a node: by its labels, else by what it has of whole ones, shares taken together; 0 if unknown."""
    labelled = _digits(node.labels.get(names.LABEL_GPU_COUNT, ""))
    if labelled:
        return labelled // _slices_each(node)  # under strategy single the label counts slices
    had = {name: amount for name, amount in node.capacity.items() if _is_whole(name)}
    return max(had.values(), default=0) // _shares_of(node, names.GPU_RESOURCE)


def _slices_each(node: NodeView) -> int:
    """Of how many slices each GPU is, where the labels are about slices."""
    product = gpu_product(node.labels.get(names.LABEL_GPU_PRODUCT, ""))
    geometry = geometry_of(product.model) if product.profile else None
    row = find(geometry, parse_mig_resource(product.profile)) if geometry is not None else None
    return row.count if row is not None else 1


def _is_whole(resource: str) -> bool:
    plain = resource.removesuffix(names.SHARED_SUFFIX)
    return is_accelerator(resource) and not plain.startswith(names.MIG_RESOURCE_PREFIX)


def _digits(value: str) -> int:
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 5 else 0


def cut(node: NodeView, layout: str) -> NodeView:
    """The node with all its GPUs cut so, its labels about them as discovery writes them. Raises ConfigError."""
    cards, product = cards_of(node), gpu_product(node.labels.get(names.LABEL_GPU_PRODUCT, ""))
    if not cards:
        raise ConfigError(
            f"nobody says how many GPUs node {node.name} has", f"label {names.LABEL_GPU_COUNT}, or GPUs that it offers",
            "see whether its labels are there: kubectl describe node",
        )  # fmt: skip
    if layout in OFF:
        return _offering(node, {names.GPU_RESOURCE: cards}, GpuProduct(product.model), cards)
    geometry = geometry_of(product.model)
    if geometry is None:
        raise ConfigError(
            f"node {node.name} has {one_line(product.model, 80) or 'GPUs of an unknown model'}, of which no MIG "
            "geometry is known", "a model with MIG",
            f"see what its GPUs can do: kgpu advise sharing --node {node.name}",
        )  # fmt: skip
    slices = _slices(layout, geometry, product.model)
    if node.labels.get(names.LABEL_MIG_STRATEGY, _SINGLE) != _SINGLE:
        offered = {names.MIG_RESOURCE_PREFIX + name: cards * count for name, count in slices.items()}
        return _offering(node, offered, GpuProduct(product.model), cards)
    if len(slices) > 1:
        raise ConfigError(
            f"node {node.name} has MIG strategy single, which offers nothing where slices differ", "one profile, or "
            "strategy mixed", f"take one profile, such as all-{next(iter(slices))}",
        )  # fmt: skip
    ((profile, count),) = slices.items()
    return _offering(
        node, {names.GPU_RESOURCE: cards * count}, GpuProduct(product.model, profile), cards * count
    )  # fmt: skip


def _slices(layout: str, geometry: Geometry, product: str) -> dict[str, int]:
    """By profile as resources have it, how many on one GPU."""
    if layout == BALANCED:
        return _balanced(geometry)
    wanted: dict[str, int] = {}
    rows: list[InstanceProfile] = []
    for part in layout.removeprefix(_ALL).split(","):
        row, count = _slice(part, geometry, product)
        rows += [row] * count
        wanted[parse_mig_profile(row.name).resource_form] = count
    if not fits(geometry, rows):
        raise ConfigError(
            f"{one_line(layout, 80)} does not fit one {one_line(product, 80)}", "profiles that fit a GPU together",
            "take fewer, or see what fits: kgpu mig generate",
        )  # fmt: skip
    return wanted


def _slice(part: str, geometry: Geometry, product: str) -> tuple[InstanceProfile, int]:
    """A profile, and how many of it: as many as a GPU takes where the part does not say."""
    name, _, count = part.partition(":")
    row = find(geometry, parse_mig_resource(name))
    if row is None:
        known = ", ".join(row.name for row in geometry.rows)
        raise ConfigError(
            f"{one_line(product, 80)} has no profile {one_line(name, 40)}", f"one of {known}", "correct --mig"
        )
    many = row.count if not count else int(count) if count.isascii() and count.isdecimal() and len(count) < 3 else 0
    if not 0 < many <= row.count:
        raise ConfigError(
            f"{one_line(count, 20)} slices of {row.name} don't fit a GPU", f"1 to {row.count}", "correct --mig"
        )
    return row, many


def _balanced(geometry: Geometry) -> dict[str, int]:
    """Two slices of the smallest profile, one of each of two and three compute slices, as far as there are such."""
    plain = {row.slices: row.name for row in reversed(geometry.rows) if not any(sign in row.name for sign in "+-")}
    smallest = {geometry.smallest.slices: geometry.smallest.name}
    names_by_slices = {**plain, **smallest}
    return {names_by_slices[slices]: count for slices, count in ((1, 2), (2, 1), (3, 1)) if slices in names_by_slices}


def shared(node: NodeView, replicas: int) -> NodeView:
    """The node with so many shares of each of NVIDIA's devices. Raises ConfigError."""
    if not 1 <= replicas <= MAX_REPLICAS:
        raise ConfigError(f"{replicas} shares of a device", f"1 to {MAX_REPLICAS}", "correct --replicas")
    had = {name: amount for name, amount in node.allocatable.items() if vendor_of(name) == names.NVIDIA and amount}
    if not had:
        raise ConfigError(
            f"node {node.name} offers no GPUs that can be offered several times", "GPUs of NVIDIA, or slices of them",
            "correct --replicas",
        )  # fmt: skip
    offered = {
        (name if replicas > 1 else name.removesuffix(names.SHARED_SUFFIX)): (
            amount // _shares_of(node, name.removesuffix(names.SHARED_SUFFIX)) * replicas
        )
        for name, amount in had.items()
    }
    product = gpu_product(node.labels.get(names.LABEL_GPU_PRODUCT, ""))
    renamed = any(name.endswith(names.SHARED_SUFFIX) for name in offered)
    after = _offering(node, offered, product._replace(shared=replicas > 1 and not renamed))
    plain = (name.removesuffix(names.SHARED_SUFFIX) for name in offered)
    return replace(after, labels={**after.labels, **{name + names.LABEL_REPLICAS: str(replicas) for name in plain}})


def _shares_of(node: NodeView, resource: str) -> int:
    return _digits(node.labels.get(resource + names.LABEL_REPLICAS, "")) or 1


def _offering(node: NodeView, offered: Mapping[str, int], product: GpuProduct, count: int | None = None) -> NodeView:
    """The node with these of NVIDIA's resources instead of those that it has."""

    def without(amounts: Mapping[str, int]) -> dict[str, int]:
        return {name: amount for name, amount in amounts.items() if vendor_of(name) != names.NVIDIA}

    labels = {**node.labels, **({names.LABEL_GPU_PRODUCT: str(product)} if product.model else {})}
    if count is not None and names.LABEL_GPU_COUNT in labels:
        labels[names.LABEL_GPU_COUNT] = str(count)
    return replace(
        node, labels=labels, allocatable={**without(node.allocatable), **offered},
        capacity={**without(node.capacity), **offered},
    )  # fmt: skip
