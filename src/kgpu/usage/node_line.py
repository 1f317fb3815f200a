"""What a recording has to say of a node, as the API server has it: what a price depends on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Final

from kgpu.base.plain import mapping, strings, text
from kgpu.base.quantity import Quantity, QuantityError
from kgpu.formats.usage import RecordedNode
from kgpu.kube.port import NODES, KubeApi, Object
from kgpu.usage.nodes import PRICE_LABELS

_KEPT: Final = frozenset(PRICE_LABELS)
_NEVER: Final = dt.datetime.fromtimestamp(0, dt.UTC)


async def about_node(api: Callable[[], KubeApi], name: str) -> RecordedNode | None:
    """The node's line, None where there is no such node. Raises KubeError."""
    found = await api().get(NODES, name)
    return None if found is None else node_line(found)


def node_line(node: Object) -> RecordedNode:
    """The line that a Node makes; ``at`` is the writer's to set."""
    metadata, capacity = mapping(node.get("metadata")), mapping(mapping(node.get("status")).get("capacity"))
    return RecordedNode(
        node=text(metadata.get("name")), at=_NEVER,
        labels={key: value for key, value in strings(metadata.get("labels")).items() if key in _KEPT},
        provider_id=text(mapping(node.get("spec")).get("providerID"))[:512],
        cpus=min(65536, _whole(capacity.get("cpu"))), memory_mib=_whole(capacity.get("memory")) >> 20,
    )  # fmt: skip


def _whole(value: object) -> int:
    """A quantity as a whole number, 0 for what is none."""
    try:
        return Quantity.parse(text(value)).value
    except QuantityError:
        return 0
