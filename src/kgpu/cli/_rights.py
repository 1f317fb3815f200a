"""What somebody lacks rights for: which they are, whom to ask, and what may be seen without them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.errors import KubeError, UserError

if TYPE_CHECKING:
    from kgpu.kube.client import Client
    from kgpu.kube.port import KubeApi


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededRights:
    """``what`` can't be done without them, ``rights`` says which they are, and ``instead`` is what else helps.

    ``own``: what pods of one's own hold is shown in place of it.
    """

    what: str
    rights: str
    instead: str = ""
    own: bool = False


USAGE: Final = NeededRights(
    what="you may not read what GPUs are used for",
    rights="the right to list pods, and to get pods/proxy, in kgpu's namespace: docs/how-to/usage-rights.yaml",
    instead=(
        "; it shows the usage of all namespaces: for yours alone, ask for the page of the Helm value overview.enabled"
    ),
    own=True,
)
EXPLAIN: Final = NeededRights(
    what="you may not look at all that may keep a workload",
    rights="the rights of docs/how-to/usage-rights.yaml, those of kgpu:idle-policies and kgpu:idle-explain, too",
    instead="; to keep a workload of yours, the role edit in its namespace is enough: kgpu idle keep",
)
LOGS: Final = NeededRights(
    what="you may not read the logs of kgpu's pods",
    rights="the right to list pods, and to get pods/log, in kgpu's namespace: docs/how-to/operand-rights.yaml",
    instead=", or for what they say; why a pod of yours gets no GPU: kgpu doctor pod NAMESPACE/NAME",
)
RESTART: Final = NeededRights(
    what="you may not restart kgpu's pods",
    rights=(
        "the right to list and delete pods, and to get and patch daemonsets and deployments, in kgpu's namespace: the "
        "Role kgpu-restart of docs/how-to/operand-rights.yaml"
    ),
    instead=", or to do it; why a pod of yours gets no GPU: kgpu doctor pod NAMESPACE/NAME",
)
NODES: Final = NeededRights(
    what="you may not see what the nodes can do",
    rights="the right to list nodes and resourceslices: docs/how-to/doctor-rights.yaml",
    instead="; the table of ways needs none: kgpu advise sharing --no-cluster",
)


@contextlib.asynccontextmanager
async def needing(needed: NeededRights, api: KubeApi) -> AsyncIterator[None]:
    """Within the block a refusal for want of rights says what is needed. Raises KubeError."""
    from kgpu.kube.port import KubeRefusedError

    try:
        yield
    except KubeRefusedError as error:
        if error.code != HTTPStatus.FORBIDDEN:
            raise
        if needed.own:
            await _show_own(api)  # type: ignore[arg-type]
        raise KubeError(
            f"{needed.what}: {error.what}", needed.rights, f"ask whoever runs the cluster for it{needed.instead}"
        ) from error


async def _show_own(api: Client) -> None:
    """What pods of the context's namespace hold, as notes: what was asked for is no part of the output."""
    from kgpu.cli._status_tenant import read_tenant

    with contextlib.suppress(UserError):
        found = await read_tenant(api, api.namespace)
        click.echo("note: without what they do with them, what may be seen is who holds devices now.", err=True)
        for line in found.table():
            click.echo(f"  {line}", err=True)
