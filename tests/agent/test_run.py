"""One agent with roles made for the test: they wait, fail and stop alone, and the pages say so."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from kgpu.agent.host import Role
from kgpu.agent.options import AgentOptions
from kgpu.agent.run import Agent
from kgpu.base import http
from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import HwError
from kgpu.base.http import Address
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import Accelerator, Inventory
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import EVENTS

GPU = Accelerator(vendor="nvidia", index=0, uuid="GPU-1", name="H100")
INVENTORY = Inventory(vendor="nvidia", driver_version="580.1", accelerators=(GPU,))
BAD_GPU = Advice(subject="GPU-1", what="unhealthy", why="Xid 79", severity=Severity.WARNING, reason="GpuUnhealthy")


async def good(host, handle) -> None:
    await host.reader.inventory()
    host.decide(BAD_GPU)
    handle.running()
    await asyncio.Event().wait()


async def lacking(host, handle) -> None:
    raise HwError("no library", "libnvidia-ml.so.1", "install the driver")


async def get(agent: Agent, path: str) -> tuple[int, str]:
    assert agent.address is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.address.port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    reply = (await asyncio.wait_for(reader.read(), 60)).decode()
    writer.close()
    head, _, body = reply.partition("\r\n\r\n")
    return int(head.split()[1]), body


async def eventually(condition):
    async with asyncio.timeout(60):
        while not (found := await condition()):  # noqa: ASYNC110 - the condition is another object's state
            await asyncio.sleep(0.01)
        return found


class Hosted:
    def __init__(self, tmp_path, *starts, **given) -> None:
        self.reader = FakeReader(INVENTORY)
        given = {"env": {}, "health_address": Address("127.0.0.1", 0), "state_dir": tmp_path, **given}
        roles = tuple(Role(start.__name__, start) for start in starts)
        api = given.pop("api", None)
        self.agent = Agent(AgentOptions(roles=(), **given), roles, open_reader=self.open, api=api)

    async def open(self):
        return self.reader

    async def __aenter__(self) -> Agent:
        self.task = asyncio.create_task(self.agent.run())
        await eventually(self.listening)
        return self.agent

    async def listening(self) -> bool:
        return self.agent.address is not None or self.task.done()

    async def __aexit__(self, *_) -> None:
        self.agent.stop.set()
        self.stuck = await asyncio.wait_for(self.task, 60)


async def test_a_role_that_lacks_something_does_not_keep_the_others(tmp_path):
    async with Hosted(tmp_path, good, lacking) as agent:

        async def page():
            _, body = await get(agent, "/readyz")
            return body if "[+]good" in body and "waiting" in body else None

        body = await eventually(page)
        assert "[-]lacking waiting: no library; expected libnvidia-ml.so.1; to do: install the driver" in body
        assert (await get(agent, "/readyz"))[0] == 503
        assert (await get(agent, "/healthz")) == (200, "ok\n")


async def test_ready_when_every_role_runs(tmp_path):
    hosted = Hosted(tmp_path, good)
    async with hosted as agent:

        async def ready():
            return (await get(agent, "/readyz"))[0] == 200

        await eventually(ready)
        document = json.loads((await get(agent, "/statusz"))[1])
        assert [role["state"] for role in document["roles"]] == ["running"]
        assert document["hardware"]["accelerators"][0]["uuid"] == "GPU-1"
        assert [advice["reason"] for advice in document["decisions"]] == ["GpuUnhealthy"]
        assert document["config"]["problem"] == ""
    assert hosted.stuck == ()


@pytest.mark.parametrize(("peer", "status"), [("127.0.0.1", 200), ("10.0.0.1", 403)])
async def test_the_page_that_says_all_is_for_this_machine_alone(tmp_path, monkeypatch, peer, status):
    monkeypatch.setattr(http, "_host", lambda _: peer)
    async with Hosted(tmp_path, good) as agent:
        assert ((await get(agent, "/statusz"))[0], (await get(agent, "/healthz"))[0]) == (status, 200)


async def test_a_role_that_does_not_end_is_named_and_the_rest_is_closed(tmp_path):
    release = asyncio.Event()

    async def stubborn(host, handle) -> None:
        handle.running()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    hosted = Hosted(tmp_path, stubborn, good, shutdown_seconds=2.0)
    async with hosted as agent:

        async def started():
            return (await get(agent, "/readyz"))[0] == 200

        await eventually(started)
    assert hosted.stuck == ("stubborn",)
    with pytest.raises(HwError, match="closed"):
        await agent.reader.links()
    release.set()


async def test_warnings_become_events_about_the_node(tmp_path):
    api = FakeApi()
    async with Hosted(tmp_path, good, api=api, kubeconfig="given", node_name="node-1"):

        async def written():
            return (await api.list(EVENTS)).items

        (event,) = await eventually(written)
        assert event["reason"] == "GpuUnhealthy"
        assert event["involvedObject"]["name"] == "node-1"


async def test_a_changed_config_file_reaches_the_roles_and_sighup_looks_at_once(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("one")
    seen: list[str] = []

    async def watching(host, handle) -> None:
        current = None
        while True:
            current = await host.config.next(current)
            seen.append(current.text)
            handle.running()

    async with Hosted(tmp_path, watching, config_file=path) as agent:

        async def count():
            return len(seen)

        await eventually(count)
        path.write_text("two")
        agent.reload()

        async def both():
            return seen == ["one", "two"]

        await eventually(both)


async def test_an_address_in_use_is_told_before_anything_runs(tmp_path):
    async with Hosted(tmp_path, good) as first:
        second = Hosted(tmp_path, good, health_address=first.address)
        with pytest.raises(Exception, match="can't listen on"):
            await second.agent.run()
