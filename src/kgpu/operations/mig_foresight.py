"""What a MIG config would make of a node, told before its label is set, as far as the API server knows the node. Pure.

The GPUs are known by the Node's labels alone: how many there are and of which model. Which of them is cut how, and
which pod holds which, only the node's agent knows; where the config concerns all GPUs that makes no difference.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.plain import mapping, strings
from kgpu.formats import names, yaml_text
from kgpu.formats.mig_config import MigEntry, parse_mig_configs
from kgpu.formats.mig_default_configs import default_configs
from kgpu.formats.mig_geometry import Geometry, find, fits, geometry_of
from kgpu.operations.model import read_node

MAX_GPUS: Final = 64
SINGLE: Final = "single"
MIXED: Final = "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigNodeView:
    """What the Node says of its GPUs. ``offered`` are the allocatable GPUs and slices by resource."""

    name: str
    product: str
    gpus: int
    strategy: str
    replicas: int = 1
    offered: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigForesight:
    """``concerned`` are the indexes of the GPUs that the config is about. ``after`` are the resources that the node
    would offer, None where that is not known, for which ``notes`` say why.
    """

    config: str
    before: Mapping[str, int]
    after: Mapping[str, int] | None
    concerned: tuple[int, ...]
    notes: tuple[str, ...] = ()


def mig_node_view(obj: Mapping[str, Any]) -> MigNodeView:
    """A Node's word on its GPUs. Raises ConfigError for GPUs without MIG, or that are not known."""
    node, labels = read_node(obj), strings(mapping(obj.get("metadata")).get("labels"))
    name, offered = node.name, node.gpus
    product = labels.get(names.LABEL_GPU_PRODUCT, "")
    gpus = _count(labels.get(names.KGPU_LABEL_GPU_TOTAL, "")) or _count(labels.get(names.LABEL_GPU_COUNT, ""))
    if not gpus or not product:
        raise ConfigError(
            f"the labels of {name:.100} don't say which GPUs it has",
            f"{names.LABEL_GPU_PRODUCT} and {names.LABEL_GPU_COUNT}, which kgpu's agent writes",
            f"see `kgpu doctor --node {name:.100}`, or plan on the node itself: kgpu mig plan -f FILE -c NAME",
        )
    if labels.get(names.LABEL_MIG_CAPABLE) == "false":
        raise ConfigError(
            f"the GPUs of {name:.100} ({product:.60}) can't be cut: they have no MIG",
            "GPUs with MIG", "see `kgpu advise sharing` for what they can do",
        )  # fmt: skip
    return MigNodeView(
        name=name, product=product, gpus=min(gpus, MAX_GPUS), strategy=labels.get(names.LABEL_MIG_STRATEGY, ""),
        replicas=_count(labels.get(names.LABEL_GPU_REPLICAS, "")) or 1,
        offered={key: value for key, value in offered.items() if value},
    )  # fmt: skip


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0


def foresee(node: MigNodeView, config: str, entries: Sequence[MigEntry]) -> MigForesight:
    """What the config makes of the node. Raises ConfigError where its GPUs can't be cut so."""
    geometry, notes = geometry_of(node.product), []
    rows = {index: row for index in range(node.gpus) if (row := _of(index, entries, geometry)) is not None}
    if not rows:
        raise ConfigError(
            f"the config {config:.60} is about none of the {node.gpus} GPUs of {node.name:.100} ({node.product:.60})",
            "an entry for them", "take another config, or add an entry",
        )  # fmt: skip
    if geometry is None:
        notes.append(f"kgpu has no table of {node.product}: whether the slices fit is seen on the node")
    else:
        for index, row in rows.items():
            _check(index, row, geometry, node)
    if any(row.filters for row in rows.values()):
        notes.append("which entry is about these GPUs is taken from their product's name; the node goes by PCI ids")
    after, why = _after(node, rows)
    notes += [why] if why else []
    return MigForesight(
        config=config, before=dict(node.offered), after=after, concerned=tuple(rows), notes=tuple(notes)
    )


