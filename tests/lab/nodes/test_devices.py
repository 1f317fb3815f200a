"""Devices of a simulated node: admission in the kubelet's words, its sockets, and plugins that misbehave."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kgpu.kube.port import NODES, PODS
from kgpu.kubelet import fake
from kgpu.kubelet.methods import GET_ALLOCATABLE, GET_POD_RESOURCES, LIST_POD_RESOURCES
from kgpu.kubelet.pb import podresources_v1_pb2 as pb
from kgpu.kubelet.rpc import RpcClient, RpcError
from tests.lab.nodes.support import GPU, NODE, WAIT_S, Bench, bench, gpus, plugin, pod, until, until_there


def allocatable(lab: Bench) -> str:
    return lab.api._objects[NODES, "", NODE].obj["status"]["allocatable"].get(GPU, "")


async def test_a_container_gets_what_the_plugin_prefers_and_answers(lab: Bench) -> None:
    async with plugin(lab) as (_, logic):
        logic.env = {"FROM_PLUGIN": "yes"}
        await lab.create(pod("p", 'echo "$IDS $FROM_PLUGIN"', resources=gpus(2)))
        await lab.phase_is("p", "Succeeded")
        assert await lab.log("p") == "d2,d3 yes\n"
        assert logic.allocated == [("d2", "d3")]
        assert [request.size for request in logic.preferred] == [2]
        await until(lambda: not lab.node.devices.held())  # it is over


async def test_no_two_pods_share(lab: Bench) -> None:
    async with plugin(lab):
        for number in range(6):
            await lab.create(pod(f"p{number}", "sleep 600", resources=gpus(1)))
        await until(lambda: sum(lab.phase(f"p{number}") == "Running" for number in range(6)) == 4)
        await until(lambda: sum(lab.phase(f"p{number}") == "Failed" for number in range(6)) == 2)
        held = [one for rows in lab.node.devices.held().values() for one in rows[GPU]]
        assert sorted(held) == ["d0", "d1", "d2", "d3"]
        failed = next(lab.status(f"p{number}") for number in range(6) if lab.phase(f"p{number}") == "Failed")
        assert failed["reason"] == f"OutOf{GPU}"
        text = f"Pod was rejected: Node didn't have enough resource: {GPU}, requested: 1, used: 4, capacity: 4"
        assert failed["message"] == text


@pytest.mark.parametrize(
    ("about", "reason", "message"),
    [
        (
            {"resources": {"requests": {"cpu": "99"}}},
            "OutOfcpu",
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 99000, used: 0, capacity: 16000",
        ),
        (
            {"spec_nodeSelector": {"zone": "moon"}},
            "NodeAffinity",
            "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        (
            {"spec_os": {"name": "windows"}},
            "PodOSNotSupported",
            "Pod was rejected: Failed to admit pod as the OS field doesn't match node OS",
        ),
    ],
)
async def test_reasons_of_refusals(lab: Bench, about: dict, reason: str, message: str) -> None:
    await lab.create(pod("p", "echo", **about))
    status = await lab.phase_is("p", "Failed")
    assert (status["reason"], status["message"]) == (reason, message)
    assert await lab.event(reason) == message.removeprefix("Pod was rejected: ")


async def test_a_refusing_plugin(lab: Bench) -> None:
    async with plugin(lab) as (_, logic):
        logic.refuse = "no such device"
        await lab.create(pod("p", "echo", resources=gpus(1)))
        status = await lab.phase_is("p", "Failed")
        assert status["reason"] == "UnexpectedAdmissionError"
        assert "Allocate failed due to rpc error: code = InvalidArgument desc = no such device" in status["message"]
        assert not lab.node.devices.held()
        logic.refuse = ""
        await lab.create(pod("q", "echo", resources=gpus(4)))
        await lab.phase_is("q", "Succeeded")


async def test_a_hung_plugin_costs_one_pod_not_the_node(lab: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async with plugin(lab) as (server, _):
        hung = asyncio.Event()

        async def never(_request: object) -> None:
            await hung.wait()

        server._rpc._services[0]._answers["Allocate"] = never
        await server._rpc.close()
        await server._rpc.start()
        await fake_register(lab, server)
        monkeypatch.setattr(fake, "CALL_SECONDS", 0.3)
        await lab.create(pod("p", "echo", resources=gpus(1)))
        await lab.create(pod("free", "echo"))
        status = await lab.phase_is("p", "Failed")
        assert status["reason"] == "UnexpectedAdmissionError"
        await lab.phase_is("free", "Succeeded")
        assert not lab.node.devices.held()
        hung.set()


async def fake_register(lab: Bench, server: object) -> None:
    from kgpu.kubelet.device_plugin import register

    await register(lab.node.devices.socket, server.registration)  # type: ignore[attr-defined]
    await until(lambda: lab.node.devices.allocatable().get(GPU) == 4)


async def test_a_plugin_that_dies_leaves_running_pods_alone(lab: Bench) -> None:
    async with plugin(lab) as (server, _):
        await lab.create(pod("p", "sleep 600", resources=gpus(2)))
        await lab.phase_is("p", "Running")
        held = dict(lab.node.devices.held())
        await server.close()
        await until(lambda: allocatable(lab) == "0", lambda: allocatable(lab))
        await lab.create(pod("q", "echo", resources=gpus(1)))
        status = await lab.phase_is("q", "Failed")
        assert "no healthy devices present; cannot allocate unhealthy devices" in status["message"]
        assert lab.node.devices.held() == held
        assert lab.phase("p") == "Running"
        assert lab.container("p")["restartCount"] == 0
    async with plugin(lab):  # it comes back: what is held is not given again
        await lab.create(pod("r", "sleep 600", resources=gpus(2)))
        await lab.phase_is("r", "Running")
        ids = [one for rows in lab.node.devices.held().values() for one in rows[GPU]]
        assert sorted(ids) == ["d0", "d1", "d2", "d3"]


async def test_pod_resources(lab: Bench) -> None:
    async with plugin(lab):
        init = {"name": "init", "image": "busybox:1", "command": ["true"], "resources": gpus(3)}
        await lab.create(pod("p", "sleep 600", resources=gpus(2), spec_initContainers=[init]))
        await lab.create(pod("free", "sleep 600"))
        await lab.phase_is("p", "Running")
        await lab.phase_is("free", "Running")
        async with RpcClient(lab.node_folder / "pod-resources" / "kubelet.sock") as client:
            listed = await client.call(LIST_POD_RESOURCES, pb.ListPodResourcesRequest(), timeout=60)
            rows = {one.name: one for one in listed.pod_resources}
            assert set(rows) == {"p", "free"}
            (main,) = rows["p"].containers
            ids = {device for row in main.devices for device in row.device_ids}
            assert len(ids) == 2 == len(main.devices)
            assert {(row.resource_name, row.topology.nodes[0].ID) for row in main.devices} <= {(GPU, 0), (GPU, 1)}
            assert not rows["free"].containers[0].devices
            request = pb.GetPodResourcesRequest(pod_name="p", pod_namespace="default")
            assert (await client.call(GET_POD_RESOURCES, request, timeout=60)).pod_resources == rows["p"]
            with pytest.raises(RpcError, match="pod gone in namespace default not found"):
                await client.call(
                    GET_POD_RESOURCES, pb.GetPodResourcesRequest(pod_name="gone", pod_namespace="default"), timeout=60
                )
            every = await client.call(GET_ALLOCATABLE, pb.AllocatableResourcesRequest(), timeout=60)
            assert sorted(row.device_ids[0] for row in every.devices) == ["d0", "d1", "d2", "d3"]
            await lab.api.delete(PODS, "p", namespace="default")
            await lab.is_gone("p")
            async with asyncio.timeout(WAIT_S):  # its worker ends after it has had the pod deleted
                while [one.name for one in listed.pod_resources] != ["free"]:
                    listed = await client.call(LIST_POD_RESOURCES, pb.ListPodResourcesRequest(), timeout=60)


def cdi_spec(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


async def test_cdi_specs_change_the_container(lab: Bench) -> None:
    (lab.folder / "library.so").write_text("content")
    cdi_spec(
        lab.node_folder / "cdi",
        "vendor.yaml",
        f"""
