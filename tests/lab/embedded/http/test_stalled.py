"""A stream that is over and whose client does not read: the connection goes, the server keeps nothing of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kgpu.lab.embedded import auth, server, tls
from kgpu.lab.embedded.http import app as application

TOKEN = "t" * 40
WATCH = b"/api/v1/namespaces"


class Client:
    """One request's client, which reads ``reads`` messages and then no more, until it is cut off."""

    def __init__(self, reads: int) -> None:
        self.aborted = False
        self._reads = reads
        self._gone = asyncio.Event()
        self.stuck = asyncio.Event()
        self.heard: list[Any] = []

    def scope(self, query: bytes) -> dict[str, Any]:
        return {
            "type": "http", "method": "GET", "path": WATCH.decode(), "raw_path": WATCH, "query_string": query,
            "headers": [(b"authorization", f"Bearer {TOKEN}".encode())],
            "extensions": {application.ABORT: {"call": self.abort}},
        }  # fmt: skip

    def abort(self) -> None:
        self.aborted = True
        self._gone.set()

    async def receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if len(self.heard) == self._reads:
            self.stuck.set()
            await self._gone.wait()
        self.heard.append(message)


@pytest.fixture
def cluster(tmp_path: Path) -> server.ServerParts:
    settings = server.ServerSettings(folder=tmp_path)
    auth.write_tokens(settings.tokens, [auth.StaticToken(token=TOKEN, user="admin", groups=("system:masters",))])
    return server.assemble(settings, 1, tls.ensure(tmp_path / "pki", hosts=()))


async def test_a_reader_that_stands_still_is_cut_off_when_its_watch_has_ended(
    cluster: server.ServerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "LINGER_S", 0.01)
    namespaces = cluster.core.store.table(("", "namespaces")).watching
    client = Client(reads=2)  # the answer's head, and that the watch stands
    serving = asyncio.create_task(cluster.app(client.scope(b"watch=1"), client.receive, client.send))
    await asyncio.wait_for(client.stuck.wait(), 300)
    assert (len(namespaces), client.aborted) == (1, False)
    namespaces.end()
    await asyncio.wait_for(serving, 300)
    assert (len(namespaces), client.aborted) == (0, True)
    cluster.core.close()


async def test_who_reads_gets_the_end_of_the_watch(cluster: server.ServerParts) -> None:
    client = Client(reads=1000)
    serving = asyncio.create_task(cluster.app(client.scope(b"watch=1&timeoutSeconds=1"), client.receive, client.send))
    await asyncio.wait_for(serving, 300)
    assert (client.aborted, client.heard[-1].get("more_body", False), client.heard[-1]["body"]) == (False, False, b"")
    assert b"".join(one.get("body", b"") for one in client.heard).count(b'"ADDED"') >= 4
    cluster.core.close()
