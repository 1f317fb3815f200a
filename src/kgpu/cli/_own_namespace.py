"""For who may not read the whole cluster: the namespace of the kubeconfig's context in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from kgpu.base.errors import KubeError
from kgpu.base.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kgpu.kube.client import Client

T = TypeVar("T")
_TOLD = "kgpu.own_namespace"


async def or_own_namespace(
    api: Client, namespace: str, look: Callable[[str], Awaitable[T]], *, how: str
) -> tuple[T, str]:  # fmt: skip
    """What ``look`` sees in the namespace, "" for the whole cluster, and which it was.

    Where the cluster may not be read, it is the context's namespace, which is told once. ``how`` names another one,
    such as ``-n NS``. Raises KubeError.
    """
    from kgpu.doctor.sources.listing import ClusterForbiddenError
    from kgpu.kube.port import KubeRefusedError

    try:
        return await look(namespace), namespace
    except ClusterForbiddenError as error:
        cluster = error
    own = api.namespace
    try:
        found = await look(own)
    except KubeRefusedError as error:
        raise KubeError(
            f"you may list neither the nodes and pods of the cluster nor the pods of namespace {one_line(own, 63)}, "
            f"that of your kubeconfig's context: {error.what}",
            "a namespace of yours, or the rights of docs/how-to/doctor-rights.yaml",
            f"name a namespace of yours: {how}; or ask whoever runs the cluster for these rights",
        ) from cluster
    _tell_once(
        f"you may not list nodes, or pods of all namespaces: this is namespace {one_line(own, 63)} alone, that of your "
        f"kubeconfig's context; another: {how}"
    )
    return found, own


def _tell_once(note: str) -> None:
    """Once in a run of a command, however often it looks."""
    context = click.get_current_context(silent=True)
    told = context.meta if context is not None else {}
    if _TOLD not in told:
        click.echo(f"note: {note}", err=True)
    told[_TOLD] = note


def context_namespace(kubeconfig: str) -> str:
    """The namespace of the kubeconfig's context. Raises KubeError."""
    from kgpu.cli._common import run_async, with_api

    async def own(api: Client) -> str:
        return api.namespace

    return run_async(with_api(kubeconfig, own))
