"""A running cluster, read once: paged lists of what rules need, few at a time, no watches, nothing written.

What may not be read, or is not served, is told as missing evidence and everything else counts. Nodes and pods must be
there; for who looks at one namespace, and may not list those of the cluster, that namespace's pods are enough. Logs
are asked for of pods of a GPU stack, then of pods that fail and ask for GPUs, then of those that fail and may look for
one, then of the newest Ready pods that hold some. Those of kgpu's agents have what their nodes' own files, kernels and
drivers say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from kgpu.base.errors import KubeError
from kgpu.doctor.kinds import Log, Pod
from kgpu.doctor.model import Missing, Subject
from kgpu.doctor.read_kinds import KINDS, Wanted
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources import probed
from kgpu.doctor.sources.files import lines
from kgpu.doctor.sources.listing import Api, KindListing
from kgpu.doctor.sources.logs import (
    host_gaps,
    is_agent,
    is_silent,
    listed,
    nodes_that_matter,
    of_ready_holders,
    take_facts,
    worth_reading,
)
from kgpu.kube.port import KubeRefusedError, Resource

AT_ONCE: Final = 4
"""Requests at the same time."""
MAX_LOGS: Final = 200
MAX_READY: Final = 20
"""Ready pods that hold accelerators whose logs are read: as a rule they have nothing to tell."""
LOG_LINES: Final = (500, 60, 8)
"""The last lines that are asked for; fewer, where so many are too much: cut is what was said last."""
SINCE: Final = int(probed.FRESH) + 600
"""Seconds: of an agent that works only what it has said lately is asked for."""
LOG_BYTES: Final = 256 * 1024
LOG_SECONDS: Final = 30.0
"""For all of them together: a kubelet that does not answer holds a request for long."""


class Logs(Protocol):
    """Container logs, where the client can get them."""

    async def logs(
        self, namespace: str, pod: str, container: str, *, previous: bool, tail: int, limit: int, since: int = 0
    ) -> bytes:
        """The last ``tail`` lines, the first ``limit`` bytes of them, of the last ``since`` seconds (0: of all).

        Raises KubeError.
        """
        ...


async def collect(
    api: Api, *, logs: Logs | None = None, now: float | None = None, target: Subject | None = None,
    namespace: str = "",
) -> Snapshot:  # fmt: skip
    """Look once; what ``target`` is about is looked at first. ``namespace`` is as for ``collect_objects``.

    Raises KubeError when nodes or pods can't be read.
    """
    gate = asyncio.Semaphore(AT_ONCE)
    snapshot = await collect_objects(api, KINDS, gate=gate, now=now, namespace=namespace)
    matter = nodes_that_matter(snapshot, target)
    wanted = [*worth_reading(snapshot, frozenset(matter), target), *_of_the_newest(snapshot, target)]
    await read_logs(logs if logs is not None else logs_of(api), snapshot, gate, wanted)
    snapshot.missing += host_gaps(
        snapshot, matter, "the API server has no such thing, and no agent of kgpu has told it"
    )
    return snapshot


async def collect_objects(
    api: Api, kinds: Iterable[Wanted], *, gate: asyncio.Semaphore | None = None, now: float | None = None,
    namespace: str = "",
) -> Snapshot:  # fmt: skip
    """The objects of these kinds, without logs.

    ``namespace``: the one that is of interest. Kinds that may not be listed for the whole cluster are listed in it, and
    nodes need not be readable.

    Raises KubeError when nodes or pods can't be read.
    """
    snapshot = Snapshot()
    snapshot.taken, snapshot.timed = (time.time() if now is None else now), True
    served: dict[tuple[str, str], Resource] = {}
    try:
        api_kinds = await api.discover()
        snapshot.version = api_kinds.version
        served = {(row.group, row.kind): row for row in api_kinds.resources}
    except KubeRefusedError as error:
        snapshot.missing.append(Missing("which kinds the API server has", error.what, error.remedy))
    at_once = gate if gate is not None else asyncio.Semaphore(AT_ONCE)
    listing = KindListing(api, served, snapshot, at_once, namespace)
    await asyncio.gather(*(listing.add(row) for row in kinds))
    listing.tell()
    snapshot.sort()  # before anything is worked out once: nothing may depend on the order of the answers
    return snapshot


def logs_of(api: object) -> Logs | None:
    """The client itself where it can read logs."""
    return api if callable(getattr(api, "logs", None)) else None  # type: ignore[return-value]


def _of_the_newest(snapshot: Snapshot, target: Subject | None) -> Iterator[tuple[Pod, str, bool]]:
    """The containers of the newest Ready pods that hold accelerators. What stays unread is told."""
    holders = of_ready_holders(snapshot, target)
    left = len(holders) - MAX_READY
    if left > 0:
        what = f"logs of {left} more Ready pods that hold GPUs"
        how = "kgpu doctor pod NAMESPACE/NAME reads those of one"
        snapshot.missing.append(Missing(what, f"only those of the newest {MAX_READY} are read", how))
    for rows in holders[:MAX_READY]:
        yield from rows


async def read_logs(
    logs: Logs | None, snapshot: Snapshot, gate: asyncio.Semaphore, wanted: list[tuple[Pod, str, bool]]
) -> None:
    if not wanted:
        return
    if logs is None:
        snapshot.missing.append(Missing("logs of pods", "this client can't read them", "kubectl logs, or kgpu collect"))
        return
    silent = {pod.node for pod, _, _ in wanted if is_silent(snapshot.nodes.get(pod.node))}
    if silent:
        wanted = [row for row in wanted if row[0].node not in silent]
        snapshot.missing.append(Missing(f"logs of pods on {listed(sorted(silent))}", "its kubelet does not answer"))
    if len(wanted) > MAX_LOGS:
        snapshot.missing.append(
            Missing(f"logs of {len(wanted) - MAX_LOGS} more containers", "too many to read at once")
        )
    refused: dict[str, str] = {}

    async def one(pod: Pod, container: str, previous: bool) -> None:
        agent = is_agent(snapshot, pod)
        since = SINCE if agent and pod.ready else 0
        data = b""
        try:
            for tail in LOG_LINES:
                async with gate:
                    data = await logs.logs(
                        pod.namespace, pod.name, container, previous=previous, tail=tail, limit=LOG_BYTES, since=since
                    )
                if len(data) < LOG_BYTES:
                    break
        except KubeError as error:
            refused.setdefault(error.what, pod.path)
            return
        log = Log(namespace=pod.namespace, pod=pod.name, container=container, previous=previous, lines=lines(data))
        snapshot.add_log(log)
        if agent and not previous and (facts := probed.found_in(data)) is not None:
            take_facts(snapshot, facts, pod, log.title, latest=snapshot.taken)

    try:
        async with asyncio.timeout(LOG_SECONDS):
            await asyncio.gather(*(one(*row) for row in wanted[:MAX_LOGS]))
    except TimeoutError:
        snapshot.missing.append(
            Missing("some of the pods' logs", f"not all were there after {LOG_SECONDS:.0f} seconds")
        )
    for what, path in list(refused.items())[:3]:
        snapshot.missing.append(Missing(f"logs such as of {path}", what, "give the right to get pods/log"))
