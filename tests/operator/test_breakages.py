"""Break a cluster in each of the ways that users do: conditions and Events name the node, the cause and the remedy."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from kgpu.formats import agent_report, names
from kgpu.formats.validation_report import CheckTrouble, UnpassedCheck, UnpassedDevice
from kgpu.operator.model import Object, ObservedCluster, OperatorSettings
from kgpu.operator.plan import plan
from tests.operator.world import (
    HOST_DRIVER,
    SETTINGS,
    condition_of,
    healthy_node,
    node_object,
    policy,
    report,
    status_of,
    trouble,
    world,
)

NO_DISCOVERY = dataclasses.replace(SETTINGS, discovery=False)


@dataclass(frozen=True, kw_only=True)
class Case:
    """``observed`` is broken; what the operand's condition and the Event have to say."""

    observed: ObservedCluster
    condition: str
    reason: str
    words: tuple[str, ...]
    subject: str = "Node/n1"


def library_missing() -> Case:
    trouble = CheckTrouble(what="libnvidia-ml.so.1 is not on this node", remedy="install the driver")
    waits = agent_report.role("waiting", "waits for the validator")
    node = healthy_node(
        validated=("False", "DriverMissing", "for people"), report=report(deviceplugin=waits),
        checks=[UnpassedCheck(check="driver", status="failed", trouble=trouble)],
    )  # fmt: skip
    return Case(
        observed=world(node, healthy_node("n2")),
        condition="ValidatorReady",
        reason="DriverMissing",
        words=("n1", "libnvidia-ml.so.1", "install the driver"),
    )


def gpu_lost() -> Case:
    trouble = CheckTrouble(what="it has fallen off the bus (Xid 79)", remedy="reset or replace it")
    device = UnpassedDevice(uuid="GPU-aaaa", gpu="GPU-aaaa", name="GPU 3 (GPU-aaaa)", trouble=trouble)
    node = healthy_node(
        validated=("False", "CudaFailed", "for people"), allocatable={names.GPU_RESOURCE: "7"},
        checks=[UnpassedCheck(check="cuda", status="failed", devices=(device,))],
    )  # fmt: skip
    return Case(
        observed=world(node, healthy_node("n2")),
        condition="ValidatorReady",
        reason="CudaFailed",
        words=("n1", "GPU 3", "Xid 79", "reset or replace it"),
    )


def gpu_not_offered() -> Case:
    node = healthy_node(allocatable={names.GPU_RESOURCE: "7"})
    return Case(
        observed=world(node, healthy_node("n2")),
        condition="DevicePluginReady",
        reason="DevicesUnhealthy",
        words=("n1", "nvidia.com/gpu: 7 of 8 allocatable", "kubectl describe node n1"),
    )


def labels_taken_away() -> Case:
    node = node_object(features=False, labels={"feature.node.kubernetes.io/kernel-version.full": "6.8"})
    node["metadata"]["annotations"][names.ROLES_ANNOTATION] = agent_report.encode(report(gpus=0))
    return Case(
        observed=world(node, healthy_node("n2")),
        condition="NodeFeaturesReady",
        reason="GPULabelsMissing",
        words=("n1", "8 nvidia.com/gpu", names.NFD_PCI_NVIDIA[0], "kubectl get node n1 --show-labels"),
    )


def value_not_allowed() -> Case:
    spec = {**HOST_DRIVER, "daemonsets": {"rollingUpdate": {"maxUnavailable": "many"}}}
    return Case(
        observed=world(healthy_node(), policies=(policy(spec=spec),)),
        condition="ToolkitReady",
        reason="ReconcileFailed",
        words=('maxUnavailable is "many"', 'a percentage such as "10%"', "correct it"),
        subject="ClusterPolicy/cluster-policy",
    )


def folder_not_allowed() -> Case:
    spec = {**HOST_DRIVER, "hostPaths": {"driverInstallDir": "/usr"}}
    return Case(
        observed=world(healthy_node(), policies=(policy(spec=spec),)),
        condition="ToolkitReady",
        reason="ReconcileFailed",
        words=('hostPaths.driverInstallDir is "/usr"', "a folder of its own", "/run/nvidia/driver"),
        subject="ClusterPolicy/cluster-policy",
    )


