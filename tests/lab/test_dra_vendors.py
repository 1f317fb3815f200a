"""Claims in an embedded lab with nodes of three vendors: each gets its vendor's device, whatever happens to GPU or agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.hw.simulator import operate
from kgpu.hw.simulator.amd import operate as amd
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.progress import QuietProgress
from tests import polling
from tests.charts import conftest as charts
from tests.charts.test_claims import SERVED
from tests.lab.test_dra import GPU, DraNode, Object, device_class, pod, template

pytestmark = pytest.mark.timeout(charts.TIMEOUT_S)
helm = charts.helm
AMD, GAUDI = "gpu.amd.com", "gaudi.intel.com"
GAUDI_NODE, NVIDIA_NODE = "gaudi3-1", "l4-1"
SEES = "cd /dev; ls -d accel/* dri/* infiniband/* kfd nvidia[0-9]* 2>/dev/null; env | grep VISIBLE; echo done"
A_GPU = f"device.attributes['{AMD}'].productName == 'AMD_Instinct_MI300X_OAM'"
LARGE = f"device.capacity['{AMD}'].memory.compareTo(quantity('180Gi')) > 0"


class Nodes:
    """A node of each vendor, with an agent each."""

    def __init__(self, lab: EmbeddedLab, folder: Path) -> None:
        self.agents: list[DraNode] = []
        for name in (FIRST_NODE, GAUDI_NODE, NVIDIA_NODE):
            own = folder / name
            own.mkdir()
            self.agents.append(DraNode(lab, own, gates="", name=name))
        self.amd, self.gaudi, self.nvidia = self.agents

    def end(self) -> None:
        for agent in self.agents:
            agent.end()


def class_of(driver: str) -> Object:
    spec = {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": driver}, "spec": spec}


@pytest.fixture(scope="module")
def nodes(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    del kubectl
    folder = tmp_path_factory.mktemp("dra")
    first = FirstNode(profile="mi300x", agent=False)
    lab = EmbeddedLab("vendors", folder / "lab", QuietProgress(), first=first)
    made: Nodes | None = None
    try:
        lab.up()
        manage.add_to_running(lab.folder, "gaudi3", agent=False)
        manage.add_to_running(lab.folder, "l4", gpus=1, agent=False)
        made = Nodes(lab, folder)
        assert polling.holds(lambda: len(made.amd.devices()) == 8 + 8 + 1, seconds=60)
        made.amd.apply(class_of(AMD), class_of(GAUDI), device_class(GPU, "gpu"))
        made.amd.apply(
            template("amd", AMD, A_GPU), template("two", AMD, LARGE, 2), template("gaudi", GAUDI, "true", 2),
            template("nvidia", GPU, "true"),
            template("sixth", AMD, f"device.attributes['{AMD}'].partitionProfile == 'cpx_nps1'"),
        )  # fmt: skip
        yield made
    finally:
        if made is not None:
            made.end()
        lab.down()


def sees(nodes: Nodes, name: str) -> list[str]:
    """What is in the pod's log: its devices, then its variables."""
    return [line for line in nodes.amd.says(name, "done").split() if line != "done"]


def node_of(nodes: Nodes, name: str) -> str:
    (found,) = [one for one in nodes.amd.items("pods") if one["metadata"]["name"] == name]
    return str(found["spec"]["nodeName"])


def result_of(nodes: Nodes, name: str) -> list[str]:
    """The devices of the claims that a pod has."""
    claims = [
        one for one in nodes.amd.items("resourceclaims") if one["metadata"]["generateName"].startswith(f"{name}-")
    ]
    return [row["device"] for one in claims for row in one["status"]["allocation"]["devices"]["results"]]


def taints(nodes: Nodes, driver: str) -> dict[str, list[tuple[str, str]]]:
    """The taints of the driver's devices that have any."""
    slices = [one for one in nodes.amd.items("resourceslices") if one["spec"]["driver"] == driver]
    devices = [device for one in slices for device in one["spec"].get("devices", ())]
    return {
        device["name"]: [(one["key"], one["effect"]) for one in device["taints"]]
        for device in devices
        if device.get("taints")
    }


def nodes_of_card(device: str) -> list[str]:
    _, card, render = device.split("-")
    return [f"dri/card{card}", f"dri/renderD{render}"]


def test_each_claim_gets_its_vendors_device_and_no_other(nodes: Nodes) -> None:
    nodes.amd.apply(*(pod(name, of=name, command=SEES) for name in ("amd", "gaudi", "nvidia")))
    found = sees(nodes, "amd")
    assert node_of(nodes, "amd") == FIRST_NODE
    (device,) = result_of(nodes, "amd")
    assert found == [*nodes_of_card(device), "kfd"]
    found = sees(nodes, "gaudi")
    assert node_of(nodes, "gaudi") == GAUDI_NODE
    variables = dict(line.split("=") for line in found if "=" in line)
    numbers = variables["HABANA_VISIBLE_DEVICES"].split(",")
    assert len(numbers) == len(variables["HABANA_VISIBLE_MODULES"].split(",")) == 2
    assert variables["HL_VISIBLE_DEVICES"] == ",".join(f"/dev/accel/accel{number}" for number in numbers)
    kinds = ("accel/accel", "accel/accel_controlD", "infiniband/uverbs")
    assert sorted(line for line in found if "=" not in line) == sorted(f"{kind}{n}" for kind in kinds for n in numbers)
    assert "nvidia0" in sees(nodes, "nvidia")
    assert node_of(nodes, "nvidia") == NVIDIA_NODE
    nodes.amd.remove("amd", "gaudi", "nvidia")


