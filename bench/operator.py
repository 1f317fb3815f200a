"""A ClusterPolicy meets thousands of Nodes: how soon all are labelled, what the operator costs, and is it quiet then?

``python -m bench.operator [--nodes 1000] [--real]``. Brings up a throw-away lab, embedded or real, makes Nodes with the
labels of a node feature discovery and about as much else as real ones have, starts ``kgpu operator run`` and creates
the policy. Nobody runs the pods: what is measured is the operator and the API server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.machine import cpu_seconds, memory_of
from bench.measures import KGPU, World
from bench.skip import SkippedError
from kgpu.base.errors import KubeError, LabError
from kgpu.formats import names
from kgpu.formats.crd.definitions import crds
from kgpu.kube import kinds
from kgpu.kube.client import Client, connect
from kgpu.kube.port import NODES, Change, KubeRefusedError, Object, name_of

NAMESPACE: Final = "gpu-operator"
NAME: Final = "bench-operator"
PREFIX: Final = "bench-node-"
AT_ONCE: Final = 16
LIMIT_S: Final = 300.0
IDLE_S: Final = 30.0
IMAGES: Final = 25
QUIET_MOST: Final = 1000  # Nodes; making the pods of more takes the lab minutes, in which nothing is at rest
POLICY: Final[Object] = {
    "metadata": {"name": "cluster-policy"},
    "spec": {
        "operator": {}, "daemonsets": {}, "driver": {"enabled": False}, "toolkit": {}, "devicePlugin": {},
        "dcgm": {"enabled": False}, "dcgmExporter": {"enabled": False}, "gfd": {}, "nodeStatusExporter": {},
    },
}  # fmt: skip
_WRITES: Final = re.compile(r'^kgpu_operator_writes_total\{kind="(.*)"\} (\d+)$', re.MULTILINE)


def nodes(world: World, count: int, *, real: bool = False) -> Mapping[str, list[float]]:
    """Seconds, MiB and writes by the keys of ``bench.run``'s figures; measured once. Raises SkippedError."""
    return {key: [value] for key, value in asyncio.run(measure(world.folder, count, real=real)).items()}


async def measure(folder: Path, count: int, *, real: bool) -> dict[str, float]:
    """All of it."""
    async with _real() if real else embedded(folder) as kubeconfig:
        api = connect(str(kubeconfig))
        try:
            await prepare(api)
            account = {"metadata": {"name": names.AGENT_DAEMON_SET, "namespace": NAMESPACE}}
            await api.apply(kinds.SERVICE_ACCOUNTS, account, manager="bench")
            await make_nodes(api, count)
            return await _operate(api, kubeconfig, folder, count)
        finally:
            await api.close()


async def prepare(api: Client) -> None:
    """What the operator needs: its kinds, and its namespace. Raises KubeError."""
    for crd in crds():
        await api.apply(kinds.CUSTOM_RESOURCE_DEFINITIONS, crd, manager="bench")
    with contextlib.suppress(KubeRefusedError):
        await api.create(kinds.NAMESPACES, {"metadata": {"name": NAMESPACE}})


async def _operate(api: Client, kubeconfig: Path, folder: Path, count: int) -> dict[str, float]:
    metrics, health = free_port(), free_port()
    command = [
        *KGPU, "operator", "run", "--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE, "--image", "kgpu:bench",
        "--metrics-bind-address", f"127.0.0.1:{metrics}", "--health-probe-bind-address", f"127.0.0.1:{health}",
    ]  # fmt: skip
    found: dict[str, float] = {}
    process = start(command, folder / "operator.log")
    try:
        await until_settled(process, health)
        found["rest"] = memory_of([process.pid]).rss
        used = cpu_seconds(process.pid)
        begin = time.perf_counter()
        labelled = asyncio.create_task(_all_labelled(api, count, health))
        objects = asyncio.create_task(_object(api))
        await asyncio.sleep(0.1)
        begin = time.perf_counter()
        await _create_policy(api)
        async with asyncio.timeout(LIMIT_S):
            found["objects"] = await objects - begin
            sys.stderr.write(f"objects are there after {found['objects']:.2f} s\n")
            found["labelled"] = await labelled - begin
            sys.stderr.write(f"all are labelled after {found['labelled']:.2f} s\n")
        found["cpu"] = cpu_seconds(process.pid) - used
        if count <= QUIET_MOST:
            found |= await _at_rest(process, health, metrics, begin)
        memory = memory_of([process.pid])
        found["rss"], found["pss"] = memory.rss, memory.pss
    except BaseException:
        sys.stderr.write((folder / "operator.log").read_text(errors="replace")[-4000:])
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 10)
    return found


