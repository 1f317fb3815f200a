"""The lean client against servers of all kinds: connections are kept, and what goes wrong is told as usual."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kgpu.base.errors import KubeError
from kgpu.kube.client import Client
from kgpu.kube.port import LEASES, NODES, KubeApi, KubeRefusedError, KubeUnreachableError, Patch
from kgpu.lab.nodes import wire
from kgpu.lab.nodes.wire import LeanHttp, Wire, connect

Answer = Callable[[str, bytes], bytes]


def kubeconfig(server: str, user: object) -> str:
    return json.dumps(
        {
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": server}}],
            "users": [{"name": "x", "user": user}],
        }
    )  # fmt: skip


def reply(body: object, status: str = "200 OK", more: str = "") -> bytes:
    raw = json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(raw)}\r\n{more}\r\n".encode() + raw


class Server:
    """Answers with what a function says: the whole response; b"" hangs up."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.connections = 0
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (line.split()[1] for line in head.split("\r\n") if line.startswith("Content-Length")), "0"
                )
                body = await reader.readexactly(int(length))
                self.heads.append(head)
                self.bodies.append(body)
                raw = self.answer(head, body)
                if not raw:
                    break
                for at in range(0, len(raw), 7):  # in pieces, as networks do it
                    writer.write(raw[at : at + 7])
                    await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    @contextlib.asynccontextmanager
    async def running(self, folder: Path) -> AsyncIterator[KubeApi]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        path = folder / "kubeconfig"
        path.write_text(kubeconfig(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {"token": "sesame"}))
        api = connect(path)
        try:
            yield api
        finally:
            await api.close()
            server.close()
            await asyncio.gather(*self._tasks)


async def test_one_connection_serves_one_call_after_the_other(tmp_path: Path) -> None:
    server = Server(lambda _head, _body: reply({"kind": "Node"}))
    async with server.running(tmp_path) as api:
        for _ in range(5):
            assert await api.get(NODES, "a") == {"kind": "Node"}
        await api.patch(LEASES, "a", {"spec": {"é": 1}}, namespace="kube-node-lease", kind=Patch.MERGE)
    assert server.connections == 1
    assert server.heads[0].startswith("GET /api/v1/nodes/a HTTP/1.1\r\n")
    assert "Authorization: Bearer sesame" in server.heads[0]
    assert server.heads[5].startswith("PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a ")
    assert "Content-Type: application/merge-patch+json" in server.heads[5]
    assert json.loads(server.bodies[5]) == {"spec": {"é": 1}}


async def test_calls_at_the_same_moment_get_their_own_answers(tmp_path: Path) -> None:
    server = Server(lambda head, _body: reply({"name": head.split()[1].rsplit("/", 1)[1]}))
    async with server.running(tmp_path) as api:
        found = await asyncio.gather(*(api.get(NODES, f"n-{number}") for number in range(100)))
    assert found == [{"name": f"n-{number}"} for number in range(100)]
    assert server.connections <= wire.LINES


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"SSH-2.0-OpenSSH\r\n",
        reply("text"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{",
    ],
)
async def test_what_is_no_api_server_is_unreachable(
    raw: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgpu.kube.client.DEADLINE", 0.3)
    async with Server(lambda _head, _body: raw).running(tmp_path) as api:
        with pytest.raises(KubeUnreachableError):
            await api.get(NODES, "a")


async def test_refusals_are_told_as_usual(tmp_path: Path) -> None:
    body = {"kind": "Status", "code": 409, "reason": "AlreadyExists", "message": "there"}
    async with Server(lambda _head, _body: reply(body, "409 Conflict")).running(tmp_path) as api:
        with pytest.raises(KubeRefusedError, match="there") as caught:
            await api.create(NODES, {"metadata": {"name": "a"}})
    assert (caught.value.code, caught.value.reason) == (409, "AlreadyExists")


async def test_a_server_that_closes_is_asked_anew(tmp_path: Path) -> None:
    server = Server(lambda _head, _body: reply({}, more="Connection: close\r\n"))
    async with server.running(tmp_path) as api:
        for _ in range(3):
            assert await api.get(NODES, "a") == {}
    assert server.connections == 3


async def test_chunks_are_put_together(tmp_path: Path) -> None:
    raw = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n3\r\n 1}\r\n0\r\n\r\n'
    async with Server(lambda _head, _body: raw).running(tmp_path) as api:
        assert await api.get(NODES, "a") == {"a": 1}
        assert await api.get(NODES, "b") == {"a": 1}


async def test_a_call_that_was_given_up_spoils_no_later_one(tmp_path: Path) -> None:
    asked = asyncio.Event()
    slow = [True]

    def answer(head: str, _body: bytes) -> bytes:
        if slow.pop() if slow else False:
            asked.set()
            return b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n"  # and the body never comes
        return reply({"name": head.split()[1].rsplit("/", 1)[1]})

    async with Server(answer).running(tmp_path) as api:
        first = asyncio.create_task(api.get(NODES, "a"))
        await asked.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await api.get(NODES, "b") == {"name": "b"}


async def test_nobody_listens(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(kubeconfig("http://127.0.0.1:9", {"token": "x"}))
    api = connect(tmp_path / "kubeconfig")
    with pytest.raises(KubeUnreachableError, match=r"127\.0\.0\.1:9"):
        await api.get(NODES, "a")
    await api.close()


@pytest.mark.parametrize(
    ("user", "lean"),
    [
        ({"token": "x"}, True),
        ({"tokenFile": "/x"}, False),
        ({"username": "a", "password": "b"}, False),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "x"}}, False),
    ],
)
async def test_credentials_that_change_stay_with_the_general_client(user: object, lean: bool, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(kubeconfig("http://127.0.0.1:9", user))
    api = connect(tmp_path / "kubeconfig")
    assert isinstance(api, Client)
    assert isinstance(api._http, LeanHttp) is lean
    await api.close()


def test_a_bad_kubeconfig_is_a_three_part_error(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("{")
    with pytest.raises(KubeError, match="kubeconfig"):
        connect(tmp_path / "kubeconfig")


async def test_a_server_below_a_path() -> None:
    server = Server(lambda _head, _body: reply({}))
    listener = await asyncio.start_server(server._serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    lines = Wire(f"http://127.0.0.1:{port}/below/", None, {})
    assert await lines.request("GET", "/api", None, "") == (200, b"{}")
    assert server.heads[0].startswith("GET /below/api HTTP/1.1\r\n")
    lines.close()
    listener.close()
    await asyncio.gather(*server._tasks)
