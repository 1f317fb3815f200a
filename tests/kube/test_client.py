"""The real client against servers that misbehave; tests/lab/real has it against a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kgpu.base.errors import KubeError
from kgpu.kube.client import connect
from kgpu.kube.port import CONFIG_MAPS, NODES, PODS, Change, KubeApi, KubeRefusedError, KubeUnreachableError, Object

Answer = Callable[[str, dict[str, str], bytes], tuple[int, str]]


class Server:
    """An HTTP/1.1 server that answers with what a function says, for what no well-behaved API server does."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self, folder: Path) -> AsyncIterator[KubeApi]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        path = folder / "kubeconfig"
        path.write_text(kubeconfig(f"http://127.0.0.1:{port}"))
        api = connect(str(path))
        try:
            yield api
        finally:
            await api.close()
            server.close()
            for writer in self._writers:
                writer.close()
            await asyncio.gather(*self._tasks)
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.requests.append((head[0], headers, body))
                status, text = self.answer(head[0], headers, body)
                raw = text.encode()
                if status == 0:  # hang up in the middle
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + raw)
                    break
                writer.write(
                    f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
                    + raw
                )
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def kubeconfig(server: str, user: str = "{token: sesame}") -> str:
    return f"""
apiVersion: v1
kind: Config
current-context: c
clusters: [{{name: k, cluster: {{server: "{server}"}}}}]
contexts: [{{name: c, context: {{cluster: k, user: u}}}}]
users: [{{name: u, user: {user}}}]
"""


def status(code: int, reason: str = "", message: str = "no") -> tuple[int, str]:
    return code, json.dumps({"kind": "Status", "code": code, "reason": reason, "message": message})


async def test_requests_carry_credentials_path_and_manager(tmp_path: Path) -> None:
    server = Server(lambda _line, _headers, _body: (200, "{}"))
    async with server.running(tmp_path) as api:
        await api.get(NODES, "n")
        obj: Object = {"metadata": {"name": "a/b", "namespace": "n"}, "data": {}}
        await api.apply(CONFIG_MAPS, obj, manager="me", subresource="status")
    (got, headers, _), (applied, apply_headers, body) = server.requests
    assert got == "GET /api/v1/nodes/n HTTP/1.1"
    assert headers["authorization"] == "Bearer sesame"
    assert applied.startswith("PATCH /api/v1/namespaces/n/configmaps/a%2Fb/status?fieldManager=me&force=true ")
    assert apply_headers["content-type"] == "application/apply-patch+yaml"
    assert json.loads(body)["kind"] == "ConfigMap"


async def test_a_whole_object_is_put_with_its_version(tmp_path: Path) -> None:
    server = Server(lambda _line, _headers, _body: (200, "{}"))
    obj: Object = {"metadata": {"name": "c", "namespace": "n", "resourceVersion": "7"}, "data": {"a": "b"}}
    async with server.running(tmp_path) as api:
        await api.replace(CONFIG_MAPS, obj)  # type: ignore[attr-defined]
    ((line, headers, body),) = server.requests
    assert line == "PUT /api/v1/namespaces/n/configmaps/c HTTP/1.1"
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == {"apiVersion": "v1", "kind": "ConfigMap", **obj}


async def test_subresources_and_delete_options_as_they_are_sent(tmp_path: Path) -> None:
    server = Server(lambda _line, _headers, _body: (200, "{}"))
    binding: Object = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p", "namespace": "n"}}
    async with server.running(tmp_path) as api:
        await api.create(PODS, binding, subresource="binding")
        await api.delete(PODS, "p", namespace="n")
        await api.delete(PODS, "p", namespace="n", grace=0, uid="u", propagation="Foreground")
    (bound, _, body), (_, _, plain), (deleted, headers, options) = server.requests
    assert bound == "POST /api/v1/namespaces/n/pods/p/binding HTTP/1.1"
    assert json.loads(body) == binding
    assert plain == b""
    assert deleted == "DELETE /api/v1/namespaces/n/pods/p HTTP/1.1"
    assert headers["content-type"] == "application/json"
    assert json.loads(options) == {
        "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": "u"},
        "propagationPolicy": "Foreground",
    }  # fmt: skip


@pytest.mark.parametrize(("code", "reason"), [(401, "Unauthorized"), (403, "Forbidden"), (409, "Conflict"), (500, "")])
async def test_refusals_have_code_reason_message_and_three_parts(code: int, reason: str, tmp_path: Path) -> None:
    server = Server(lambda *_: status(code, reason, "because it is so"))
    async with server.running(tmp_path) as api:
        with pytest.raises(KubeRefusedError, match="because it is so") as caught:
            await api.list(CONFIG_MAPS)
    assert (caught.value.code, caught.value.reason) == (code, reason)
    assert caught.value.expected
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        (
            'pods "p" is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=4, limited: pods=4',
            "describe quota",
        ),
        ('pods "p" is forbidden: failed quota: q: must specify requests.cpu for: c', "describe quota"),
        ('pods "p" is forbidden: User "u" cannot get resource "pods"', "RBAC"),
    ],
)
async def test_a_quota_is_no_missing_permission(message: str, remedy: str, tmp_path: Path) -> None:
    async with Server(lambda *_: status(403, "Forbidden", message)).running(tmp_path) as api:
        with pytest.raises(KubeRefusedError) as caught:
            await api.create(PODS, {"metadata": {"name": "p", "namespace": "n"}})
    assert remedy in caught.value.remedy