def toolkit_off() -> Case:
    why = agent_report.role("failed", "can't write /var/run/cdi: read-only file system", "CannotWrite", "mount it")
    return Case(
        observed=world(healthy_node(report=report(toolkit=why)), healthy_node("n2")),
        condition="ToolkitReady",
        reason="CannotWrite",
        words=("n1", "/var/run/cdi", "read-only"),
    )


def toolkit_switched_off() -> Case:
    said = ("False", "ToolkitFailed", "toolkit: no CDI spec for NVIDIA GPUs is in /etc/cdi or /var/run/cdi")
    node = healthy_node(validated=said, labels={"nvidia.com/gpu.deploy.container-toolkit": "false"})
    return Case(
        observed=world(node, healthy_node("n2")),
        condition="ValidatorReady",
        reason="ToolkitSwitchedOff",
        words=("n1", 'is "false"', "kubectl label node n1 nvidia.com/gpu.deploy.container-toolkit-"),
    )


def no_config_map() -> Case:
    spec = {**HOST_DRIVER, "devicePlugin": {"config": {"name": "plugin-config", "default": "any"}}}
    maps = {"plugin-configs": frozenset({"any"})}
    return Case(
        observed=world(healthy_node(), policies=(policy(spec=spec),), config_maps=maps),
        condition="DevicePluginReady",
        reason="ConfigMapMissing",
        words=("gpu-operator/plugin-config", 'did you mean "plugin-configs"?', "create configmap plugin-config"),
        subject="ClusterPolicy/cluster-policy",
    )


def no_config_key() -> Case:
    spec = {**HOST_DRIVER, "devicePlugin": {"config": {"name": "configs", "default": "any"}}}
    node = healthy_node(labels={names.DEVICE_PLUGIN_CONFIG_LABEL: "tesla-t5"})
    maps = {"configs": frozenset({"any", "tesla-t4"})}
    return Case(
        observed=world(node, healthy_node("n2"), policies=(policy(spec=spec),), config_maps=maps),
        condition="DevicePluginReady",
        reason="ConfigKeyMissing",
        words=("n1", '"tesla-t5"', "any, tesla-t4", 'did you mean "tesla-t4"?'),
    )


def config_refused() -> Case:
    why = agent_report.role("running", 'replicas: "many" is not a whole number', "ConfigRefused", "correct it")
    return Case(
        observed=world(healthy_node(report=report(deviceplugin=why)), healthy_node("n2")),
        condition="DevicePluginReady",
        reason="ConfigRefused",
        words=("n1", '"many" is not a whole number', "correct it"),
    )


def wrong_image() -> Case:
    said = trouble("n1", "ImagePullBackOff", 'Back-off pulling image "example.org/kgpu:typo": not found')
    return Case(
        observed=world(healthy_node(report=None), healthy_node("n2"), troubles=(said,)),
        condition="ValidatorReady",
        reason="ImagePullBackOff",
        words=("n1", "example.org/kgpu:typo", "correct the image"),
    )


def taint() -> Case:
    taints = [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]
    node = node_object(taints=taints)
    return Case(
        observed=world(node, healthy_node("n2")),
        condition="NodeFeaturesReady",
        reason="TaintNotTolerated",
        words=(
            "n1",
            "dedicated=ml:NoSchedule",
            "daemonsets.tolerations",
            "{key: dedicated, operator: Exists, effect: NoSchedule}",
            "kubectl taint node n1 dedicated:NoSchedule-",
        ),
    )


def taint_that_evicts() -> Case:
    taints = [{"key": "maintenance", "effect": "NoExecute"}]
    return Case(
        observed=world(healthy_node(taints=taints), healthy_node("n2")),
        condition="DevicePluginReady",
        reason="TaintNotTolerated",
        words=("n1", "maintenance:NoExecute", "{key: maintenance, operator: Exists, effect: NoExecute}"),
    )