def test_two_of_a_kind_by_their_memory(nodes: Nodes) -> None:
    nodes.amd.apply(pod("two", of="two", command=SEES))
    found = sees(nodes, "two")
    devices = result_of(nodes, "two")
    assert len(devices) == 2
    assert sorted(found) == sorted([*nodes_of_card(devices[0]), *nodes_of_card(devices[1]), "kfd"])
    nodes.amd.remove("two")


def test_a_mode_that_changes_under_claims_changes_what_is_offered_and_takes_nothing(nodes: Nodes) -> None:
    nodes.amd.apply(pod("stays", of="amd", command=SEES))
    before = sees(nodes, "stays")
    (held,) = result_of(nodes, "stays")
    amd.set_partition(nodes.amd.root, [7], "cpx")
    assert polling.holds(lambda: len(nodes.amd.devices()) == 7 + 8 + 8 + 1, seconds=60)
    nodes.amd.apply(pod("sixth", of="sixth", command=SEES))
    found = sees(nodes, "sixth")
    (device,) = result_of(nodes, "sixth")
    assert device not in (held, "")
    assert found == [*nodes_of_card(device), "kfd"]
    nodes.amd.remove("sixth", "stays")
    assert before == [*nodes_of_card(held), "kfd"]
    amd.set_partition(nodes.amd.root, [7], "spx")
    assert polling.holds(lambda: len(nodes.amd.devices()) == 8 + 8 + 1, seconds=60)


@pytest.mark.parametrize(("fault", "key"), [("lost", "gpu.amd.com/gpu-lost"), ("ecc", "kgpu.dev/gpu-unhealthy")])
def test_a_fault_is_a_taint_that_goes_without_a_restart(nodes: Nodes, fault: str, key: str) -> None:
    operate.inject(nodes.amd.root, fault, gpu=3)
    assert polling.holds(lambda: taints(nodes, AMD) == {"gpu-24-152": [(key, "NoSchedule")]}, seconds=60), taints(
        nodes, AMD
    )
    operate.clear(nodes.amd.root)
    assert polling.holds(lambda: taints(nodes, AMD) == {}, seconds=60)


def test_a_critical_error_of_a_gaudi_is_a_taint_with_no_execute_until_it_is_over(nodes: Nodes) -> None:
    operate.inject(nodes.gaudi.root, "lost", gpu=2)
    wanted = {"0000-43-00-0-0x1060": [("gaudi.intel.com/unhealthy", "NoExecute")]}
    assert polling.holds(lambda: taints(nodes, GAUDI) == wanted, seconds=60), taints(nodes, GAUDI)
    healthy = {
        device["name"]: device["attributes"]["healthy"]["bool"]
        for one in nodes.amd.items("resourceslices")
        for device in one["spec"].get("devices", ())
        if one["spec"]["driver"] == GAUDI
    }
    assert [name for name, well in healthy.items() if not well] == list(wanted)
    operate.clear(nodes.gaudi.root)
    assert polling.holds(lambda: taints(nodes, GAUDI) == {}, seconds=60)


@pytest.mark.parametrize("step", ["allocated", "running", "leaving"])
def test_an_agent_that_is_killed_gives_each_claim_its_device_all_the_same(nodes: Nodes, step: str) -> None:
    """Killed as soon as the claim is allocated, so while it is being prepared; and afterwards."""
    nodes.amd.apply(pod("killed", of="amd", command=SEES))
    if step == "allocated":
        nodes.amd.until(
            lambda: any(one.get("status", {}).get("allocation") for one in nodes.amd.items("resourceclaims")),
            "an allocation",
        )
        nodes.amd.kill()
    found = sees(nodes, "killed")
    (device,) = result_of(nodes, "killed")
    assert found == [*nodes_of_card(device), "kfd"]
    if step == "running":
        nodes.amd.kill()
    if step == "leaving":
        nodes.amd.kubectl("delete", "pod", "killed", "--wait=false")
        nodes.amd.kill()
        assert polling.holds(lambda: not nodes.amd.items("resourceclaims"), seconds=60)
    else:
        nodes.amd.remove("killed")
    records, specs = nodes.amd.folder / f"plugins/{AMD}/claims", nodes.amd.root.parent / "cdi"
    assert polling.holds(lambda: not [*records.glob("*.json"), *specs.glob("k8s.gpu.amd.com-gpu_*")], seconds=60)


def test_the_chart_leaves_classes_alone_that_somebody_else_has_made(nodes: Nodes, helm: str, tmp_path: Path) -> None:
    lab = nodes.amd.lab
    words = ("--dry-run=server", "--kubeconfig", str(lab.kubeconfig), *SERVED)

    def classes() -> set[str]:
        made = charts.chart_in(helm, tmp_path)("dra.enabled=true", words=words)
        return {one["metadata"]["name"] for one in made.objects if one["kind"] == "DeviceClass"}

    assert classes() == {"gpu.nvidia.com", "mig.nvidia.com"}
    own = "meta.helm.sh/release-name"
    nodes.amd.kubectl("annotate", "deviceclass", AMD, f"{own}=kgpu")
    nodes.amd.kubectl("annotate", "deviceclass", GAUDI, f"{own}=another")
    assert classes() == {"gpu.nvidia.com", "mig.nvidia.com", AMD}
