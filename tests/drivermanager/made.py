"""Nodes, pods and machines for the driver manager's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from kgpu.drivermanager.config import ManagerSettings
from kgpu.drivermanager.model import MachineState
from kgpu.drivermanager.run import DriverManager, ManagerLimits
from kgpu.formats.names import LABEL_DEPLOY_PREFIX, PAUSED_FOR_DRIVER_UPGRADE
from kgpu.host.device_holders import DeviceHolder
from kgpu.host.kernel_modules import ModuleInUseError
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES, PODS, Object

NODE = "gpu-1"
PLUGIN, VALIDATOR = f"{LABEL_DEPLOY_PREFIX}device-plugin", f"{LABEL_DEPLOY_PREFIX}operator-validator"
PAUSED = PAUSED_FOR_DRIVER_UPGRADE
LOADED = MachineState(loaded=True, digest="1")
SETTINGS = ManagerSettings(node=NODE, digest="2", auto_drain=False, unload_timeout=5)


class JumpingClock:
    """A clock on which every wait is over at once; ``on_sleep`` is what happens meanwhile."""

    def __init__(self, on_sleep: Callable[[], None] = lambda: None) -> None:
        self._now = 0.0
        self.on_sleep = on_sleep

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self._now += seconds
        self.on_sleep()


class FakeMachine:
    """A machine by word alone; ``done`` is what was done to it. ``busy`` holders keep the modules."""

    def __init__(self, state: MachineState, busy: Iterable[DeviceHolder] = ()) -> None:
        self.now = state
        self.busy = tuple(busy)
        self.done: list[str] = []
        self.mofed = True
        self.nouveau_busy = False

    def state(self) -> MachineState:
        return self.now

    def unload(self) -> None:
        if self.busy:
            raise ModuleInUseError("nvidia")
        self.done.append("unload")
        self.now = replace(self.now, loaded=False, digest="")

    def holders(self) -> tuple[DeviceHolder, ...]:
        return self.busy

    def unmount(self) -> None:
        self.done.append("unmount")

    def unload_nouveau(self) -> None:
        if self.nouveau_busy:
            raise ModuleInUseError("nouveau")
        self.done.append("nouveau")

    def mofed_ready(self, *, on_host: bool) -> bool:
        del on_host
        return self.mofed


def node(
    labels: dict[str, str] | None = None, *, cordoned: bool = False, annotations: dict[str, str] | None = None
) -> Object:
    spec: dict[str, Any] = {"unschedulable": True} if cordoned else {}
    return {"metadata": {"name": NODE, "labels": labels or {}, "annotations": annotations or {}}, "spec": spec}


def pod(
    name: str, *, gpus: int = 0, owner: str = "ReplicaSet", selector: dict[str, str] | None = None, **spec: Any
) -> Object:  # fmt: skip
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    owners = [{"kind": owner, "name": "owner", "controller": True}] if owner else []
    return {
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}", "ownerReferences": owners},
        "spec": {
            "nodeName": NODE, "nodeSelector": selector or {}, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "resources": {"limits": limits}}], **spec,
        },
        "status": {"phase": "Running"},
    }  # fmt: skip


class Run:
    """One run of a manager over a fake cluster of one node."""

    def __init__(
        self, machine: FakeMachine, labels: dict[str, str] | None = None, *, settings: ManagerSettings = SETTINGS,
        pods: Iterable[Object] = (), node_object: Object | None = None,
    ) -> None:  # fmt: skip
        self.api = FakeApi()
        self.api.put(NODES, node_object or node(labels))
        for obj in pods:
            self.api.put(PODS, obj)
        self.machine = machine
        self.said: list[str] = []
        self.clock = JumpingClock()
        self.manager = DriverManager(
            settings, machine, self.api, clock=self.clock, say=self.said.append,
            limits=ManagerLimits(operands=10, mofed=20, told=5),
        )  # fmt: skip

    async def uninstall(self) -> None:
        await self.manager.uninstall()

    async def node(self) -> Object:
        found = await self.api.get(NODES, NODE)
        assert found is not None
        return found

    async def labels(self) -> dict[str, str]:
        found: dict[str, str] = (await self.node())["metadata"].get("labels") or {}
        return found

    async def cordoned(self) -> bool:
        return bool((await self.node())["spec"].get("unschedulable"))

    async def pods(self) -> list[str]:
        return [obj["metadata"]["name"] for obj in (await self.api.list(PODS)).items]