def taint_on_the_only_node() -> Case:
    taints = [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]
    return Case(
        observed=world(node_object(taints=taints, features=False)),
        condition="NodeFeaturesReady",
        reason="TaintNotTolerated",
        words=("n1", "dedicated=ml:NoSchedule", "spec.daemonsets.tolerations of ClusterPolicy cluster-policy"),
    )


def quota() -> Case:
    message = (
        'Error creating: pods "kgpu-agent-" is forbidden: exceeded quota: few-pods, requested: pods=1, '
        "used: pods=2, limited: pods=2"
    )
    return Case(
        observed=world(healthy_node(report=None), healthy_node("n2"), failures={names.AGENT_DAEMON_SET: message}),
        condition="ToolkitReady",
        reason="PodsNotCreated",
        words=("n1", "exceeded quota: few-pods", "kubectl -n gpu-operator edit resourcequota few-pods"),
    )


def pod_security() -> Case:
    message = 'Error creating: pods "kgpu-agent-x" is forbidden: violates PodSecurity "baseline:latest": privileged'
    return Case(
        observed=world(healthy_node(report=None), failures={names.AGENT_DAEMON_SET: message}),
        condition="ToolkitReady",
        reason="PodsNotCreated",
        words=("n1", "kubectl label --overwrite namespace gpu-operator", "enforce=privileged"),
    )


def node_down() -> Case:
    return Case(
        observed=world(healthy_node(ready=False), healthy_node("n2")),
        condition="ValidatorReady",
        reason="NodeNotReady",
        words=("n1", "not Ready", "kubectl describe node n1"),
    )


def refused_object() -> Case:
    subject = f"DaemonSet/{names.AGENT_DAEMON_SET}"
    return Case(
        observed=world(healthy_node(), apply_errors={subject: 'admission webhook "deny" denied the request: no'}),
        condition="ToolkitReady",
        reason="ApplyFailed",
        words=(subject, "denied the request"),
        subject="ClusterPolicy/cluster-policy",
    )


CASES = (
    library_missing,
    gpu_lost,
    gpu_not_offered,
    labels_taken_away,
    value_not_allowed,
    folder_not_allowed,
    toolkit_off,
    toolkit_switched_off,
    no_config_map,
    no_config_key,
    config_refused,
    wrong_image,
    taint,
    taint_that_evicts,
    taint_on_the_only_node,
    quota,
    pod_security,
    node_down,
    refused_object,
)
each_case = pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)


@each_case
def test_the_operand_is_not_ready_for_the_reason(make: Any) -> None:
    case = make()
    found = condition_of(plan(case.observed, SETTINGS), case.condition)
    assert (found["status"], found["reason"]) == ("False", case.reason)


@each_case
def test_the_operands_condition_names_node_cause_and_remedy(make: Any) -> None:
    case = make()
    message = condition_of(plan(case.observed, SETTINGS), case.condition)["message"]
    assert [words for words in case.words if words not in message] == []


@each_case
def test_ready_names_node_cause_and_remedy(make: Any) -> None:
    case = make()
    made = plan(case.observed, SETTINGS)
    message = condition_of(made, "Ready")["message"]
    assert [words for words in case.words if words not in message] == []


@each_case
def test_the_policy_is_not_ready(make: Any) -> None:
    made = plan(make().observed, SETTINGS)
    assert (status_of(made)["state"], condition_of(made, "Ready")["status"]) == ("notReady", "False")


@each_case
def test_an_event_names_node_cause_and_remedy(make: Any) -> None:
    case = make()
    told = [one for one in plan(case.observed, SETTINGS).advice if one.subject == case.subject]
    lines = [one.one_line() for one in told if one.severity.notable]
    assert any(all(words in line for words in case.words) for line in lines), lines


@each_case
def test_one_cause_is_told_once_and_its_consequences_never(make: Any) -> None:
    case = make()
    made = plan(case.observed, SETTINGS)
    assert len([one for one in made.advice if one.reason == case.reason]) == 1


