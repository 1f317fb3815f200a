"""MIG slices that nobody offers: which GPUs of the cluster could be cut into them, and how.

By labels, products and what the nodes' drivers say; a card of which nobody knows whether it can is not promised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kgpu.doctor import matching
from kgpu.doctor.kinds import Node
from kgpu.doctor.model import Evidence
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import blocks_of, memory_of, mig_config, mig_strategy, profile_of
from kgpu.formats import names

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Slices:
    """What goes on after "no node offers ...": in words, what shows it, and the steps."""

    words: str
    evidence: tuple[Evidence, ...]
    steps: tuple[str, ...]


def makeable(snapshot: Snapshot, resource: str) -> Slices:
    """For a resource ``nvidia.com/mig-PROFILE``."""
    wanted = resource.removeprefix(names.MIG_RESOURCE_PREFIX)
    nodes = matching.gpu_nodes(snapshot, matching.NVIDIA)
    able = [node for node in nodes if _is_capable(snapshot, node)]
    if not able:
        products = sorted({matching.product(node) or "of unknown product" for node in nodes})
        said = f"; its GPUs are {', '.join(products[:_SHOWN])}" if products else ""
        return Slices(f"no GPU of this cluster can be cut into MIG slices{said}", _shown(nodes), ())
    right = [node for node in able if _has(node, wanted)]
    if not right:
        sizes = sorted({f"1g.{found[0]}gb" for node in able if (found := memory_of(matching.product(node)))})
        said = f", of {' or '.join(sizes)} and larger ones" if sizes else ""
        return Slices(f"{_named(able)} can be cut into MIG slices{said}, but not into {wanted}", _shown(able), ())
    words = f"no GPU is cut into {wanted} yet, and {_named(right)} could be"
    return Slices(words, _shown(right), _steps(snapshot, right[0], wanted))


def _is_capable(snapshot: Snapshot, node: Node) -> bool:
    said = node.labels.get(names.LABEL_MIG_CAPABLE)
    host = snapshot.hosts.get(node.name)
    if said is not None:
        return said == "true"
    if host is not None and host.gpus:
        return any(gpu.mig_capable for gpu in host.gpus)
    return memory_of(matching.product(node)) is not None


def _has(node: Node, wanted: str) -> bool:
    """Whether a node's card has a profile; one whose sizes nobody knows may have it."""
    profile, memory = profile_of(wanted), memory_of(matching.product(node))
    return profile is None or memory is None or bool(blocks_of(profile, memory[0]))


def _named(nodes: list[Node]) -> str:
    shown = [f"{node.name} ({matching.product(node) or 'product unknown'})" for node in nodes[:_SHOWN]]
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"the GPUs of node{'s' if len(nodes) > 1 else ''} {', '.join(shown)}{more}"


def _shown(nodes: list[Node]) -> tuple[Evidence, ...]:
    keys = (names.LABEL_GPU_PRODUCT, names.LABEL_MIG_CAPABLE)
    return tuple(
        node.cite(f"metadata.labels[{key}]") for node in nodes[:_SHOWN] for key in keys if key in node.labels
    )  # fmt: skip


def _steps(snapshot: Snapshot, node: Node, wanted: str) -> tuple[str, ...]:
    layouts = mig_config(snapshot).layouts or {}
    manager = matching.pods_of_part(snapshot, matching.MIG_MANAGER)
    layout = next(
        (name for name, rows in layouts.items() if any(row.enabled and wanted in row.profiles for row in rows)), ""
    )
    strategy = mig_strategy(snapshot, node)
    policy = next(iter(snapshot.all("ClusterPolicy")), None)
    mixed = (
        f"and offer slices by their size: kubectl patch clusterpolicy {policy.name if policy else 'cluster-policy'} "
        '--type merge -p \'{"spec":{"mig":{"strategy":"mixed"}}}\''
    )
    if manager and layout:
        cut = (
            f"kubectl label node {node.name} {names.MIG_CONFIG_LABEL}={layout} --overwrite  # ends what is on its GPUs"
        )
    else:
        cut = (
            f"or cut a GPU that nobody uses, on node {node.name}: nvidia-smi -i 0 -mig 1 && nvidia-smi mig -i 0 "
            f"-cgi {wanted} -C"
        )
    return (cut, *(() if strategy == "mixed" else (mixed,)))
