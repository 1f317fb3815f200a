"""A host of simulated nodes in this process, on an API server in memory, with short waits; and pods to put on it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from kgpu.base.errors import UserError
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import EVENTS, PODS, Object
from kgpu.kubelet.device_plugin import DevicePluginServer, register
from kgpu.kubelet.model import ContainerAllocation, DeviceState, PreferenceRequest, Registration
from kgpu.lab.nodes import container_processes, spec
from kgpu.lab.nodes.host import NodeHost
from kgpu.lab.nodes.node import SimNode
from kgpu.lab.nodes.spec import NodeSpec

NODE = "n-1"
GPU = "example.com/gpu"
WAIT_S = 300.0
SCALE = 0.02  # of Kubernetes' long waits: 10 s are 0.2 s


class Bench:
    """The API server, the host, and its node."""

    def __init__(self, folder: Path, api: FakeApi, mode: str) -> None:
        self.folder = folder
        self.api = api
        self._mode = mode
        self._task: asyncio.Task[None] | None = None
        self.host: NodeHost | None = None

    async def up(self, *, registered: bool = True) -> None:
        """Start the host and wait for its node, which has ``registered`` unless its machine is off."""
        (self.folder / "kubeconfig").touch()
        self.host = NodeHost(
            self.folder / "nodes", self.api, self.folder / "kubeconfig", address="127.0.0.1", ca=b"", mode=self._mode
        )
        self._task = asyncio.create_task(self.host.run())
        await until(lambda: NODE in self.host.nodes and (not registered or self.host.nodes[NODE].registered.is_set()))

    async def down(self) -> None:
        """End the host as a killed one ends: containers and files stay."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def node(self) -> SimNode:
        assert self.host is not None
        return self.host.nodes[NODE]

    @property
    def node_folder(self) -> Path:
        return self.folder / "nodes" / NODE

    def pod(self, name: str) -> Object | None:
        """The pod as the API server has it now."""
        found = self.api._objects.get((PODS, "default", name))
        return None if found is None else found.shown()

    def status(self, name: str) -> Object:
        return (self.pod(name) or {}).get("status") or {}

    def phase(self, name: str) -> str:
        return str(self.status(name).get("phase", ""))

    def container(self, name: str, container: str = "main") -> Object:
        rows = [*self.status(name).get("containerStatuses", ()), *self.status(name).get("initContainerStatuses", ())]
        return next((row for row in rows if row["name"] == container), {})

    def state(self, name: str, container: str = "main") -> tuple[str, Object]:
        """(waiting, running or terminated; what is said about it)."""
        found = self.container(name, container).get("state") or {}
        return next(iter(found.items()), ("", {}))

    async def create(self, pod: Object) -> Object:
        return await self.api.create(PODS, pod)

    async def phase_is(self, name: str, phase: str) -> Object:
        await until(lambda: self.phase(name) == phase, lambda: f"{name}: {self.status(name)}")
        return self.status(name)

    async def is_gone(self, name: str) -> None:
        await until(lambda: self.pod(name) is None, lambda: f"{name}: {self.pod(name)}")

    def events(self, reason: str = "") -> list[str]:
        """The messages of the events with that reason, or of all."""
        rows = [one.obj for (resource, *_), one in self.api._objects.items() if resource == EVENTS]
        return [row["message"] for row in rows if reason in {"", row["reason"]}]

    async def event(self, reason: str) -> str:
        """The message of an event that comes."""
        await until(lambda: bool(self.events(reason)), lambda: f"no {reason} among {self.events()}")
        return self.events(reason)[0]

    async def logs(self, path: str, *, token: str | None = None, method: str = "GET") -> tuple[int, str]:
        """What the log server answers: status and body."""
        own = self.folder / "nodes" / "host"
        port = int((own / "port").read_text())
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        shown = (own / "token").read_text().strip() if token is None else token
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {shown}\r\n\r\n".encode())
        try:
            async with asyncio.timeout(WAIT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                if "chunked" in head:
                    body = b"".join([piece async for piece in chunks(reader)])
                else:
                    body = await reader.readexactly(int(head.lower().split("content-length: ")[1].split("\r\n")[0]))
        finally:
            writer.close()
        return int(head.split()[1]), body.decode(errors="replace")

    async def log(self, pod: str, container: str = "main", query: str = "") -> str:
        code, text = await self.logs(f"/containerLogs/default/{pod}/{container}{query}")
        assert code == 200, (code, text)
        return text


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The pieces of a chunked body."""
    while size := int(await reader.readline(), 16):
        yield await reader.readexactly(size)
        await reader.readline()


@contextlib.asynccontextmanager
async def bench(folder: Path, *, mode: str = "plain", **about: Any) -> AsyncIterator[Bench]:
    """A host with one CPU node; ``about`` are further fields of its spec."""
    made = Bench(folder, FakeApi(), mode)
    fields = {"name": NODE, "profile": "cpu", "time_scale": SCALE, **about}
    spec.save(made.node_folder, NodeSpec(**fields))
    await made.up()
    try:
        yield made
    finally:
        await made.down()
        container_processes.end_all(made.node_folder)


async def until(
    condition: Callable[[], bool], shown: Callable[[], str] = lambda: "", *, seconds: float = WAIT_S
) -> None:
    """Return when the condition holds; AssertionError with what ``shown`` says after a while."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not condition():
        assert loop.time() < end, f"waited {seconds:g} s; {shown()}"
        await asyncio.sleep(0.02)


async def until_said(lab: Bench, name: str, word: str) -> None:
    """Return when the pod's log has the word."""
    files = lab.node_folder / "logs" / f"default_{name}_{lab.pod(name)['metadata']['uid']}"
    await until(lambda: any(word in path.read_text() for path in files.glob("main/*.log")))


def until_there(file: Path, then: str) -> str:
    """A script that does it once the test has made the file: not before the test has seen that it runs."""
    return f"while [ ! -e {file} ]; do sleep 0.05; done; {then}"


def pod(name: str, *words: str, image: str = "busybox:1", **about: Any) -> Object:
    """A pod on the node with one container that runs a shell script; ``spec_`` fields go to its spec."""
    container: Object = {"name": "main", "image": image}
    if words:
        container["command"] = ["sh", "-c", *words]
    spec_fields = {key.removeprefix("spec_"): about.pop(key) for key in list(about) if key.startswith("spec_")}
    container |= about
    fields = {
        "nodeName": NODE, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container],
        **spec_fields,
    }  # fmt: skip
    return {"metadata": {"name": name, "namespace": "default"}, "spec": fields}