def _of(index: int, entries: Sequence[MigEntry], geometry: Geometry | None) -> MigEntry | None:
    """The last entry that is about the GPU, as in mig-parted. One with a filter, if it is about such GPUs."""
    found = None
    for entry in entries:
        listed = entry.devices is None or index in entry.devices
        if listed and (not entry.filters or _is_of_model(entry, geometry)):
            found = entry
    return found


def _is_of_model(entry: MigEntry, geometry: Geometry | None) -> bool:
    """By the PCI ids that are known; others are taken for the node's if its GPUs have all profiles of the entry."""
    models = [one.device for one in entry.filters if one.device is not None]
    if geometry is None or not models:
        return False
    known = [_families()[model] for model in models if model in _families()]
    if known:
        return any(profiles <= {row.name for row in geometry.rows} for profiles in known)
    return all(find(geometry, profile) is not None for profile, _ in entry.profiles)


@functools.cache
def _families() -> Mapping[int, frozenset[str]]:
    """The profiles by which families of GPUs differ, by packed PCI id: mig-parted's default configs name both."""
    content = yaml_text.write(default_configs())
    entries = parse_mig_configs(content, source="the default configs").configs["all-balanced"]
    return {
        one.device: frozenset(str(profile) for profile, _ in entry.profiles)
        for entry in entries
        for one in entry.filters
        if one.device is not None
    }


def _check(index: int, entry: MigEntry, geometry: Geometry, node: MigNodeView) -> None:
    """Raises ConfigError where the GPU has no such profile, or the slices don't fit."""
    wanted = []
    for profile, count in entry.profiles:
        row = find(geometry, profile)
        if row is None:
            has = ", ".join(dict.fromkeys(known.name for known in geometry.rows))
            raise ConfigError(
                f"GPU {index} of {node.name:.100} ({node.product:.60}) has no profile {profile}", f"one of: {has}",
                "take a config with these",
            )  # fmt: skip
        wanted += [row] * count if profile.whole else []
    if not fits(geometry, wanted):
        what = ", ".join(f"{count} of {profile}" for profile, count in entry.profiles)
        raise ConfigError(
            f"GPU {index} of {node.name:.100} ({node.product:.60}) has no room for {what}",
            "slices that fit on one GPU", "take fewer or smaller ones",
        )  # fmt: skip


def _after(node: MigNodeView, rows: Mapping[int, MigEntry]) -> tuple[dict[str, int] | None, str]:
    """The resources, None with the reason where they are not known."""
    if node.strategy not in (SINGLE, MIXED):
        said = node.strategy or "not said"
        return None, f"the node's MIG strategy is {said}: slices are offered to pods with single or mixed alone"
    if node.replicas > 1:
        return None, f"each GPU or slice is shared {node.replicas} times; which slices are, the plugin's config says"
    cut_now = any(key.startswith(names.MIG_RESOURCE_PREFIX) for key in node.offered)
    if len(rows) < node.gpus and (cut_now or node.strategy == SINGLE):
        return None, "how the GPUs that the config is not about are cut, only the node knows"
    counts: Counter[str] = Counter()
    if len(rows) < node.gpus:
        counts[names.GPU_RESOURCE] += node.gpus - len(rows)
    for entry in rows.values():
        counts.update(_offered(entry, node.strategy))
    uniform = len({(row.enabled, row.profiles) for row in rows.values()}) == 1
    if node.strategy == SINGLE and (not uniform or any(len(row.profiles) > 1 for row in rows.values())):
        return None, "with the MIG strategy single all GPUs have to be cut alike, into slices of one profile"
    return dict(sorted(counts.items())), ""


def _offered(entry: MigEntry, strategy: str) -> dict[str, int]:
    """What one GPU offers; compute instances that share a GPU instance become no resource."""
    if not entry.enabled:
        return {names.GPU_RESOURCE: 1}
    offered: Counter[str] = Counter()
    for profile, count in entry.profiles:
        if profile.whole and count:
            offered[names.GPU_RESOURCE if strategy == SINGLE else profile.resource_name] += count
    return offered
