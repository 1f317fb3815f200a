"""From a node's label to slices that the kubelet is offered, on the simulated driver: the real agent, device plugin and
partitioner, an API server in memory, and an operator that the test plays.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from kgpu.agent.options import AgentOptions, LabelsSink
from kgpu.agent.roles import choose_roles
from kgpu.agent.run import Agent
from kgpu.base.boot import boot_id
from kgpu.formats import mig_request, names
from kgpu.formats.agent_config import AgentConfig, RoleConfig
from kgpu.formats.mig_request import MigRequest
from kgpu.formats.node_order import OrderAnswer, OrderStep, change_order, encode, read_answer
from kgpu.hw.open import open_reader
from kgpu.hw.simulator import operate
from kgpu.kube.port import NODES
from kgpu.kubelet.fake import FakeKubelet
from kgpu.kubelet.methods import POD_RESOURCES
from kgpu.kubelet.pb import podresources_v1_pb2 as pb
from kgpu.kubelet.rpc import RpcServer, Service
from tests.agent.support_auto import NAMESPACE, NODE, Cluster, hosted
from tests.mig.nvml_view import seen

SECONDS = 90.0
SLICE = "nvidia.com/mig-1g.10gb"


async def eventually(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(SECONDS):
        while not (found := condition()):  # noqa: ASYNC110 - another object's state
            await asyncio.sleep(0.01)
        return found


class Node(Cluster):
    """The Node with an operator that the test plays, and the kubelet's two sockets."""

    def __init__(self, folder: Path, root: Path) -> None:
        super().__init__()
        self.folder, self.root = folder, root
        self.kubelet = FakeKubelet(folder / "kubelet/device-plugins")
        (folder / "kubelet/pod-resources").mkdir(parents=True)
        self._resources = RpcServer(
            folder / "kubelet/pod-resources/kubelet.sock", [Service(POD_RESOURCES, {"List": self._listing})]
        )
        env = {names.ENV_MIG_OPERATIONS: "true"}
        roles = {"deviceplugin": RoleConfig(env={"MIG_STRATEGY": "mixed"}), "mig-manager": RoleConfig(env=env)}
        self.tell(AgentConfig(roles=roles, driver_install_dir=str(root)))

    async def __aenter__(self) -> Self:
        await self.kubelet.start()
        await self._resources.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._resources.close()
        await self.kubelet.stop()

    async def _listing(self, _request: Any) -> Any:
        reply = pb.ListPodResourcesResponse()
        for (pod, container), held in self.kubelet.held().items():
            row = reply.pod_resources.add(name=pod, namespace="team").containers.add(name=container)
            for resource, ids in held.items():
                row.devices.add(resource_name=resource, device_ids=ids)
        return reply

    def put(self, *, labels: dict[str, str | None] | None = None, **annotations: str | None) -> None:
        metadata = self.node["metadata"]
        changes = {"labels": labels or {}, "annotations": annotations}
        for kind, changed in changes.items():
            kept = {**(metadata.get(kind) or {}), **changed}
            metadata[kind] = {key: text for key, text in kept.items() if text is not None}
        self.api.put(NODES, {"metadata": {key: metadata[key] for key in ("name", "labels", "annotations")}})

    @property
    def annotations(self) -> dict[str, str]:
        return self.node["metadata"].get("annotations") or {}

    @property
    def state(self) -> str:
        return self.labels.get(names.MIG_CONFIG_STATE_LABEL, "")

    @property
    def request(self) -> MigRequest | None:
        return mig_request.read_request(self.annotations)

    def agent(self, *only: str, folder: str = "whole") -> contextlib.AbstractAsyncContextManager[Any]:
        async def reader(root: Path | None) -> Any:
            return open_reader(driver_root=root)

        more = {"roles": choose_roles(only), "only": only} if folder != "whole" else {"roles": choose_roles(only)}
        return hosted(
            self, self.folder / folder, open_reader=reader, kubelet_socket=self.kubelet.socket,
            host_root=self.folder / "host", shutdown_seconds=10.0, **more,
        )  # fmt: skip

    # The operator

    async def step(self, asked: MigRequest, step: OrderStep, act: str) -> OrderAnswer:
        given = change_order(act=act, boot=boot_id(), step=step, layouts=asked.layouts, released=asked.release)
        self.put(**{names.OPERATION_ANNOTATION: encode(given)})

        def answered() -> OrderAnswer | None:
            answer = read_answer(self.annotations)
            assert answer is None or not answer.refused, answer
            return answer if answer is not None and answer.fulfils(act, step) else None

        answer = await eventually(answered)
        assert isinstance(answer, OrderAnswer)
        return answer

    def progress(self, asked: MigRequest, phase: str) -> None:
        text = mig_request.encode(mig_request.progress(key=asked.id, operation="mig-1", phase=phase))
        self.put(**{names.MIG_OPERATION_ANNOTATION: text})

    async def operate(self, act: str = "act-1") -> OrderAnswer:
        """Carry out the request as kgpu's operator does; returns the answer with the result."""
        asked = await eventually(lambda: self.request)
        self.progress(asked, "Draining")
        answer = await self.step(asked, OrderStep.WITHDRAW, act)
        while answer.holders:
            for holder in answer.holders:
                self.kubelet.release(holder.name)
            answer = await self.step(asked, OrderStep.WITHDRAW, act)
        if asked.release:
            await self.step(asked, OrderStep.RELEASE, act)
        self.progress(asked, "Acting")
        changed = await self.step(asked, OrderStep.CHANGE, act)
        await self.step(asked, OrderStep.RESUME, act)
        self.put(**{names.OPERATION_ANNOTATION: None})
        self.progress(asked, "Complete" if changed.result is not None and changed.result.done else "Failed")
        return changed


