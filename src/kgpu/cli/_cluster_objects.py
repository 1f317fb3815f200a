"""The objects that a question about a cluster is about: of an archive or dump, or read from its API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from kgpu.doctor.snapshot import Snapshot


async def seen(path: str, kubeconfig: str, kinds: Collection[str], *, namespace: str = "") -> Snapshot:
    """An archive or dump, or the objects of these kinds of the cluster.

    ``namespace``: the one that is enough for who may not read the others.
    """
    if path:
        from kgpu.doctor.sources.files import read

        return read(path)
    from kgpu.doctor.read_kinds import KINDS
    from kgpu.doctor.sources.live import collect_objects
    from kgpu.kube.client import connect

    api = connect(kubeconfig)
    try:
        wanted = [row for row in KINDS if row.resource.kind in kinds]
        return await collect_objects(api, wanted, namespace=namespace)
    finally:
        await api.close()


def objects_of(snapshot: Snapshot, kinds: Collection[str]) -> Iterator[Mapping[str, Any]]:
    """The objects of these kinds as plain data."""
    others = (obj for kind in snapshot.kinds for obj in snapshot.all(kind))
    for obj in (*snapshot.nodes.values(), *others, *snapshot.pods.values()):
        if obj.kind in kinds:
            yield obj.data