def test_the_same_cluster_again_tells_the_same_words() -> None:
    observed = taint().observed
    backwards = dataclasses.replace(observed, nodes=tuple(reversed(observed.nodes)))
    assert plan(observed, SETTINGS).advice == plan(backwards, SETTINGS).advice


def test_a_second_policy_is_ignored_and_told_which_one_wins() -> None:
    second = policy("a-later-one", created="2026-02-01T00:00:00Z")
    made = plan(world(healthy_node(), policies=(second, policy())), SETTINGS)
    ready = condition_of(made, "Ready", "a-later-one")
    assert (status_of(made, "a-later-one")["state"], "ClusterPolicy cluster-policy" in ready["message"]) == (
        "ignored",
        True,
    )


def test_a_second_policy_does_not_change_what_the_first_one_is() -> None:
    second = policy("a-later-one", created="2026-02-01T00:00:00Z")
    made = plan(world(healthy_node(), policies=(second, policy())), SETTINGS)
    assert status_of(made)["state"] == "ready"


def test_without_feature_labels_ready_says_what_was_looked_for() -> None:
    made = plan(world(node_object(gpus=0, features=False), settings=NO_DISCOVERY), NO_DISCOVERY)
    ready = condition_of(made, "Ready")
    assert (ready["reason"], ready["message"].startswith("No NFD labels found; looked for feature.node.")) == (
        "NFDLabelsMissing",
        True,
    )


def test_without_feature_labels_the_policy_is_ready_as_the_replaced_operators_is() -> None:
    made = plan(world(node_object(gpus=0, features=False), settings=NO_DISCOVERY), NO_DISCOVERY)
    assert status_of(made)["state"] == "ready"


QUIET = (
    (world(healthy_node("cpu", gpus=0)), SETTINGS, "NoGPUNodes", ("cpu", "lspci")),
    (
        world(node_object("cpu", gpus=0, features=False), settings=NO_DISCOVERY),
        NO_DISCOVERY,
        "NFDLabelsMissing",
        ("cpu", "nfd.enabled"),
    ),
    (
        world(healthy_node(), policies=(policy("late", created="2026-02-01T00:00:00Z"), policy())),
        SETTINGS,
        "Ignored",
        ("late", "ClusterPolicy cluster-policy", "delete one of the two"),
    ),
)


@pytest.mark.parametrize(("observed", "settings", "reason", "words"), QUIET, ids=[row[2] for row in QUIET])
def test_what_leaves_the_policy_ready_is_an_event_too(
    observed: ObservedCluster, settings: OperatorSettings, reason: str, words: tuple[str, ...]
) -> None:
    told = [one for one in plan(observed, settings).advice if one.reason == reason]
    assert [[word for word in words if word not in one.one_line()] for one in told] == [[]]


def test_without_gpu_nodes_ready_says_what_was_looked_for() -> None:
    settings = dataclasses.replace(SETTINGS, vendors=frozenset({names.NVIDIA, names.GAUDI}))
    made = plan(world(healthy_node("cpu", gpus=0)), settings)
    looked_for = (
        "No GPU node found, watching for new nodes to join the cluster. Looked for "
        "feature.node.kubernetes.io/pci-10de.present, feature.node.kubernetes.io/pci-0302_10de.present, "
        "feature.node.kubernetes.io/pci-0300_10de.present, feature.node.kubernetes.io/pci-1200_1da3.present = true "
        "on cpu; to do: nothing where there are none; otherwise look on the node with: lspci -nn | grep -E '10de|1da3'"
    )
    ready = condition_of(made, "Ready")
    assert (ready["status"], ready["reason"], ready["message"]) == ("True", "NoGPUNodes", looked_for)


def test_a_label_of_another_form_is_pointed_at() -> None:
    key = "feature.node.kubernetes.io/pci-0302_10de_2330.present"
    made = plan(world(healthy_node("n7", gpus=0, labels={key: "true"})), SETTINGS)
    message = condition_of(made, "Ready")["message"]
    assert [words for words in (f"node n7 has {key}", "deviceLabelFields: [vendor]") if words not in message] == []


