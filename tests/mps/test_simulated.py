"""The role on a simulated driver, beside the device plugin: CUDA programs in the shares that the kubelet is given."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from kgpu.agent.options import AgentOptions, LabelsSink
from kgpu.agent.roles import choose_roles
from kgpu.agent.run import Agent
from kgpu.base.supervise import RoleState, RoleStatus
from kgpu.formats.config_choice import REFUSED
from kgpu.formats.mps_folders import MPS_CONTAINER_ROOT
from kgpu.formats.names import ENV_HW_STATE
from kgpu.hw.simulator.create import environment
from kgpu.kubelet.fake import FakeKubelet
from tests.child import child
from tests.native.mps import SCRIPT, Program

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
LIMIT = 120.0
OUT_OF_MEMORY, RPC_FAILURE = 2, 806
Root = Callable[..., Path]


class SharingNode:
    """A node with a driver root, a kubelet, and agents."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root, self.mps = folder, root, folder / "mps"
        self.kubelet = FakeKubelet(folder / "plugins")
        self.config = folder / "config.yaml"
        self.agent: Agent | None = None

    def share(self, replicas: int = 4, *, devices: str = "[0]") -> None:
        """Shares of GPU 0 have a name of their own; GPU 1 is not shared."""
        self.config.write_text(
            f"flags: {{mpsRoot: {self.mps}}}\nsharing: {{mps: {{renameByDefault: true, resources:"
            f" [{{name: gpu, replicas: {replicas}, devices: {devices}}}]}}}}\n"
        )

    def options(self) -> AgentOptions:
        env = {ENV_HW_STATE: str(self.root / "state")}
        return AgentOptions(
            root=self.root, env=env, state_dir=self.folder / "state", labels_sink=LabelsSink.NONE,
            kubelet_socket=self.kubelet.socket, config_file=self.config,
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def running(self, *roles: str) -> AsyncIterator[Agent]:
        self.agent = agent = Agent(self.options(), choose_roles(roles or ("deviceplugin", "mps")))
        task = asyncio.create_task(agent.run())
        try:
            yield agent
        finally:
            agent.stop.set()
            await task

    def status(self, role: str = "mps") -> RoleStatus:
        assert self.agent is not None
        found = (one for one in self.agent.roles.statuses() if one.name == role)
        return next(found, RoleStatus(name=role, state=RoleState.STARTING, reason="", since=0.0, restarts=0))

    async def until(self, condition: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(LIMIT):
                while not condition():  # noqa: ASYNC110 - other processes' state
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(self.agent and self.agent.roles.statuses()) from None

    async def offers(self, **counts: int) -> None:
        wanted = {f"nvidia.com/{name.replace('_', '.')}": count for name, count in counts.items()}
        await self.until(lambda: {n: c for n, c in self.kubelet.allocatable().items() if c} == wanted)

    async def pod(self, name: str, resource: str = SHARED) -> dict[str, str]:
        """The environment of a program in a pod with one device of the resource."""
        answer = (await self.kubelet.admit(name, "main", {resource: 1}))[resource]
        env = {**os.environ, **environment(self.root), **answer.envs}
        env["CUDA_VISIBLE_DEVICES"] = env.pop("NVIDIA_VISIBLE_DEVICES")
        if pipe := env.get("CUDA_MPS_PIPE_DIRECTORY"):  # a container sees it below /mps
            env["CUDA_MPS_PIPE_DIRECTORY"] = pipe.replace(MPS_CONTAINER_ROOT, str(self.mps), 1)
        return env

    def smi(self, *words: str) -> str:
        return subprocess.run(
            [self.root / "usr/bin/nvidia-smi", *words], env={**os.environ, **environment(self.root)}, check=True,
            capture_output=True, text=True, timeout=LIMIT,
        ).stdout  # fmt: skip

    def modes(self) -> list[str]:
        return self.smi("--query-gpu=compute_mode", "--format=csv,noheader").split()

    def processes(self) -> dict[str, list[int]]:
        """PIDs of this node's MPS daemons and servers, by name. What asks a daemon something has its name, too."""
        found: dict[str, list[int]] = {"nvidia-cuda-mps-control": [], "nvidia-cuda-mps-server": []}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                program, *words = (process / "cmdline").read_bytes().split(b"\0")
                name = os.path.basename(program).decode()
                asks = name == "nvidia-cuda-mps-control" and b"-d" not in words
                if name in found and not asks and os.fsencode(str(self.mps)) in (process / "environ").read_bytes():
                    found[name].append(int(process.name))
        return found

    def daemon(self) -> int:
        (pid,) = self.processes()["nvidia-cuda-mps-control"]
        return pid


@contextlib.contextmanager
def program(env: dict[str, str]) -> Iterator[Program]:
    with child(
        [sys.executable, "-c", SCRIPT], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Program(process)


@pytest.fixture
async def node(sim_root: Root) -> AsyncIterator[SharingNode]:
    with tempfile.TemporaryDirectory(prefix="kgpu") as folder:  # sockets need a short path
        made = SharingNode(Path(folder), sim_root(gpus=2))
        made.share()
        async with made.kubelet:
            yield made
        for pids in made.processes().values():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                    os.kill(pid, signal.SIGKILL)


async def test_four_clients_see_a_quarter_each_and_a_gpu_that_is_not_shared_stays_as_it_was(node: SharingNode) -> None:
    async with node.running():
        await node.offers(gpu=1, gpu_shared=4)
        await node.until(lambda: node.status().reason == f"serves {SHARED}")
        assert node.modes() == ["Exclusive_Process", "Default"]
        assert (node.mps / ".ready").exists()
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(program(await node.pod(f"pod-{number}"))) for number in range(4)]
            whole = stack.enter_context(program(await node.pod("whole", GPU)))
            for client in clients:
                assert [client("init()"), client("context()"), client("count()")] == [0, 0, 1]
            shares = [client("memory()")[2] for client in clients]
            assert shares == [81559 // 4] * 4
            assert {client("sms()") for client in clients} == {34}
            for client in clients:  # each has its quarter, and gets no more
                assert [client("alloc(19000)"), client("alloc(2000)")] == [0, OUT_OF_MEMORY]
            assert [whole("init()"), whole("context()"), whole("memory()")[2], whole("sms()")] == [0, 0, 81007, 132]
    assert node.modes() == ["Default", "Default"]
    assert node.processes() == {"nvidia-cuda-mps-control": [], "nvidia-cuda-mps-server": []}
    assert not node.mps.exists(), list(node.mps.rglob("*"))
    assert not (node.folder / "state/mps.json").exists()


async def test_a_daemon_that_is_killed_is_back_without_a_restart(
    node: SharingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgpu.mps.daemon.LOOK_SECONDS", 3600.0)  # its end is heard of, not looked for
    async with node.running() as agent:
        await node.offers(gpu=1, gpu_shared=4)
        with program(await node.pod("one")) as client:
            assert [client("init()"), client("context()")] == [0, 0]
            began = time.monotonic()
            os.kill(node.daemon(), signal.SIGKILL)
            await node.kubelet.wait_for(lambda: node.kubelet.allocatable().get(SHARED) == 0, seconds=LIMIT)
            print(f"unhealthy after {time.monotonic() - began:.2f} s")
            assert node.kubelet.capacity()[SHARED] == 4
            await node.offers(gpu=1, gpu_shared=4)
            print(f"back after {time.monotonic() - began:.2f} s")
            assert client("sync()") == RPC_FAILURE, "its server is gone: it would keep the GPU from the next one"
        node.kubelet.release("one")
        lost = [advice for _, advice in agent._advice if advice.reason == "MpsDaemonLost"]
        assert "the clients of nvidia.com/gpu.shared are lost" in lost[0].what
        assert re.fullmatch(r"process \d+ was left of it, and was ended", lost[0].evidence[0])
        with program(await node.pod("two")) as client:
            assert [client("init()"), client("context()"), client("memory()")[2]] == [0, 0, 81559 // 4]


async def test_a_daemon_that_a_killed_agent_has_left_is_taken_over_with_its_clients(node: SharingNode) -> None:
    script = "import sys; from kgpu.cli.main import main; sys.exit(main())"
    words = (
        "agent", "--roles", "mps", "--root", str(node.root), "--config-file", str(node.config),
        "--state-dir", str(node.folder / "state"), "--labels-sink", "none",
    )  # fmt: skip
    env = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "NODE", "KGPU_"))}
    started = node.mps / SHARED / ".started"
    with child([sys.executable, "-c", script, *words], env=env, stderr=subprocess.DEVNULL) as agent:
        await node.until(lambda: started.exists() or agent.poll() is not None)
        assert agent.poll() is None
        pid = node.daemon()
    assert node.daemon() == pid, "it outlives the agent"
    async with node.running():
        await node.offers(gpu=1, gpu_shared=4)
        with program(await node.pod("one")) as client:
            assert [client("init()"), client("context()")] == [0, 0]
            assert node.daemon() == pid
    assert node.modes() == ["Default", "Default"], "as it was before the first agent, not the second"
    assert not node.mps.exists()


async def test_a_configuration_that_changes_and_goes(node: SharingNode) -> None:
    async with node.running():
        await node.offers(gpu=1, gpu_shared=4)
        node.share(8, devices="[0, 1]")
        await node.offers(gpu_shared=16)
        await node.until(lambda: node.modes() == ["Exclusive_Process"] * 2)
        with program(await node.pod("one")) as client:
            assert [client("init()"), client("context()"), client("memory()")[2]] == [0, 0, 81559 // 8]
        node.config.write_text("version: v1\n")
        await node.offers(gpu=2)
        await node.until(lambda: node.status().reason == "no GPU is shared by MPS")
        assert node.modes() == ["Default", "Default"]
        assert not node.mps.exists()


async def test_what_can_not_be_shared_is_told_and_offered_as_before(node: SharingNode) -> None:
    from kgpu.hw.simulator import mig

    mig.partition(node.root, 0, ["1g.10gb"])
    node.config.write_text("version: v1\n")
    async with node.running():
        await node.offers(gpu=2)
        node.share()
        await node.until(lambda: node.status("deviceplugin").why == "SharingImpossible")
        told = node.status("deviceplugin")
        assert told.state is RoleState.RUNNING
        assert "the MIG mode of GPU 0 is on; expected sharing.mps on nodes without MIG" in told.reason
        assert "turn its MIG mode off" in told.remedy
        await node.offers(gpu=2)
        assert node.modes()[1] == "Default"
        mig.disable(node.root, 0)
        await node.offers(gpu=1, gpu_shared=4)
        await node.until(lambda: not node.status("deviceplugin").why)


async def test_more_shares_than_any_server_takes_clients_leave_the_former_ones(node: SharingNode) -> None:
    async with node.running():
        await node.offers(gpu=1, gpu_shared=4)
        with program(await node.pod("one")) as client:
            assert [client("init()"), client("context()")] == [0, 0]
            daemon = node.processes()["nvidia-cuda-mps-control"]
            node.share(49)
            for role in ("mps", "deviceplugin"):
                await node.until(lambda role=role: node.status(role).why == REFUSED)
                assert "maximum allowed replicas exceeded: 49 > 48; expected at most 48" in node.status(role).reason
                assert "lower it to 48" in node.status(role).remedy
            await node.offers(gpu=1, gpu_shared=4)
            assert node.processes()["nvidia-cuda-mps-control"] == daemon
            assert client("memory()")[2] == 81559 // 4


async def test_without_the_programs_the_role_says_what_is_missing(node: SharingNode) -> None:
    (node.root / "usr/bin/nvidia-cuda-mps-control").unlink()
    async with node.running():
        await node.until(lambda: node.status().why == "MpsDaemonFailed")
        assert "there is no nvidia-cuda-mps-control in" in node.status().reason
        await node.offers(gpu=1)
