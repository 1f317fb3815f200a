"""The Node object that a process on a node is about."""

from __future__ import annotations

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
