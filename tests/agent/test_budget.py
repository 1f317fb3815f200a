"""The agent stays light: what it must not load, how many modules it has, and what it weighs on a simulated node."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kgpu.formats.names import GPU_RESOURCE
from kgpu.kubelet.fake import FakeKubelet

# MiB, proportional, agent and hardware child together; the figure of `make bench` is well below.
PSS_LIMIT = 60
# Of them, one for the row of each role.
MODULE_LIMIT = 438
# Of an agent on an AMD node, which has no hardware child beside it.
AMD_MODULE_LIMIT = 444
# Of one on a node with Gaudi accelerators or Intel GPUs: the records of the vendors before are looked at.
CARD_MODULE_LIMIT = 446

NEVER = {
    "hypothesis",
    "kgpu.hw.simulator",
    "kgpu.lab",
    "pydantic",
    "pynvml",
    "rich",
    "uvicorn",
}
ONLY_WITH_AN_API_SERVER = {"httpx2", "lightkube"}
ONLY_WITH_CDI = {"kgpu.toolkit.plan"}
ONLY_FOR_AMD = {"kgpu.hw.amd", "kgpu.deviceplugin.modes", "kgpu.deviceplugin.weights", "kgpu.discovery.amd_labels"}
ONLY_FOR_NVIDIA = {"kgpu.hw.nvidia.client", "kgpu.hw.nvidia.process", "kgpu.hw.nvidia.facts"}

HOSTED = """
import asyncio, sys
from pathlib import Path
from kgpu.agent.options import AgentOptions, LabelsSink
from kgpu.agent.roles import choose_roles
from kgpu.agent.run import Agent

async def main():
    root, folder = Path(sys.argv[1]), Path(sys.argv[2])
    agent = Agent(AgentOptions(roles=(), root=root, env={}, state_dir=folder / "state", kubelet_socket=folder / "none.sock",
                               labels_sink=LabelsSink.FILE, labels_file=folder / "labels"), choose_roles(["deviceplugin", "labels"]))
    task = asyncio.create_task(agent.run())
    async with asyncio.timeout(60):
        while not ((folder / "labels").exists() and any(folder.glob("*.sock"))):  # and what is offered is decided
            await asyncio.sleep(0.01)
    agent.stop.set()
    await task
    print(*sorted(sys.modules))

asyncio.run(main())
"""


def test_a_running_agent_has_loaded_only_what_it_needs(sim_root, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", HOSTED, sim_root("hgx-h100"), tmp_path], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    assert "kgpu.deviceplugin.run" in modules
    assert not (NEVER | ONLY_WITH_CDI | ONLY_WITH_AN_API_SERVER | ONLY_FOR_AMD) & modules
    assert len(modules) <= MODULE_LIMIT, f"{len(modules)} modules"


def test_an_agent_on_an_amd_node_loads_nothing_of_nvidias_library(sim_root, tmp_path):
    command = [sys.executable, "-c", HOSTED, sim_root("mi300x"), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    assert modules >= {"kgpu.hw.amd.client", "kgpu.discovery.amd_labels"}
    assert not (NEVER | ONLY_WITH_CDI | ONLY_WITH_AN_API_SERVER | ONLY_FOR_NVIDIA) & modules
    assert len(modules) <= AMD_MODULE_LIMIT, f"{len(modules)} modules"


@pytest.mark.parametrize(("profile", "own"), [("gaudi3", "kgpu.hw.gaudi.client"), ("arc", "kgpu.hw.intel.client")])
def test_an_agent_on_another_vendors_node_loads_no_other_vendors_reader(sim_root, tmp_path, profile: str, own: str):
    command = [sys.executable, "-c", HOSTED, sim_root(profile), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    readers = {name for name in modules if name.startswith("kgpu.hw.") and name.endswith(".client")}
    assert readers == {own}
    assert "kgpu.hw.gaudi.hlml_child" not in modules, "the library is the child's"
    assert not (NEVER | ONLY_WITH_CDI | ONLY_WITH_AN_API_SERVER | ONLY_FOR_NVIDIA) & modules
    assert len(modules) <= CARD_MODULE_LIMIT, f"{len(modules)} modules"


AUTO = """
import asyncio, sys
from pathlib import Path
from kgpu.agent.auto import AutoAgent
from kgpu.agent.options import AgentOptions
from kgpu.formats.agent_config import AgentConfig, RoleConfig, encode
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS, NODES

async def main():
    folder, api = Path(sys.argv[1]), FakeApi()
    roles = {"features": RoleConfig(), **dict.fromkeys(("deviceplugin", "labels", "toolkit", "validator"), RoleConfig(label="x"))}
    api.put(NODES, {"metadata": {"name": "n"}})
    document = {"agent.json": encode(AgentConfig(roles=roles, driver_install_dir=str(folder)))}
    api.put(CONFIG_MAPS, {"metadata": {"name": "kgpu-agent", "namespace": "ns"}, "data": document})
    options = AgentOptions(auto=True, node_name="n", namespace="ns", kubeconfig="given", env={}, state_dir=folder)
    agent = AutoAgent(options, api=api)
    task = asyncio.create_task(agent.run())
    async with asyncio.timeout(60):
        while not (await api.get(NODES, "n"))["metadata"].get("annotations"):
            await asyncio.sleep(0.01)
    agent.stop.set()
    await task
    print(*sorted(sys.modules))

asyncio.run(main())
"""
ONLY_WITH_ACCELERATORS = {"kgpu.deviceplugin.run", "kgpu.discovery.run", "kgpu.hw.nvidia.client", "kgpu.validator.run"}


def test_an_agent_under_the_operator_loads_no_role_that_is_not_for_its_node(tmp_path):
    done = subprocess.run([sys.executable, "-c", AUTO, tmp_path], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    assert "kgpu.discovery.features.run" in modules
    assert not (NEVER | ONLY_WITH_ACCELERATORS | ONLY_WITH_CDI | ONLY_WITH_AN_API_SERVER) & modules


def pss_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


@pytest.mark.skipif(not os.access("/proc/self/smaps_rollup", os.R_OK), reason="needs smaps_rollup (Linux 4.14)")
async def test_agent_and_child_stay_within_the_memory_budget(sim_root, tmp_path_factory):
    root, folder = sim_root("hgx-h100"), tmp_path_factory.mktemp("budget")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "NODE", "KGPU"))}
    async with FakeKubelet(folder / "kubelet") as kubelet:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kgpu", "agent", "--root", str(root), "--state-dir", str(folder / "state"),
            "--kubelet-socket", str(kubelet.socket), "--labels-sink", "file", "--labels-file", str(folder / "labels"),
            stderr=asyncio.subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        try:
            await kubelet.wait_for(
                lambda: kubelet.allocatable().get(GPU_RESOURCE) == 8 and (folder / "labels").exists(), seconds=60
            )
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()  # noqa: ASYNC240
            assert len(children) == 1
            assert pss_mib(process.pid) + pss_mib(int(children[0])) <= PSS_LIMIT
        finally:
            process.terminate()
            await process.wait()
    shutil.rmtree(folder)