async def test_lists_are_read_to_the_last_page(tmp_path: Path) -> None:
    def answer(line: str, _headers: dict[str, str], _body: bytes) -> tuple[int, str]:
        second = "continue=more" in line
        metadata = {"resourceVersion": "7", "continue": "" if second else "more"}
        return 200, json.dumps({"metadata": metadata, "items": [{"metadata": {"name": "b" if second else "a"}}]})

    async with Server(answer).running(tmp_path) as api:
        listing = await api.list(CONFIG_MAPS)
    assert [item["metadata"]["name"] for item in listing.items] == ["a", "b"]
    assert listing.resource_version == "7"


async def test_lists_may_be_packed_and_single_objects_are_not(tmp_path: Path) -> None:
    server = Server(lambda *_: (200, '{"items": []}'))
    async with server.running(tmp_path) as api:
        await api.list(CONFIG_MAPS)
        await api.get(NODES, "n")
    codings = [headers.get("accept-encoding") for _, headers, _ in server.requests]
    assert codings == ["gzip", None]
    assert {headers["authorization"] for _, headers, _ in server.requests} == {"Bearer sesame"}


@pytest.mark.parametrize("text", ["", "<html>login</html>", "[]", '"x"', "{"])
async def test_what_is_no_api_server_is_told(text: str, tmp_path: Path) -> None:
    async with Server(lambda *_: (200, text)).running(tmp_path) as api:
        with pytest.raises(KubeUnreachableError, match="no API server"):
            await api.get(NODES, "n")


async def test_errors_that_are_no_status_objects(tmp_path: Path) -> None:
    async with Server(lambda *_: (502, "<html>")).running(tmp_path) as api:
        with pytest.raises(KubeRefusedError) as caught:
            await api.get(NODES, "n")
    assert caught.value.code == 502


async def test_a_connection_that_breaks_off(tmp_path: Path) -> None:
    async with Server(lambda *_: (0, "{")).running(tmp_path) as api:
        with pytest.raises(KubeUnreachableError):
            await api.get(NODES, "n")


async def test_nobody_listens(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig("http://127.0.0.1:9"))
    api = connect(str(path))
    with pytest.raises(KubeUnreachableError, match=r"127\.0\.0\.1:9"):
        await api.get(NODES, "n")
    await api.close()


async def test_watch_lines(tmp_path: Path) -> None:
    lines = [
        {"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "5"}}},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}},
        {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}},
    ]
    server = Server(lambda *_: (200, "".join(json.dumps(line) + "\n" for line in lines)))
    async with server.running(tmp_path) as api:
        events = api.watch(CONFIG_MAPS, "3", namespace="n")
        seen = [await anext(events) for _ in range(3)]
        with pytest.raises(KubeRefusedError) as caught:
            await anext(events)
    assert [event.change for event in seen] == [Change.BOOKMARK, Change.ADDED, Change.BOOKMARK]
    assert caught.value.gone
    assert "allowWatchBookmarks=true" in server.requests[0][0]
    assert "resourceVersion=3" in server.requests[0][0]


@pytest.mark.parametrize(
    "line", ["nonsense", "[]", '{"type": "ODD", "object": {}}', '{"type": "ADDED"}', '{"type": "ERROR", "object": 5}']
)
async def test_watch_lines_that_are_nonsense(line: str, tmp_path: Path) -> None:
    async with Server(lambda *_: (200, line + "\n")).running(tmp_path) as api:
        events = api.watch(CONFIG_MAPS, "3")
        await anext(events)
        with pytest.raises(KubeUnreachableError):
            await anext(events)


@pytest.mark.parametrize(
    "text",
    [
        "", "a: [", "[]", "apiVersion: v1", "current-context: x\nclusters: []\ncontexts: []",
        kubeconfig("http://x").replace("cluster: k,", "cluster: other,"),
        kubeconfig("http://x").replace(", user: u", ""),
        kubeconfig("https://x", "{client-certificate: /nonexistent, client-key: /nonexistent}"),
    ],
)  # fmt: skip
def test_bad_kubeconfigs_are_three_part_errors(text: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(KubeError, match="can't read the connection"):
        connect(str(path))


def test_no_kubeconfig_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(KubeError, match="none"):
        connect()
