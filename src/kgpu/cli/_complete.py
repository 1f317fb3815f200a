"""What a shell offers behind TAB: names of a cluster's objects, ids of the doctor's rules, ways to sort, gates.

Names are asked of the API server, for two seconds at the most, and whatever goes wrong offers nothing: whoever types is
never shown an error. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

    from kgpu.kube.port import Object, Resource

LIMIT_SECONDS: Final = 2.0
"""The most seconds for everything: reading the kubeconfig, asking a credential plugin, listing."""
MOST: Final = 500
"""The most names; a shell shows no more in any useful way."""

Names = list[str]


def nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> Names:
    """Names of the cluster's Nodes."""
    del param
    return _beginning(incomplete, _of_cluster(ctx, "Node"))


def operations(ctx: click.Context, param: click.Parameter, incomplete: str) -> Names:
    """Names of the cluster's NodeOperations."""
    del param
    return _beginning(incomplete, _of_cluster(ctx, "NodeOperation"))


def namespaces(ctx: click.Context, param: click.Parameter, incomplete: str) -> Names:
    """Names of the cluster's namespaces."""
    del param
    return _beginning(incomplete, _of_cluster(ctx, "Namespace"))


def namespaced_pods(ctx: click.Context, param: click.Parameter, incomplete: str) -> Names:
    """``NAMESPACE/NAME`` of the cluster's pods."""
    del param
    return _of_kind(ctx, "Pod", incomplete)


def workloads(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What ``kgpu logs`` and ``restart`` take, with titles where the shell shows help."""
    from click.shell_completion import CompletionItem

    from kgpu.workloads.rows import WORKLOADS

    del ctx, param
    return [CompletionItem(row.name, help=row.title) for row in WORKLOADS if row.name.startswith(incomplete.lower())]


def rules(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the doctor's rules, with their titles where the shell shows help."""
    from click.shell_completion import CompletionItem

    from kgpu.doctor.rules import by_id

    del ctx, param
    found = sorted(by_id().items())
    return [CompletionItem(name, help=rule.title) for name, rule in found if name.startswith(incomplete.upper())]


def sorts(ctx: click.Context, param: click.Parameter, incomplete: str) -> Names:
    """Ways to sort ``kgpu top``."""
    from kgpu.top.sorts import SORTS

    del ctx, param
    return _beginning(incomplete, SORTS)


def dra_gates(ctx: click.Context, param: click.Parameter, incomplete: str) -> Names:
    """Feature gates of the DRA driver behind those that are there already, each with what it would be set to."""
    from kgpu.dra.gates import GATES

    del ctx, param
    before, comma, last = incomplete.rpartition(",")
    taken = {word.partition("=")[0] for word in before.split(",")}
    names = [f"{gate.name}={str(not gate.default).lower()}" for gate in GATES if not (gate.unbuilt or gate.idle)]
    return [before + comma + name for name in names if name.startswith(last) and name.partition("=")[0] not in taken]


def target(ctx: click.Context, param: click.Parameter, incomplete: str) -> Names:
    """``KIND NAME`` or ``KIND/NAME`` of ``kgpu doctor``: the kind, then names of that kind."""
    from kgpu.cli._doctor_kinds import KINDS

    del param
    words = [word for word in ctx.params.get("target") or () if word]
    before, slash, rest = incomplete.partition("/")
    if not words and slash and before.lower() in KINDS:
        return [f"{before}/{name}" for name in _of_kind(ctx, KINDS[before.lower()], rest)]
    if not words:
        return _beginning(incomplete, dict.fromkeys(_longest(KINDS)))
    return _of_kind(ctx, KINDS[words[0].lower()], incomplete) if len(words) == 1 and words[0].lower() in KINDS else []


def _longest(kinds: dict[str, str]) -> Iterable[str]:
    """One word for each kind: its whole name in the singular."""
    seen: set[str] = set()
    for word, kind in kinds.items():
        if kind not in seen:
            seen.add(kind)
            yield word


def _of_kind(ctx: click.Context, kind: str, incomplete: str) -> Names:
    """``NAMESPACE/NAME``, or the name alone where -n or the kind says where."""
    space = ctx.params.get("namespace") or ""
    if kind == "Node" or (space and "/" not in incomplete):
        return _beginning(incomplete, (name.rpartition("/")[2] for name in _of_cluster(ctx, kind, space)))
    before, slash, _ = incomplete.partition("/")
    return _beginning(incomplete, _of_cluster(ctx, kind, before if slash else ""))


def _beginning(incomplete: str, names: Iterable[str]) -> Names:
    return [name for name in names if name.startswith(incomplete)][:MOST]


def _of_cluster(ctx: click.Context, kind: str, namespace: str = "") -> Names:
    """The names, sorted; [] where the API server does not answer in time."""
    given = ctx.params.get("kubeconfig")
    path = given if isinstance(given, str) and given else os.environ.get("KUBECONFIG", "")
    return within(LIMIT_SECONDS, lambda: _listed(path, kind, namespace))


def within(seconds: float, ask: Callable[[], Coroutine[Any, Any, Names]]) -> Names:
    """What comes of it in that time, else []. In a thread that the process does not wait for: reading a kubeconfig may
    start a program that hangs.
    """
    import asyncio

    names: Names = []

    def run() -> None:
        try:
            names.extend(asyncio.run(ask()))
        except BaseException:
            names.clear()  # nothing is told: the shell would put it into the line

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return [] if thread.is_alive() else sorted(names)


async def _listed(path: str, kind: str, namespace: str) -> Names:
    from kgpu.kube.client import connect

    api = connect(path)
    try:
        listing = await api.list(_resource(kind), namespace=namespace, project=_head)
    finally:
        await api.close()
    return [_name(obj) for obj in listing.items]


def _resource(kind: str) -> Resource:
    from kgpu.doctor.read_kinds import KINDS
    from kgpu.kube.kinds import NODE_OPERATIONS

    rows = (NODE_OPERATIONS, *(row.resource for row in KINDS))
    return next(resource for resource in rows if resource.kind == kind)


def _head(obj: Object) -> Object:
    metadata = obj.get("metadata") or {}
    return {"metadata": {key: metadata.get(key) for key in ("name", "namespace")}}


def _name(obj: Object) -> str:
    metadata = obj["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])
