"""The whole agent as a process, on a simulated driver root, beside a kubelet that speaks the real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from kgpu.formats.names import GPU_RESOURCE
from kgpu.hw.simulator import operate
from kgpu.kubelet.fake import FakeKubelet
from kgpu.toolkit.specs import list_found, read_folders

SECONDS = 60.0


class Process:
    """An agent that runs; its standard error is kept for assertions about the log."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    async def logged(self, *words: str) -> str:
        """The log's first line that has all the words."""
        async with asyncio.timeout(SECONDS):
            while True:
                for line in self.log.split("\n")[:-1]:  # what it is writing now may be half a line
                    if all(word in line for word in words):
                        return line
                assert self.process.returncode is None, self.log
                await asyncio.sleep(0.01)

    async def page(self, path: str) -> tuple[int, str]:
        line = await self.logged("status pages at http://")
        port = int(line.rpartition(":")[2].partition("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: agent\r\n\r\n".encode())
        reply = (await asyncio.wait_for(reader.read(), SECONDS)).decode()
        writer.close()
        head, _, body = reply.partition("\r\n\r\n")
        return int(head.split()[1]), body

    async def ready(self, *lines: str) -> str:
        """The readiness page once it has all these lines (each a beginning and a part of one)."""
        async with asyncio.timeout(SECONDS):
            while True:
                _, body = await self.page("/readyz")
                if all(any(line in found for found in body.splitlines()) for line in lines):
                    return body
                await asyncio.sleep(0.02)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), SECONDS)


