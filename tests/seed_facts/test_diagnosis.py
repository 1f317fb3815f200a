"""What goes wrong with an operator, by the ids of the list of diagnoses: cause and remedy are in a condition or an Event.

OPR-01, 05, 08 and 09 are about options of the chart, and are in ``test_chart``; OPR-06 is in ``test_nodes``, OPR-14 in
``test_kubectl``, OPR-22 in ``test_lab``, OPR-25 also in ``test_takeover``. The operator does not know yet: a cloud's own
plugin (OPR-20), OpenShift's driver toolkit (OPR-11), network policies (OPR-18), releases that went out of support (OPR-27).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from kgpu.agent.gate import gated, judge
from kgpu.formats import agent_report, names
from kgpu.hw.fake_reader import sample_inventory
from kgpu.operator.model import ClusterPlan, NodeLayout
from kgpu.operator.plan import plan
from tests.operator.world import (
    HOST_DRIVER,
    SETTINGS,
    condition_of,
    healthy_node,
    node_object,
    policy,
    report,
    trouble,
    world,
)
from tests.seed_facts.support import bare_node, lacks, planned, told, why

AGENT = names.AGENT_DAEMON_SET


@dataclass(frozen=True, kw_only=True)
class Case:
    """One diagnosis: the cluster's plan, what conditions and Events say, as reason and words."""

    plan: ClusterPlan
    reason: str
    words: tuple[str, ...]
    name: str = "cluster-policy"


def refused_pods(message: str) -> ClusterPlan:
    return planned(HOST_DRIVER, healthy_node(report=None), failures={AGENT: f"Error creating: {message}"})


def broken_pod(reason: str, message: str, daemon_set: str = AGENT, spec: Any = None) -> ClusterPlan:
    node = healthy_node(report=None) if daemon_set == AGENT else bare_node()
    return planned(HOST_DRIVER if spec is None else spec, node, troubles=(trouble("n1", reason, message, daemon_set),))


def validated(reason: str, message: str, **roles: agent_report.RoleReport) -> ClusterPlan:
    return planned(HOST_DRIVER, healthy_node(validated=("False", reason, message), report=report(**roles)))


def configured(keys: frozenset[str] | None, default: str = "", label: str = "") -> ClusterPlan:
    spec = {**HOST_DRIVER, "devicePlugin": {"config": {"name": "time-slicing-config", "default": default}}}
    maps = {} if keys is None else {"time-slicing-config": keys}
    node = healthy_node(labels={names.DEVICE_PLUGIN_CONFIG_LABEL: label} if label else {})
    return planned(spec, node, config_maps=maps)


def second_policy() -> ClusterPlan:
    late = policy("another", created="2026-02-01T00:00:00Z")
    return plan(world(healthy_node(), policies=(late, policy())), SETTINGS)


def foreign_operator() -> ClusterPlan:
    return plan(dataclasses.replace(world(node_object()), foreign_operator="gpu-operator/gpu-operator"), SETTINGS)


