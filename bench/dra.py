"""The role ``dra`` beside an embedded API server and a grpcio client as kubelet: what preparing a claim takes, how soon
a change of the hardware is in the ResourceSlices, and how much memory the agent has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from bench.exporter import ALL_ROLES
from bench.machine import children_of, logged, memory_of
from bench.measures import KGPU, START_LIMIT, World
from bench.operator import embedded
from kgpu.dra.api import served_api
from kgpu.formats.names import DRA_GPU_DRIVER
from kgpu.hw.simulator import mig
from kgpu.hw.simulator.create import create_root
from kgpu.kube.client import Client, connect
from kgpu.kube.port import NODES
from kgpu.kubelet.methods import POD_RESOURCES
from kgpu.kubelet.pb import dra_v1_pb2 as dra
from kgpu.kubelet.pb import pluginregistration_v1_pb2 as registry
from kgpu.kubelet.pb import podresources_v1_pb2 as podresources
from kgpu.kubelet.rpc import RpcServer, Service

NODE: Final = "bench"
NAMESPACE: Final = "default"
CALLS: Final = 200
CHANGES: Final = 5
SLICE: Final = "1g10gb"
WITH_DRA: Final = ALL_ROLES.replace("deviceplugin", "dra")
REST_SECONDS: Final = 10


class ClaimPlugin:
    """A kubelet's connection to the driver's sockets in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._driver = grpc.insecure_channel(f"unix:{folder}/plugins/{DRA_GPU_DRIVER}/dra.sock")
        self._registrar = grpc.insecure_channel(f"unix:{folder}/plugins_registry/{DRA_GPU_DRIVER}-reg.sock")
        service = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
        self._prepare = self._driver.unary_unary(
            f"{service}NodePrepareResources",
            request_serializer=dra.NodePrepareResourcesRequest.SerializeToString,
            response_deserializer=dra.NodePrepareResourcesResponse.FromString,
        )
        self._unprepare = self._driver.unary_unary(
            f"{service}NodeUnprepareResources",
            request_serializer=dra.NodeUnprepareResourcesRequest.SerializeToString,
            response_deserializer=dra.NodeUnprepareResourcesResponse.FromString,
        )

    def register(self) -> None:
        """As the kubelet takes a driver, which publishes then."""
        notify = self._registrar.unary_unary(
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            request_serializer=registry.RegistrationStatus.SerializeToString,
            response_deserializer=registry.RegistrationStatusResponse.FromString,
        )
        notify(registry.RegistrationStatus(plugin_registered=True), timeout=START_LIMIT, wait_for_ready=True)

    def prepare(self, claim: dra.Claim) -> None:
        """Have a claim prepared."""
        reply = self._prepare(dra.NodePrepareResourcesRequest(claims=[claim]), timeout=START_LIMIT)
        assert not reply.claims[claim.uid].error, reply.claims[claim.uid].error

    def unprepare(self, claim: dra.Claim) -> None:
        """Have that taken back."""
        reply = self._unprepare(dra.NodeUnprepareResourcesRequest(claims=[claim]), timeout=START_LIMIT)
        assert not reply.claims[claim.uid].error, reply.claims[claim.uid].error

    def close(self) -> None:
        """Hang up."""
        self._driver.close()
        self._registrar.close()


@dataclass(frozen=True, slots=True)
class Driver:
    """An agent with the role, its node's objects, and the kubelet's side."""

    pid: int
    plugin: ClaimPlugin
    api: Client
    root: Path

    def pss(self) -> float:
        """MiB of agent and hardware child."""
        return memory_of([self.pid, *children_of(self.pid)]).pss

    async def devices(self) -> list[str]:
        """What is published."""
        resource = (await served_api(self.api)).resource
        found = (await self.api.list(resource)).items
        return [device["name"] for one in found for device in one["spec"].get("devices") or ()]

    async def until(self, condition: Any) -> float:
        """Seconds until what is published is as it should be."""
        began = time.perf_counter()
        while not condition(await self.devices()):
            if time.perf_counter() - began > START_LIMIT:
                raise TimeoutError(f"published are {await self.devices()}")
            await asyncio.sleep(0.005)
        return time.perf_counter() - began


@contextlib.asynccontextmanager
async def driver(world: World, *, roles: str = "dra", gates: str = "") -> AsyncIterator[Driver]:
    """The role on eight H100s of its own, until the block ends."""
    with tempfile.TemporaryDirectory(dir=world.folder) as text:
        folder = Path(text)
        root = await asyncio.to_thread(create_root, "hgx-h100", folder / "hw")
        async with embedded(world.folder) as kubeconfig:
            api = connect(str(kubeconfig))
            await api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            async with pod_resources(folder):
                with agent(folder, root, kubeconfig, roles, gates) as pid:
                    plugin = ClaimPlugin(folder)
                    await asyncio.to_thread(plugin.register)
                    found = Driver(pid, plugin, api, root)
                    await found.until(lambda devices: devices)
                    yield found
                    plugin.close()
            await api.close()


