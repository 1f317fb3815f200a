"""The status of a cluster as data: what works where, and what is said of the rest."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from kgpu.base.errors import ConfigError
from kgpu.formats import agent_report, names
from kgpu.kube import kinds
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES, KubeRefusedError, Object
from kgpu.operator.cluster_reading import read_cluster
from kgpu.operator.model import NodeLayout, ObservedCluster
from kgpu.operator.overview import INSTALL, OperatorState, Overview, overview
from kgpu.operator.plan import plan
from tests.operator.test_breakages import CASES
from tests.operator.test_vendors import fresh
from tests.operator.world import (
    HOST_DRIVER,
    NAMESPACE,
    SETTINGS,
    driver,
    healthy_node,
    node_object,
    policy,
    report,
    world,
)  # fmt: skip

GPU = names.GPU_RESOURCE


def written(observed: ObservedCluster) -> ObservedCluster:
    """The same with the status that the operator writes."""
    made = plan(observed, SETTINGS).policy_status
    policies = tuple(dataclasses.replace(one, status=made.get(one.name, {})) for one in observed.policies)
    return dataclasses.replace(observed, policies=policies)


def seen(observed: ObservedCluster) -> Overview:
    return overview(written(observed), SETTINGS)


def test_all_well_is_ready() -> None:
    found = seen(world(healthy_node(), healthy_node("cpu", gpus=0)))
    assert (found.ready, found.problems, [row.name for row in found.nodes], found.other_nodes) == (True, (), ["n1"], 1)


def test_a_well_nodes_operands_work() -> None:
    (row,) = seen(world(healthy_node())).nodes
    assert row.operands == dict.fromkeys(
        ("features", "toolkit", "validator", "device-plugin", "dcgm-exporter", "health", "probe", "gfd"), "works"
    )


def test_a_nodes_facts() -> None:
    (row,) = seen(world(healthy_node(labels={names.LABEL_GPU_PRODUCT: "NVIDIA-H100"}))).nodes
    assert (row.product, row.driver, row.driver_source, row.cuda, row.system, row.runtime) == (
        *("NVIDIA-H100", "580.65.06", "host", "13.0"),
        *("ubuntu 24.04", "containerd 2.1.4"),
    )


def test_what_only_waits_is_told_from_what_fails() -> None:
    waits = agent_report.role("waiting", "waits for the validator")
    node = healthy_node(validated=("False", "CudaFailed", "GPU 3 is gone"), report=report(deviceplugin=waits))
    (row,) = seen(world(node)).nodes
    assert (row.operands["validator"], row.operands["device-plugin"]) == ("fails", "waits")


def test_what_a_label_switches_off_is_off() -> None:
    node = healthy_node(labels={names.LABEL_DEPLOY_PREFIX + "gpu-feature-discovery": "false"})
    rows = seen(world(node, healthy_node("n2"))).nodes
    assert [row.operands["gfd"] for row in rows] == ["off", "works"]


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_every_breakage_is_a_problem_with_node_cause_and_remedy(make: Any) -> None:
    case = make()
    lines = [
        f"{' '.join(one.nodes)} {one.what}; to do: {one.remedy}"
        for one in seen(case.observed).problems
        if not one.passing
    ]
    assert any(all(words in line for words in case.words) for line in lines), lines


def test_a_status_that_is_not_written_yet_is_not_ready() -> None:
    found = overview(world(healthy_node()), SETTINGS)
    assert (found.ready, [one.reason for one in found.problems]) == (False, ["NotWrittenYet"])


def test_a_status_of_an_older_generation_does_not_count() -> None:
    observed = written(world(healthy_node(report=report(2))))
    newer = tuple(dataclasses.replace(one, generation=2) for one in observed.policies)
    assert overview(dataclasses.replace(observed, policies=newer), SETTINGS).ready is False


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policies": ()}, "There is no ClusterPolicy"),
        ({"policies": (policy(deleting=True),)}, "is being deleted"),
        ({"policies": (policy(spec={"driver": 5}),)}, "can't be read"),
        ({"foreign_operator": "gpu-operator/gpu-operator"}, "another GPU operator works"),
    ],
)
def test_what_stops_everything_is_the_headline(changes: dict[str, Any], words: str) -> None:
    found = overview(dataclasses.replace(world(healthy_node()), **changes), SETTINGS)
    assert (found.ready, words in found.headline) == (False, True)


def test_what_is_outside_of_the_support_matrix_is_a_warning() -> None:
    found = seen(world(healthy_node(runtime="containerd://1.6.1")))
    assert (found.ready, [(one.reason, one.warning) for one in found.problems]) == (
        True,
        [("UnsupportedVersion", True)],
    )


def test_an_operator_that_is_down_is_told() -> None:
    found = overview(written(world(healthy_node())), SETTINGS, operator=OperatorState(said="0 of 1 ready", down=True))
    assert [one.reason for one in found.problems] == ["OperatorDown"]


def test_an_operator_that_is_scaled_to_nothing_is_told_with_the_command() -> None:
    own = OperatorState(said="0 of 0 ready", down=True, idle=True, name="gpu-operator")
    (problem,) = overview(written(world(healthy_node())), SETTINGS, operator=own).problems
    assert (problem.what.partition(",")[0], problem.remedy) == (
        "the operator is scaled to 0",
        f"kubectl -n {NAMESPACE} scale deployment/gpu-operator --replicas=1",
    )


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (OperatorState(), INSTALL),
        (OperatorState(name="gpu-operator"), "kubectl apply -f"),
        (OperatorState(name="gpu-operator", release="mine"), f"helm -n {NAMESPACE} upgrade mine "),
    ],
    ids=["no operator", "an operator", "a release"],
)
def test_a_missing_policy_is_made_by_the_release_that_is_there(own: OperatorState, words: str) -> None:
    observed = dataclasses.replace(world(healthy_node()), policies=())
    (problem,) = overview(observed, SETTINGS, operator=own).problems
    assert (words in problem.remedy, "helm install" in problem.remedy) == (True, not own.name)


@pytest.mark.parametrize("policies", [None, ()], ids=["a policy", "none"])
@pytest.mark.parametrize(
    ("labels", "image", "told"),
    [
        ({names.NODE_HOST_LABEL: "0"}, "registry.example.com/kgpu:0.1.0", True),
        ({names.NODE_HOST_LABEL: "0"}, f"{names.IMAGE_REPOSITORY}:0.1.0", False),
        ({names.NODE_HOST_LABEL: "0"}, f"{names.IMAGE_REPOSITORY}@sha256:00", False),
        ({names.NODE_HOST_LABEL: "0"}, "", False),
        ({}, "registry.example.com/kgpu:0.1.0", False),
    ],
)
def test_a_lab_that_runs_a_stand_in_for_kgpus_image_says_so_first(
    policies: tuple[()] | None, labels: dict[str, str], image: str, told: bool
) -> None:
    observed = world(healthy_node("n1", labels=labels), **({} if policies is None else {"policies": policies}))
    own = OperatorState(said="1 of 1 ready", name="gpu-operator", release="mine", image=image)
    problems = overview(written(observed) if policies is None else observed, SETTINGS, operator=own).problems
    assert [problem.reason for problem in problems[:1]] == (["StandIn"] if told else [p.reason for p in problems[:1]])
    assert any(problem.reason == "StandIn" for problem in problems) is told
    if told:
        assert f"in place of {image}" in problems[0].what
        assert problems[0].remedy.startswith(f"helm -n {NAMESPACE} upgrade mine charts/kgpu ")
        assert problems[0].remedy.endswith(f"image.repository={names.IMAGE_REPOSITORY}")


def test_the_chart_is_installed_as_the_readme_says() -> None:
    assert f"\n{INSTALL}\n" in (Path(__file__).parents[2] / "README.md").read_text()


REFUSED = f"DaemonSet/{names.AGENT_DAEMON_SET}"
INVALID = (
    'DaemonSet.apps "kgpu-agent" is invalid: spec.template.spec.priorityClassName: Invalid value: "no such": it is none'
)


def refused(**errors: str) -> Overview:
    """What a reader sees who knows of refusals only what the operator has written."""
    told = {name.replace("_", "/"): message for name, message in errors.items()}
    observed = world(healthy_node())
    status = written(dataclasses.replace(observed, apply_errors=told)).policies
    return overview(dataclasses.replace(observed, policies=status), SETTINGS)


def test_an_object_that_the_api_server_refuses_comes_first_and_is_told_once() -> None:
    found = refused(**{REFUSED: INVALID})
    said = [one for one in found.problems if INVALID in one.what]
    assert (found.headline, len(said), found.problems[0] is said[0]) == (
        f"ClusterPolicy cluster-policy is not ready: the API server refuses {REFUSED}",
        1,
        True,
    )


def test_the_remedy_names_the_field_that_the_api_server_names() -> None:
    assert "spec.template.spec.priorityClassName" in refused(**{REFUSED: INVALID}).problems[0].remedy


def test_every_refused_object_is_told() -> None:
    found = refused(Service_a="no room", Service_b='spec.ports[0].port: Invalid value: "x"; and more')
    assert [one.what for one in found.problems if one.reason == "ApplyFailed"] == [
        "the API server refuses Service/a: no room",
        'the API server refuses Service/b: spec.ports[0].port: Invalid value: "x"; and more',
    ]


def off(*nodes: Object) -> Overview:
    return seen(world(*nodes))


def test_gpus_that_a_label_withdraws_are_told_with_the_command_and_keep_their_column() -> None:
    key = names.LABEL_DEPLOY_PREFIX + "device-plugin"
    found = off(healthy_node(labels={key: "false"}))
    (problem,) = found.problems
    assert (found.ready, problem.warning, problem.nodes, problem.remedy, found.nodes[0].operands["device-plugin"]) == (
        *(True, True, ("n1",)),
        *(f"kubectl label node n1 {key}-", "off"),
    )
    assert f'{key} is "false"' in problem.what


def test_nodes_that_have_opted_out_are_one_line() -> None:
    labels = {names.LABEL_DEPLOY_OPERANDS: "false"}
    found = off(*(healthy_node(name, labels=labels) for name in ("n1", "n2")), healthy_node("n3"))
    assert [(one.nodes, one.warning) for one in found.problems] == [(("n1", "n2"), True)]


def test_a_label_that_is_told_as_a_cause_is_not_told_twice() -> None:
    key = names.LABEL_DEPLOY_PREFIX + "container-toolkit"
    words = "toolkit: no CDI spec"
    found = off(healthy_node(labels={key: "false"}, validated=("False", "ToolkitFailed", words)))
    assert [one.reason for one in found.problems if key in one.remedy] == ["ToolkitSwitchedOff"]


# Reading a cluster


def manifest(**fields: Any) -> Object:
    return {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": HOST_DRIVER,
        **fields,
    }


def deployment(**env: str) -> Object:
    labels = {names.NAME_LABEL: names.KGPU, names.COMPONENT_LABEL: "gpu-operator", "app": "gpu-operator"}
    container = {"name": "gpu-operator", "env": [{"name": name, "value": value} for name, value in env.items()]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "gpu-operator", "namespace": "elsewhere", "labels": labels},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
        "status": {"readyReplicas": 1},
    }


def cluster(*more: tuple[Any, Object]) -> FakeApi:
    api = FakeApi()
    api.put(NODES, node_object())
    api.put(kinds.CLUSTER_POLICIES, manifest())
    for resource, obj in more:
        api.put(resource, obj)
    return api


async def test_nodes_and_policies_are_read() -> None:
    looked = await read_cluster(cluster())
    assert ([one.name for one in looked.observed.nodes], [one.name for one in looked.observed.policies]) == (
        ["n1"],
        ["cluster-policy"],
    )


async def test_the_operator_is_found_with_its_settings() -> None:
    own = deployment(KGPU_LAYOUT="operands", KGPU_DISCOVERY="false", DRIVER_IMAGE="example.org/driver:1")
    looked = await read_cluster(cluster((kinds.DEPLOYMENTS, own)))
    told = looked.settings
    assert (told.namespace, told.layout, told.discovery, dict(told.images), looked.operator.said) == (
        *("elsewhere", NodeLayout.OPERANDS, False),
        *({"DRIVER_IMAGE": "example.org/driver:1"}, "operator elsewhere/gpu-operator: 1 of 1 ready"),
    )


async def test_an_operator_without_a_ready_pod_is_down() -> None:
    own = {**deployment(), "status": {}}
    found = (await read_cluster(cluster((kinds.DEPLOYMENTS, own)))).operator
    assert (found.down, found.idle, found.name) == (True, False, "gpu-operator")


async def test_an_operator_that_nobody_wants_to_run_is_told_from_one_that_can_not() -> None:
    own = deployment()
    own["spec"]["replicas"] = 0
    found = (await read_cluster(cluster((kinds.DEPLOYMENTS, {**own, "status": {}})))).operator
    assert (found.down, found.idle) == (True, True)


async def test_an_update_of_the_operator_that_does_not_start_is_told_beside_the_pod_that_goes_on() -> None:
    own = deployment()
    own["status"] = {"replicas": 2, "readyReplicas": 1, "updatedReplicas": 1, "unavailableReplicas": 1}
    said = (await read_cluster(cluster((kinds.DEPLOYMENTS, own)))).operator.said
    assert said.endswith("1 of 1 ready, 1 of an update not")


async def test_the_operators_release_is_known() -> None:
    own = deployment()
    own["metadata"]["annotations"] = {names.HELM_RELEASE_ANNOTATION: "mine"}
    assert (await read_cluster(cluster((kinds.DEPLOYMENTS, own)))).operator.release == "mine"


async def test_in_the_wrong_namespace_it_is_said_where_the_operator_is() -> None:
    with pytest.raises(ConfigError) as refused_:
        await read_cluster(cluster((kinds.DEPLOYMENTS, deployment())), "wrong")
    assert ("wrong" in refused_.value.what, "elsewhere" in refused_.value.expected) == (True, True)


async def test_any_namespace_will_do_where_there_is_no_operator() -> None:
    assert (await read_cluster(cluster(), "any")).settings.namespace == "any"


async def test_kgpus_own_operator_is_no_foreign_one() -> None:
    looked = await read_cluster(cluster((kinds.DEPLOYMENTS, deployment())))
    assert looked.observed.foreign_operator == ""


async def test_without_a_deployment_the_status_says_where_the_operator_is() -> None:
    api = cluster()
    api.put(kinds.CLUSTER_POLICIES, manifest(status={"namespace": "from-status", "state": "ready"}))
    assert (await read_cluster(api)).settings.namespace == "from-status"


async def test_what_may_not_be_read_is_named_and_the_rest_is_shown() -> None:
    api = cluster()
    api.refuse[("list", "pods")] = 403
    looked = await read_cluster(api)
    assert (len(looked.observed.nodes), [line.partition(":")[0] for line in looked.unread]) == (
        1,
        [f"pods in namespace {NAMESPACE}"],
    )


async def test_what_may_not_be_read_is_not_called_missing() -> None:
    spec = {**HOST_DRIVER, "devicePlugin": {"config": {"name": "configs", "default": "any"}}}
    api = cluster((kinds.CLUSTER_POLICIES, manifest(spec=spec)))
    api.refuse |= {("list", "configmaps"): 403, ("list", "daemonsets"): 403}
    looked = await read_cluster(api)
    reasons = {one.reason for one in overview(looked.observed, looked.settings).problems}
    assert reasons & {"ConfigMapMissing", "ConfigKeyMissing", "NotCreatedYet"} == set()


def device_config(**spec: Any) -> Object:
    about = {"name": "default", "namespace": "elsewhere", "uid": "u", "generation": 1}
    return {"apiVersion": "amd.com/v1alpha1", "kind": "DeviceConfig", "metadata": about, "spec": spec}


def with_device_config(config: Object, **env: str) -> FakeApi:
    own = deployment(**{"KGPU_DEVICE_CONFIGS": "true", **env})
    return cluster((kinds.DEPLOYMENTS, own), (kinds.DEVICE_CONFIGS, config), (NODES, fresh("a1")))


WRONG: Final = {"devicePlugin": {"devicePluginArguments": {"resource_naming": "mixed"}}}
NAMING_MAP: Final = {"metricsExporter": {"enable": True, "config": {"name": "nope"}}}


async def test_a_device_config_that_is_not_followed_is_told() -> None:
    looked = await read_cluster(with_device_config(device_config(**WRONG)))
    (problem,) = [one for one in overview(looked.observed, looked.settings).problems if "DeviceConfig" in one.what]
    assert problem.warning
    assert problem.what.startswith("DeviceConfig elsewhere/default: devicePlugin.devicePluginArguments has")
    assert problem.remedy
    looked = await read_cluster(with_device_config(device_config(**WRONG), KGPU_DEVICE_CONFIGS="false"))
    assert not looked.observed.device_configs, "it is another operator's"


async def test_a_config_map_of_a_device_config_is_missing_only_where_they_could_be_read() -> None:
    api = with_device_config(device_config(**NAMING_MAP))
    assert "nope" not in (await read_cluster(api)).observed.config_maps
    api.refuse[("list", "configmaps")] = 403
    assert (await read_cluster(api)).observed.config_maps["nope"] == {"config.json"}


@pytest.mark.parametrize("plural", ["nodes", "clusterpolicies"])
async def test_without_nodes_and_policies_there_is_nothing_to_show(plural: str) -> None:
    api = cluster()
    api.refuse[("list", plural)] = 403
    with pytest.raises(KubeRefusedError):
        await read_cluster(api)


async def test_looking_writes_nothing() -> None:
    api = cluster()
    await read_cluster(api)
    assert {verb for verb, _, _ in api.calls} <= {"list", "get", "discover"}


def test_gpus_that_nobody_offers_are_told_in_the_headline() -> None:
    switched_off = policy(spec={**HOST_DRIVER, "devicePlugin": {"enabled": False}})
    # The kubelet forgets the resource when it starts again; until then it has 0 of 8.
    for counts in ({"capacity": {}, "allocatable": {}}, {"capacity": {GPU: "8"}, "allocatable": {GPU: "0"}}):
        node = healthy_node(gpus=8)
        node["status"] = {**node["status"], **counts}
        off = dataclasses.replace(world(node), policies=(switched_off,))
        assert "no GPU is offered on 1 of 1: the device plugin is switched off" in seen(off).headline
    assert "not offered" not in seen(world(healthy_node())).headline


def test_only_what_is_validated_is_said_to_be() -> None:
    node = healthy_node(validated=None, labels={names.LABEL_DEPLOY_PREFIX + "operator-validator": "false"})
    assert seen(world(node, healthy_node("n2"))).headline.endswith("2 GPU nodes, 1 of 2 validated")


UNBUILT = {**HOST_DRIVER, "dcgm": {"enabled": True}}


def test_fields_of_which_nothing_comes_yet_are_rows_of_their_own_and_no_problems() -> None:
    asked = policy(spec={**UNBUILT, "vgpuManager": {"enabled": True}, "psp": {"enabled": True}})
    found = seen(dataclasses.replace(world(healthy_node()), policies=(asked,)))
    assert [(row.object, row.field) for row in found.fields] == [
        ("ClusterPolicy/cluster-policy", "spec.dcgm.enabled"),
        ("ClusterPolicy/cluster-policy", "spec.vgpuManager.enabled"),
    ]
    assert found.fields[0].instead == "kgpu's exporter reads the driver and needs no host engine"
    assert ["psp" in one.what for one in found.problems] == [True]
    assert seen(world(healthy_node())).fields == ()


@pytest.mark.parametrize(
    ("spec", "reason"),
    [({"cdi": {"enabled": False}}, "CDISwitchedOff"), ({"gfd": {"hostNetwork": True}}, "SettingIgnored")],
)
def test_what_is_done_in_another_way_than_asked_is_a_warning(spec: dict[str, Any], reason: str) -> None:
    asked = policy(spec={**HOST_DRIVER, **spec})
    found = seen(dataclasses.replace(world(healthy_node()), policies=(asked,)))
    assert [(one.reason, one.warning, bool(one.remedy)) for one in found.problems] == [(reason, True, True)]


def test_what_helps_a_driver_that_can_not_be_brought_is_kgpus_own_word() -> None:
    none = msgspec.structs.replace(report(), driver="", driver_source="")
    node = healthy_node(labels={"pool": "a"}, report=none)
    spec = {"nodeSelector": {"pool": "a"}, "usePrecompiled": True, "gdrcopy": {"enabled": True}}
    ours = policy(spec={"driver": {"enabled": True, "useNvidiaDriverCRD": True}})
    observed = world(node, policies=(ours,), drivers=(driver("a100", spec=spec),))
    told = [one for one in seen(observed).problems if one.reason == "DriverNotReady"]
    what = "its NVIDIADriver a100 brings no driver: GDRCopy can't be used with precompiled drivers"
    assert [(one.what, one.remedy, one.nodes) for one in told] == [(what, "set usePrecompiled: false", ("n1",))]
