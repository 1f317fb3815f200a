"""The pods of a workload in a cluster, and in which namespace they are looked for.

Anybody may give a pod in a namespace of theirs the labels of kgpu's. So the namespace is the operator's, or the one
that was named; only where nothing is there, and nothing is changed, is it the one in which any are.
"""

from __future__ import annotations

from dataclasses import dataclass

from kgpu.base.errors import KubeError
from kgpu.kube.operator_namespace import operator_namespace
from kgpu.kube.port import PODS, KubeApi, Object, Selector, namespace_of
from kgpu.workloads.pods import ServingPod, serving
from kgpu.workloads.rows import AGENT, Workload


class NoPodsError(KubeError):
    """There is no pod of the workload where it was looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPods:
    """The pods, and where."""

    namespace: str
    pods: tuple[ServingPod, ...]


async def find(api: KubeApi, row: Workload, *, namespace: str = "", node: str = "", changes: bool = False) -> FoundPods:
    """The workload's pods, at least one.

    ``changes``: they are to be changed, so that no other namespace than the operator's is taken without a word.

    Raises KubeError; NoPodsError where there are none.
    """
    space = namespace or await operator_namespace(api)
    pods = serving(row, await _labelled(api, row, space), node)
    if not pods and not namespace:
        spaces = await _elsewhere(api, row, space, node)
        if len(spaces) == 1 and not changes:
            return FoundPods(namespace=next(iter(spaces)), pods=next(iter(spaces.values())))
        if spaces:
            named = ", ".join(sorted(spaces)[:5])
            raise NoPodsError(
                f"no pod of the {row.title}{_on(node)} is in namespace {space}; such pods are in {named}",
                "the namespace in which kgpu runs", f"name it: -n {min(spaces)}",
            )  # fmt: skip
    if not pods:
        raise NoPodsError(
            f"no pod of the {row.title}{_on(node)} is in namespace {space}", "one that runs",
            f"see why: kgpu doctor node {node}" if node else "see what runs: kgpu status",
        )  # fmt: skip
    return FoundPods(namespace=space, pods=pods)


def _on(node: str) -> str:
    return f" on node {node}" if node else ""


async def _labelled(api: KubeApi, row: Workload, namespace: str) -> list[Object]:
    """The workload's pods and, where they may do its work, the agent's."""
    labels = {row.label, AGENT.label} if row.role else {row.label}
    found = [await api.list(PODS, namespace=namespace, selector=Selector(labels=(one,))) for one in sorted(labels)]
    return [pod for listing in found for pod in listing.items]


async def _elsewhere(api: KubeApi, row: Workload, besides: str, node: str) -> dict[str, tuple[ServingPod, ...]]:
    """By namespace; nothing where nobody may look into all of them."""
    try:
        pods = await _labelled(api, row, "")
    except KubeError:
        return {}
    spaces = {namespace_of(pod) for pod in pods} - {besides}
    found = {space: serving(row, [pod for pod in pods if namespace_of(pod) == space], node) for space in spaces}
    return {space: those for space, those in found.items() if those}