async def _at_rest(process: subprocess.Popen[bytes], health: int, metrics: int, begin: float) -> dict[str, float]:
    """What it writes and costs when nothing happens any more."""
    await until_settled(process, health)
    found = {"settled": time.perf_counter() - begin}
    before, used, planned = await _writes(metrics), cpu_seconds(process.pid), (await _state(health))["passes"]
    await asyncio.sleep(IDLE_S)
    written = await _writes(metrics) - before
    found["idle plans"] = float((await _state(health))["passes"] - planned)
    found["idle writes"] = float(written.total())
    if written:
        sys.stderr.write(f"written while idle: {dict(written)}\n")
    found["idle cpu"] = 100 * (cpu_seconds(process.pid) - used) / IDLE_S
    return found


async def _create_policy(api: Client) -> None:
    """A new CRD is served a moment after it was made."""
    while True:
        try:
            await api.create(kinds.CLUSTER_POLICIES, POLICY)
            return
        except KubeRefusedError as refused:
            if refused.code != 404:
                raise
            await asyncio.sleep(0.1)


async def _all_labelled(api: Client, count: int, port: int) -> float:
    """When the last Node has the operator's label: by the operator's word, so that nobody else's watch costs the API
    server anything meanwhile, and then by the Nodes themselves.
    """
    begun, pending = False, 0
    while True:
        # Far from the end it is asked seldom: each answer costs CPU that the labelling then lacks.
        await asyncio.sleep(min(0.5, max(0.05, pending / 2000)))
        pending = (await _state(port))["nodes_pending"]
        begun = begun or pending > 0
        if begun and not pending:
            break
    end = time.perf_counter()
    label = f"{names.LABEL_DEPLOY_PREFIX}device-plugin"
    listing = await api.list(dataclasses.replace(NODES, metadata_only=True))
    done = [one for one in listing.items if label in (one["metadata"].get("labels") or {})]
    found = sum(name_of(one).startswith(PREFIX) for one in done)
    assert found >= count, f"{found} of {count} Nodes are labelled"
    return end


async def _object(api: Client) -> float:
    """When the last object, the agents' DaemonSet, is there."""
    listing = await api.list(kinds.DAEMON_SETS, namespace=NAMESPACE)
    async for event in api.watch(kinds.DAEMON_SETS, listing.resource_version, namespace=NAMESPACE):
        if event.change is Change.ADDED and name_of(event.object) == names.AGENT_DAEMON_SET:
            return time.perf_counter()
    raise RuntimeError("the watch ended")


async def until_settled(process: subprocess.Popen[bytes], port: int) -> None:
    """Return once the operator has had nothing to do for two seconds."""
    end, quiet = time.perf_counter() + LIMIT_S, 0
    while quiet < 4:  # two seconds
        await asyncio.sleep(0.5)
        assert process.poll() is None, "the operator has ended"
        assert time.perf_counter() < end, "the operator does not settle"
        with contextlib.suppress(OSError):
            quiet = quiet + 1 if (await _state(port))["settled"] else 0


async def _state(port: int) -> Mapping[str, Any]:
    """What the operator says of itself."""
    found: Mapping[str, Any] = json.loads(await page(port, "/statusz"))
    return found


async def _writes(port: int) -> Counter[str]:
    """How often each kind has been written so far."""
    return Counter({kind: int(number) for kind, number in _WRITES.findall(await page(port, "/metrics"))})


