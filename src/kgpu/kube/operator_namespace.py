"""Where kgpu's operator keeps its objects, by the word of the policy that it serves."""

from __future__ import annotations

from kgpu.base.plain import mapping, text
from kgpu.formats.names import GPU_OPERATOR_NAMESPACE
from kgpu.kube.kinds import CLUSTER_POLICIES
from kgpu.kube.port import KubeApi, KubeRefusedError


async def operator_namespace(api: KubeApi) -> str:
    """The namespace that a ClusterPolicy's status names, else the usual one. Raises KubeError.

    A Deployment that looks like the operator's, which anybody can make in a namespace of theirs, says nothing here.
    """
    try:
        policies = await api.list(CLUSTER_POLICIES)
    except KubeRefusedError:
        return GPU_OPERATOR_NAMESPACE
    named = (text(mapping(policy.get("status")).get("namespace")) for policy in policies.items)
    return next(filter(None, named), GPU_OPERATOR_NAMESPACE)
