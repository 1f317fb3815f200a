"""The Node object that a process on a node is about, and who owns its labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kgpu.base.errors import KubeError
from kgpu.kube.port import NODES, KubeApi, Object


async def get_node(api: KubeApi, name: str) -> Object:
    """The Node of that name. Raises KubeError, also when there is none."""
    node = await api.get(NODES, name)
    if node is None:
        raise KubeError(
            f'the cluster has no node "{name}"',
            "the name under which the kubelet registered this node",
            "correct --node-name (NODE_NAME), or wait until the kubelet has registered",
        )
    return node


def label_owners(obj: Object) -> Iterator[tuple[str, bool, tuple[str, ...]]]:
    """Field manager, whether it applied them, and the keys of its labels, of each manager of the object itself."""
    for entry in obj["metadata"].get("managedFields") or ():
        if entry.get("subresource"):
            continue
        fields: Any = entry.get("fieldsV1") or {}
        for part in ("f:metadata", "f:labels"):
            fields = fields.get(part) if isinstance(fields, dict) else None
        keys = (key.removeprefix("f:") for key in fields if key.startswith("f:")) if isinstance(fields, dict) else ()
        yield str(entry.get("manager") or ""), entry.get("operation") == "Apply", tuple(keys)
