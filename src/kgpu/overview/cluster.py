"""A cluster as the page needs it: the doctor's and idle's commands in processes of their own, pods, and rights.

The commands look at a whole cluster, which takes hundreds of megabytes for a moment in a large one, and seconds of
one core: in this process the page would stand still and stay large. What they print as JSON is read strictly.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from kgpu.base import typed
from kgpu.base.errors import ConfigError, HostError, KubeError
from kgpu.base.plain import mapping
from kgpu.base.printable import last_words, one_line
from kgpu.base.signals import with_defaults
from kgpu.fit.resources import amounts, pod_requests
from kgpu.formats.accelerators import is_accelerator
from kgpu.kube.kinds import RESOURCE_QUOTAS, SELF_SUBJECT_ACCESS_REVIEWS
from kgpu.kube.port import EVENTS, NODES, PODS, KubeApi, Object, Selector, name_of, namespace_of
from kgpu.overview.error_sources import of_event, of_node, slim_event, slim_node
from kgpu.overview.model import HardwareError, NamespaceLimit, PendingPod, ToldIdleness, ToldReport
from kgpu.quota.plan import QuotaBook, rows

T = TypeVar("T", bound=msgspec.Struct)

DEADLINE: Final = 300.0  # seconds for a command
MOST_BYTES: Final = 64 << 20
_PENDING: Final = Selector(fields=(("status.phase", "Pending"),))
_OF_NODES: Final = Selector(fields=(("involvedObject.kind", "Node"),))
MOST_ERRORS: Final = 2000
"""Of each source, the newest."""
_DOCTOR: Final = ("doctor", "-o", "json")
_IDLE: Final = ("idle", "list", "-o", "json")


class ClusterWorld:
    """An ``OverviewWorld`` behind a kubeconfig, "" for the usual one. ``doctor`` and ``idle``: whether these commands
    of kgpu are asked.
    """

    def __init__(self, api: KubeApi, kubeconfig: str, *, doctor: bool = True, idle: bool = True) -> None:
        self._api = api
        self._kubeconfig = kubeconfig
        self._doctor = doctor
        self._idle = idle

    async def report(self) -> ToldReport:
        if not self._doctor:
            raise ConfigError("kgpu doctor is not asked here", "overview.doctor in the chart", "run it: kgpu doctor")
        return decode(await self._run(_DOCTOR, (0, 1, 2)), ToldReport, of="kgpu doctor")

    async def idleness(self) -> ToldIdleness:
        if not self._idle:
            raise ConfigError("use is not counted here", "usage.enabled in the chart", "set it, and wait an hour")
        return decode(await self._run(_IDLE, (0, 3)), ToldIdleness, of="kgpu idle")

    async def waiting(self) -> tuple[PendingPod, ...]:
        listing = await self._api.list(PODS, selector=_PENDING, project=_slim)
        pods = [waiting_pod(pod) for pod in listing.items]
        return tuple(sorted((pod for pod in pods if pod is not None), key=lambda pod: (pod.since, pod.path)))

    async def limits(self) -> tuple[NamespaceLimit, ...]:
        listing = await self._api.list(RESOURCE_QUOTAS)
        return tuple(
            NamespaceLimit(
                namespace=one_line(row.namespace), resource=one_line(row.resource), used=row.used or 0, hard=row.hard
            )
            for row in rows(QuotaBook(listing.items))
            if row.hard is not None
        )

    async def events(self) -> tuple[HardwareError, ...]:
        listing = await self._api.list(EVENTS, namespace="default", selector=_OF_NODES, project=slim_event)
        now = time.time()
        return _newest(error for event in listing.items for error in of_event(event, now))

    async def verdicts(self) -> tuple[HardwareError, ...]:
        listing = await self._api.list(NODES, project=slim_node)
        now = time.time()
        reports = [errors for node in listing.items if (errors := of_node(node, now)) is not None]
        if listing.items and not reports:
            raise ConfigError("no Node has a report of kgpu's health", "the agent's health role", "see: kgpu status")
        return _newest(error for errors in reports for error in errors)

    async def may_see(self, namespace: str) -> bool:
        attributes = {"verb": "get", "resource": "pods", **({"namespace": namespace} if namespace else {})}
        resource = SELF_SUBJECT_ACCESS_REVIEWS
        review = {
            "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {},
            "spec": {"resourceAttributes": attributes},
        }  # fmt: skip
        answer = await self._api.create(resource, review)
        return (answer.get("status") or {}).get("allowed") is True

    async def _run(self, words: Sequence[str], good: Sequence[int]) -> bytes:
        """What a command of kgpu prints. Raises HostError with what it says when it fails."""
        more = ("--kubeconfig", self._kubeconfig) if self._kubeconfig else ()
        line = with_defaults([sys.executable, "-m", "kgpu", *words, *more])
        child = await asyncio.create_subprocess_exec(
            *line, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "NO_COLOR": "1"},
        )  # fmt: skip
        try:
            async with asyncio.timeout(DEADLINE):
                out, said = await child.communicate()
        except TimeoutError as error:
            raise HostError(
                f"kgpu {words[0]} did not end within {DEADLINE:.0f} s", "its answer", f"run it: kgpu {words[0]}"
            ) from error
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
        if child.returncode not in good or not out.strip():
            why = last_words(said.decode(errors="replace").removeprefix("kgpu: "), 300) or f"exit {child.returncode}"
            raise HostError(f"kgpu {words[0]}: {why}", "its answer", f"run it: kgpu {words[0]}")
        return out


def _newest(errors: Iterable[HardwareError]) -> tuple[HardwareError, ...]:
    return tuple(heapq.nlargest(MOST_ERRORS, errors, key=lambda error: error.at))


def decode(text: bytes, kind: type[T], *, of: str) -> T:
    """A command's answer. Raises KubeError for one of another form."""
    try:
        if len(text) > MOST_BYTES:
            raise ValueError(f"{len(text)} bytes")
        return typed.decode(text, kind)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise KubeError(
            f"{of} answers otherwise than expected: {one_line(str(error), 200)}", "its JSON", "report this"
        ) from error


def waiting_pod(pod: Object) -> PendingPod | None:
    """The pod, where it asks for accelerators."""
    spec = mapping(pod.get("spec"))
    asks = {
        name: count for name, count in amounts(pod_requests(spec, [])).items() if count > 0 and is_accelerator(name)
    }
    if not asks and not spec.get("resourceClaims"):
        return None
    since = str((pod.get("metadata") or {}).get("creationTimestamp") or "")
    return PendingPod(
        namespace=one_line(namespace_of(pod)), name=one_line(name_of(pod)), asks=tuple(sorted(asks.items())),
        since=one_line(since, 40),
    )  # fmt: skip


def _slim(pod: Object) -> Object:
    """What ``waiting_pod`` reads of a pod, and the version of it."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    keys = ("name", "namespace", "creationTimestamp", "resourceVersion")
    kept = {key: spec[key] for key in ("containers", "initContainers", "resourceClaims", "overhead") if key in spec}
    return {"kind": "Pod", "metadata": {key: metadata[key] for key in keys if key in metadata}, "spec": kept}
