"""The pod that resets GPUs, on a simulated node: it resets those of its node, and finds who uses them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kgpu.base.boot import boot_id
from kgpu.formats.names import IMAGE_REPOSITORY
from kgpu.hw.simulator import operate
from kgpu.hw.simulator.create import environment
from kgpu.kube.port import NODES, Object
from kgpu.lab.nodes import boots
from kgpu.lab.nodes import host as host_module
from kgpu.lab.nodes.folder import REBOOT, ask_for_reboot
from kgpu.operations.act_pods import reset_container, reset_volumes
from kgpu.operations.model import REFUSED
from tests.lab.nodes.support import NODE, Bench, bench, pod, until, until_said

KGPU = f"{IMAGE_REPOSITORY}:1"
CONTEXT = (
    "import ctypes,sys,time; c=ctypes.CDLL('libcuda.so.1'); x=ctypes.c_void_p(); c.cuInit(0);"
    "assert c.cuCtxCreate_v2(ctypes.byref(x),0,{})==0; print('up', flush=True); time.sleep(600)"
)


@pytest.fixture
async def gpus(folder: Path, sim_libs: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """A node with two GPUs and no agent."""
    monkeypatch.setattr(host_module, "SETTLE_S", 0.02)
    async with bench(folder, profile="hgx-h100", gpus=2, agent=False) as made:
        await until(lambda: (hardware(made) / "state").exists())
        yield made


def hardware(lab: Bench) -> Path:
    return lab.node_folder / "hw"


def gpu(lab: Bench, index: int) -> Object:
    found: Object = operate.snapshot(hardware(lab))["gpus"][index]
    return found


async def act(lab: Bench, identity: str, index: int) -> tuple[int, str]:
    """Run the pod; its exit code, and the last line of its log."""
    boot = str(lab.api._objects[NODES, "", NODE].obj["status"]["nodeInfo"]["bootID"])
    container = reset_container(identity, boot, (gpu(lab, index)["uuid"],), KGPU, "IfNotPresent")
    fields = {"hostPID": True, "volumes": reset_volumes(), "containers": [{**container, "name": "main"}]}
    name = f"act-{identity}-{len(lab.api._objects)}"
    await lab.create(pod(name, **{f"spec_{key}": value for key, value in fields.items()}))
    await until(lambda: lab.phase(name) in {"Succeeded", "Failed"}, lambda: str(lab.status(name)))
    return lab.state(name)[1]["exitCode"], (await lab.log(name)).splitlines()[-1]


async def test_it_resets_the_gpu_of_its_node_once(gpus: Bench) -> None:
    operate.inject(hardware(gpus), "xid", gpu=1, xid=48)
    assert await act(gpus, "op-1", 1) == (0, f"nvidia-smi has reset {gpu(gpus, 1)['uuid']}")
    assert (gpu(gpus, 1)["recovery_action"], gpu(gpus, 0)["resets"], gpu(gpus, 1)["resets"]) == ("none", 0, 1)
    await act(gpus, "op-1", 1)
    assert gpu(gpus, 1)["resets"] == 1
    assert (hardware(gpus) / "run/kgpu/acts/op-1.result").exists()


async def test_a_container_that_uses_the_gpu_is_found(gpus: Bench) -> None:
    env = [{"name": name, "value": value} for name, value in environment(hardware(gpus)).items()]
    script = f'exec {sys.executable} -c "{CONTEXT.format(1)}"'
    await gpus.create(pod("train", script, image=KGPU, env=env))
    await until_said(gpus, "train", "up")
    code, said = await act(gpus, "op-1", 1)
    assert (code, gpu(gpus, 1)["resets"]) == (REFUSED, 0)
    container = gpus.container("train")["containerID"].partition("://")[2]
    assert f" of container {container}" in said
    assert (await act(gpus, "op-2", 0))[0] == 0


async def test_after_a_reboot_the_order_is_void_and_the_id_is_free(gpus: Bench) -> None:
    assert (await act(gpus, "op-1", 0))[0] == 0
    former = boot_id()
    ask_for_reboot(gpus.node_folder)
    await until(lambda: not (gpus.node_folder / REBOOT).exists() and boots.read(gpus.node_folder) != "")
    await until(
        lambda: gpus.api._objects[NODES, "", NODE].obj["status"]["nodeInfo"]["bootID"] == boots.read(gpus.node_folder)
    )
    container = reset_container("op-2", former, (gpu(gpus, 0)["uuid"],), KGPU, "IfNotPresent")
    fields = {"spec_hostPID": True, "spec_volumes": reset_volumes(), "spec_containers": [{**container, "name": "main"}]}
    await gpus.create(pod("void", **fields))
    await gpus.phase_is("void", "Failed")
    assert gpus.state("void")[1]["exitCode"] == REFUSED
    assert "has booted since" in await gpus.log("void")
    assert (await act(gpus, "op-1", 0))[0] == 0
    assert gpu(gpus, 0)["resets"] == 2
