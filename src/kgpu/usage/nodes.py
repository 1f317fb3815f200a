"""Pure: what a node's price depends on, from its labels: provider, type, region, capacity, pool. Rows of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from kgpu.formats import names
from kgpu.formats.usage import RecordedNode

ON_DEMAND: Final = "on-demand"
SPOT: Final = "spot"
CAPACITY_TYPES: Final = (ON_DEMAND, SPOT, "reserved", "capacity-block")
NO_POOL: Final = "(no pool)"

# Beginnings of spec.providerID.
_PROVIDERS: Final = {"aws": "aws", "gce": "gcp", "azure": "azure"}
_TYPES: Final = (names.LABEL_INSTANCE_TYPE, names.LABEL_INSTANCE_TYPE_BETA)
_REGIONS: Final = (names.LABEL_REGION,)
_POOLS: Final = names.NODE_POOL_LABELS
_CAPACITY: Final = (
    names.LABEL_KARPENTER_CAPACITY_TYPE, names.LABEL_EKS_CAPACITY_TYPE, names.LABEL_GKE_SPOT, names.LABEL_AKS_PRIORITY,
)  # fmt: skip
# The labels' words, in small letters; another word, such as reserved, is itself.
_CAPACITY_WORDS: Final = {"true": SPOT, "regular": ON_DEMAND}
PRICE_LABELS: Final = (*_TYPES, *_REGIONS, *_POOLS, *_CAPACITY)
"""The labels of Nodes that a recording has to have."""


class PricedNode(msgspec.Struct, frozen=True, kw_only=True):
    """What is not known is "" or 0. ``gpus``: how many the machine has."""

    provider: str = ""
    region: str = ""
    instance_type: str = ""
    capacity_type: str = ON_DEMAND
    capacity_told: bool = True
    """Whether its labels say so; else it is taken for on demand."""
    pool: str = NO_POOL
    gpus: int = 1
    cpus: int = 0
    memory_mib: int = 0


def priced_node(line: RecordedNode | None, gpus: int) -> PricedNode:
    """What a node's line says; ``gpus`` is how many it has."""
    if line is None:
        return PricedNode(gpus=max(1, gpus))
    return priced_by_labels(line.labels, line.provider_id, gpus, cpus=line.cpus, memory_mib=line.memory_mib)


def priced_by_labels(
    labels: Mapping[str, str], provider_id: str, gpus: int, *, cpus: int = 0, memory_mib: int = 0
) -> PricedNode:
    """What a Node's labels and its ``spec.providerID`` say."""
    capacity = _first(labels, _CAPACITY).lower().replace("_", "-")
    provider = provider_id.partition(":")[0]
    return PricedNode(
        provider=_PROVIDERS.get(provider, provider),
        region=_first(labels, _REGIONS),
        instance_type=_first(labels, _TYPES),
        capacity_type=_CAPACITY_WORDS.get(capacity, capacity) or ON_DEMAND,
        capacity_told=bool(capacity),
        pool=_first(labels, _POOLS) or NO_POOL,
        gpus=max(1, gpus),
        cpus=cpus,
        memory_mib=memory_mib,
    )


def _first(labels: Mapping[str, str], keys: Sequence[str]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")
