"""Containers with a network of their own: each has all ports, and is reached at its pod's address of this machine."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from kgpu.kube.port import PODS
from kgpu.lab import samples
from kgpu.lab.nodes import relay
from kgpu.lab.nodes.addresses import loopback
from kgpu.lab.nodes.runtime import NAMESPACES, detect_networks
from tests.lab.nodes.support import Bench, bench, pod, until

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: 0100007F:0051 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0 100 0 0 10 0
   broken
"""
SCRIPT = """
import http.server, os
class Name(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(os.environ["HOSTNAME"].encode())
http.server.HTTPServer(("", 8080), Name).serve_forever()
"""


def test_listening_ports_are_read_from_the_kernels_table() -> None:
    assert relay.ports_in(TABLE) == {8080, 80}
    assert relay.ports_in("") == set()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An image of a web server that says the pod's name."""
    if not detect_networks(tmp_path / "probe"):
        pytest.skip("this user may not make networks here")
    row = samples.SampleImage(
        name="server", pattern="server", entrypoint=(sys.executable,), command=("-c", SCRIPT), listens=frozenset({"-c"})
    )
    monkeypatch.setattr(samples, "SAMPLES", (row, *samples.SAMPLES))


async def said(lab: Bench, name: str) -> str:
    """What the pod's server answers; "" while nobody does."""
    address = loopback(lab.status(name)["podIP"], lab.node_folder.parent)
    try:
        reader, writer = await asyncio.open_connection(address, 8080)
    except OSError:
        return ""
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    answer = (await reader.read()).decode()
    writer.close()
    return answer.rpartition("\n")[2]


@pytest.mark.usefixtures("servers")
async def test_two_pods_listen_on_one_port(folder: Path) -> None:
    async with bench(folder, mode=NAMESPACES) as lab:
        probe = {"httpGet": {"port": 8080}, "periodSeconds": 1}
        for name in ("first", "second"):
            await lab.create(pod(name, image="server", readinessProbe=probe))
        for name in ("first", "second"):
            await until(lambda name=name: bool(lab.container(name).get("ready")))
            assert await said(lab, name) == name
        await lab.api.delete(PODS, "first", namespace="default")
        await lab.is_gone("first")
        assert await said(lab, "second") == "second"