def gpus(count: int, resource: str = GPU) -> Object:
    """Resources of a container."""
    return {"limits": {resource: str(count)}}


class Logic:
    """A device plugin's decisions: the ids are in the environment; ``hang`` and ``refuse`` make it fail."""

    def __init__(self) -> None:
        self.refuse = ""
        self.cdi: tuple[str, ...] = ()
        self.env: dict[str, str] = {}
        self.allocated: list[tuple[str, ...]] = []
        self.preferred: list[PreferenceRequest] = []

    def allocate(self, ids: Sequence[str]) -> ContainerAllocation:
        if self.refuse:
            raise UserError(self.refuse, "something else", "nothing")
        self.allocated.append(tuple(ids))
        return ContainerAllocation(envs={"IDS": ",".join(ids), **self.env}, cdi_devices=self.cdi)

    def prefer(self, request: PreferenceRequest) -> Sequence[str]:
        self.preferred.append(request)
        return sorted(request.available)[-request.size :]


@contextlib.asynccontextmanager
async def plugin(made: Bench, count: int = 4, name: str = GPU) -> AsyncIterator[tuple[DevicePluginServer, Logic]]:
    """A device plugin with ``count`` devices that is registered with the bench's node."""
    logic = Logic()
    server = DevicePluginServer(made.node.devices.folder, Registration(resource=name, endpoint="one.sock"), logic)
    server.update([DeviceState(id=f"d{number}", numa_node=number % 2) for number in range(count)])
    await server.start()
    await register(made.node.devices.socket, server.registration)
    await until(lambda: made.node.devices.allocatable() == {name: count})
    try:
        yield server, logic
    finally:
        await server.close()