CASES = {
    "OPR-02: the namespace is not privileged": Case(
        plan=refused_pods('pods "kgpu-agent-x" is forbidden: violates PodSecurity "baseline:latest": privileged'),
        reason="PodsNotCreated",
        words=("n1", "violates PodSecurity", ("kubectl label --overwrite namespace gpu-operator "
               "pod-security.kubernetes.io/enforce=privileged")),
    ),
    "OPR-03: a second ClusterPolicy": Case(
        plan=second_policy(),
        reason="Ignored",
        words=("ClusterPolicy another is ignored", "ClusterPolicy cluster-policy", "delete one of the two"),
        name="another",
    ),
    "OPR-05: a pod is out of memory": Case(
        plan=broken_pod("OOMKilled", "the container kgpu-agent was killed"),
        reason="OOMKilled",
        words=("n1", "raise the container's memory limit"),
    ),
    "OPR-07, A37: the driver takes its time": Case(
        plan=planned({}, bare_node()),
        reason="DriverNotReady",
        words=("n1", "no driver is loaded on it yet"),
    ),
    "OPR-09: an image that the mirror lacks": Case(
        plan=broken_pod("ImagePullBackOff", 'Back-off pulling image "nvcr.io/nvidia/driver:1": not found',
                        "nvidia-driver-daemonset", {}),
        reason="ImagePullBackOff",
        words=("n1", "nvcr.io/nvidia/driver:1", "make it available on the node (registry, pull secret"),
    ),
    "OPR-12: OpenShift admits no privileged pod": Case(
        plan=refused_pods('pods "kgpu-agent-" is forbidden: unable to validate against any security context constraint'),
        reason="PodsNotCreated",
        words=("n1", "security context constraint", "platform.openshift=true"),
    ),
    "OPR-15: which check of the validator fails": Case(
        plan=validated("ToolkitNotReady", "toolkit: no CDI spec is in /var/run/cdi; to do: see why the toolkit waits"),
        reason="ToolkitNotReady",
        words=("n1", "toolkit: no CDI spec", "see why the toolkit waits"),
    ),
    "OPR-18: a webhook refuses what the operator writes": Case(
        plan=planned(HOST_DRIVER, healthy_node(), apply_errors={f"DaemonSet/{AGENT}": 'admission webhook "w" denied it'}),
        reason="ApplyFailed",
        words=(f"DaemonSet/{AGENT}", 'admission webhook "w" denied it', "correct what it names"),
    ),
    "OPR-20: another GPU operator is there": Case(
        plan=foreign_operator(),
        reason="ForeignOperator",
        words=("Deployment gpu-operator/gpu-operator", "scale deployment gpu-operator --replicas=0"),
    ),
    "OPR-21: a node is still paused for an upgrade": Case(
        plan=planned(HOST_DRIVER, healthy_node(
            labels={f"{names.LABEL_DEPLOY_PREFIX}device-plugin": "paused-for-driver-upgrade"})),
        reason="Paused",
        words=("n1", "paused for a driver upgrade",
               "kubectl label node n1 nvidia.com/gpu.deploy.device-plugin=true --overwrite"),
    ),
    "A37, A76, A92: the driver does not compile": Case(
        plan=broken_pod("CrashLoopBackOff", "could not find kernel headers", "nvidia-driver-daemonset", {}),
        reason="CrashLoopBackOff",
        words=("n1", "could not find kernel headers", "logs nvidia-driver-daemonset-x7k2p --previous"),
    ),
    "A74: the NRI plugin without CDI": Case(
        plan=planned({**HOST_DRIVER, "cdi": {"enabled": False, "nriPluginEnabled": True}}, healthy_node()),
        reason="PrerequisiteNotMet",
        words=("the NRI Plugin cannot be enabled when CDI is disabled", "cdi.enabled: true"),
    ),
    "A89, TS-02: the ConfigMap is not there": Case(
        plan=configured(None, default="any"),
        reason="ConfigMapMissing",
        words=("gpu-operator/time-slicing-config", "create configmap time-slicing-config"),
    ),
    "A89, TS-03: default is no key of the ConfigMap": Case(
        plan=configured(frozenset({"any"}), default="ani"),
        reason="ConfigKeyMissing",
        words=("devicePlugin.config.default", '"ani"', "it has: any", 'did you mean "any"?'),
    ),
    "D35, TS-15: a node's label chooses what is not there": Case(
        plan=configured(frozenset({"any"}), label="tesla-t4"),
        reason="ConfigKeyMissing",
        words=("n1", "nvidia.com/device-plugin.config", '"tesla-t4"', "it has: any"),
    ),
    "A75, A96: allocatable is less than capacity": Case(
        plan=planned(HOST_DRIVER, healthy_node(gpus=4, allocatable={names.GPU_RESOURCE: "3"})),
        reason="DevicesUnhealthy",
        words=("n1", "nvidia.com/gpu: 3 of 4 allocatable", "kubectl describe node n1"),
    ),
    "C10, C37, T-45: CUDA fails on a node": Case(
        plan=validated("CudaFailed", "cuda: GPU 0 gives wrong sums; to do: replace it",
                       deviceplugin=agent_report.role("waiting", "the cuda check has failed")),
        reason="CudaFailed",
        words=("n1", "GPU 0 gives wrong sums", "replace it"),
    ),
}  # fmt: skip
each = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
PASSING = {"DriverNotReady", "Paused"}


@each
def test_a_condition_has_reason_cause_and_remedy(case: Case) -> None:
    found = case.plan.policy_status[case.name]["conditions"]
    said = {one["reason"] for one in found}
    assert case.reason in said, sorted(said)
    text = " | ".join(one["message"] for one in found if one["reason"] in {case.reason, "Error", "OperandNotReady"})
    assert lacks(text, *case.words) == []


@each
def test_an_event_says_the_same_unless_it_passes_by_itself(case: Case) -> None:
    events = told(case.plan, case.reason)
    assert (not events) is (case.reason in PASSING)
    assert all(lacks(f"{one.subject} {one.one_line()}", *case.words) == [] for one in events)


@each
def test_it_is_not_ready_or_ignored(case: Case) -> None:
    assert case.plan.policy_status[case.name]["state"] in {"notReady", "ignored"}


def test_d35_a_label_that_chooses_a_key_that_is_there_is_fine() -> None:
    assert why(configured(frozenset({"any", "tesla-t4"}), label="tesla-t4"), "DevicePluginReady") == ("True", "Ready")


def test_a83_a_config_map_with_its_key_is_fine() -> None:
    assert why(configured(frozenset({"any"}), default="any"), "DevicePluginReady") == ("True", "Ready")


