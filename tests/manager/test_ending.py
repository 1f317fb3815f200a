"""``kgpu-usage`` ends on SIGTERM whatever hangs: name resolution, the API server, the disk; each of them for ever here."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port

LONG = 120.0
"""Seconds that only end what would never end."""
HANG = "import threading\ndef hang(*_args, **_kwargs):\n    print('HANGS', flush=True)\n    threading.Event().wait()\n"
MAIN = "from kgpu.cli.main import main\nimport sys\nsys.exit(main(['kgpu', *sys.argv[1:]]))\n"
NAMES = f"{HANG}import socket\nsocket.getaddrinfo = hang\n{MAIN}"
CLOSING = (
    f"{HANG}from kgpu.usage.store import UsageStore\nold = UsageStore.kept\n"
    "def kept(self, key):\n    with self._lock:\n        hang()\nUsageStore.kept = kept\n"
    "from kgpu.usage.listening import UsageListener\n"
    "async def asked(self):\n    return ()\nUsageListener._ask = asked\n"
    f"{MAIN}"
)
OPENING = f"{HANG}from kgpu.usage.store import UsageStore\nUsageStore.open = hang\n{MAIN}"
LOST = (
    f"{HANG}import asyncio\nfrom kgpu.usage.listening import UsageListener\n"
    "async def watch(self):\n"
    "    print('HANGS', flush=True)\n"
    "    for _ in range(2):\n"
    "        try:\n            await asyncio.Event().wait()\n        except asyncio.CancelledError:\n"
    "            continue\nUsageListener.watch = watch\n"
    f"{MAIN}"
)


@pytest.fixture
def mute() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", free_port())) as server:
        yield server.getsockname()[1]


def kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
        f"clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
    )
    return path


def ends(tmp_path: Path, script: str, server: str, begun: str, *, visit: bool = False) -> tuple[int, str]:
    """Run it until it says so, and end it; returns its code and what it said. ``visit``: while somebody has sent it half
    a request.
    """
    port = free_port()
    config = kubeconfig(tmp_path, server)
    words = ("operator", "usage", "-n", "gpu-operator", "--state-dir", tmp_path / "state", "--kubeconfig", config,
             "--bind-address", f"127.0.0.1:{port}", "--health-probe-bind-address", "0")  # fmt: skip
    said: list[str] = []
    env = {**os.environ, "KGPU_RECLAIM": "true"}
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, words)], env=env, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                said.append(line)
                if begun in line:
                    break
            with contextlib.ExitStack() as visitors:
                if visit:
                    visitor = visitors.enter_context(socket.create_connection(("127.0.0.1", port)))
                    visitor.sendall(b"GET /usage/lines HTTP/1.1\r\nHost")
                process.send_signal(signal.SIGTERM)
                rest, _ = process.communicate(timeout=LONG)
        finally:
            process.kill()
    return process.returncode, "".join((*said, rest))


HANGING = {
    "names are not resolved": (NAMES, "https://api.invalid:6443"),
    "the disk hangs with the store's lock": (CLOSING, "http://127.0.0.1:1"),
    "the disk hangs at the start": (OPENING, "http://127.0.0.1:1"),
    "a cancellation is lost": (LOST, "http://127.0.0.1:1"),
}


@pytest.mark.parametrize(("script", "server"), HANGING.values(), ids=list(HANGING))
def test_it_ends_whatever_hangs(tmp_path: Path, script: str, server: str) -> None:
    code, said = ends(tmp_path, script, server, "HANGS")
    assert code == 0, said


def test_it_ends_while_the_api_server_never_answers(tmp_path: Path, mute: int) -> None:
    code, said = ends(tmp_path, MAIN, f"http://127.0.0.1:{mute}", "at http://127.0.0.1", visit=True)
    assert code == 0, said
