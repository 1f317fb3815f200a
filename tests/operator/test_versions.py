"""The support matrix: its rows, and what a cluster outside of it is told."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.formats import agent_report, names
from kgpu.formats.support import CUDA_BY_BRANCH, Range, cuda_of, parse
from kgpu.operator.model import ObservedCluster
from kgpu.operator.nodes import read_node
from kgpu.operator.overview import overview
from kgpu.operator.plan import plan
from kgpu.operator.versions import Unsupported, check
from tests.operator.world import SETTINGS, healthy_node, node_object, policy, world


def findings(*, kube: tuple[int, int] = (1, 35), spec: Any = None, **node: Any) -> tuple[Unsupported, ...]:
    info = {key: node.pop(key) for key in ("kubeletVersion", "osImage") if key in node}
    obj = node_object(**node)
    obj["status"]["nodeInfo"].update(info)
    observed = ObservedCluster(kube_version=kube, nodes=(read_node(obj),))
    return check(observed, policy(spec=spec) if spec is not None else policy())


def test_a_usual_cluster_is_within() -> None:
    assert findings() == ()


@pytest.mark.parametrize(("kube", "within"), [((1, 31), False), ((1, 32), True), ((1, 36), True), ((1, 37), False)])
def test_kubernetes(kube: tuple[int, int], within: bool) -> None:
    assert (findings(kube=kube) == ()) is within


@pytest.mark.parametrize(
    ("runtime", "within"),
    [
        ("containerd://1.6.33", False),
        ("containerd://1.7.0", True),
        ("containerd://1.7.29", True),
        ("containerd://2.0.7", True),
        ("containerd://2.2.1", True),
        ("containerd://2.3.0", False),
        ("containerd://2.1.5-k3s1", True),
        ("containerd://unknown", True),
        ("cri-o://1.34.2", True),
        ("cri-o://1.30.0", False),
    ],
)
def test_container_runtimes(runtime: str, within: bool) -> None:
    assert (findings(runtime=runtime) == ()) is within


@pytest.mark.parametrize(
    ("runtime", "within"),
    [
        ("containerd://1.7.29", False),
        ("containerd://1.7.30", True),
        ("containerd://1.7.31", True),
        ("containerd://2.0.7", False),
        ("containerd://2.1.0", True),
        ("containerd://2.2.3", True),
        ("cri-o://1.34.2", False),
        ("docker://27.0", False),
    ],
)
def test_the_nri_plugin(runtime: str, within: bool) -> None:
    assert (
        findings(runtime=runtime, spec={"cdi": {"nriPluginEnabled": True}, "driver": {"enabled": False}}) == ()
    ) is within


@pytest.mark.parametrize(("kubelet", "within"), [("v1.28.3", False), ("v1.29.0", True), ("v1.35.1+k3s1", True)])
def test_cdi_devices(kubelet: str, within: bool) -> None:
    assert (findings(kubeletVersion=kubelet) == ()) is within


@pytest.mark.parametrize(
    ("image", "within"),
    [
        ("Ubuntu 24.04.3 LTS", True),
        ("Ubuntu 20.04.6 LTS", False),
        ("Ubuntu 23.10", False),
        ("Red Hat Enterprise Linux 9.4 (Plow)", True),
        ("Red Hat Enterprise Linux 7.9 (Maipo)", False),
        ("Talos (v1.12.6)", False),
        ("Some Linux 3", True),
    ],
)
def test_systems_with_driver_containers(image: str, within: bool) -> None:
    labels = {names.NFD_OS_ID: "", names.NFD_OS_VERSION: ""}
    found = findings(osImage=image, labels=labels, spec={"driver": {"enabled": True}})
    assert (found == ()) is within


def test_a_node_with_its_own_driver_needs_no_driver_container() -> None:
    said = agent_report.AgentReport(gpus=8, driver="580.65.06", driver_source="host")
    labels = {names.NFD_OS_ID: "talos", names.NFD_OS_VERSION: "v1.12.6"}
    assert findings(labels=labels, report=said, spec={"driver": {"enabled": True}}) == ()


@pytest.mark.parametrize(
    ("driver", "strategy", "within"),
    [
        ("570.124.06", "mixed", False),
        ("570.158.01", "single", False),
        ("570.86.15", "mixed", True),
        ("570.172.08", "mixed", True),
        ("580.65.06", "mixed", True),
        ("570.124.06", "none", True),
        ("470.256.02", "none", False),
    ],
)
def test_drivers(driver: str, strategy: str, within: bool) -> None:
    said = agent_report.AgentReport(gpus=8, driver=driver, driver_source="host")
    spec = {"driver": {"enabled": False}, "mig": {"strategy": strategy}}
    assert (findings(report=said, spec=spec, labels={names.LABEL_MIG_CAPABLE: "true"}) == ()) is within


def test_nodes_with_the_same_trouble_are_one_finding() -> None:
    nodes = tuple(read_node(node_object(f"n{index}", runtime="containerd://1.6.1")) for index in range(7))
    (found,) = check(ObservedCluster(nodes=nodes), policy())
    assert found.what == "containerd 1.6.1 is not supported: supported is 1.7 to 2.2"
    assert found.line().startswith(f"{found.what}, on n0, n1, n2, n3, n4 (+2 more); to do: ")


def test_a_node_is_named_once() -> None:
    observed = world(healthy_node("worker-7", runtime="containerd://1.6.1"))
    (told,) = (one for one in plan(observed, SETTINGS).advice if one.reason == "UnsupportedVersion")
    assert told.subject == "Node/worker-7"
    assert "worker-7" not in told.what
    (shown,) = (one for one in overview(observed, SETTINGS).problems if one.reason == "UnsupportedVersion")
    assert shown.nodes == ("worker-7",)
    assert "worker-7" not in shown.what
    status = plan(observed, SETTINGS).policy_status["cluster-policy"]
    (condition,) = (one for one in status["conditions"] if one["type"] == "SupportedVersions")
    assert condition["message"].count("worker-7") == 1


def test_nodes_without_gpus_do_not_matter() -> None:
    assert findings(gpus=0, runtime="containerd://1.2.0") == ()


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [("580.65.06", "13.0"), ("570.86.15", "12.8"), ("550.54.15", "12.4"), ("535.129.03", "12.2"), ("", ""), ("x", "")],
)
def test_cuda_of_a_driver(driver: str, cuda: str) -> None:
    assert cuda_of(driver) == cuda


def test_branches_are_newest_first() -> None:
    branches = [branch for branch, _ in CUDA_BY_BRANCH]
    assert branches == sorted(branches, reverse=True)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("v1.35.1+k3s1", (1, 35, 1)),
        ("2.1.4", (2, 1, 4)),
        ("24.04", (24, 4)),
        ("", ()),
        ("none", ()),
        ("9" * 200, (int("9" * 100),)),
    ],
)
def test_parsing(text: str, numbers: tuple[int, ...]) -> None:
    assert parse(text) == numbers


def test_the_upper_end_counts_with_all_that_begins_with_it() -> None:
    assert Range((1, 7), (2, 2)).has((2, 2, 99))