cdiVersion: "0.5.0"
kind: example.com/gpu
containerEdits:
  env: [ALL=1]
  mounts: [{{hostPath: {lab.folder}/library.so, containerPath: /usr/lib/library.so, options: [ro]}}]
devices:
- name: d3
  containerEdits: {{env: [ONE=d3]}}
- name: d0
  containerEdits: {{env: [ONE=d0]}}
""",
    )
    cdi_spec(lab.node_folder / "cdi", "broken.json", "{")  # its neighbours count all the same
    async with plugin(lab) as (_, logic):
        logic.cdi = ("example.com/gpu=d3",)
        script = 'echo "$ALL $ONE"; for d in $(echo $LD_LIBRARY_PATH | tr : " "); do cat $d/library.so; done'
        await lab.create(pod("p", script, resources=gpus(1)))
        await lab.phase_is("p", "Succeeded")
        assert await lab.log("p") == "1 d3\ncontent"


async def test_cdi_devices_that_no_spec_has(lab: Bench) -> None:
    async with plugin(lab) as (_, logic):
        logic.cdi = ("example.com/gpu=none",)
        await lab.create(pod("p", "echo", resources=gpus(1)))
        await until(lambda: lab.state("p")[1].get("reason") == "CreateContainerError")
        text = lab.state("p")[1]["message"]
        assert "CDI device injection failed: unresolvable CDI devices example.com/gpu=none" in text


async def test_the_api_away_delays_what_is_told_and_nothing_else(lab: Bench) -> None:
    async with plugin(lab):
        go = lab.folder / "go"
        await lab.create(pod("p", until_there(go, "exit 5"), resources=gpus(1)))
        await lab.phase_is("p", "Running")
        lab.api.set_down(True)
        go.touch()
        await until(lambda: not lab.node.devices.held())  # it ended, and its device is free
        assert lab.phase("p") == "Running"
        lab.api.set_down(False)
        status = await lab.phase_is("p", "Failed")
        assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
        await lab.create(pod("q", "echo", resources=gpus(4)))
        await lab.phase_is("q", "Succeeded")


async def test_a_folder_with_a_long_name(folder: Path) -> None:
    deep = folder / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    async with bench(deep) as lab, plugin(lab):
        await lab.create(pod("p", "echo $IDS", resources=gpus(4)))
        await lab.phase_is("p", "Succeeded")
        assert await lab.log("p") == "d0,d1,d2,d3\n"
