"""``--probe``: a pod for a moment on each node, that looks at the host as the agent's role ``probe`` does.

Promises: the pods have an account of their own without any right, and no token; they only read, with a limit of memory
and of time; they and the account are gone when this returns, whichever way, or the result names what the API server
would not delete. One that dies without a chance leaves pods that the kubelet ends by themselves
(``activeDeadlineSeconds``). They need what kgpu's own pods need of Pod Security: where the API server refuses them for
that, it would refuse those too.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.errors import ConfigError, KubeError
from kgpu.base.plain import items, mapping, text
from kgpu.doctor import host_facts
from kgpu.doctor.sources import probed
from kgpu.doctor.sources.live import Logs
from kgpu.formats import names
from kgpu.formats.programs import PROGRAM
from kgpu.kube import kinds
from kgpu.kube.port import PODS, KubeApi, KubeRefusedError, Object, Resource

NAME: Final = "kgpu-preflight"
CONTAINER: Final = "look"
AT_ONCE: Final = 16
"""Nodes at the same time."""
SECONDS: Final = 120.0
"""For one node: pulling kgpu's image, and looking."""
_POLL: Final = 0.5
_AGAIN: Final = (0.2, 1.0)
"""Seconds until what could not be deleted is deleted again."""
_LOG_LINES: Final = 100
_LOG_BYTES: Final = 256 * 1024
_POD_SECURITY: Final = "violates PodSecurity"


@dataclass(slots=True, kw_only=True)
class ProbeResult:
    """``facts`` by node as documents for a snapshot; ``failed``: why a node could not be looked at; ``refused``: the
    API server's words where it refuses such pods by Pod Security; ``left``: why something is still there, by its name.
    """

    facts: dict[str, Object] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    refused: str = ""
    left: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """Where and with which image the pods run; ``seconds`` is the most for one node."""

    namespace: str
    image: str
    seconds: float = SECONDS


class HostProbe:
    """Looks at nodes through one API server, in one namespace."""

    def __init__(self, api: KubeApi, logs: Logs, settings: ProbeSettings) -> None:
        self._api, self._logs, self._settings = api, logs, settings
        self._name = f"{NAME}-{secrets.token_hex(3)}"

    async def look(self, nodes: Iterable[str], *, done: Callable[[str], None] = lambda _: None) -> ProbeResult:
        """Look at the nodes; ``done`` is called with each one's name.

        Raises ConfigError where the namespace is not there, KubeError where no account can be made.
        """
        namespace, result = self._settings.namespace, ProbeResult()
        if await self._api.get(kinds.NAMESPACES, namespace) is None:
            raise ConfigError(
                f"there is no namespace {namespace}, in which the probe's pods would run",
                "the namespace that kgpu is to be installed in, or another one that allows privileged pods",
                f"make it (kubectl create namespace {namespace}), or name another: -n NAMESPACE",
            )
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, node: str) -> None:
            async with gate:
                if not result.refused:
                    await self._one(f"{self._name}-{number}", node, result)
                done(node)

        try:
            await self._api.create(kinds.SERVICE_ACCOUNTS, _account(self._name, namespace))
            async with asyncio.TaskGroup() as group:
                for number, node in enumerate(nodes):
                    group.create_task(one(number, node))
        finally:
            await self._gone(kinds.SERVICE_ACCOUNTS, self._name, result)
        return result

    async def _one(self, name: str, node: str, result: ProbeResult) -> None:
        try:
            await self._api.create(PODS, pod(name, node, self._name, self._settings))
            failure = await self._ended(name)
            facts = None if failure else probed.found_in(await self._said(name))
            if facts is None:
                result.failed[node] = failure or "its pod has printed nothing that could be read"
            else:
                result.facts[node] = _of_node(facts, node)
        except KubeRefusedError as error:
            if error.code == 403 and _POD_SECURITY in error.message:
                result.refused = error.message
            result.failed[node] = error.what
        except KubeError as error:
            result.failed[node] = error.what
        finally:
            await self._gone(PODS, name, result)

    async def _said(self, name: str) -> bytes:
        return await self._logs.logs(
            self._settings.namespace, name, CONTAINER, previous=False, tail=_LOG_LINES, limit=_LOG_BYTES
        )

    async def _ended(self, name: str) -> str:
        """Wait for the pod's end; why it has not ended well, "" where it has."""
        last: Object | None = None
        try:
            async with asyncio.timeout(self._settings.seconds):
                while True:
                    last = await self._api.get(PODS, name, namespace=self._settings.namespace)
                    phase = text(mapping(mapping(last).get("status")).get("phase"))
                    if last is None or phase in ("Succeeded", "Failed"):
                        return (
                            "" if phase == "Succeeded" else f"its pod has ended: {_state(last) or phase or 'deleted'}"
                        )
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            waits = _state(last) or "no kubelet has taken it"
            return f"its pod has not ended within {self._settings.seconds:g} seconds: {waits}"

    async def _gone(self, resource: Resource, name: str, result: ProbeResult) -> None:
        """Delete it, also while this task is being cancelled; what is refused again and again is put into ``left``."""

        async def delete() -> None:
            for pause in (*_AGAIN, None):
                try:
                    await self._api.delete(resource, name, namespace=self._settings.namespace, grace=0)
                except KubeError as error:
                    if pause is None:
                        result.left[f"{resource.kind} {name}"] = error.what
                    else:
                        await asyncio.sleep(pause)
                else:
                    return

        task = asyncio.ensure_future(delete())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            raise


def _of_node(facts: Object, node: str) -> Object:
    """The document of what a node has said. It speaks of itself alone, whatever it calls itself."""
    about = {"kind": host_facts.KIND, "apiVersion": host_facts.API_VERSION, "metadata": {"name": node}, "node": node}
    return {**{key: value for key, value in facts.items() if key != "items"}, **about}


def _state(found: Object | None) -> str:
    """The word for where a pod stands, and the kubelet's message."""
    status = mapping(mapping(found).get("status"))
    for row in map(mapping, items(status.get("containerStatuses"))):
        for state in map(mapping, mapping(row.get("state")).values()):
            if said := ": ".join(filter(None, (text(state.get("reason")), text(state.get("message"))))):
                return said
    return ": ".join(filter(None, (text(status.get("reason")), text(status.get("message")))))


def _metadata(name: str, namespace: str) -> Object:
    labels = {names.NAME_LABEL: names.KGPU, names.COMPONENT_LABEL: NAME}
    return {"name": name, "namespace": namespace, "labels": labels}


def _account(name: str, namespace: str) -> Object:
    return {
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(name, namespace),
        "automountServiceAccountToken": False,
    }  # fmt: skip


def pod(name: str, node: str, account: str, settings: ProbeSettings) -> Object:
    """The pod. It is bound to its node by name: cordons and taints do not keep it off."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(name, settings.namespace),
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": int(settings.seconds) + 1,
            "terminationGracePeriodSeconds": 1,
            "serviceAccountName": account,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": CONTAINER,
                    "image": settings.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": [PROGRAM],
                    "args": ["preflight", "--host", "-o", "facts"],
                    "env": [
                        {"name": "NODE_NAME", "value": node},
                        {"name": names.ENV_HOST_ROOT, "value": names.HOST_ROOT},
                    ],
                    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
                    "securityContext": {
                        "runAsUser": 0, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "volumeMounts": [
                        {
                            "name": "host", "mountPath": names.HOST_ROOT, "readOnly": True,
                            "mountPropagation": "HostToContainer",
                        }
                    ],
                }
            ],
            "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        },
    }  # fmt: skip
