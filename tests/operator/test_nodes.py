"""Reading Nodes: facts from labels or from the kubelet, what is ours by managedFields, and hostile input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats import agent_report, names
from kgpu.operator.model import ClusterNode
from kgpu.operator.nodes import MAX_REPORTS, os_tag, project, read_node
from tests.operator.world import healthy_node, node_object, report

OWNED = {
    "manager": names.OPERATOR_FIELD_MANAGER,
    "operation": "Apply",
    "fieldsV1": {
        "f:metadata": {
            "f:labels": {"f:nvidia.com/gpu.present": {}},
            "f:annotations": {f"f:{names.DRIVER_UPGRADE_ENABLED}": {}},
        }
    },
}


def with_info(**info: Any) -> ClusterNode:
    return read_node({"metadata": {"name": "n"}, "status": {"nodeInfo": info}})


@pytest.mark.parametrize(
    ("said", "runtime", "version"),
    [
        ("containerd://2.1.4", "containerd", "2.1.4"),
        ("docker://27.1.1", "docker", "27.1.1"),
        ("cri-o://1.34.0", "cri-o", "1.34.0"),
        ("containerd://2.0.5-k3s1", "containerd", "2.0.5-k3s1"),
        ("rkt://1", "", "1"),
        ("containerd", "", ""),
        ("", "", ""),
    ],
)
def test_runtime(said: str, runtime: str, version: str) -> None:
    node = with_info(containerRuntimeVersion=said)
    assert (node.runtime, node.runtime_version) == (runtime, version)


@pytest.mark.parametrize(
    ("image", "system", "version", "tag"),
    [
        ("Ubuntu 24.04.3 LTS", "ubuntu", "24.04", "ubuntu24.04"),
        ("Ubuntu 22.04.5 LTS", "ubuntu", "22.04", "ubuntu22.04"),
        ("Red Hat Enterprise Linux 8.10 (Ootpa)", "rhel", "8.10", "rhel8"),
        ("Red Hat Enterprise Linux CoreOS 9.6.20250826-1 (Plow)", "rhcos", "9.6.20250826", "rhcos9.6.20250826"),
        ("Rocky Linux 9.4 (Blue Onyx)", "rocky", "9.4", "rocky9"),
        ("Oracle Linux Server 9.3", "ol", "9.3", "ol9"),
        ("Talos (v1.12.6)", "talos", "v1.12.6", "talosv1.12.6"),
        ("Debian GNU/Linux 12 (bookworm)", "debian", "12", "debian12"),
        ("SUSE Linux Enterprise Server 15 SP5", "sles", "15", "sles15"),
        ("Arch Linux", "", "", ""),
        ("", "", "", ""),
    ],
)
def test_operating_system_from_the_kubelets_words(image: str, system: str, version: str, tag: str) -> None:
    node = with_info(osImage=image)
    assert (node.os_id, node.os_version, os_tag(node)) == (system, version, tag)


@pytest.mark.parametrize(
    ("system", "version", "tag"),
    [
        ("rhel", "8.10", "rhel8"),
        ("rocky", "9.4", "rocky9"),
        ("ol", "8.9", "ol8"),
        ("ubuntu", "24.04", "ubuntu24.04"),
        ("talos", "v1.12.6", "talosv1.12.6"),
        ("archlinux", "rolling", "archlinuxrolling"),
        ("sles", "15.6", "sles15.6"),
        ("rhcos", "4.19", "rhcos4.19"),
    ],
)
def test_feature_labels_win_over_the_kubelets_words(system: str, version: str, tag: str) -> None:
    labels = {names.NFD_OS_ID: system, names.NFD_OS_VERSION: version}
    node = read_node(
        {"metadata": {"name": "n", "labels": labels}, "status": {"nodeInfo": {"osImage": "Ubuntu 22.04 LTS"}}}
    )
    assert os_tag(node) == tag


def test_only_what_the_operator_has_applied_is_owned() -> None:
    other = {**OWNED, "manager": "kubectl-label", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}}}
    update = {**OWNED, "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:b": {}}}}}
    node = read_node({"metadata": {"name": "n", "managedFields": [OWNED, other, update]}})
    assert (node.owned, node.owned_annotations) == ({"nvidia.com/gpu.present"}, {names.DRIVER_UPGRADE_ENABLED})


def test_resources_are_nvidias_alone() -> None:
    resources = {"cpu": "8", "nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "7", "nvidia.com/gpu.shared": "4"}
    node = read_node({"metadata": {"name": "n"}, "status": {"capacity": resources}})
    assert node.capacity == {"nvidia.com/gpu": 8, "nvidia.com/mig-1g.10gb": 7, "nvidia.com/gpu.shared": 4}


def test_the_agents_report_is_decoded() -> None:
    node = read_node(node_object(report=report()))
    assert node.report == report()


def test_a_report_that_is_none_is_no_report() -> None:
    node = read_node({"metadata": {"name": "n", "annotations": {names.ROLES_ANNOTATION: "[1"}}})
    assert node.report is None


def test_a_projected_node_reads_the_same() -> None:
    obj = healthy_node(report=report(toolkit=agent_report.role("failed", "no room")))
    obj["metadata"]["managedFields"] = [OWNED, {"manager": "kubelet", "operation": "Update"}]
    obj["metadata"]["annotations"]["example.org/large"] = "x" * 10_000
    assert read_node(project(obj)) == read_node(obj)


def test_a_projected_node_has_lost_what_nobody_reads() -> None:
    obj = healthy_node()
    obj["status"]["images"] = [{"names": ["x"]}]
    obj["metadata"]["annotations"]["example.org/large"] = "x"
    cut = project(obj)
    assert ("images" in cut["status"], "example.org/large" in cut["metadata"]["annotations"]) == (False, False)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=12,
)
KEYS = st.sampled_from(
    [
        *("metadata", "spec", "status", "labels", "annotations", "managedFields", "taints", "nodeInfo", "conditions"),
        *("capacity", "fieldsV1", "f:metadata", "f:labels", "manager", "operation", "name", "type", "status", "reason"),
        *(names.ROLES_ANNOTATION, names.GPU_RESOURCE, names.NFD_OS_ID, "osImage", "containerRuntimeVersion"),
    ]
)
VALUES = st.sampled_from(
    ["kgpu-operator", "Apply", "Ready", "True", "containerd://", "Ubuntu", "1e400", "-5", "9" * 30]
)
HOSTILE = st.recursive(
    ANYTHING | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)


@given(HOSTILE)
def test_any_object_is_a_node(obj: Any) -> None:
    assert isinstance(read_node(obj), ClusterNode)


@given(HOSTILE)
def test_projecting_changes_nothing_that_is_read(obj: Any) -> None:
    assert read_node(project(obj)) == read_node(obj)


def apart(**texts: str) -> dict[str, Any]:
    annotations = {f"{names.ROLES_ANNOTATION_PREFIX}{role}": text for role, text in texts.items()}
    return {"metadata": {"name": "n", "annotations": annotations}}


def test_processes_of_single_roles_are_one_report_and_each_its_own() -> None:
    toolkit = '{"generation":2,"roles":{"toolkit":{"state":"running"}},"driver":"580.1","gpus":8}'
    node = read_node(project(apart(toolkit=toolkit, features='{"roles":{"features":{"state":"running"}}}')))
    assert node.report is not None
    assert (set(node.report.roles), node.report.gpus) == ({"toolkit", "features"}, 8)
    assert {name: one.generation for name, one in node.reports.items()} == {"toolkit": 2, "features": 0}


def test_a_role_s_own_annotation_speaks_for_it() -> None:
    node = read_node(apart(a='{"roles":{"b":{"state":"failed"}}}', b='{"roles":{"b":{"state":"running"}}}'))
    assert node.reports["b"].roles["b"].state == "running"


@pytest.mark.parametrize("text", ["", "[1", "null", "7", '{"roles": 3}', "[" * 10000])
def test_a_process_that_says_nonsense_is_as_if_it_said_nothing(text: str) -> None:
    node = read_node(project(apart(toolkit=text, labels='{"roles":{"labels":{"state":"running"}}}')))
    assert set(node.reports) == {"labels"}
    assert read_node(apart(toolkit=text)).report is None


def test_no_more_processes_are_listened_to_than_there_can_be() -> None:
    texts = {f"r{number}": f'{{"roles":{{"r{number}":{{"state":"running"}}}}}}' for number in range(100)}
    assert len(read_node(apart(**texts)).reports) == MAX_REPORTS
    assert len(project(apart(**texts))["metadata"]["annotations"]) == MAX_REPORTS
