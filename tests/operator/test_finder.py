"""The privileged agent is only where it has work; everywhere else the finder looks for some, and never both."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from kgpu.fit.read import node_terms
from kgpu.formats import agent_report, names
from kgpu.operator.model import AgentNodes, ClusterNode, ClusterPlan, Object, ObservedCluster
from kgpu.operator.nodes import project, read_node
from kgpu.operator.plan import plan
from tests.operator.world import (
    FEATURES,
    OPERANDS_LAYOUT,
    PCI,
    SETTINGS,
    change_of,
    condition_of,
    found_nothing,
    healthy_node,
    node_object,
    policy,
    report,
    settle,
    trouble,
    world,
)

AGENT, FINDER, MARK = names.AGENT_DAEMON_SET, names.FINDER_DAEMON_SET, names.AGENT_NODE_LABEL
EVERYWHERE = dataclasses.replace(SETTINGS, agent_nodes=AgentNodes.ALL)
POOL = dataclasses.replace(SETTINGS, agent_selector={"pool": "gpu"})


def daemon_set(made: ClusterPlan, name: str) -> Object | None:
    return next((o for o in made.objects if o["kind"] == "DaemonSet" and o["metadata"]["name"] == name), None)


def pod_of(made: ClusterPlan, name: str) -> Object:
    found = daemon_set(made, name)
    assert found is not None
    spec: Object = found["spec"]["template"]["spec"]
    return spec


def wants(made: ClusterPlan, name: str, node: ClusterNode) -> bool:
    """Whether the DaemonSet has a pod on a node with these labels."""
    if daemon_set(made, name) is None:
        return False
    spec = pod_of(made, name)
    rows = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = node_terms(rows)
    selected = spec["nodeSelector"].items() <= node.labels.items()
    return selected and (terms is None or any(term.matches(node.labels, node.name) for term in terms))


def pods(observed: ObservedCluster, settings: Any = SETTINGS) -> dict[str, list[str]]:
    """By node: which of the two run there once the plan is carried out."""
    after = settle(observed, settings)
    made = plan(after, settings)
    return {node.name: [name for name in (AGENT, FINDER) if wants(made, name, node)] for node in after.nodes}


def cleaned() -> agent_report.AgentReport:
    """What an agent says that has left its node, but for the features."""
    roles = {name: agent_report.role("left") for name in ("toolkit", "validator", "deviceplugin", "labels")}
    return msgspec.structs.replace(report(gpus=0), roles={"features": agent_report.role("running"), **roles})


def told(observed: ObservedCluster, name: str, **changes: Any) -> ObservedCluster:
    """The cluster with news of one node."""
    nodes = tuple(dataclasses.replace(one, **changes) if one.name == name else one for one in observed.nodes)
    return dataclasses.replace(observed, nodes=nodes)


def without(node: ClusterNode, *prefixes: str) -> dict[str, str]:
    return {key: value for key, value in node.labels.items() if not key.startswith(prefixes)}


def test_agents_are_where_gpus_are_and_finders_everywhere_else() -> None:
    found = pods(world(healthy_node("gpu"), healthy_node("cpu", gpus=0), node_object("new", features=False)))
    assert found == {"gpu": [AGENT], "cpu": [FINDER], "new": [FINDER]}


def test_the_finder_has_no_privilege() -> None:
    spec = pod_of(plan(world(healthy_node()), SETTINGS), FINDER)
    (container,) = spec["containers"]
    assert not spec.keys() & {"hostPID", "hostIPC", "hostNetwork"}
    assert spec["securityContext"] == {
        "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    of_host = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    assert set(of_host.values()) == {
        "/sys", "/etc/os-release", "/usr/lib", "/boot", "/etc/kubernetes/node-feature-discovery",
    }  # fmt: skip
    assert all(one.get("readOnly") for one in container["volumeMounts"] if one["name"] in of_host)
    assert container["args"][-2:] == ["--roles", "features"]


def test_in_the_other_layout_it_has_none_either_and_is_everywhere() -> None:
    observed = world(node_object(), settings=OPERANDS_LAYOUT)
    spec = pod_of(plan(observed, OPERANDS_LAYOUT), FINDER)
    assert "privileged" not in spec["containers"][0]["securityContext"]
    assert "affinity" not in spec
    assert MARK not in observed.nodes[0].labels


def test_users_say_more_about_its_pods_and_not_less() -> None:
    told = {"driver": {"enabled": False}, "daemonsets": {"podSecurityContext": {"runAsUser": 0, "fsGroup": 7}}}
    spec = pod_of(plan(world(healthy_node(), policies=(policy(spec=told),)), SETTINGS), FINDER)
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (65532, 7)


def test_a_gpu_that_is_gone_for_good_ends_with_the_finder_and_nothing_flaps() -> None:
    observed = world(healthy_node("n1"), healthy_node("n2"))
    gone = without(observed.nodes[0], f"{names.NFD_PREFIX}pci-")
    first = told(observed, "n1", labels=gone, report=report(gpus=0), agent=report(gpus=0))
    change = change_of(plan(first, SETTINGS), "n1")
    assert change is not None
    assert change.labels[MARK] == "leaving"
    assert not any(key.startswith(names.LABEL_DEPLOY_PREFIX) for key in change.labels)
    assert pods(first) == {"n1": [AGENT], "n2": [AGENT]}
    waiting = settle(first)
    assert change_of(plan(waiting, SETTINGS), "n1") is None, "until its agent has cleaned up"
    left = told(waiting, "n1", report=cleaned(), agent=cleaned())
    assert pods(left) == {"n1": [FINDER], "n2": [AGENT]}
    done = settle(left)
    # The agent's last report may stay where it was killed; the finder says that there is nothing.
    for agent in (cleaned(), None):
        later = told(done, "n1", report=found_nothing(), reports={"features": found_nothing()}, agent=agent)
        assert change_of(plan(later, SETTINGS), "n1") is None
        assert pods(later)["n1"] == [FINDER]


def test_a_gpu_that_comes_back_while_the_agent_leaves_keeps_it() -> None:
    observed = world(healthy_node("n1"))
    labels = observed.nodes[0].labels
    waiting = settle(told(observed, "n1", labels=without(observed.nodes[0], f"{names.NFD_PREFIX}pci-"),
                          report=report(gpus=0), agent=report(gpus=0)))  # fmt: skip
    assert waiting.nodes[0].labels[MARK] == "leaving"
    back = settle(told(waiting, "n1", labels={**waiting.nodes[0].labels, PCI: labels[PCI]}))
    assert back.nodes[0].labels[MARK] == "true"


def test_when_every_feature_label_is_gone_the_agent_stays() -> None:
    observed = world(healthy_node("n1"))
    lost = told(observed, "n1", labels=without(observed.nodes[0], names.NFD_PREFIX), report=None, agent=None)
    assert change_of(plan(lost, SETTINGS), "n1") is None
    assert pods(lost) == {"n1": [AGENT]}


def test_a_paused_driver_upgrade_is_no_end_of_work() -> None:
    observed = world(healthy_node("n1"))
    labels = {
        key: names.PAUSED_FOR_DRIVER_UPGRADE if key.startswith(names.LABEL_DEPLOY_PREFIX) else value
        for key, value in observed.nodes[0].labels.items()
    }
    paused = settle(told(observed, "n1", labels=labels, owned=frozenset({MARK, names.LABEL_GPU_PRESENT})))
    assert paused.nodes[0].labels[MARK] == "true"


@pytest.mark.parametrize("label", [names.LABEL_DEPLOY_OPERANDS, MARK])
def test_labels_of_users(label: str) -> None:
    """A node that has opted out needs no privilege; where agents are, no user says."""
    opted = label == names.LABEL_DEPLOY_OPERANDS
    node = node_object("n1", gpus=8 if opted else 0, labels={label: "false" if opted else "true"})
    made = plan(ObservedCluster(nodes=(read_node(node),), policies=(policy(),)), SETTINGS)
    change = change_of(made)
    assert change is not None
    assert change.clear == (() if opted else (MARK,))
    assert pods(world(node)) == {"n1": [FINDER]}


def test_a_label_that_a_user_has_set_by_hand_is_work() -> None:
    by_hand = {f"{names.LABEL_DEPLOY_PREFIX}device-plugin": "true"}
    assert pods(world(node_object("n1", gpus=0, labels=by_hand))) == {"n1": [AGENT]}


def test_agents_everywhere_and_no_finder() -> None:
    observed = world(healthy_node("gpu"), healthy_node("cpu", gpus=0), settings=EVERYWHERE)
    assert pods(observed, EVERYWHERE) == {"gpu": [AGENT], "cpu": [AGENT]}
    windows = node_object("win", gpus=0, labels={"kubernetes.io/os": "windows"})
    windows["status"]["nodeInfo"]["operatingSystem"] = "windows"
    assert pods(world(windows, settings=EVERYWHERE), EVERYWHERE) == {"win": []}


def test_from_everywhere_to_gpus_alone_every_agent_cleans_up_first() -> None:
    observed = world(healthy_node("cpu", gpus=0, report=report(gpus=0), apart=False), settings=EVERYWHERE)
    assert observed.nodes[0].labels[MARK] == "true"
    waiting = settle(observed)
    assert waiting.nodes[0].labels[MARK] == "leaving"
    assert pods(told(waiting, "cpu", report=cleaned(), agent=cleaned())) == {"cpu": [FINDER]}


def test_a_node_outside_of_the_selector_has_nothing_privileged_and_holds_nothing_up() -> None:
    inside = healthy_node("in", labels={"pool": "gpu"})
    outside = healthy_node("out", report=found_nothing(), apart=True, validated=None)
    observed = world(inside, outside, settings=POOL)
    assert pods(observed, POOL) == {"in": [AGENT], "out": [FINDER]}
    made = plan(observed, POOL)
    assert not any(key.startswith(names.LABEL_DEPLOY_PREFIX) for key in observed.nodes[1].labels)
    assert condition_of(made, "Ready")["status"] == "True", condition_of(made, "Ready")
    note = "1 GPU node has been left out (the Helm value agent.nodeSelector)"
    assert note in condition_of(made, "DevicePluginReady")["message"]


def test_another_discovery_needs_no_finder() -> None:
    observed = world(healthy_node("gpu"), node_object("cpu", gpus=0), foreign_nfd=True)
    assert pods(observed) == {"gpu": [AGENT], "cpu": []}
    assert condition_of(plan(observed, SETTINGS), "Ready")["status"] == "True"


def test_beside_another_discovery_the_finder_hands_over_what_it_has_published() -> None:
    cpu = healthy_node("cpu", gpus=0)
    fields = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in FEATURES}}}
    cpu["metadata"]["managedFields"] = [
        {"manager": names.FEATURES_FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
    ]
    assert read_node(project(cpu)).discovered
    assert pods(world(healthy_node("gpu"), cpu, foreign_nfd=True)) == {"gpu": [AGENT], "cpu": [FINDER]}


def test_what_nobody_has_labelled_beside_another_discovery_is_named() -> None:
    observed = world(healthy_node("gpu"), node_object("cpu", gpus=0, features=False), foreign_nfd=True)
    message = condition_of(plan(observed, SETTINGS), "NodeFeaturesReady")["message"]
    assert "not looked at: cpu; the other node feature discovery has not labelled them" in message


def test_agents_of_an_earlier_version_stay_until_their_nodes_are_labelled() -> None:
    """They ran everywhere; a selector before its labels would end all of them at once."""
    nodes = tuple(map(read_node, (healthy_node("gpu"), healthy_node("cpu", gpus=0))))
    fresh = ObservedCluster(nodes=nodes, policies=(policy(),))
    assert "affinity" in pod_of(plan(fresh, SETTINGS), AGENT)
    former = {
        "metadata": {"name": AGENT},
        "spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}}},
    }
    upgraded = dataclasses.replace(fresh, daemon_sets={AGENT: former})
    assert "affinity" not in pod_of(plan(upgraded, SETTINGS), AGENT)
    labelled = dataclasses.replace(settle(fresh), daemon_sets={AGENT: former})
    assert "affinity" in pod_of(plan(labelled, SETTINGS), AGENT)


def test_what_an_earlier_agent_has_left_where_no_gpu_is_goes() -> None:
    observed = world(healthy_node("cpu", gpus=0, report=report(gpus=0), apart=False))
    assert observed.nodes[0].labels[MARK] == "leaving"


def test_a_finder_that_can_not_run_is_told_with_what_to_do() -> None:
    observed = world(healthy_node("gpu"), node_object("cpu", gpus=0, features=False))
    bad = (trouble("cpu", "ImagePullBackOff", "container kgpu-node-features: not found", FINDER),)
    made = plan(dataclasses.replace(observed, troubles=bad), SETTINGS)
    message = condition_of(made, "Ready")["message"]
    assert "states not ready: [node-features]; node cpu: pod kgpu-node-features-x7k2p is not ready" in message
    assert "to do: correct the image's name" in message
    (event,) = [one for one in made.advice if one.subject == "Node/cpu"]
    assert event.reason == "ImagePullBackOff"


def test_a_taint_that_keeps_the_finder_away_is_told() -> None:
    taints = [{"key": "infra", "effect": "NoSchedule"}]
    observed = world(healthy_node("gpu"), node_object("cpu", gpus=0, features=False, taints=taints))
    message = condition_of(plan(observed, SETTINGS), "NodeFeaturesReady")["message"]
    assert "not looked at: cpu (taint infra:NoSchedule is not tolerated)" in message


def test_a_finder_s_word_is_not_taken_for_an_agent_s() -> None:
    """Between the two the node has a report already, of the one that goes."""
    observed = world(node_object("n1", report=found_nothing(), apart=True))
    message = condition_of(plan(observed, SETTINGS), "DevicePluginReady")["message"]
    assert "its agent has not reported yet" in message
