"""The page over a socket, as a browser has it: link, cookie, updates, a lab's buttons, and viewers that take nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
from collections.abc import AsyncIterator
from urllib.parse import urlencode

import pytest

from kgpu.hw.simulator import create, operate
from kgpu.overview.lab_actions import LabGpus
from kgpu.overview.port import FakeWorld
from kgpu.overview.run import serve
from kgpu.overview.views import MOST_VIEWERS
from kgpu.top.source import FakeSource
from tests.overview.making import Outline, gpu, node


class Browser:
    """One browser: it has the link, then the cookie."""

    def __init__(self, link: str) -> None:
        self.host, self.path = link.removeprefix("http://").split("/", 1)
        self.cookie = ""

    async def connect(self, path: str, *headers: str, method: str = "GET", body: bytes = b""):
        reader, writer = await asyncio.open_connection(*self.host.split(":"), limit=4 << 20)
        lines = (
            f"{method} {path} HTTP/1.1",
            f"Host: {self.host}",
            *([f"Cookie: {self.cookie}"] if self.cookie else []),
            *headers,
        )
        writer.write("\r\n".join((*lines, "", "")).encode() + body)
        return reader, writer

    async def get(self, path: str, *headers: str, **more) -> tuple[int, dict[str, str], bytes]:
        reader, writer = await self.connect(path, *headers, **more)
        try:
            head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
        finally:
            writer.close()
        first, *rest = head.decode().split("\r\n")
        return int(first.split()[1]), dict(line.split(": ", 1) for line in rest), body

    async def open(self) -> Browser:
        status, headers, _ = await self.get(f"/{self.path}")
        assert status == 200
        self.cookie = headers["Set-Cookie"].partition(";")[0]
        return self

    async def post(self, fields: dict[str, str], *headers: str) -> tuple[int, dict[str, str], bytes]:
        body = urlencode(fields).encode()
        return await self.get("/lab", f"Content-Length: {len(body)}", *headers, method="POST", body=body)


@contextlib.asynccontextmanager
async def page(source: FakeSource, **more) -> AsyncIterator[Browser]:
    stop, link = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(source, FakeWorld(), port=0, opened=link.set_result, stop=stop, **more))
    try:
        await asyncio.wait({task, link}, return_when=asyncio.FIRST_COMPLETED)
        yield Browser(link.result())
    finally:
        stop.set()
        await asyncio.wait_for(task, 60)
    assert source.closed


async def test_the_link_leads_to_the_page_and_its_updates() -> None:
    source = FakeSource({"a": node("a", gpu("a", 0, "ml/first"))})
    async with page(source) as browser:
        assert (await browser.get("/"))[0] == 401
        await browser.open()
        assert (await browser.get(f"/{browser.path}"))[0] == 200  # opened again, with the cookie
        status, headers, body = await browser.get("/", "Accept-Encoding: br, gzip;q=1.0")
        assert (status, headers["Content-Encoding"]) == (200, "gzip")
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        html = gzip.decompress(body).decode()
        Outline(html)
        for path in re.findall(r'(?:href|src)="(style\.css|page\.js)"', html):
            assert (await browser.get(f"/{path}"))[0] == 200
        reader, writer = await browser.connect("/live?stamp=" + re.search(r'data-stamp="([^"]+)"', html)[1])
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"text/event-stream" in head
        assert b"X-Accel-Buffering: no" in head
        source.nodes["a"] = node("a", gpu("a", 0, "ml/second"))
        async with asyncio.timeout(60):
            while b"ml/second" not in await reader.readuntil(b"\n\n"):
                pass
        writer.close()


async def test_there_is_nothing_else() -> None:
    async with page(FakeSource({})) as browser:
        await browser.open()
        assert (await browser.get("/lab"))[0] == 404
        assert (await browser.get("/../etc/passwd"))[0] == 404
        status, headers, _ = await browser.post({"action": "lose"}, f"Origin: http://{browser.host}")
        assert (status, headers["Allow"]) == (405, "GET, HEAD")


async def test_viewers_that_leave_make_room_and_others_are_told_there_is_none() -> None:
    async with page(FakeSource({})) as browser:
        await browser.open()
        streams = [await browser.connect("/live") for _ in range(MOST_VIEWERS)]
        for reader, _ in streams:
            await reader.readuntil(b"retry: 3000\n\n")
        status, headers, _ = await browser.get("/live")
        assert (status, headers["Retry-After"]) == (503, "30")
        assert (await browser.get("/"))[0] == 200
        streams[0][1].close()
        async with asyncio.timeout(60):
            while True:
                reader, writer = await browser.connect("/live")
                if b" 200 " in await reader.readline():
                    break
                writer.close()
        for _, open_one in (*streams, (reader, writer)):
            open_one.close()


async def test_viewers_that_take_nothing_hold_nobody_up(monkeypatch) -> None:
    monkeypatch.setattr("kgpu.overview.views.SOONEST", 0.0)
    source = FakeSource({f"n{i}": node(f"n{i}", *(gpu(f"n{i}", g) for g in range(8))) for i in range(40)})
    async with page(source) as browser:
        await browser.open()
        slow = [await browser.connect("/live") for _ in range(10)]
        reader, quick = await browser.connect("/live")
        try:
            async with asyncio.timeout(120):
                for turn in range(5):
                    for name in source.nodes:
                        source.nodes[name] = node(name, *(gpu(name, g, f"ml/turn-{turn}") for g in range(8)))
                    while f"ml/turn-{turn}".encode() not in await reader.readline():
                        pass
            assert (await browser.get("/"))[0] == 200
        finally:
            for _, writer in (*slow, (reader, quick)):
                writer.transport.abort()


@pytest.fixture
def root(tmp_path):
    return create.create_root("l4", tmp_path / "a", gpus=2)


def faults(root) -> list[list[str]]:
    return [one["faults"] for one in operate.snapshot(root)["gpus"]]


async def test_a_labs_buttons_break_and_repair_its_gpus(root) -> None:
    source = FakeSource({"a": node("a", gpu("a", 0), gpu("a", 1)), "b": node("b", gpu("b", 0))})
    async with page(source, lab=LabGpus(lambda: {"a": root})) as browser:
        await browser.open()
        async with asyncio.timeout(60):
            while b'<form method="post"' not in (html := (await browser.get("/?ns=&q=a"))[2]):
                pass
        form = re.search(rb'<form method="post".*?</form>', html)[0].decode()
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
        fields = {**fields, "gpu": "1", "action": "lose"}
        own = f"Origin: http://{browser.host}"
        status, headers, _ = await browser.post(fields, own)
        assert (status, headers["Location"]) == (303, "./?q=a")
        assert faults(root) == [[], ["lost"]]
        assert (await browser.post({**fields, "action": "repair"}, own))[0] == 303
        assert faults(root) == [[], []]
        for wrong, code in (
            ({"secret": "x"}, 403), ({"action": "explode"}, 400), ({"node": "b"}, 400), ({"node": "../b"}, 400),
            ({"gpu": "7"}, 400), ({"gpu": "-1"}, 400), ({"gpu": "²"}, 400), ({"view": "x" * 5000}, 413),
        ):  # fmt: skip
            assert (await browser.post({**fields, **wrong}, own))[0] == code, wrong
        assert (await browser.post(fields))[0] == 403
        assert (await browser.post(fields, "Origin: http://evil.example"))[0] == 403
        back = await browser.post(
            {**fields, "action": "repair", "view": "https://evil.example/?q=x\r\nSet-Cookie: a=b"}, own
        )
        assert back[1]["Location"] == "./?q=x+Set-Cookie%3A+a%3Db"
        assert "Set-Cookie" not in back[1]
        assert faults(root) == [[], []]
