"""``kgpu overview`` of 1,000 nodes with 8 GPUs each, behind an API server's proxy: first paint, memory, viewers.

What viewers cost is the difference of ten to one in the same process: reading the nodes is the same for all of them.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bench.machine import cpu_seconds, memory_of
from bench.measures import KGPU, World
from kgpu.overview.views import SOONEST
from tests.child import child
from tests.top.exporting import kubeconfig

NODES: Final = 1000
GPUS: Final = 8
READ: Final = 300.0  # seconds until all are read, at the most
WATCHED: Final = 30.0  # seconds
VIEWERS: Final = 10
PAINTS: Final = 5
FILES: Final = ("/", "/style.css", "/page.js")


class _Page:
    """A browser that is let in."""

    def __init__(self, link: str) -> None:
        self._parts = urlsplit(link)
        answer, _ = self._ask(f"/?{self._parts.query}")
        self._cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]

    _cookie = ""

    def connect(self, path: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(str(self._parts.hostname), self._parts.port, timeout=60)
        connection.request("GET", path, headers={"Cookie": self._cookie, "Accept-Encoding": "gzip"})
        return connection, connection.getresponse()

    def _ask(self, path: str) -> tuple[http.client.HTTPResponse, bytes]:
        connection, answer = self.connect(path)
        with contextlib.closing(connection):
            return answer, answer.read()

    def get(self, path: str) -> bytes:
        """The page, packed."""
        return self._ask(path)[1]


def measure(world: World) -> Mapping[str, list[float]]:
    """Figures of one process, in the order of their rows."""
    with _serving(world.folder) as (pid, page):
        end = time.monotonic() + READ
        while f"{NODES * GPUS} <small>on {NODES} nodes".encode() not in gzip.decompress(page.get("/")):
            if time.monotonic() > end:
                raise TimeoutError(f"{NODES} nodes were not read within {READ:.0f} s")
            time.sleep(1.0)
        paints, sizes = [], []
        for _ in range(PAINTS):
            time.sleep(2 * SOONEST)  # so that it is made anew
            begin = time.perf_counter()
            sizes.append(sum(len(page.get(path)) for path in FILES) / 1000)
            paints.append((time.perf_counter() - begin) * 1000)
        one, many = _watched(page, pid, 1), _watched(page, pid, VIEWERS)
        return {
            "paint": paints, "size": sizes, "rss": [memory_of([pid]).rss], "one": [one], "viewers": [many - one],
        }  # fmt: skip


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[tuple[int, _Page]]:
    """The page's process and a browser; the API server's is another one."""
    words = [sys.executable, "-m", "tests.top.exporting", str(NODES), str(GPUS)]
    with child(words, stdout=subprocess.PIPE, text=True) as api:
        assert api.stdout is not None
        config = folder / "overview-kubeconfig"
        config.write_text(kubeconfig(f"http://127.0.0.1:{api.stdout.readline().strip()}"))
        words = [*KGPU, "overview", "--kubeconfig", str(config)]
        with child(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            yield process.pid, _Page(process.stdout.readline().strip())


def _watched(page: _Page, pid: int, count: int) -> float:
    """Percent of a core that the page takes with so many viewers, each of whom reads what it is sent."""
    streams = [page.connect("/live") for _ in range(count)]
    try:
        for _, answer in streams:
            answer.fp.readline()
            answer.fp.raw._sock.setblocking(False)  # type: ignore[attr-defined]
        begin, used = time.perf_counter(), cpu_seconds(pid)
        while (took := time.perf_counter() - begin) < WATCHED:
            for _, answer in streams:
                with contextlib.suppress(BlockingIOError):
                    while answer.fp.raw._sock.recv(1 << 20):  # type: ignore[attr-defined]
                        pass
            time.sleep(0.1)
        return 100 * (cpu_seconds(pid) - used) / took
    finally:
        for connection, _ in streams:
            connection.close()