@contextlib.asynccontextmanager
async def agents(node: Node, layout: str) -> AsyncIterator[None]:
    """The two roles: in one process, or each in its own."""
    if layout == "agent":
        async with node.agent("deviceplugin", "mig-manager"):
            yield
    else:
        async with (
            node.agent("deviceplugin", folder="plugin"), node.agent("mig-manager", folder="manager")
        ):  # fmt: skip
            yield


@pytest.mark.parametrize("layout", ["agent", "operands"])
@pytest.mark.parametrize("model", ["hgx-h100", "dgx-a100-80g"])
async def test_a_label_becomes_slices_that_the_kubelet_is_offered(
    sim_root: Any, tmp_path_factory: pytest.TempPathFactory, layout: str, model: str
) -> None:
    root = Path(sim_root(model, gpus=2))
    async with Node(tmp_path_factory.mktemp("m"), root) as node, agents(node, layout):
        await node.kubelet.wait_for(lambda: node.kubelet.allocatable().get(names.GPU_RESOURCE) == 2, seconds=SECONDS)
        begin = time.monotonic()
        node.put(labels={names.MIG_CONFIG_LABEL: "all-1g.10gb"})
        changed = await node.operate()
        assert changed.result is not None
        assert changed.result.done, changed
        cut = time.monotonic()
        await node.kubelet.wait_for(lambda: node.kubelet.allocatable().get(SLICE) == 14, seconds=SECONDS)
        offered = time.monotonic()
        await eventually(lambda: node.state == "success")
        print(f"\n{model}, {layout}: label to cut {cut - begin:.2f} s, to ListAndWatch {offered - begin:.2f} s")
        report = mig_request.read_report(node.annotations)
        assert report is not None
        assert (report.config, report.reason, node.request) == ("all-1g.10gb", "MigApplied", None)
        assert _config_map() not in node.api._objects


def _config_map() -> Any:
    from kgpu.kube.port import CONFIG_MAPS

    return CONFIG_MAPS, NAMESPACE, f"{NODE}-mig-config"