@contextlib.asynccontextmanager
async def pod_resources(folder: Path) -> AsyncIterator[None]:
    """The kubelet's list of who holds what, which the driver asks for: no pod has a GPU by a counted resource."""

    async def listing(_request: Any) -> Any:
        return podresources.ListPodResourcesResponse()

    (folder / "pod-resources").mkdir()
    server = RpcServer(folder / "pod-resources" / "kubelet.sock", [Service(POD_RESOURCES, {"List": listing})])
    await server.start()
    try:
        yield
    finally:
        await server.close()


@contextlib.contextmanager
def agent(folder: Path, root: Path, kubeconfig: Path, roles: str, gates: str) -> Iterator[int]:
    """The agent's PID."""
    (folder / "host").mkdir()
    (folder / "device-plugins").mkdir()
    command = [
        *KGPU, "agent", "--roles", roles, "--root", str(root), "--host-root", str(folder / "host"),
        "--state-dir", str(folder / "state"), "--kubelet-socket", str(folder / "device-plugins" / "kubelet.sock"),
        "--cdi-dir", str(folder / "cdi"), "--kubeconfig", str(kubeconfig), "--node-name", NODE,
    ]  # fmt: skip
    environment = {
        **os.environ, "FEATURE_GATES": gates, "CDI_ROOT": str(folder / "cdi"), "KGPU_RUN_DIR": str(folder / "run"),
        "KUBELET_PLUGINS_DIRECTORY_PATH": str(folder / "plugins"), "DCGM_EXPORTER_LISTEN": "127.0.0.1:0",
        "KUBELET_REGISTRAR_DIRECTORY_PATH": str(folder / "plugins_registry"),
    }  # fmt: skip
    with logged(command, environment, folder / "log") as process:
        yield process.pid


async def allocate(api: Client, name: str, device: str) -> dra.Claim:
    """A claim that has been given a device, as the scheduler does it."""
    server = await served_api(api)
    request: dict[str, Any] = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    claim = {
        "apiVersion": server.claims.api_version, "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"devices": {"requests": [request]}},
    }  # fmt: skip
    made = await api.create(server.claims, claim)
    result = {"request": "gpu", "driver": DRA_GPU_DRIVER, "pool": NODE, "device": device}
    await api.patch(
        server.claims, name, {"status": {"allocation": {"devices": {"results": [result]}}}}, namespace=NAMESPACE,
        subresource="status",
    )  # fmt: skip
    return dra.Claim(namespace=NAMESPACE, name=name, uid=made["metadata"]["uid"])


async def _timed_claims(found: Driver, claims: list[dra.Claim]) -> list[float]:
    """Milliseconds of each prepare; what is prepared is taken back before the next."""
    times = []
    for number in range(CALLS):
        claim = claims[number % len(claims)]
        began = time.perf_counter()
        await asyncio.to_thread(found.plugin.prepare, claim)
        times.append(1000 * (time.perf_counter() - began))
        await asyncio.to_thread(found.plugin.unprepare, claim)
    return times


def _cuts(times: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return cuts[49], cuts[98]


async def _measured(world: World) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = {}
    async with driver(world) as running:
        whole = [await allocate(running.api, f"whole-{number}", f"gpu-{number}") for number in range(8)]
        for _ in range(world.runs):
            p50, p99 = _cuts(await _timed_claims(running, whole))
            found.setdefault("whole p50", []).append(p50)
            found.setdefault("whole p99", []).append(p99)
        for number in range(CHANGES):
            mig.partition(running.root, number, ["3g.40gb"])
            cut = await running.until(lambda devices, gpu=f"gpu-{number}": gpu not in devices)
            found.setdefault("change", []).append(cut)
    async with driver(world, gates="DynamicMIG=true") as running:
        device = next(one for one in await running.devices() if SLICE in one)
        slices = [await allocate(running.api, "slice", device)]
        for _ in range(world.runs):
            p50, p99 = _cuts(await _timed_claims(running, slices))
            found.setdefault("slice p50", []).append(p50)
            found.setdefault("slice p99", []).append(p99)
    for key, roles in (("two", "dra,labels"), ("all", WITH_DRA)):
        async with driver(world, roles=roles) as running:
            await asyncio.sleep(REST_SECONDS)
            found[key] = [running.pss()]
    return found


def claims(world: World) -> Mapping[str, list[float]]:
    """All figures of the role."""
    return asyncio.run(_measured(world))