async def page(port: int, path: str) -> str:
    """What the operator answers to a GET. Raises OSError."""

    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(read)


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def make_nodes(api: Client, count: int, labels: Mapping[str, str] | None = None) -> None:
    """Make so many Nodes, with labels beside those of a node feature discovery. Raises KubeError."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def make(name: str) -> None:
        async with limit:
            node = node_object(name)
            node["metadata"]["labels"] |= labels or {}
            await api.create(NODES, node)
            await api.patch(NODES, name, {"status": node["status"]}, subresource="status")

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(make(f"{PREFIX}{number:05d}"))


def node_object(name: str) -> Object:
    """A Node as a kubelet and a node feature discovery make it: about 8 KB."""
    features = {f"{names.NFD_PREFIX}cpu-cpuid.FEATURE{number}": "true" for number in range(30)}
    labels = {
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        names.NFD_PCI_NVIDIA[0]: "true", names.NFD_KERNEL_FULL: "6.8.0-40-generic",
        names.NFD_OS_ID: "ubuntu", names.NFD_OS_VERSION: "24.04", **features,
    }  # fmt: skip
    digest = "0123456789abcdef" * 4
    images = [
        {"names": [f"registry.example.org/team/image-{number}@sha256:{digest}"], "sizeBytes": 10**8 + number}
        for number in range(IMAGES)
    ]
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", names.GPU_RESOURCE: "8"}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{**ready, "lastHeartbeatTime": now, "lastTransitionTime": now}],
            "images": images,
            "nodeInfo": {
                "osImage": "Ubuntu 24.04.3 LTS", "kernelVersion": "6.8.0-40-generic", "operatingSystem": "linux",
                "architecture": "amd64", "kubeletVersion": "v1.35.1", "kubeProxyVersion": "",
                "containerRuntimeVersion": "containerd://2.1.4", "machineID": "", "systemUUID": "", "bootID": "",
            },
        },
    }  # fmt: skip


@contextlib.asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Path]:
    """An embedded API server of its own."""
    place = Path(tempfile.mkdtemp(dir=folder))
    command = [sys.executable, "-m", "kgpu.lab.embedded.server", "--dir", str(place)]
    process = start(command, place / "log")
    try:
        kubeconfig = place / "kubeconfig"
        await _until_serves(kubeconfig)
        yield kubeconfig
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 20)
        shutil.rmtree(place, ignore_errors=True)


async def _until_serves(kubeconfig: Path) -> None:
    end = time.perf_counter() + 60
    while time.perf_counter() < end:
        await asyncio.sleep(0.1)
        with contextlib.suppress(KubeError):
            api = connect(str(kubeconfig))
            try:
                await api.discover()
                return
            finally:
                await api.close()
    raise RuntimeError("the embedded API server does not come up")


def start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program whose output goes to a file."""
    with open(log, "wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file)


@contextlib.asynccontextmanager
async def _real() -> AsyncIterator[Path]:
    """The real control plane in a lab of its own."""
    from bench.nodes import require_real_lab
    from kgpu.lab.progress import QuietProgress
    from kgpu.lab.real.cluster import RealLab
    from kgpu.lab.real.model import LabSpec

    require_real_lab()
    # Nobody renews the Nodes' leases, and thousands of lost Nodes would keep the API server busier than the operator
    # does; controllers make the agents' pods at the rate that clusters have by default.
    spec = LabSpec(name=NAME, agent=False, node_grace=3600, controller_rate=20)
    lab = RealLab(spec, progress=QuietProgress())
    if lab.running:
        raise SkippedError(f'a lab named "{NAME}" runs here; take it down with `kgpu lab down --name {NAME}`')
    try:
        try:
            await asyncio.to_thread(lab.up)
        except LabError as error:
            raise SkippedError(f"the real lab does not come up here: {error.one_line()}") from error
        yield Path(lab.kubeconfig)
    finally:
        await asyncio.to_thread(lab.down)


def main() -> int:
    """Measure once and print."""
    parser = argparse.ArgumentParser(prog="bench.operator", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--real", action="store_true", help="on the real control plane instead of the embedded one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kgpu-bench-") as folder:
        found = asyncio.run(measure(Path(folder), arguments.nodes, real=arguments.real))
    for key, value in found.items():
        sys.stdout.write(f"{key:<14}{value:10.3f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
