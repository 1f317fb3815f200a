"""Exporters for tests: metrics as text, and an HTTP server that is an API server with pods and their proxy, or exporters.

Run as a program it serves until it is ended: ``python -m tests.top.exporting NODES GPUS [odd]``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

MODEL = "NVIDIA H100 80GB HBM3"
Page = Callable[[str], tuple[int, str]]
"""A path to a status and a body; status 0 hangs."""


def labels(node: str, index: int, **more: str) -> str:
    found = {
        "gpu": str(index), "UUID": f"GPU-{node}-{index}", "pci_bus_id": f"00000000:{index:02X}:00.0",
        "device": f"nvidia{index}", "modelName": MODEL, **more, "hostname": node, "DCGM_FI_DRIVER_VERSION": "570.133.20",
    }  # fmt: skip
    return ",".join(f'{name}="{value}"' for name, value in found.items())


def gpu_text(node: str, index: int, values: Mapping[str, float], **more: str) -> str:
    return "".join(f"{name}{{{labels(node, index, **more)}}} {value}\n" for name, value in values.items())


def node_text(node: str, gpus: int = 8, *, busy: float = 50) -> str:
    """The usual set of a node whose even GPUs have a pod."""
    text = ""
    for index in range(gpus):
        pod = {"pod": f"train-{index}", "namespace": "ml", "container": "main"} if index % 2 == 0 else {}
        used = 40_000 if pod else 0
        values = {
            "DCGM_FI_DEV_SM_CLOCK": 1980, "DCGM_FI_DEV_MEM_CLOCK": 2619, "DCGM_FI_DEV_MEMORY_TEMP": 60,
            "DCGM_FI_DEV_GPU_TEMP": 55 + index, "DCGM_FI_DEV_POWER_USAGE": 300.5 + index,
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 123456789, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0,
            "DCGM_FI_DEV_GPU_UTIL": busy if pod else 0, "DCGM_FI_DEV_MEM_COPY_UTIL": 30, "DCGM_FI_DEV_ENC_UTIL": 0,
            "DCGM_FI_DEV_DEC_UTIL": 0, "DCGM_FI_DEV_XID_ERRORS": 0, "DCGM_FI_DEV_FB_FREE": 80_000 - used,
            "DCGM_FI_DEV_FB_USED": used, "DCGM_FI_DEV_FB_RESERVED": 500, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0,
            "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 0, "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
            "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 0, "DCGM_FI_DEV_VGPU_LICENSE_STATUS": 0,
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.5, "DCGM_FI_PROF_SM_ACTIVE": 0.4 if pod else 0,
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.1, "DCGM_FI_PROF_DRAM_ACTIVE": 0.2,
            "DCGM_FI_PROF_PCIE_TX_BYTES": 1000, "DCGM_FI_PROF_PCIE_RX_BYTES": 1000, "kgpu_gpu_up": 1,
            "kgpu_gpu_healthy": 1,
        }  # fmt: skip
        text += gpu_text(node, index, values, **pod)
    return f"# HELP DCGM_FI_DEV_SM_CLOCK Clock.\n# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n{text}"


def exporter_pod(
    node: str, *, ip: str = "10.1.2.3", app: str = "nvidia-dcgm-exporter", **status: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"exporter-{node}", "namespace": "gpu-operator", "labels": {"app": app}, "resourceVersion": "1"},
        "spec": {"nodeName": node, "containers": [{"name": "e", "ports": [{"name": "gpu-metrics", "containerPort": 9400}]}]},
        "status": {"phase": "Running", "podIP": ip, **status},
    }  # fmt: skip


def gpu_node(name: str, gpus: int = 8) -> dict[str, Any]:
    capacity = {"cpu": "8", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "resourceVersion": "1"},
        "status": {"capacity": capacity},
    }  # fmt: skip


class Server:
    """HTTP/1.1 over what a function says; counts requests."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.port = 0

    @contextlib.asynccontextmanager
    async def running(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Server]:
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await self._serve(reader, writer)
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                writer.close()
                tasks.discard(task)

        server = await asyncio.start_server(serve, host, port, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in tuple(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            address = writer.get_extra_info("sockname")[0]
            target = unquote(head.split(" ", 2)[1])
            self.requests.append(target)
            status, body = self.page(f"{address}{target}" if target.startswith("/metrics") else target)
            if status == 0:
                await asyncio.Event().wait()
            raw = body.encode()
            writer.write(
                f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
                + raw
            )
            await writer.drain()
            if "connection: close" in head.lower():
                return


def api_page(pods: list[dict[str, Any]], nodes: list[dict[str, Any]], proxied: Page) -> Page:
    """An API server's lists of pods by label and of nodes, and ``proxied`` by the pod's name behind the proxy."""
    through = re.compile(r"/api/v1/namespaces/[^/]+/pods/(?:https?:)?([^:/]+):[0-9]+/proxy/metrics")

    def page(target: str) -> tuple[int, str]:
        parts = urlsplit(target)
        asked = through.fullmatch(parts.path)
        if asked:
            return proxied(asked[1])
        if parts.path == "/api/v1/nodes":
            return 200, json.dumps({"items": nodes, "metadata": {"resourceVersion": "1"}})
        listed = re.fullmatch(r"/api/v1/(?:namespaces/([^/]+)/)?pods", parts.path)
        if listed:
            wanted = re.search(r"labelSelector=([^&]*)", parts.query)
            key, _, value = (wanted[1] if wanted else "").partition("=")
            found = [pod for pod in pods if pod["metadata"]["labels"].get(key) == value]
            found = [pod for pod in found if listed[1] in {None, pod["metadata"]["namespace"]}]
            return 200, json.dumps({"items": found, "metadata": {"resourceVersion": "1"}})
        return 404, json.dumps({"kind": "Status", "code": 404, "message": "there is no such path"})

    return page


def fleet(count: int, gpus: int, prefix: str = "node-") -> tuple[list[Any], list[Any], dict[str, str]]:
    """Exporter pods, Nodes, and each exporter's text by pod name."""
    names = [f"{prefix}{number}" for number in range(count)]
    texts = {f"exporter-{name}": node_text(name, gpus, busy=number % 101) for number, name in enumerate(names)}
    return [exporter_pod(name) for name in names], [gpu_node(name, gpus) for name in names], texts


def kubeconfig(server: str) -> str:
    return f"""
apiVersion: v1
kind: Config
current-context: c
clusters: [{{name: k, cluster: {{server: "{server}"}}}}]
contexts: [{{name: c, context: {{cluster: k, user: u}}}}]
users: [{{name: u, user: {{token: sesame}}}}]
"""


async def main(count: int, gpus: int, *, odd: bool) -> None:
    """``odd``: with a node that is silent, and one whose names are hostile or wide."""
    pods, nodes, texts = fleet(count, gpus)
    in_order = list(texts.values())
    if odd:
        for name in ("broken", "odd"):
            pods.append(exporter_pod(name))
            nodes.append(gpu_node(name))
        values = {"DCGM_FI_DEV_GPU_UTIL": 77, "DCGM_FI_DEV_FB_USED": 10, "DCGM_FI_DEV_FB_FREE": 30}
        hostile = {"namespace": "학습팀", "pod": "모델-훈련-가나다라마바사", "container": "\x1b[2J\x1b]0;x\x07"}
        texts["exporter-odd"] = gpu_text("odd", 0, values, **hostile)

    def page(target: str) -> tuple[int, str]:
        if target.startswith("127."):  # an exporter by address: 127.0.A.B is number 256 A + B
            a, b = target.partition("/")[0].split(".")[2:]
            return 200, in_order[int(a) * 256 + int(b)]
        return answer(target)

    def proxied(pod: str) -> tuple[int, str]:
        return (200, texts[pod]) if pod in texts else (503, "{}")

    answer = api_page(pods, nodes, proxied)
    async with Server(page).running("0.0.0.0") as server:
        print(server.port, flush=True)
        while True:
            await asyncio.sleep(1)
            server.requests.clear()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), odd="odd" in sys.argv))