class Node:
    """A node's folders, its kubelet, and agents on it."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        self.root = root
        self.kubelet = FakeKubelet(folder / "kubelet")
        self.labels = folder / "features"
        self.state = folder / "state"
        self._runs = 0

    @contextlib.asynccontextmanager
    async def agent(self, *words: str, roles: str = "deviceplugin,labels"):
        self._runs += 1
        log = self.folder / f"log{self._runs}"
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "NODE", "KGPU"))}
        with log.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "kgpu", "agent", "--roles", roles, "--root", str(self.root),
                "--kubelet-socket", str(self.kubelet.socket), "--state-dir", str(self.state),
                "--labels-sink", "file", "--labels-file", str(self.labels), "--health-address", "127.0.0.1:0", *words,
                stdin=asyncio.subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment,
            )  # fmt: skip
        running = Process(process, log)
        try:
            yield running
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def offered(self, count: int, resource: str = GPU_RESOURCE) -> None:
        await self.kubelet.wait_for(
            lambda: self.kubelet.connected(resource) and self.kubelet.allocatable().get(resource) == count,
            seconds=SECONDS,
        )

    def sockets(self) -> list[str]:
        return sorted(path.name for path in self.kubelet.folder.iterdir() if path.is_socket())


@pytest.fixture
async def node(tmp_path_factory, sim_root):
    folder = tmp_path_factory.mktemp("node")
    return Node(folder, sim_root("hgx-h100"))


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def eventually(condition) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - the condition is another process's file
            await asyncio.sleep(0.02)


async def test_both_roles_serve_and_sigterm_leaves_nothing(node):
    async with node.kubelet, node.agent() as agent:
        await node.offered(8)
        await agent.ready("[+]deviceplugin running", "[+]labels running")
        assert (await agent.page("/healthz"))[0] == 200
        assert f"{GPU_RESOURCE}.count=8" in node.labels.read_text().splitlines()
        document = json.loads((await agent.page("/statusz"))[1])
        assert len(document["hardware"]["accelerators"]) == 8
        answer = await node.kubelet.admit("pod", "main", {GPU_RESOURCE: 2})
        assert len(answer[GPU_RESOURCE].envs["NVIDIA_VISIBLE_DEVICES"].split(",")) == 2
        children = children_of(agent.process.pid)
        assert children
        assert await agent.end(signal.SIGTERM) == 0
        assert node.sockets() == ["kubelet.sock"]
        await eventually(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
        assert f"{GPU_RESOURCE}.count=8" in node.labels.read_text().splitlines()
        assert "Traceback" not in agent.log


async def test_sigint_ends_it_as_well(node):
    async with node.agent() as agent:
        await agent.ready("[+]labels running")
        assert await agent.end(signal.SIGINT) == 0


async def test_killed_agents_come_back_and_pods_keep_their_devices(node):
    async with node.kubelet:
        async with node.agent() as first:
            await node.offered(8)
            await node.kubelet.admit("pod", "main", {GPU_RESOURCE: 3})
            await first.end(signal.SIGKILL)
        held = dict(node.kubelet.held()[("pod", "main")])
        await node.kubelet.wait_for(lambda: node.kubelet.allocatable()[GPU_RESOURCE] == 0, seconds=SECONDS)
        async with node.agent() as second:
            await node.offered(8)
            await node.kubelet.admit("other", "main", {GPU_RESOURCE: 5})
            everyone = [device for one in node.kubelet.held().values() for device in one[GPU_RESOURCE]]
            assert len(everyone) == len(set(everyone)) == 8
            assert dict(node.kubelet.held()[("pod", "main")]) == held
            await second.end()


async def test_no_kubelet_is_a_state_to_wait_in_and_a_new_one_is_found(node):
    async with node.agent() as agent:
        body = await agent.ready("[-]deviceplugin waiting: no kubelet socket at", "[+]labels running")
        assert str(node.kubelet.socket) in body
        async with node.kubelet:
            await node.offered(8)
            await agent.ready("[+]deviceplugin running")
            await node.kubelet.restart()
            await node.offered(8)
        await agent.end()


async def test_a_missing_driver_library_is_waited_for(node):
    hidden = node.root.with_name("hidden")
    os.rename(node.root, hidden)
    async with node.kubelet, node.agent() as agent:
        await agent.ready("[-]deviceplugin waiting: ", "[-]labels waiting: ")
        page = json.loads((await agent.page("/statusz"))[1])
        assert page["hardware"]["state"] == "unavailable"
        assert "libnvidia-ml.so.1" in page["hardware"]["expected"]
        assert page["hardware"]["todo"]
        assert node.kubelet.capacity() == {}
        os.rename(hidden, node.root)
        await node.offered(8)
        await agent.ready("[+]deviceplugin running", "[+]labels running")
        assert "Traceback" not in agent.log
        await agent.end()


@pytest.mark.parametrize("damage", ["cut", "garbage"])
async def test_an_unreadable_simulated_state_is_waited_for(node, damage):
    state = node.root / "state"
    saved = node.root / "saved"
    shutil.copy(state, saved)
    # A new file rather than a truncated one: a mapping of the old one would fault, as no device file ever does.
    state.unlink()
    state.write_bytes(saved.read_bytes()[:100] if damage == "cut" else os.urandom(saved.stat().st_size))
    async with node.kubelet, node.agent() as agent:
        await agent.ready("[-]deviceplugin waiting: ", "[-]labels waiting: ")
        os.rename(saved, state)
        await node.offered(8)
        assert "Traceback" not in agent.log
        await agent.end()


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[]", b'{"version": 99}'])
async def test_a_damaged_memory_costs_nothing_but_the_memory(node, content):
    node.state.mkdir()
    (node.state / "devices.json").write_bytes(content)
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await node.offered(8)
        assert "Traceback" not in agent.log
        await agent.end()


async def test_a_sick_gpu_goes_and_comes_back(node):
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await node.offered(8)
        operate.inject(node.root, "xid", gpu=3, xid=79)
        await node.offered(7)
        assert node.kubelet.capacity()[GPU_RESOURCE] == 8
        # Until the plugin has seen the GPU broken, it can't see it recover and keeps it back for a quiet time.
        await agent.logged("lost")
        operate.clear(node.root)
        await node.offered(8)
        await agent.end()


async def test_a_config_file_is_followed_and_a_bad_one_refused(node):
    config = node.folder / "config.yaml"
    config.write_text("version: v1\n")
    shared = f"version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: {GPU_RESOURCE}\n      replicas: 10\n"
    async with node.kubelet, node.agent("--config-file", str(config)) as agent:
        await node.offered(8)
        config.write_text(shared)
        await node.offered(80)
        config.write_text(shared.replace("replicas", "replics"))
        await agent.logged("replics", "replicas")
        config.write_text(shared.replace("10", "2"))
        await node.offered(16)
        assert "Traceback" not in agent.log
        await agent.end()


async def test_cdi_answers_can_be_resolved(node):
    folder = node.folder / "cdi"
    words = ("--device-list-strategy", "cdi-cri", "--cdi-dir", str(folder))
    async with node.kubelet, node.agent(*words, roles="deviceplugin") as agent:
        await node.offered(8)
        answer = (await node.kubelet.admit("pod", "main", {GPU_RESOURCE: 2}))[GPU_RESOURCE]
        assert len(answer.cdi_devices) == 2
        assert set(answer.cdi_devices) <= set(list_found(read_folders([str(folder)])).names)
        await agent.end()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--health-address", "256.1.1.1:80"), "can't listen on 256.1.1.1:80"),
        (("--kubeconfig", "/no/such", "--config-map", "a/b", "--node-name", "n"), "/no/such"),
    ],
)
async def test_a_start_that_fails_half_way_leaves_nothing_and_no_noise(words, says, node):
    async with node.agent(*words) as agent:
        assert await asyncio.wait_for(agent.process.wait(), SECONDS) == 2
        assert says in agent.log
        assert [line.split(":")[0].strip() for line in agent.log.splitlines()[-2:]] == ["expected", "to do"]
        assert "Task" not in agent.log


async def test_bad_input_is_refused_at_the_start(node):
    config = node.folder / "config.yaml"
    config.write_text("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replica: 2}]}}\n")
    async with node.agent("--config-file", str(config)) as agent:
        assert await asyncio.wait_for(agent.process.wait(), SECONDS) == 2
        assert agent.log.startswith("kgpu: ")
        assert "replicas" in agent.log
        assert "\n  to do: " in agent.log
        assert "Traceback" not in agent.log
