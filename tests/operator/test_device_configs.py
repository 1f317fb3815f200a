"""AMD's DeviceConfigs: which nodes each has, what it switches, what its status says, and how it goes."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from kgpu.formats import agent_config, agent_report, names
from kgpu.formats.crd.definitions import amd_crds
from kgpu.operator import conditions, projections
from kgpu.operator.labels import deploy
from kgpu.operator.model import ClusterPlan, DeviceConfig, Object, ObservedCluster
from kgpu.operator.nodes import read_node
from kgpu.operator.overview import overview
from kgpu.operator.plan import plan
from tests.operator.test_allocation import SERVED
from tests.operator.test_vendors import documents, fresh, other_node, relabelled
from tests.operator.world import NAMESPACE, OPERANDS_LAYOUT, SETTINGS, condition_of, healthy_node, policy, settle, world

LABEL = "feature.node.kubernetes.io/amd-gpu"
SELECTOR = {LABEL: "true"}
FINALIZER = names.AMD_DEVICECONFIG_FINALIZER
PLUGIN, LABELLER, EXPORTER, CLAIMS = (
    deploy(end) for end in ("device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dra-driver")
)
BY_CLAIMS: Object = {"devicePlugin": {"enableDevicePlugin": False}, "draDriver": {"enable": True}}
# What AMD's chart makes by default, but for images.
AMDS_DEFAULT: Object = {
    "selector": SELECTOR,
    "driver": {
        "enable": True, "blacklist": False,
        "upgradePolicy": {
            "enable": True, "maxParallelUpgrades": 3, "maxUnavailableNodes": "25%", "rebootRequired": True,
            "nodeDrainPolicy": {"force": True, "timeoutSeconds": 300, "gracePeriodSeconds": 60},
        },
    },
    "commonConfig": {"initContainerImage": "busybox:1.36", "utilsContainer": {"image": "rocm/utils"}},
    "devicePlugin": {
        "devicePluginImage": "rocm/k8s-device-plugin:latest", "nodeLabellerImage": "rocm/labeller:latest",
        "enableNodeLabeller": True, "upgradePolicy": {"upgradeStrategy": "RollingUpdate", "maxUnavailable": 1},
    },
    "metricsExporter": {"enable": True, "serviceType": "ClusterIP", "port": 5000, "image": "rocm/exporter:1"},
    "testRunner": {"enable": False}, "configManager": {"enable": False}, "remediationWorkflow": {"enable": False},
}  # fmt: skip


def manifest(name: str = "default", *, namespace: str = NAMESPACE, spec: Any = None, **metadata: Any) -> Object:
    about = {"name": name, "namespace": namespace, "uid": f"uid-of-{name}", "generation": 1, **metadata}
    whole = {"selector": SELECTOR} if spec is None else spec
    return {"apiVersion": "amd.com/v1alpha1", "kind": "DeviceConfig", "metadata": about, "spec": whole}


def config(name: str = "default", **fields: Any) -> DeviceConfig:
    found: DeviceConfig = projections.device_config(manifest(name, **fields))["value"]
    return found


def amd(name: str = "n1", **labels: str) -> Object:
    return fresh(name) | {
        "metadata": {
            **fresh(name)["metadata"],
            "labels": {**fresh(name)["metadata"]["labels"], LABEL: "true", **labels},
        }
    }


def seen(*configs: DeviceConfig, nodes: tuple[Object, ...] = (), settings: Any = SETTINGS) -> ObservedCluster:
    """A settled cluster in which nobody has begun to work."""
    return world(*(nodes or (amd(),)), device_configs=configs, settings=settings)


def working(observed: ObservedCluster) -> ObservedCluster:
    """The same once every agent works."""
    nodes = tuple(relabelled(node) for node in observed.nodes)
    return settle(dataclasses.replace(observed, nodes=nodes))


def status(made: ClusterPlan, key: str = f"{NAMESPACE}/default") -> Object:
    return made.device_config_status[key]


def said(made: ClusterPlan, kind: str = "Ready", key: str = f"{NAMESPACE}/default") -> tuple[str, str, str]:
    found = next(one for one in status(made, key)["conditions"] if one["type"] == kind)
    return found["status"], found["reason"], found["message"]


def test_amds_own_default_is_taken_served_and_told() -> None:
    observed = working(seen(config(spec=AMDS_DEFAULT)))
    made = plan(observed, SETTINGS)
    ready = said(made)
    assert ready[:2] == ("True", "OperatorReady")
    assert ready[2].startswith("1 node is served; driver.enable: drivers are left to Kernel Module Management (KMM)")
    assert said(made, "Error")[0] == "False"
    unbuilt = said(made, conditions.FIELDS_PROVIDED)
    assert unbuilt[0] == "Unknown"
    assert "spec.driver.upgradePolicy.enable" in unbuilt[2]
    assert "testRunner" not in unbuilt[2], "what is switched off asks for nothing"
    one = {"nodesMatchingSelectorNumber": 1, "desiredNumber": 1, "availableNumber": 1}
    assert {key: status(made)[key] for key in ("devicePlugin", "metricsExporter", "driver")} == {
        "devicePlugin": one, "metricsExporter": one, "driver": one,
    }  # fmt: skip
    assert status(made)["observedGeneration"] == 1
    told = [advice.what for advice in made.advice if advice.subject == f"DeviceConfig/{NAMESPACE}/default"]
    assert any("devicePluginImage has no effect" in what for what in told)
    assert all(what.startswith(f"DeviceConfig {NAMESPACE}/default: ") for what in told)


@pytest.mark.parametrize(
    ("spec", "on"),
    [
        ({}, {PLUGIN, LABELLER}),
        ({"metricsExporter": {"enable": True}}, {PLUGIN, LABELLER, EXPORTER}),
        ({"metricsExporter": {"enable": True, "selector": {"zone": "a"}}}, {PLUGIN, LABELLER}),
        ({"devicePlugin": {"enableDevicePlugin": False}}, {LABELLER}),
        ({"devicePlugin": {"enableNodeLabeller": False}}, {PLUGIN}),
    ],
)
def test_what_it_switches_is_on_its_nodes(spec: Object, on: set[str]) -> None:
    observed = seen(config(spec={"selector": SELECTOR, **spec}))
    labels = observed.nodes[0].labels
    assert labels[names.LABEL_DEVICE_CONFIG] == "default"
    assert {key for key in (PLUGIN, LABELLER, EXPORTER) if labels.get(key) == "true"} == on
    made = plan(observed, SETTINGS)
    assert not made.nodes, "and it stays so"
    assert status(made)["metricsExporter"]["desiredNumber"] == int(EXPORTER in on)


def test_agents_of_its_nodes_are_told_what_it_says_whatever_the_policy_has_switched_off() -> None:
    spec = {
        "selector": SELECTOR,
        "devicePlugin": {"devicePluginArguments": {"resource_naming_strategy": "mixed"}},
        "metricsExporter": {"enable": True, "port": 5001, "config": {"name": "amd-metrics"}},
    }
    off = policy(spec={**{key: {"enabled": False} for key in ("driver", "devicePlugin", "gfd", "dcgmExporter")}})
    observed = settle(dataclasses.replace(seen(config(spec=spec)), policies=(off,)))
    made = plan(observed, SETTINGS)
    kind = documents(made).kinds["amd/default"]
    assert all(kind.roles[role].enabled for role in ("deviceplugin", "labels", "exporter"))
    assert kind.roles["deviceplugin"].env["RESOURCE_NAMING_STRATEGY"] == "mixed"
    assert kind.roles["exporter"].env["DCGM_EXPORTER_LISTEN"] == ":9400", "its port is the Service's"
    wanted = agent_config.ConfigKey(config_map="amd-metrics", key="config.json")
    assert kind.roles["exporter"].files == {"KGPU_EXPORTER_AMD_METRICS_CONFIG": wanted}
    rules = [rule for one in made.objects if one["kind"] == "Role" for rule in one["rules"]]
    assert any("amd-metrics" in rule.get("resourceNames", ()) for rule in rules), "the agent may read it"
    assert not documents(made).kinds["amd"].roles["deviceplugin"].enabled, "nodes without one: as the policy says"


def test_one_of_the_same_name_in_another_namespace_changes_nothing_on_its_nodes() -> None:
    mine = config(spec={"selector": SELECTOR, "configManager": {"enable": True}})
    theirs: Object = {
        "selector": SELECTOR, "devicePlugin": {"devicePluginArguments": {"resource_naming_strategy": "mixed"}},
        "metricsExporter": {"enable": True, "config": {"name": "theirs"}},
        "configManager": {"enable": True, "config": {"name": "theirs"}},
    }  # fmt: skip
    alone, beside = seen(mine), seen(mine, config(namespace="zz-team", spec=theirs))
    before, after = plan(alone, SETTINGS), plan(beside, SETTINGS)
    assert documents(before) == documents(after)
    assert before.objects == after.objects


def test_a_node_that_none_selects_is_served_as_the_policy_says() -> None:
    observed = seen(config(), nodes=(fresh("n1"), amd("n2")))
    bare, chosen = observed.nodes
    assert names.LABEL_DEVICE_CONFIG not in bare.labels
    assert bare.labels[EXPORTER] == "true"
    assert chosen.labels[names.LABEL_DEVICE_CONFIG] == "default"


@pytest.mark.parametrize(("selector", "on"), [({}, {CLAIMS, LABELLER}), ({"zone": "a"}, {LABELLER})])
def test_its_nodes_hand_out_their_gpus_by_claims_where_it_says_so(selector: Object, on: set[str]) -> None:
    settings = dataclasses.replace(SETTINGS, dra=True)
    spec = {**BY_CLAIMS, "selector": SELECTOR, "draDriver": {"enable": True, "selector": selector}}
    observed = world(amd(), device_configs=(config(spec=spec),), settings=settings, kinds=SERVED)
    labels = observed.nodes[0].labels
    assert {key for key in (PLUGIN, CLAIMS, LABELLER) if labels.get(key) == "true"} == on
    assert not plan(observed, settings).nodes, "and it stays so"


def test_it_is_ready_only_once_the_driver_of_claims_works_and_where_there_can_be_one() -> None:
    settings = dataclasses.replace(SETTINGS, dra=True)
    configs = (config(spec={**BY_CLAIMS, "selector": SELECTOR}),)
    begun = world(amd(), device_configs=configs, settings=settings, kinds=SERVED)
    node = relabelled(begun.nodes[0])

    def ready(**roles: Any) -> tuple[str, str, str]:
        report = msgspec.structs.replace(node.report, roles={**node.report.roles, **roles})
        nodes = (dataclasses.replace(node, report=report),)
        return said(plan(settle(dataclasses.replace(begun, nodes=nodes), settings), settings))

    assert ready() == ("False", "NotReady", "node n1: its agent does not run the role dra yet")
    assert ready(dra=agent_report.role("running"))[:2] == ("True", "OperatorReady")
    failed = agent_report.role("failed", "the kubelet does not take the driver", "DriverRefused")
    assert ready(dra=failed)[:2] == ("False", "Error")
    assert "the kubelet does not take the driver" in ready(dra=failed)[2]
    without = world(amd(), device_configs=configs, settings=settings)
    assert "resource.k8s.io" in said(plan(without, settings))[2]
    assert CLAIMS not in without.nodes[0].labels


def test_a_nodes_own_label_says_more_than_its_device_config() -> None:
    settings = dataclasses.replace(SETTINGS, dra=True)
    spec = {**BY_CLAIMS, "selector": SELECTOR}
    node = amd(**{names.ALLOCATION_LABEL: "device-plugin"})
    observed = world(node, device_configs=(config(spec=spec),), settings=settings, kinds=SERVED)
    assert CLAIMS not in observed.nodes[0].labels


def test_only_nodes_with_amd_gpus_are_selected() -> None:
    observed = seen(config(spec={}), nodes=(healthy_node("n1"), amd("n2")))
    assert names.LABEL_DEVICE_CONFIG not in observed.nodes[0].labels
    assert status(plan(observed, SETTINGS))["devicePlugin"]["nodesMatchingSelectorNumber"] == 1


def test_no_node_is_no_error() -> None:
    made = plan(seen(config(spec={"selector": {"no": "such"}})), SETTINGS)
    assert said(made)[:2] == ("False", "NoMatchingNodes")
    assert said(made, "Error")[:2] == ("False", "NoMatchingNodes")


def test_two_that_select_one_node_are_errors_and_it_stays_as_it_is() -> None:
    before = seen(config("first"))
    both = dataclasses.replace(before, device_configs=(config("first"), config("second")))
    made = plan(both, SETTINGS)
    assert not made.nodes
    for name, other in (("first", "second"), ("second", "first")):
        state, reason, message = said(made, key=f"{NAMESPACE}/{name}")
        assert (state, reason) == ("False", "Error")
        assert f"it selects nodes that {other} selects, too: n1" in message
    fresh_both = seen(config("first"), config("second"))
    assert names.LABEL_DEVICE_CONFIG not in fresh_both.nodes[0].labels, "of two that come at once, none"


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"namespace": "team-a"}, "ValidationError", f"not in the operator's namespace {NAMESPACE}"),
        ({"name": "n" * 64}, "ValidationError", "give it a shorter name"),
        ({"spec": {"selector": 5}}, "ValidationError", "spec.selector is 5"),
        (
            {"spec": {"devicePlugin": {"devicePluginArguments": {"resource_naming_strateg": "mixed"}}}},
            "ValidationError", "resource_naming_strategy",
        ),
        (
            {"spec": {"devicePlugin": {"devicePluginArguments": {"resource_naming_strategy": "both"}}}},
            "ValidationError", "set one of single, mixed",
        ),
        ({"spec": {"driver": {"driverType": "vf-passthrough"}}}, "ValidationError", "no virtual machine"),
        ({"spec": {"draDriver": {"enable": True}}}, "ValidationError", "are both true"),
        ({"spec": BY_CLAIMS}, "Error", "set the Helm value dra.enabled"),
    ],
)  # fmt: skip
def test_one_that_is_wrong_says_so_and_changes_nothing(fields: Object, reason: str, words: str) -> None:
    wrong = config(**fields)
    observed = seen(wrong)
    assert names.LABEL_DEVICE_CONFIG not in observed.nodes[0].labels
    made = plan(observed, SETTINGS)
    state, _, message = said(made, key=wrong.key)
    assert state == "False"
    assert said(made, "Error", wrong.key)[:2] == ("True", reason)
    assert words in message
    assert any(advice.subject == f"DeviceConfig/{wrong.key}" for advice in made.advice)


def test_a_mistake_takes_nothing_from_the_nodes_that_it_had() -> None:
    before = seen(config(spec={"selector": SELECTOR, "devicePlugin": {"enableNodeLabeller": False}}))
    broken = config(
        spec={"selector": SELECTOR, "devicePlugin": {"devicePluginArguments": {"x": "y"}, "enableNodeLabeller": False}}
    )
    made = plan(dataclasses.replace(before, device_configs=(broken,)), SETTINGS)
    assert not made.nodes
    assert "amd/default" in documents(made).kinds


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (OPERANDS_LAYOUT, "in the layout agent alone"),
        (dataclasses.replace(SETTINGS, vendors=frozenset({names.NVIDIA})), "AMD is not among the vendors"),
    ],
)
def test_where_they_can_not_be_followed_they_say_so(settings: Any, words: str) -> None:
    assert words in said(plan(seen(config(), settings=settings), settings))[2]


def test_without_a_policy_they_say_that_there_is_none() -> None:
    made = plan(dataclasses.replace(seen(config()), policies=()), SETTINGS)
    assert said(made, "Error")[:2] == ("True", "Error")
    assert "there is no ClusterPolicy" in said(made)[2]


def test_what_does_not_work_is_in_its_status() -> None:
    observed = seen(config())
    assert said(plan(observed, SETTINGS))[:2] == ("False", "NotReady"), "it has only just begun"
    failed = agent_report.role("failed", "the socket is taken", "SocketTaken")
    node = read_node(other_node())
    assert node.report is not None
    roles = {**node.report.roles, "deviceplugin": failed}
    report = msgspec.structs.replace(node.report, roles=roles)
    broken = dataclasses.replace(relabelled(observed.nodes[0]), report=report)
    made = plan(settle(dataclasses.replace(observed, nodes=(broken,))), SETTINGS)
    assert said(made, "Error")[:2] == ("True", "Error")
    assert "the socket is taken" in said(made)[2]
    assert status(made)["devicePlugin"] == {
        "nodesMatchingSelectorNumber": 1, "desiredNumber": 1, "availableNumber": 0,
    }  # fmt: skip


def test_one_that_is_deleted_gives_its_nodes_back_and_then_loses_amds_finalizer() -> None:
    before = seen(config())
    going = config(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["mine/own", FINALIZER])
    leaving = dataclasses.replace(before, device_configs=(going,))
    first = plan(leaving, SETTINGS)
    assert first.released == (), "not while a node has it"
    assert first.device_config_status == {}
    after = settle(leaving)
    assert names.LABEL_DEVICE_CONFIG not in after.nodes[0].labels
    assert plan(after, SETTINGS).released == (going,)
    foreign = config(namespace="team-a", deletionTimestamp="2026-01-01T00:00:00Z", finalizers=[FINALIZER])
    assert plan(dataclasses.replace(after, device_configs=(foreign,)), SETTINGS).released == (), "AMD's operator may"


def test_the_kind_is_amds() -> None:
    (crd,) = amd_crds()
    assert crd["metadata"]["name"] == "deviceconfigs.amd.com"
    assert crd["spec"]["scope"] == "Namespaced"
    assert crd["spec"]["names"]["shortNames"] == ["gpue"]
    (version,) = crd["spec"]["versions"]
    assert version["name"] == "v1alpha1"
    assert version["subresources"] == {"status": {}}


def test_the_condition_of_the_policy_counts_its_nodes() -> None:
    observed = working(seen(config(spec=AMDS_DEFAULT), nodes=(amd(), healthy_node("n2"))[:1]))
    assert condition_of(plan(observed, SETTINGS), "DevicePluginReady")["message"].startswith("1 of 1 nodes")


def test_what_an_unknown_allocation_comes_to_is_what_the_device_config_asks_for() -> None:
    settings = dataclasses.replace(SETTINGS, dra=True)
    node = amd(**{names.ALLOCATION_LABEL: "plugin"})
    observed = world(
        node, device_configs=(config(spec={"selector": SELECTOR, **BY_CLAIMS}),), settings=settings, kinds=SERVED
    )
    (advice,) = [one for one in plan(observed, settings).advice if one.reason == "InvalidAllocation"]
    assert "which is dra here" in advice.why


@pytest.mark.parametrize(
    ("maps", "reason", "words"),
    [
        ({"amd-metric": frozenset({"config.json"})}, "ConfigMapMissing", 'does not exist; did you mean "amd-metric"?'),
        ({"amd-metrics": frozenset({"config.yaml"})}, "ConfigKeyMissing", "has no key config.json"),
    ],
)
def test_a_config_map_of_the_exporter_that_is_missing_is_told(maps: Any, reason: str, words: str) -> None:
    """In its conditions, by an Event and by ``kgpu status``; the exporter goes on without it."""
    spec = {"selector": SELECTOR, "metricsExporter": {"enable": True, "config": {"name": "amd-metrics"}}}
    observed = working(seen(config(spec=spec)))
    there = dataclasses.replace(observed, config_maps={"amd-metrics": frozenset({"config.json"})})
    assert said(plan(there, SETTINGS))[:2] == ("True", "OperatorReady")
    wrong = dataclasses.replace(observed, config_maps=maps)
    made = plan(wrong, SETTINGS)
    assert said(made)[:2] == ("False", "Error")
    assert condition_of(made, "DCGMExporterReady")["reason"] == reason
    (problem,) = [one for one in overview(wrong, SETTINGS).problems if one.reason == reason]
    (event,) = [one for one in made.advice if one.reason == reason]
    for text in (said(made)[2], problem.what, event.what):
        assert "metricsExporter.config of DeviceConfig" in text
        assert words in text
    for text in (said(made)[2], problem.remedy, event.remedy):
        assert "create configmap amd-metrics --from-file=config.json=FILE" in text
