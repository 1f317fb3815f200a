"""The exporter on 8 GPUs in 56 MIG slices, a pod on each: what a scrape takes, and how the agent is after many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from bench.machine import children_of, cpu_seconds, logged, memory_of
from bench.measures import KGPU, KUBECONFIG, World, _read
from kgpu.formats.names import GPU_RESOURCE
from kgpu.hw.simulator import mig
from kgpu.kubelet.pb import podresources_v1_pb2 as pb

SCRAPES: Final = 10_000
REST_SECONDS: Final = 30
START_LIMIT: Final = 60.0
SLICES: Final = 7
ALL_ROLES: Final = "deviceplugin,labels,validator,health,exporter,node-status,features,probe"
"""Without the toolkit, which would configure this machine's container engine."""
# As Prometheus asks.
ASKING: Final = (
    b"GET /metrics HTTP/1.1\r\nHost: bench\r\nAccept: application/openmetrics-text;version=1.0.0;q=0.75,"
    b"text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\nAccept-Encoding: gzip\r\n\r\n"
)
PLAIN: Final = b"GET /metrics HTTP/1.1\r\nHost: bench\r\n\r\n"


class PodResources:
    """The kubelet's pod resources API with one pod for each device of that resource."""

    def __init__(self, folder: Path, uuids: list[str], resource: str) -> None:
        folder.mkdir()
        self._reply = pb.ListPodResourcesResponse()
        for number, uuid in enumerate(uuids):
            pod = self._reply.pod_resources.add(name=f"trainer-{number}", namespace="research")
            devices = pod.containers.add(name="main").devices.add(resource_name=resource)
            devices.device_ids.append(uuid)
        self._server = grpc.server(ThreadPoolExecutor(1))
        handler = grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._reply,  # noqa: ARG005
            request_deserializer=pb.ListPodResourcesRequest.FromString,
            response_serializer=pb.ListPodResourcesResponse.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),)
        )
        self._server.add_insecure_port(f"unix:{folder / 'kubelet.sock'}")
        self._server.start()

    def close(self) -> None:
        """Stop."""
        self._server.stop(0).wait()


@dataclass(frozen=True, slots=True)
class Served:
    """An agent whose exporter has everything."""

    pid: int
    port: int

    @property
    def pids(self) -> list[int]:
        return [self.pid, *children_of(self.pid)]

    def cpu(self) -> float:
        """Seconds of agent and hardware child so far."""
        return sum(map(cpu_seconds, self.pids))


def sliced(world: World) -> Path:
    """A simulated root with 56 slices."""
    root = world.folder / "sliced"
    if not root.exists():
        command = [*KGPU, "lab", "hw", "create", "hgx-h100", "--root", str(root)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for gpu in range(8):
            mig.partition(root, gpu, ["1g.10gb"] * SLICES)
    return root


@contextlib.contextmanager
def served(world: World, roles: str = "", root: Path | None = None, **env: str) -> Iterator[Served]:
    """An agent with these roles, or ``kgpu exporter`` without any, until the block ends. Each GPU or slice of ``root``
    (without it, of a node with 56 slices) is held by a pod.
    """
    root = root or sliced(world)
    inventory, _ = asyncio.run(_read(root))
    slices = [part.uuid for gpu in inventory.accelerators for part in gpu.partitions]
    uuids = slices or [gpu.uuid for gpu in inventory.accelerators]
    resource = "nvidia.com/mig-1g.10gb" if slices else GPU_RESOURCE
    with tempfile.TemporaryDirectory(dir=world.folder) as text, contextlib.ExitStack() as stack:
        folder = Path(text)
        for name in ("host", "device-plugins"):
            (folder / name).mkdir()
        kubelet = PodResources(folder / "pod-resources", uuids, resource)
        stack.callback(kubelet.close)
        (folder / "kubeconfig").write_text(json.dumps(KUBECONFIG))
        port = _free_port()
        command = [
            *KGPU, "exporter", "--root", str(root), "--host-root", str(folder / "host"),
            "--pod-resources-kubelet-socket", str(folder / "pod-resources" / "kubelet.sock"),
        ]  # fmt: skip
        agent = [
            *KGPU, "agent", "--roles", roles, "--root", str(root), "--host-root", str(folder / "host"),
            "--state-dir", str(folder / "state"), "--kubelet-socket", str(folder / "device-plugins" / "kubelet.sock"),
            "--cdi-dir", str(folder / "cdi"),
            # The API server's client is loaded and in use, its server out of reach.
            "--kubeconfig", str(folder / "kubeconfig"), "--node-name", "bench", "--labels-sink", "node",
        ]  # fmt: skip
        environment = {
            **os.environ, "DCGM_EXPORTER_LISTEN": f"127.0.0.1:{port}", "DCGM_EXPORTER_KUBERNETES": "true",
            "KGPU_RUN_DIR": str(folder / "run"), **env,
        }  # fmt: skip
        with logged(agent if roles else command, environment, folder / "log") as process:
            _wait_for_pods(port, process, len(uuids))
            yield Served(process.pid, port)


def scrapes_and_memory(world: World) -> Mapping[str, list[float]]:
    """Each scrape's time as its client sees it, and memory before and after all of them."""
    found: dict[str, list[float]] = {"p50": [], "p99": [], "pss": [], "growth": []}
    with served(world, ALL_ROLES) as running:
        for _ in range(200):
            scrape(running.port)
        time.sleep(10)  # garbage of the start, and roles that come to rest
        before = memory_of(running.pids)
        times = [_timed(running.port) for _ in range(SCRAPES)]
        after = memory_of(running.pids)
        cuts = statistics.quantiles(times, n=100, method="inclusive")
        found["p50"].append(1000 * cuts[49])
        found["p99"].append(1000 * cuts[98])
        found["pss"].append(after.pss)
        found["growth"].append(after.pss - before.pss)
    return found


def at_rest(world: World) -> Mapping[str, list[float]]:
    """CPU, scraped once a second: of the exporter alone, at both ends of what people choose between readings, and of
    the agent that has all roles.
    """
    found: dict[str, list[float]] = {}
    for key, roles, interval in (("usual", "", "30000"), ("second", "", "1000"), ("agent", ALL_ROLES, "30000")):
        with served(world, roles, DCGM_EXPORTER_INTERVAL=interval) as running:
            time.sleep(15 if roles else 5)
            before, begin = running.cpu(), time.monotonic()
            for second in range(1, REST_SECONDS + 1):
                scrape(running.port)
                time.sleep(max(0.0, begin + second - time.monotonic()))
            found[key] = [100 * (running.cpu() - before) / (time.monotonic() - begin)]
    return found


def scrape(port: int, asking: bytes = ASKING) -> bytes:
    """One scrape's answer, head and body."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(asking)
        parts = []
        while part := connection.recv(1 << 18):
            parts.append(part)
    answer = b"".join(parts)
    assert answer.startswith(b"HTTP/1.1 200 "), answer[:80]
    return answer


def _timed(port: int) -> float:
    begin = time.perf_counter()
    scrape(port)
    return time.perf_counter() - begin


def _wait_for_pods(port: int, process: subprocess.Popen[bytes], pods: int) -> None:
    end = time.monotonic() + START_LIMIT
    seen = 0
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            lines = scrape(port, PLAIN).decode().splitlines()
            seen = sum(line.startswith("DCGM_FI_DEV_FB_USED{") and 'pod="trainer-' in line for line in lines)
            if seen == pods:
                return
        time.sleep(0.2)
    raise TimeoutError(f"{seen} of {pods} devices have a pod in the metrics")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
