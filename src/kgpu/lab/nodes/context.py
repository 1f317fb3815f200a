"""What a pod's worker gets of its node: the API server's port, device manager, runtime, and the node's facts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kgpu.kube.kinds import SECRETS, SERVICE_ACCOUNTS
from kgpu.kube.port import CONFIG_MAPS, KubeApi, Object
from kgpu.kubelet.fake import FakeKubelet
from kgpu.lab.nodes import boots
from kgpu.lab.nodes.addresses import PodAddresses, loopback
from kgpu.lab.nodes.claims import ClaimManager
from kgpu.lab.nodes.environment import CONFIG_MAP, SECRET, Ref
from kgpu.lab.nodes.machine import NodeMachine
from kgpu.lab.nodes.podevents import KubeletEvent, KubeletRecorder
from kgpu.lab.nodes.runtime import Runtime

TOKEN_S: Final = 3607  # after which a service account's token is worth nothing
_KINDS: Final = {CONFIG_MAP: CONFIG_MAPS, SECRET: SECRETS}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """One node, as its pods see it. ``scale`` shortens Kubernetes' long waits; ``specs`` are the CDI folders."""

    name: str
    folder: Path
    api: KubeApi
    recorder: KubeletRecorder
    runtime: Runtime
    devices: FakeKubelet
    addresses: PodAddresses
    host_ip: str
    allocatable: Callable[[], Mapping[str, str]]
    specs: tuple[Path, ...]
    machine: NodeMachine
    shared: Path
    """The folder of the lab's persistent volumes, which all its nodes have."""
    light: bool = False
    scale: float = 1.0
    claims: ClaimManager | None = None
    service_env: Mapping[str, str] = field(default_factory=dict)
    now: Callable[[], float] = time.time
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(16))
    boot: Callable[[], str] = lambda: ""
    """The id of the machine's boot; "" before its first reboot."""

    def is_former(self, container: str) -> bool:
        """Whether the container with that id was ended by the machine's reboot."""
        return boots.is_former(self.boot(), container)

    def loopback(self, pod_address: str) -> str:
        """``loopback`` in this node's lab."""
        return loopback(pod_address, self.folder.parent)

    async def objects(self, namespace: str, refs: set[Ref]) -> dict[Ref, Object | None]:
        """The ConfigMaps and Secrets; None for those that are not there. Raises KubeError."""
        return {
            (kind, name): await self.api.get(_KINDS[kind], name, namespace=namespace) for kind, name in sorted(refs)
        }

    async def token(self, pod: Object) -> str:
        """A token of the pod's service account, bound to the pod as the kubelet's is: it ends with the pod, and tells
        the API server and its admission policies on which node it is used. Raises KubeError.
        """
        about = pod["metadata"]
        account = pod["spec"].get("serviceAccountName") or "default"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": about["name"], "uid": about["uid"]}
        request: Object = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {"name": account, "namespace": about["namespace"]},
            "spec": {"expirationSeconds": TOKEN_S, "boundObjectRef": bound},
        }
        answer = await self.api.create(SERVICE_ACCOUNTS, request, subresource="token")
        return str((answer.get("status") or {}).get("token") or "")

    def event(
        self, pod: Object, kind: str, reason: str, message: str, *, container: str = "", init: bool = False
    ) -> None:
        """Record an Event about a pod or one of its containers."""
        path = f"spec.{'initContainers' if init else 'containers'}{{{container}}}" if container else ""
        about = {**pod, "kind": "Pod"}
        self.recorder.note(
            KubeletEvent(node=self.name, about=about, kind=kind, reason=reason, message=message, field=path)
        )
