"""A GPU is reset while the agent runs: real processes, the simulated driver's NVML, an API server, a kubelet's sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from kgpu.agent.driver_users import driver_users
from kgpu.base.boot import boot_id
from kgpu.formats import names
from kgpu.formats.agent_config import AgentConfig, RoleConfig
from kgpu.formats.agent_config import encode as encode_config
from kgpu.formats.agent_report import decode as decode_report
from kgpu.formats.node_order import OrderAnswer, OrderStep, encode, order, read_answer
from kgpu.hw.simulator import operate
from kgpu.hw.simulator.create import environment
from kgpu.hw.verdicts import VerdictFile, verdicts_path
from kgpu.kubelet.fake import FakeKubelet
from kgpu.kubelet.methods import POD_RESOURCES
from kgpu.kubelet.pb import podresources_v1_pb2 as pb
from kgpu.kubelet.rpc import RpcServer, Service
from tests.lab.embedded import served
from tests.lab.embedded.served import Server

SECONDS = 60.0
NAMESPACE = "gpu-operator"
GPUS = 4
MERGE = "application/merge-patch+json"
ROLES = ("deviceplugin", "labels", "exporter", "health", "validator")
OF_A_RESET = (OrderStep.WITHDRAW, OrderStep.RELEASE, OrderStep.RESUME)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served.running(tmp_path_factory.mktemp("api")) as found:
        assert found.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}).code == 201
        yield found


class Machine:
    """A node with four GPUs, its kubelet's two sockets, its Node, and agents on it."""

    def __init__(self, folder: Path, root: Path, server: Server) -> None:
        self.folder, self.root, self.server = folder, root, server
        self.name = f"node-{os.getpid()}-{time.monotonic_ns()}"
        self.kubelet = FakeKubelet(folder / "device-plugins")
        (folder / "pod-resources").mkdir()
        self._resources = RpcServer(
            folder / "pod-resources/kubelet.sock", [Service(POD_RESOURCES, {"List": self._listing})]
        )
        self.uuids = [gpu["uuid"] for gpu in operate.snapshot(root)["gpus"]]
        self._runs = 0
        self.agent: asyncio.subprocess.Process | None = None
        self.log = Path()

    async def __aenter__(self) -> Self:
        await self.kubelet.start()
        await self._resources.start()
        found = self.server.ask("POST", "/api/v1/nodes", {"metadata": {"name": self.name}})
        assert found.code == 201, found.body
        roles = dict.fromkeys(ROLES, RoleConfig()) | {"exporter": RoleConfig(args=("--address=127.0.0.1:0",))}
        config = AgentConfig(roles=roles, driver_install_dir=str(self.root))
        body = {
            "metadata": {"name": names.AGENT_CONFIG_MAP}, "data": {names.AGENT_CONFIG_KEY: encode_config(config)}
        }  # fmt: skip
        maps = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        self.server.ask("DELETE", f"{maps}/{names.AGENT_CONFIG_MAP}")
        assert self.server.ask("POST", maps, body).code == 201
        self._showing = asyncio.create_task(self._show_resources())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end(signal.SIGKILL)
        self._showing.cancel()
        await self._resources.close()
        await self.kubelet.stop()

    async def _listing(self, _request: Any) -> Any:
        reply = pb.ListPodResourcesResponse()
        for (pod, container), held in self.kubelet.held().items():
            row = reply.pod_resources.add(name=pod, namespace="team").containers.add(name=container)
            for resource, ids in held.items():
                row.devices.add(resource_name=resource, device_ids=ids)
        return reply

    async def _show_resources(self) -> None:
        """Put on the Node what the plugin offers, as the kubelet does."""
        shown: dict[str, Any] = {}
        while True:
            counts = {"capacity": self.kubelet.capacity(), "allocatable": self.kubelet.allocatable()}
            status = {key: {name: str(count) for name, count in found.items()} for key, found in counts.items()}
            if status != shown:
                path = f"/api/v1/nodes/{self.name}/status"
                shown = status if self.server.ask("PATCH", path, {"status": status}, media=MERGE).code == 200 else {}
            await asyncio.sleep(0.1)

    # The agent

    async def start(self, kubeconfig: Path | None = None) -> None:
        self._runs += 1
        self.log = self.folder / f"log{self._runs}"
        environ = {key: text for key, text in os.environ.items() if not key.startswith(("KUBE", "NODE", "KGPU"))}
        run = {names.ENV_RUN_DIR: str(self.folder / "run")}
        with self.log.open("wb") as stream:
            self.agent = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "kgpu", "agent", "--auto", "--node-name", self.name, "--namespace", NAMESPACE,
                "--kubeconfig", str(kubeconfig or self.server.kubeconfig), "--kubelet-socket", str(self.kubelet.socket),
                "--state-dir", str(self.folder / "state"), "--host-root", str(self.folder / "host"),
                "--cdi-dir", str(self.folder / "cdi"), "--wait-for-validation", str(self.folder / "validations"),
                stdin=asyncio.subprocess.DEVNULL, stdout=stream, stderr=stream, env=environ | run,
            )  # fmt: skip

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.agent is not None and self.agent.returncode is None:
            self.agent.send_signal(number)
            await asyncio.wait_for(self.agent.wait(), SECONDS)

    @property
    def users(self) -> tuple[str, ...]:
        assert self.agent is not None
        return tuple(map(str, driver_users(pid=self.agent.pid)))

    # The Node

    @property
    def node(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.ask("GET", f"/api/v1/nodes/{self.name}").value
        return found

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.node["metadata"].get("annotations") or {}
        return found

    @property
    def answer(self) -> OrderAnswer | None:
        return read_answer(self.annotations)

    def annotate(self, text: str | None) -> None:
        change = {"metadata": {"annotations": {names.OPERATION_ANNOTATION: text}}}
        found = self.server.ask("PATCH", f"/api/v1/nodes/{self.name}", change, media=MERGE)
        assert found.code == 200, found.body

    def order(self, step: OrderStep, gpu: int = 1, *, act: str = "act-1", reset: bool = False) -> None:
        given = order(act=act, boot=boot_id(), step=step, gpus=(self.uuids[gpu],), reset=reset)
        self.annotate(encode(given))

    def roles(self) -> dict[str, tuple[str, str]]:
        report = decode_report(self.annotations.get(names.ROLES_ANNOTATION, "{}"))
        assert report is not None
        return {name: (role.state, role.why) for name, role in report.roles.items()}

    async def fulfilled(self, step: OrderStep, act: str = "act-1") -> OrderAnswer:
        answer = await self.until(lambda: (found := self.answer) and found.fulfils(act, step) and found)
        assert isinstance(answer, OrderAnswer)
        return answer

    async def until(self, condition: Any) -> Any:
        """The condition's first true answer."""
        end = time.monotonic() + SECONDS
        while not (found := condition()):
            if time.monotonic() > end:
                raise AssertionError(f"{self.annotations}\n{self.log.read_text()[-6000:]}")
            await asyncio.sleep(0.05)
        return found

    # The kubelet and the GPUs

    def unhealthy(self) -> list[str]:
        return [device.id for device in self.kubelet.devices(names.GPU_RESOURCE) if not device.healthy]

    async def offers(self, *without: int) -> None:
        wanted = [self.uuids[index] for index in without]
        resource = names.GPU_RESOURCE
        await self.until(
            lambda: (
                self.kubelet.capacity().get(resource) == GPUS
                and self.kubelet.connected(resource)
                and self.unhealthy() == wanted
            )
        )

    def reset(self, gpu: int = 1) -> None:
        """Reset a GPU as the act does: persistence mode would keep it open."""
        self._smi("-pm", "0", "-i", self.uuids[gpu])
        done = self._smi("--gpu-reset", "-i", self.uuids[gpu])
        assert "was successfully reset" in done.stdout, done.stdout + done.stderr

    def _smi(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.root / "usr/bin/nvidia-smi", *words],
            env=os.environ | environment(self.root), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip


@pytest.fixture
async def machine(sim_root: Any, tmp_path_factory: pytest.TempPathFactory, server: Server) -> AsyncIterator[Machine]:
    async with Machine(tmp_path_factory.mktemp("m"), sim_root("hgx-h100", gpus=GPUS), server) as found:
        yield found


def verdict(machine: Machine, gpu: int = 1) -> tuple[bool, str]:
    file = VerdictFile(verdicts_path("/", {names.ENV_RUN_DIR: str(machine.folder / "run")}))
    verdicts = file.read()
    found = verdicts.by_uuid.get(machine.uuids[gpu]) if verdicts is not None else None
    return (found.withdraws, found.action) if found is not None else (False, "")


async def test_a_gpu_is_reset_beside_gpus_that_work(machine: Machine) -> None:
    """From an Xid that asks for a reset to a GPU that is offered again; the driver itself says nothing of the reset."""
    await machine.start()
    await machine.offers()
    await machine.until(lambda: set(machine.roles().values()) == {("running", "")})
    await machine.kubelet.admit("train", "main", {names.GPU_RESOURCE: 1})
    ill = machine.uuids.index(machine.kubelet.held()[("train", "main")][names.GPU_RESOURCE][0])
    operate.inject(machine.root, "xid", gpu=ill, xid=48)
    await machine.until(lambda: verdict(machine, ill) == (True, "reset-gpu"))

    machine.order(OrderStep.WITHDRAW, ill)
    withdrawn = await machine.fulfilled(OrderStep.WITHDRAW)
    assert [(pod.namespace, pod.name) for pod in withdrawn.holders] == [("team", "train")]
    await machine.offers(ill)
    machine.kubelet.release("train")
    await machine.until(lambda: machine.answer and not machine.answer.holders)

    labels = machine.node["metadata"]["labels"]
    assert machine.users
    machine.order(OrderStep.RELEASE, ill)
    await machine.fulfilled(OrderStep.RELEASE)
    assert machine.users == ()
    await machine.until(lambda: {why for _, why in machine.roles().values()} == {"DriverReleased"})
    assert {state for state, _ in machine.roles().values()} == {"running"}
    assert verdict(machine, ill) == (True, "reset-gpu")
    machine.reset(ill)
    assert machine.unhealthy() == [machine.uuids[ill]]
    assert machine.node["metadata"]["labels"] == labels

    machine.order(OrderStep.RESUME, ill, reset=True)
    await machine.until(lambda: (found := machine.answer) and found.gpus and not found.gpus[0].problem)
    assert verdict(machine, ill) == (False, "ignore")
    assert machine.unhealthy() == [machine.uuids[ill]]
    await machine.until(lambda: set(machine.roles().values()) == {("running", "")})
    machine.annotate(None)
    await machine.offers()
    await machine.until(lambda: names.OPERATION_REPORT_ANNOTATION not in machine.annotations)
    assert machine.users
    assert "Traceback" not in machine.log.read_text()


async def test_what_the_driver_still_asks_for_is_told_until_it_is_well(machine: Machine) -> None:
    await machine.start()
    await machine.offers()
    operate.set_values(machine.root, {"remap-pending": 1}, gpu=1)
    for step in OF_A_RESET:
        machine.order(step)
        answer = await machine.fulfilled(step)
    problem = answer.gpus[0].problem
    assert "remapped_rows_pending" in problem
    operate.set_values(machine.root, {"remap-pending": 0}, gpu=1)
    await machine.until(lambda: (found := machine.answer) and found.gpus and not found.gpus[0].problem)


async def test_no_probe_of_a_gpu_that_hangs_is_left(machine: Machine) -> None:
    await machine.start()
    await machine.offers()
    operate.inject(machine.root, "hang", gpu=1)
    await machine.offers(1)
    for step in (OrderStep.WITHDRAW, OrderStep.RELEASE):
        machine.order(step)
        await machine.fulfilled(step)
    assert machine.users == ()
    operate.clear(machine.root, gpu=1)  # as a reset of its slot does
    machine.order(OrderStep.RESUME, reset=True)
    await machine.until(lambda: (found := machine.answer) and found.gpus and not found.gpus[0].problem)
    machine.annotate(None)
    await machine.offers()


async def killed(machine: Machine) -> None:
    await machine.end(signal.SIGKILL)
    await machine.start()


async def test_an_agent_that_is_killed_at_each_step_goes_on(machine: Machine) -> None:
    await machine.start()
    await machine.offers()
    machine.order(OrderStep.WITHDRAW)
    await killed(machine)
    await machine.fulfilled(OrderStep.WITHDRAW)
    await killed(machine)
    await machine.offers(1)
    machine.order(OrderStep.RELEASE)
    await killed(machine)
    await machine.fulfilled(OrderStep.RELEASE)
    assert machine.users == ()
    await killed(machine)
    # It never opens the driver, and offers what it knew: watched from its start until it serves.
    seen: set[str] = set()
    watch = asyncio.create_task(watched(machine, seen))
    await machine.offers(1)
    await machine.until(lambda: machine.roles().get("deviceplugin") == ("running", "DriverReleased"))
    watch.cancel()
    assert seen == set()
    machine.reset()
    machine.order(OrderStep.RESUME, reset=True)
    await killed(machine)
    answer = await machine.fulfilled(OrderStep.RESUME)
    await machine.until(lambda: (found := machine.answer) and found.gpus and not found.gpus[0].problem)
    assert answer.gpus[0].uuid == machine.uuids[1]
    await killed(machine)
    machine.annotate(None)
    await machine.offers()
    await machine.until(lambda: names.OPERATION_REPORT_ANNOTATION not in machine.annotations)


async def watched(machine: Machine, seen: set[str]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            seen.update(machine.users)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("step", OF_A_RESET)
async def test_an_order_that_is_withdrawn_midway_leaves_nothing(machine: Machine, step: OrderStep) -> None:
    await machine.start()
    await machine.offers()
    for earlier in OF_A_RESET[: OF_A_RESET.index(step) + 1]:
        machine.order(earlier)
        await machine.fulfilled(earlier)
    machine.annotate(None)
    await machine.offers()
    await machine.until(lambda: names.OPERATION_REPORT_ANNOTATION not in machine.annotations)
    await machine.until(lambda: machine.users)
    await machine.until(lambda: set(machine.roles().values()) == {("running", "")})


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "x" * 40_000, json.dumps({"version": 2, "id": "a", "boot": "b", "step": "release", "gpus": ["GPU-1"]}),
        encode(order(act="a", boot="another", step=OrderStep.RELEASE, gpus=("GPU-1",))),
    ],
)  # fmt: skip
async def test_orders_that_are_none_change_nothing(machine: Machine, text: str) -> None:
    await machine.start()
    await machine.offers()
    machine.annotate(text)
    # One that is an order comes after it: what went before has been seen by then.
    change = {"metadata": {"labels": {"nvidia.com/mig.config": "x"}}}
    assert machine.server.ask("PATCH", f"/api/v1/nodes/{machine.name}", change, media=MERGE).code == 200
    await machine.until(lambda: machine.users)
    assert machine.answer is None
    assert machine.unhealthy() == []


async def test_orders_that_can_not_be_carried_out_are_refused_and_change_nothing(machine: Machine) -> None:
    await machine.start()
    await machine.offers()
    given = order(act="a", boot=boot_id(), step=OrderStep.RELEASE, gpus=("GPU-none",))
    machine.annotate(encode(given))
    answer = await machine.until(lambda: (found := machine.answer) and found.refused and found)
    assert "lists no GPU GPU-none" in answer.refused
    assert machine.unhealthy() == []
    assert machine.users


async def test_without_the_api_server_a_new_agent_opens_the_driver(machine: Machine, tmp_path: Path) -> None:
    await machine.start()
    await machine.offers()
    for step in (OrderStep.WITHDRAW, OrderStep.RELEASE):
        machine.order(step)
        await machine.fulfilled(step)
    await machine.end(signal.SIGKILL)
    config = json.loads(machine.server.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    away = tmp_path / "kubeconfig"
    away.write_text(json.dumps(config))
    await machine.start(away)
    await machine.until(lambda: machine.users)
    await machine.offers()
