"""The objects that a question about a cluster is about: of an archive or dump, or read from its API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from kgpu.doctor.snapshot import Snapshot
    from kgpu.kube.client import Client


async def seen(path: str, kubeconfig: str, kinds: Collection[str]) -> Snapshot:
    """An archive or dump, or the objects of these kinds of the whole cluster. Raises UserError."""
    from kgpu.cli._common import with_api
    from kgpu.doctor.sources.files import read
    from kgpu.doctor.sources.listing import ClusterForbiddenError

    if path:
        return read(path)

    async def look(api: Client) -> Snapshot:
        return await _of_cluster(api, kinds, "")

    try:
        return await with_api(kubeconfig, look)
    except ClusterForbiddenError as error:
        raise ClusterForbiddenError(
            f"{error.what}; a namespace of yours is not enough: it depends on all nodes, and the pods on them",
            error.expected, f"{error.remedy}, or for an archive of `kgpu collect`, and ask that with --snapshot FILE",
        ) from error  # fmt: skip


async def seen_in(
    path: str, kubeconfig: str, kinds: Collection[str], namespace: str, *, how: str
) -> tuple[Snapshot, str]:  # fmt: skip
    """An archive or dump, or the objects of these kinds, and of which namespace they are, "" for all.

    ``namespace`` is enough for who may not read the others, and "" is then that of the kubeconfig's context; ``how``
    names another. Raises UserError.
    """
    from kgpu.cli._common import with_api
    from kgpu.cli._own_namespace import or_own_namespace
    from kgpu.doctor.sources.files import read

    if path:
        return read(path), namespace

    async def look(api: Client) -> tuple[Snapshot, str]:
        return await or_own_namespace(api, namespace, lambda space: _of_cluster(api, kinds, space), how=how)

    return await with_api(kubeconfig, look)


async def _of_cluster(api: Client, kinds: Collection[str], namespace: str) -> Snapshot:
    from kgpu.doctor.read_kinds import KINDS
    from kgpu.doctor.sources.live import collect_objects

    wanted = [row for row in KINDS if row.resource.kind in kinds]
    return await collect_objects(api, wanted, namespace=namespace)


def objects_of(snapshot: Snapshot, kinds: Collection[str]) -> Iterator[Mapping[str, Any]]:
    """The objects of these kinds as plain data."""
    others = (obj for kind in snapshot.kinds for obj in snapshot.all(kind))
    for obj in (*snapshot.nodes.values(), *others, *snapshot.pods.values()):
        if obj.kind in kinds:
            yield obj.data
