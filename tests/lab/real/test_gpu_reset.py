"""The pod that resets GPUs: on the real node, with real containers, and on three simulated full nodes beside it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.formats.names import DRIVER_INSTALL_DIR, IMAGE_REPOSITORY
from kgpu.hw.simulator import operate
from kgpu.lab.embedded import ready
from kgpu.lab.nodes import manage
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import bootstrap, kgpu_image
from kgpu.lab.real.model import NODE_NAME
from kgpu.lab.real.plan import AGENT
from kgpu.operations.act_pods import reset_container, reset_volumes
from kgpu.operations.model import REFUSED
from tests.lab.real.conftest import DEADLINE_S, PODS, Cluster, until

SIMULATED = 3


@pytest.fixture(scope="module")
def fleet(cluster: Cluster) -> Iterator[list[str]]:
    """The names of the simulated nodes, with two GPUs each and no agent; kgpu's image is on the real one."""
    root = cluster.lab.paths.root
    bootstrap.import_archive(cluster.lab, kgpu_image.ensure_image(PlainProgress()))
    names = manage.add_to_running(root, "hgx-h100", SIMULATED, name_prefix="sim", gpus=2, agent=False)
    try:
        ready.wait_for_nodes(cluster.lab.kubeconfig, dict.fromkeys(names, False), DEADLINE_S, manage.nodes_dir(root))
        yield names
    finally:
        manage.remove(root, names)
        subprocess.run(cluster.lab.in_node(["umount", "-l", DRIVER_INSTALL_DIR]), capture_output=True, check=False)


@pytest.fixture
def without_agent(gpus: Cluster) -> Iterator[Cluster]:
    """The real node whose agent has let go of the driver; pods go on."""
    gpus.lab.order("stop", AGENT)
    try:
        yield gpus
    finally:
        gpus.lab.order("start", AGENT)


def hardware(cluster: Cluster, node: str) -> Path:
    """The simulated driver root of a node."""
    root = cluster.lab.paths.root
    return cluster.lab.hw_root if node == NODE_NAME else manage.hw_root(root, node)


def gpu(cluster: Cluster, node: str, index: int) -> dict[str, Any]:
    found: dict[str, Any] = operate.snapshot(hardware(cluster, node))["gpus"][index]
    return found


def start(cluster: Cluster, node: str, index: int, identity: str, folder: str) -> str:
    """Create the pod of the act for a driver in that folder; its name."""
    boot = cluster.lab.server("GET", f"/api/v1/nodes/{node}")[1]["status"]["nodeInfo"]["bootID"]
    container = reset_container(
        identity, boot, (gpu(cluster, node, index)["uuid"],), f"{IMAGE_REPOSITORY}:dev", "IfNotPresent",
        driver_install_dir=folder,
    )  # fmt: skip
    name = f"act-{identity}"
    spec = {
        "nodeName": node, "hostPID": True, "restartPolicy": "Never", "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}], "containers": [container], "volumes": reset_volumes(driver_install_dir=folder),
    }  # fmt: skip
    metadata = {"name": name, "labels": {"test": "yes"}}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    cluster.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    return name


def ended(cluster: Cluster, name: str) -> tuple[int, str]:
    """The exit code of the act's pod, and what it says of a failure; the pod is gone then."""
    until(lambda: cluster.phase(name) in {"Succeeded", "Failed"}, f"pod {name} to end")
    pod = cluster.pods()[name]
    state = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    cluster.delete(name)
    return int(state["exitCode"]), str(state.get("message", ""))


def act(cluster: Cluster, index: int, identity: str) -> tuple[int, str]:
    """The same for the real node, whose driver is in a folder of its own."""
    return ended(cluster, start(cluster, NODE_NAME, index, identity, str(cluster.lab.hw_root)))


def test_an_agent_that_has_the_driver_open_keeps_the_gpu(gpus: Cluster, fleet: list[str]) -> None:
    before = gpu(gpus, NODE_NAME, 0)["resets"]
    code, said = act(gpus, 0, "held")
    assert (code, gpu(gpus, NODE_NAME, 0)["resets"]) == (REFUSED, before)
    assert re.search(r"in use by \S+ \(pid \d+\)", said), said


def test_one_gpu_is_reset_beside_a_pod_on_another(
    gpus: Cluster, fleet: list[str], request: pytest.FixtureRequest
) -> None:
    gpus.pod("watcher", command="nvidia-smi -L; exec nvidia-smi -l 5 >/dev/null")
    gpus.wait_phase("watcher", "Running")
    until(lambda: "UUID: GPU-" in gpus.logs("watcher"), "the pod to name its GPU")
    uuid = re.findall(r"UUID: (GPU-[0-9a-f-]+)", gpus.logs("watcher"))[0]
    request.getfixturevalue("without_agent")
    used = next(index for index in range(8) if gpu(gpus, NODE_NAME, index)["uuid"] == uuid)
    free = (used + 1) % 8
    before = gpu(gpus, NODE_NAME, free)["resets"]
    gpus.hw("inject", "xid", "48", "--gpu", str(free))
    code, said = act(gpus, used, "used")
    uid = gpus.lab.server("GET", f"{PODS}/watcher")[1]["metadata"]["uid"]
    assert (code, f"of pod {uid}" in said) == (REFUSED, True), said
    assert act(gpus, free, "free") == (0, "")
    assert act(gpus, free, "free") == (0, "")
    after = gpu(gpus, NODE_NAME, free)
    assert (after["resets"] - before, after["recovery_action"]) == (1, "none")
    assert gpus.phase("watcher") == "Running"


def test_four_nodes_at_once_each_reset_their_own(without_agent: Cluster, fleet: list[str]) -> None:
    """With one folder for the driver on all of them, as a ClusterPolicy names it."""
    cluster, nodes = without_agent, [NODE_NAME, *fleet]
    before = {node: gpu(cluster, node, 1)["resets"] for node in nodes}
    for node in nodes:
        operate.inject(hardware(cluster, node), "xid", gpu=1, xid=48)
    bootstrap.show_driver(cluster.lab)
    started = {node: start(cluster, node, 1, f"all-{number}", DRIVER_INSTALL_DIR) for number, node in enumerate(nodes)}
    assert {node: ended(cluster, name) for node, name in started.items()} == dict.fromkeys(nodes, (0, ""))
    for node in nodes:
        after = gpu(cluster, node, 1)
        assert (after["resets"] - before[node], after["recovery_action"]) == (1, "none"), node
