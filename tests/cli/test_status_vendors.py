"""What ``kgpu status`` shows of nodes whoever offers their devices: rows from Nodes, the screen, exit codes."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from kgpu.cli import status as module
from kgpu.cli._status_vendors import VendorNode, vendor_nodes
from kgpu.formats import agent_report, gpu_report, mig_request, names
from kgpu.formats.gpu_report import ReportedGpu
from kgpu.formats.mig_request import MigLabelState
from kgpu.hw.vendor import vendors
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES
from kgpu.operator.overview import OperatorState, Overview, overview
from tests.operator.test_allocation import SERVED
from tests.operator.test_overview import written
from tests.operator.test_vendors import other_node
from tests.operator.world import SETTINGS, healthy_node, settle, world

ALONE = OperatorState(said="no operator found in namespace gpu-operator")
ILL = ReportedGpu(uuid="0000:26:00.0", index=1, what="it has fallen off the bus", facts=("driver:lost",))
LOOK = ReportedGpu(uuid="AN1", index=0, what="it is hot", works=True)


def node(
    name: str, resource: str, capacity: int | None = 8, allocatable: int | None = None, *, labels: dict[str, str] | None = None,
    report: gpu_report.GpuReport | None = None, roles: dict[str, str] | None = None, ready: str = "True",
) -> dict[str, Any]:  # fmt: skip
    amounts = {} if capacity is None else {resource: str(capacity), "cpu": "64"}
    free = {} if capacity is None else {resource: str(capacity if allocatable is None else allocatable)}
    annotations = dict(roles or {})
    conditions = [{"type": "Ready", "status": ready}]
    if report is not None:
        annotations[names.GPUS_ANNOTATION] = gpu_report.encode(report)
        conditions.append({"type": names.GPUS_HEALTHY_CONDITION, "status": "True"})
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations},
        "status": {"capacity": amounts, "allocatable": free, "conditions": conditions},
    }  # fmt: skip


def row(**about: Any) -> VendorNode:
    (found,) = vendor_nodes([node("n1", **about)])
    return found


@pytest.mark.parametrize(
    ("state", "label", "told"),
    [
        (MigLabelState.FAILED, "cpx_nps4", True),
        (MigLabelState.FAILED, "another", False),
        (MigLabelState.SUCCESS, "cpx_nps4", False),
        (MigLabelState.PENDING, "cpx_nps4", False),
    ],
)
def test_a_partition_profile_that_is_not_in_force_is_told(*, state: MigLabelState, label: str, told: bool) -> None:
    report = mig_request.report(
        config="cpx_nps4", state=state, message="there is no profile cpx_nps4\x1b[2J; did you mean"
    )
    found = row(
        resource="amd.com/gpu", labels={names.AMD_PROFILE_LABEL: label},
        roles={names.PARTITION_REPORT_ANNOTATION: mig_request.encode(report)},
    )  # fmt: skip
    assert found.works
    texts = [problem.what for problem in found.problems]
    assert bool(texts) is told
    for what in texts:
        assert what.startswith("the partition profile cpx_nps4 is not in force: there is no profile cpx_nps4")
        assert "\x1b" not in what


AMD, GAUDI, I915, XE = "amd.com/gpu", "habana.ai/gaudi", "gpu.intel.com/i915", "gpu.intel.com/xe"


@pytest.mark.parametrize(
    ("resource", "title", "devices"),
    [
        (names.GPU_RESOURCE, "NVIDIA", "8/8"),
        ("nvidia.com/mig-1g.10gb", "NVIDIA", "8/8 mig-1g.10gb"),
        (AMD, "AMD", "8/8"),
        ("amd.com/cpx_nps4", "AMD", "8/8 cpx_nps4"),
        (GAUDI, "Intel Gaudi", "8/8"),
        (I915, "Intel", "8/8"),
        (XE, "Intel", "8/8 xe"),
    ],
)
def test_a_node_is_known_by_what_it_counts(*, resource: str, title: str, devices: str) -> None:
    found = row(resource=resource)
    assert (found.title, found.devices, found.health, found.agent, found.works) == (title, devices, "-", "", True)


@pytest.mark.parametrize(
    ("labels", "vendor"),
    [
        ({"feature.node.kubernetes.io/amd-gpu": "true"}, "amd"),
        ({"feature.node.kubernetes.io/pci-1200_1002.present": "true"}, "amd"),
        ({"feature.node.kubernetes.io/pci-1200_1da3.present": "true"}, "gaudi"),
        ({"habana.ai/hpu-present": "true"}, "gaudi"),
        ({"intel.feature.node.kubernetes.io/gpu": "true"}, "intel"),
    ],
)
def test_a_node_that_offers_nothing_is_known_by_its_labels(*, labels: dict[str, str], vendor: str) -> None:
    found = row(resource=AMD, capacity=None, labels=labels)
    assert (found.vendor, found.devices, found.works) == (vendor, "none yet", False)
    assert [problem.remedy for problem in found.problems] == ["kgpu doctor node n1"]


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"feature.node.kubernetes.io/amd-gpu": "false"},
        {"feature.node.kubernetes.io/pci-0300_8086.present": "true"},
        {"feature.node.kubernetes.io/pci-10de.present": "true"},
    ],
)
def test_what_is_no_vendors_node(labels: dict[str, str]) -> None:
    assert vendor_nodes([node("n1", "nvidia.com/hostdev", labels=labels)]) == ()
    assert vendor_nodes([node("n1", names.GPU_RESOURCE, 0, labels=labels)]) == (), "GPUs that were there once"


@pytest.mark.parametrize(
    ("amounts", "report", "health", "works", "said"),
    [
        ((8, 8), gpu_report.report([], count=8), "ok", True, ""),
        ((8, 7), gpu_report.report([ILL], count=8), "1 ILL", True, "GPU 1 (0000:26:00.0) is not well: it has fallen off"),
        ((8, 8), gpu_report.report([LOOK], count=8), "1 look", True, "works, and should be looked at: it is hot"),
        ((8, 0), gpu_report.report([], count=0, unreadable="the driver amdgpu is not loaded"), "FAIL", False, "amdgpu is not"),
        ((8, 7), None, "-", True, "1 of 8 amd.com/gpu can't be given to pods"),
        ((8, 0), None, "FAIL", False, "has 8 AMD devices and offers none"),
    ],
)  # fmt: skip
def test_health_and_findings(
    *, amounts: tuple[int, int], report: gpu_report.GpuReport | None, health: str, works: bool, said: str
) -> None:
    found = row(resource=AMD, capacity=amounts[0], allocatable=amounts[1], report=report)
    assert (found.health, found.works) == (health, works)
    assert said in "".join(problem.what for problem in found.problems)
    assert bool(said) == bool(found.problems)


def test_the_agent_is_named_by_its_report_or_by_what_only_it_says() -> None:
    roles = agent_report.encode(agent_report.AgentReport(version="0.1.0", driver="6.10.5"))
    whole = row(resource=AMD, roles={names.ROLES_ANNOTATION: roles})
    assert (whole.agent, whole.driver) == ("0.1.0", "6.10.5")
    assert row(resource=AMD, roles={agent_report.annotation("deviceplugin"): roles}).agent == "0.1.0"
    knowing_none = agent_report.encode(agent_report.AgentReport(version="0.1.0"))
    assert row(resource=AMD, roles={agent_report.annotation("features"): knowing_none}).agent == ""
    assert row(resource=AMD, report=gpu_report.report([], count=8)).agent == "alone"


BY_CLAIMS = {"dra": agent_report.role("running", "8 devices in 1 ResourceSlices")}


@pytest.mark.parametrize("key", [names.ROLES_ANNOTATION, agent_report.annotation("dra")])
@pytest.mark.parametrize(
    ("resource", "capacity"), [(AMD, 8), (GAUDI, 8), (XE, 8), (AMD, None), (names.GPU_RESOURCE, 8)]
)
def test_devices_that_a_dra_driver_hands_out_are_offered(*, key: str, resource: str, capacity: int | None) -> None:
    """Of a device plugin that was there before, the kubelet keeps the resource."""
    vendor = next(name for name, one in vendors().items() if one.counts(resource))
    said = agent_report.encode(agent_report.AgentReport(version="0.1.0", gpus=8, vendor=vendor, roles=BY_CLAIMS))
    labels = {"feature.node.kubernetes.io/amd-gpu": "true"} if capacity is None else {}
    found = row(
        resource=resource, capacity=capacity, allocatable=0, roles={key: said}, labels=labels,
        report=gpu_report.report([], count=8),
    )  # fmt: skip
    assert (found.devices, found.health, found.works, found.problems) == ("by claims", "ok", True, ())


@pytest.mark.parametrize(
    "roles",
    [
        {"dra": agent_report.role("failed", "no kubelet")},
        {"dra": agent_report.role("stopped", "its process has ended", agent_report.ENDED)},
        {**BY_CLAIMS, "deviceplugin": agent_report.role("running", "nothing to offer")},
    ],
    ids=["failed", "ended", "a plugin beside it"],
)
def test_a_dra_driver_that_hands_nothing_out_is_no_excuse(roles: dict[str, agent_report.RoleReport]) -> None:
    said = agent_report.encode(agent_report.AgentReport(version="0.1.0", gpus=8, vendor=names.AMD, roles=roles))
    assert not row(resource=AMD, allocatable=0, roles={names.ROLES_ANNOTATION: said}).works


@pytest.mark.parametrize("vendor", [names.AMD, names.GAUDI])
def test_under_an_operator_such_a_node_is_shown_once_and_offers_them(vendor: str) -> None:
    settings = dataclasses.replace(SETTINGS, dra=True)
    moved = other_node("a1", vendor, labels={names.ALLOCATION_LABEL: "dra"})
    moved["status"]["allocatable"] = {"cpu": "8"}
    said = agent_report.decode(moved["metadata"]["annotations"][names.ROLES_ANNOTATION])
    assert said is not None
    roles = {**said.roles, **BY_CLAIMS, "deviceplugin": agent_report.role("stopped", "not wanted here")}
    moved["metadata"]["annotations"][names.ROLES_ANNOTATION] = agent_report.encode(
        msgspec.structs.replace(said, roles=roles)
    )
    served = overview(written(settle(world(moved, settings=settings, kinds=SERVED), settings)), settings)
    shown = screen(served, moved)
    assert re.search(r"(?m)^a1 .* by claims ", shown)
    assert shown.count("\na1 ") == 1
    assert "FAIL" not in shown
    assert "offers none" not in shown


@pytest.mark.parametrize("junk", ["", "{", "[]", '{"version": "x"}', "9" * 100_000])
def test_annotations_and_amounts_that_are_none(junk: str) -> None:
    hostile = node("n1", AMD, roles={names.GPUS_ANNOTATION: junk, names.ROLES_ANNOTATION: junk})
    hostile["status"]["capacity"][AMD] = junk
    hostile["status"]["conditions"] = junk
    assert [found.agent for found in vendor_nodes([hostile])] in ([], [""])
    assert vendor_nodes([{}]) == ()


def test_one_table_has_the_nodes_of_every_vendor_with_and_without_an_operator() -> None:
    """The facts of a node are the same whoever serves it; the operator knows more of its own."""
    amd = other_node("a1")
    amd["metadata"]["labels"]["amd.com/gpu.product-name"] = "AMD_Instinct_MI300X_OAM"
    others = [node("g1", GAUDI, labels={"habana.ai/gaudi.product": "Intel-Gaudi-3"}), node("x1", XE)]
    h100 = healthy_node("n1", labels={names.LABEL_GPU_PRODUCT: "NVIDIA-H100-80GB-HBM3"})
    served = overview(written(world(amd, h100)), SETTINGS)
    lines = screen(served, amd, *others, width=200).splitlines()
    head = next(line for line in lines if line.startswith("node "))
    assert head.split()[:6] == ["node", "vendor", "devices", "product", "driver", "CUDA"]
    assert head.split()[-1] != "agent", "of nodes with no agent nothing is to be said"
    assert [line for line in lines if line.startswith("node ")] == [head]
    facts = {
        line.split()[0]: re.split(r"  +", line)[1:4] for line in lines if line.startswith(("a1 ", "g1 ", "n1 ", "x1 "))
    }
    assert facts == {
        "a1": ["AMD", "8/8", "AMD_Instinct_MI300X_OAM"], "n1": ["NVIDIA", "8/8", "NVIDIA-H100-80GB-HBM3"],
        "g1": ["Intel Gaudi", "8/8", "Intel-Gaudi-3"], "x1": ["Intel", "8/8 xe", "-"],
    }  # fmt: skip
    alone = screen(bare(), amd, *others, width=200).splitlines()
    again = {line.split()[0]: re.split(r"  +", line)[1:4] for line in alone if line.startswith(("a1 ", "g1 ", "x1 "))}
    assert again == {name: row for name, row in facts.items() if name != "n1"}


def test_what_the_operator_says_of_a_node_is_said_once_and_counts() -> None:
    off = other_node("a1", labels={"nvidia.com/gpu.deploy.operands": "false"})
    off["status"]["allocatable"] = {AMD: "0"}
    served = overview(written(world(off, healthy_node("n1"))), SETTINGS)
    others = vendor_nodes([off])
    assert not others[0].works
    assert module.is_ready(served, others) == served.ready is True
    assert "offers none" not in screen(served, off)
    assert "a1 (opted out)" in screen(served, off)


def test_a_missing_operator_has_one_namespace_and_no_layout_and_the_rest_is_of_no_vendor() -> None:
    cpu = {"metadata": {"name": "cpu", "labels": {}}}
    nobody = overview(world(healthy_node("n1"), cpu, policies=()), SETTINGS, operator=ALONE)
    shown = screen(nobody).splitlines()
    assert shown[1] == ALONE.said
    assert "1 other node is not known to have accelerators" in shown


def test_agents_alone_with_labels_of_the_bus_need_no_policy_either() -> None:
    labelled = other_node("a1")
    nobody = overview(world(labelled, policies=()), SETTINGS, operator=ALONE)
    assert [one.name for one in nobody.nodes] == ["a1"]
    assert module.is_ready(nobody, vendor_nodes([labelled]))
    assert screen(nobody, labelled).splitlines()[0].startswith("1 of 1 nodes give their devices to pods")


def bare() -> Overview:
    return overview(world(policies=()), SETTINGS, operator=ALONE)


def screen(found: Overview, *nodes: dict[str, Any], width: int = 160) -> str:
    return module.render(found, width=width, color=False, others=vendor_nodes(nodes))


def test_agents_of_their_own_need_no_policy() -> None:
    nodes = [node("a1", AMD), node("a2", AMD), node("g1", GAUDI), node("x1", XE)]
    shown = screen(bare(), *nodes)
    assert shown.splitlines()[0] == "4 of 4 nodes give their devices to pods; no operator of kgpu runs them"
    assert "a1 (+1 alike)" in shown
    assert "ClusterPolicy" not in shown
    assert module.is_ready(bare(), vendor_nodes(nodes))
    assert not module.is_ready(bare(), vendor_nodes([*nodes, node("a3", AMD, 8, 0)]))
    assert not module.is_ready(bare(), ())


def test_nvidias_gpus_need_no_operator_of_kgpu_where_somebody_offers_them() -> None:
    """Where nobody does, the missing policy is what is told."""
    label = {names.LABEL_GPU_PRESENT: "true", names.LABEL_CUDA_DRIVER_VERSION_FULL: "570.133.20"}
    plugin = node("n1", names.GPU_RESOURCE, labels=label)
    shown = screen(bare(), plugin).splitlines()
    assert shown[0] == "1 of 1 nodes give their devices to pods; no operator of kgpu runs them"
    assert re.split(r"  +", shown[3])[:6] == ["n1", "NVIDIA", "8/8", "-", "570.133.20", "12.8"]
    assert module.is_ready(bare(), vendor_nodes([plugin]))
    nobody = healthy_node("n1", gpus=0)
    without = overview(world(nobody, policies=()), SETTINGS, operator=ALONE)
    assert screen(without, nobody).startswith("There is no ClusterPolicy")
    installed = overview(
        world(policies=()), SETTINGS, operator=OperatorState(said="operator: 1 of 1 ready", name="gpu-operator")
    )
    assert screen(installed, plugin).startswith("There is no ClusterPolicy")
    assert not module.is_ready(installed, vendor_nodes([plugin]))


def test_they_stand_beside_nodes_of_nvidia() -> None:
    both = overview(world(healthy_node("n1")), SETTINGS, operator=ALONE)
    shown = screen(both, node("a1", AMD, 8, 7, report=gpu_report.report([ILL], count=8)))
    assert shown.splitlines()[0] == both.headline
    assert "1 ILL" in shown
    assert "node a1: GPU 1 (0000:26:00.0) is not well: it has fallen off the bus" in shown
    assert "to do: kgpu doctor node a1" in shown


def test_a_nodes_words_are_no_markup() -> None:
    """A driver's version is what the node's agent says it is."""
    roles = agent_report.encode(agent_report.AgentReport(version="[/]", driver="[bold]6[/red]"))
    shown = screen(bare(), node("a1", AMD, roles={names.ROLES_ANNOTATION: roles}))
    assert "[bold]6[/red]" in shown
    assert "[/]" in shown


def test_the_command_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    api.put(NODES, node("a1", AMD))
    api.put(NODES, node("g1", GAUDI, 8, 0))
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: api)
    result = CliRunner().invoke(module.status, ["-o", "json"])
    rows = json.loads(result.output)["accelerator_nodes"]
    assert [(one["name"], one["vendor"], one["works"]) for one in rows] == [("g1", "gaudi", False), ("a1", "amd", True)]
    assert result.exit_code == module.NOT_READY