def test_c10_t34_nothing_is_offered_before_every_check_of_the_validator() -> None:
    """T-34: the replaced plugin waits for the toolkit alone."""
    inventory = sample_inventory(4)
    before = judge(None, boot="b", driver_version=inventory.driver_version, folder="/run/nvidia/validations")
    assert (before.open, "/run/nvidia/validations" in before.reason) == (False, True)
    assert not any(gpu.usable for gpu in gated(inventory, before).accelerators)


def test_c37_t45_a_node_whose_cuda_fails_is_not_in_the_count_of_validated_nodes() -> None:
    made = planned(HOST_DRIVER, healthy_node(validated=("False", "CudaFailed", "no")), healthy_node("n2"))
    assert made.policy_status["cluster-policy"]["nodes"] == {"total": 2, "gpu": 2, "validated": 1}


def test_opr13_a_cluster_without_gpus_says_what_was_looked_for_and_waits_for_nothing() -> None:
    made = planned(HOST_DRIVER, healthy_node("cpu", gpus=0))
    assert made.policy_status["cluster-policy"]["state"] == "ready"
    assert (
        lacks(condition_of(made, "Ready")["message"], "pci-10de.present", "cpu", "nothing where there are none") == []
    )


def test_opr17_the_modules_of_another_operator_are_waited_for_by_the_driver() -> None:
    spec = {"driver": {"rdma": {"enabled": True, "useHostMofed": True}}}
    made = planned(spec, bare_node())
    (driver,) = (one for one in made.objects if one["metadata"]["name"] == "nvidia-driver-daemonset")
    env = {
        entry["name"]: entry.get("value")
        for part in ("initContainers", "containers")
        for container in driver["spec"]["template"]["spec"][part]
        for entry in container.get("env", [])
    }
    assert env["USE_HOST_MOFED"] == "true"


def test_opr19_an_edit_of_an_operand_does_not_last_and_the_policy_is_where_it_belongs() -> None:
    """What was edited is wanted as before; the ClusterPolicy's field brings the same for good."""
    toleration = {"key": "mine", "operator": "Exists"}
    observed = world(healthy_node())
    live = observed.daemon_sets[AGENT]
    live["spec"]["template"]["spec"]["tolerations"] = [toleration]
    again = plan(dataclasses.replace(observed, daemon_sets={AGENT: live}), SETTINGS)
    assert toleration not in tolerations(again)
    assert toleration in tolerations(
        planned({**HOST_DRIVER, "daemonsets": {"tolerations": [toleration]}}, healthy_node())
    )


def tolerations(made: ClusterPlan) -> list[dict[str, Any]]:
    (agent,) = (one for one in made.objects if one["metadata"]["name"] == AGENT and one["kind"] == "DaemonSet")
    found: list[dict[str, Any]] = agent["spec"]["template"]["spec"]["tolerations"]
    return found


def test_opr21_a_pause_of_one_node_is_lifted_by_a_label_and_holds_up_nobody_else() -> None:
    paused = healthy_node(labels={f"{names.LABEL_DEPLOY_PREFIX}device-plugin": "paused-for-driver-upgrade"})
    said = condition_of(planned(HOST_DRIVER, paused, healthy_node("n2")), "DevicePluginReady")["message"]
    assert (said.startswith("1 of 2 nodes"), "n2" in said) == (True, False)


def test_opr25_a_second_release_is_one_policy_too_many_and_named_so() -> None:
    """``--generate-name`` twice: Helm refuses the objects of the first; a policy of another name is told it is ignored."""
    status = second_policy().policy_status
    assert {name: one["state"] for name, one in status.items()} == {"another": "ignored", "cluster-policy": "ready"}


def driver_image(spec: dict[str, Any]) -> str:
    made = planned({"driver": spec}, bare_node())
    (found,) = (one for one in made.objects if one["metadata"]["name"] == "nvidia-driver-daemonset")
    image: str = found["spec"]["template"]["spec"]["containers"][0]["image"]
    return image


def test_opr10_the_operators_environment_counts_only_where_the_policy_names_no_image() -> None:
    named = {"repository": "mirror.local", "image": "driver", "version": "570.1"}
    assert driver_image({}) == f"{SETTINGS.images['DRIVER_IMAGE']}-ubuntu24.04"
    assert driver_image(named) == "mirror.local/driver:570.1-ubuntu24.04"


@pytest.mark.parametrize("layout", list(NodeLayout))
def test_opr16_validating_takes_no_gpu_from_anybody(layout: NodeLayout) -> None:
    """The replaced operator's validator pods ask for a GPU and wait for ever where all are busy."""
    made = planned({}, bare_node(), layout=layout)
    assert not [one for one in made.objects if one["kind"] == "Pod"]
    assert "'nvidia.com/gpu': " not in str([one["spec"] for one in made.objects if one["kind"] == "DaemonSet"])