def with_pods_on(*places: str, **fields: Any) -> Object:
    """The toolkit's condition where a healthy node has taints or failures, and agents' pods are on these nodes."""
    observed = world(healthy_node(**fields.pop("node", {})), **fields)
    changed = dataclasses.replace(observed, pods={names.AGENT_DAEMON_SET: frozenset(places)})
    return condition_of(plan(changed, SETTINGS), "ToolkitReady")


@pytest.mark.parametrize(("places", "reason"), [(("n1",), "Ready"), ((), "TaintNotTolerated")])
def test_a_taint_that_came_later_counts_only_once_the_pod_is_gone(places: tuple[str, ...], reason: str) -> None:
    node = {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}
    assert with_pods_on(*places, node=node)["reason"] == reason


@pytest.mark.parametrize(("places", "reason"), [(("n1",), "Ready"), ((), "PodsNotCreated")])
def test_what_a_pod_has_said_does_not_count_when_it_is_gone_and_refused(places: tuple[str, ...], reason: str) -> None:
    failures = {names.AGENT_DAEMON_SET: "exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0"}
    assert with_pods_on(*places, failures=failures)["reason"] == reason


def test_a_pod_that_is_only_gone_is_waited_for() -> None:
    found = with_pods_on()
    assert (found["reason"], found["message"]) == (
        "PodMissing",
        "0 of 1 nodes; node n1: DaemonSet kgpu-agent has no pod on it yet",
    )


def test_a_refused_configuration_is_one_cause_for_every_role_that_reads_it() -> None:
    refused = agent_report.role("running", "ConfigMap x, any, line 2: unknown field", "ConfigRefused", "correct it")
    made = plan(world(healthy_node(report=report(deviceplugin=refused, labels=refused))), SETTINGS)
    assert condition_of(made, "Ready")["message"].count("its configuration is refused") == 1


def test_a_role_that_waits_for_a_person_is_told() -> None:
    waits = agent_report.role("waiting", "no usable configuration: x", "ConfigRefused", "correct it")
    made = plan(world(healthy_node(report=report(deviceplugin=waits))), SETTINGS)
    assert [one.reason for one in made.advice] == ["ConfigRefused"]


def test_a_node_that_nobody_has_looked_at_yet_is_waited_for() -> None:
    made = plan(world(node_object("new", features=False)), SETTINGS)
    assert condition_of(made, "Ready")["message"] == (
        "ClusterPolicy is not ready; states not ready: [node-features]; node new: its finder of node features has not reported yet"
    )


def test_a_node_whose_taint_keeps_discovery_away_is_told() -> None:
    taints = [{"key": "infra", "effect": "NoSchedule"}]
    made = plan(world(healthy_node(), node_object("n9", features=False, taints=taints)), SETTINGS)
    assert (
        "not looked at: n9 (taint infra:NoSchedule is not tolerated)"
        in condition_of(made, "NodeFeaturesReady")["message"]
    )


def test_another_gpu_operator_makes_kgpu_keep_its_hands_off() -> None:
    observed = dataclasses.replace(world(node_object()), foreign_operator="gpu-operator/gpu-operator")
    made = plan(observed, SETTINGS)
    assert (made.hold, made.objects, made.nodes, status_of(made)["state"]) == (True, (), (), "notReady")


def test_another_gpu_operator_is_named_with_the_steps_to_take_over() -> None:
    observed = dataclasses.replace(world(node_object()), foreign_operator="gpu-operator/gpu-operator")
    made = plan(observed, SETTINGS)
    found = condition_of(made, "Error")
    assert (
        found["reason"],
        "kubectl -n gpu-operator scale deployment gpu-operator --replicas=0" in found["message"],
    ) == (
        "ForeignOperator",
        True,
    )


def test_what_an_agent_says_of_its_configuration_is_its_word_in_the_event() -> None:
    (event,) = [one for one in plan(config_refused().observed, SETTINGS).advice if one.subject == "Node/n1"]
    assert event.what.endswith('"many" is not a whole number')
    assert event.remedy == 'its agent says: "correct it"'