async def test_a_pod_on_another_gpu_keeps_its_device(sim_root: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = Path(sim_root("hgx-h100", gpus=2))
    async with Node(tmp_path_factory.mktemp("m"), root) as node, agents(node, "agent"):
        await node.kubelet.wait_for(lambda: node.kubelet.allocatable().get(names.GPU_RESOURCE) == 2, seconds=SECONDS)
        for pod in ("stays", "goes"):
            await node.kubelet.admit(pod, "c", {names.GPU_RESOURCE: 1})
        (uuid,) = node.kubelet.held()["goes", "c"][names.GPU_RESOURCE]
        node.put(labels={names.MIG_CONFIG_LABEL: "all-1g.10gb"})
        asked = await eventually(lambda: node.request)
        only = msgspec.structs.replace(asked, layouts=tuple(one for one in asked.layouts if one.gpu == uuid))
        answer = await node.step(only, OrderStep.WITHDRAW, "act-1")
        assert [pod.name for pod in answer.holders] == ["goes"]
        node.kubelet.release("goes")
        changed = await node.step(only, OrderStep.CHANGE, "act-1")
        assert changed.result is not None
        assert changed.result.done
        await node.step(only, OrderStep.RESUME, "act-1")
        node.put(**{names.OPERATION_ANNOTATION: None})
        await node.kubelet.wait_for(
            lambda: node.kubelet.allocatable().get(SLICE) == 7 and node.kubelet.allocatable()[names.GPU_RESOURCE] == 1,
            seconds=SECONDS,
        )
        assert node.kubelet.held()["stays", "c"]


@pytest.mark.parametrize("plugin", ["switched off", "with a config that it refuses"])
async def test_without_a_working_device_plugin_gpus_are_cut_and_made_whole_again(
    sim_root: Any, tmp_path_factory: pytest.TempPathFactory, plugin: str
) -> None:
    """NVIDIA's manager waits for the plugin's pod, and a plugin that fails on the slices keeps the node in MIG."""
    root, folder = Path(sim_root("hgx-h100", gpus=2)), tmp_path_factory.mktemp("m")
    async with Node(folder, root) as node:
        off = plugin == "switched off"
        refused = RoleConfig(env={"MIG_STRATEGY": "dual"})
        manager = RoleConfig(env={names.ENV_MIG_OPERATIONS: "true"})
        roles = {"deviceplugin": RoleConfig(enabled=False) if off else refused, "mig-manager": manager}
        node.tell(AgentConfig(roles=roles, driver_install_dir=str(root)))
        async with agents(node, "agent"):
            for act, (value, slices) in enumerate((("all-1g.10gb", 7), ("all-disabled", 0))):
                node.put(labels={names.MIG_CONFIG_LABEL: value})
                changed = await node.operate(f"act-{act}")
                assert changed.result is not None
                assert changed.result.done, changed
                await eventually(lambda: node.state == "success")
                assert [sum(seen(root, gpu)[3].values()) for gpu in (0, 1)] == [slices] * 2
        assert node.kubelet.capacity() == {}


@contextlib.asynccontextmanager
async def program(node: Node) -> AsyncIterator[Agent]:
    """``nvidia-mig-manager`` by itself."""
    options = AgentOptions(
        roles=("mig-manager",), root=node.root, node_name=NODE, kubeconfig="given", namespace=NAMESPACE, env={},
        kubelet_socket=node.kubelet.socket, state_dir=node.folder / "state", labels_sink=LabelsSink.NONE,
        host_root=node.folder / "host",
    )  # fmt: skip
    agent = Agent(options, choose_roles(["mig-manager"]), api=node.api)
    task = asyncio.create_task(agent.run())
    try:
        await eventually(lambda: agent.roles.statuses() or task.done())
        yield agent
    finally:
        agent.stop.set()
        await asyncio.wait_for(task, 60)


@pytest.mark.parametrize("model", ["hgx-h100", "dgx-a100-80g"])
async def test_without_an_operator_it_cuts_gpus_that_nobody_uses(
    sim_root: Any, tmp_path_factory: pytest.TempPathFactory, model: str
) -> None:
    root = Path(sim_root(model, gpus=1))
    async with Node(tmp_path_factory.mktemp("m"), root) as node:
        held: dict[str, Any] = {("train-0", "c"): {names.GPU_RESOURCE: (operate.snapshot(root)["gpus"][0]["uuid"],)}}
        node.kubelet.held = lambda: held  # type: ignore[method-assign]
        async with program(node):
            node.put(labels={names.MIG_CONFIG_LABEL: "all-1g.10gb"})
            await eventually(lambda: node.state == "failed")
            report = mig_request.read_report(node.annotations)
            assert report is not None
            assert "pod team/train-0" in report.message
            assert sum(seen(root)[3].values()) == 0
            held.clear()
            await eventually(lambda: node.state == "success")
        assert seen(root)[3] == {"1g.10gb": 7}
        assert "all-1g.10gb" in node.api._objects[_config_map()].shown()["data"]["config.yaml"]
