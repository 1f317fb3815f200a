"""The device config manager under the operator: where it runs, by which profiles, and what is said of nodes' labels."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from kgpu.formats import agent_config, mig_request, names
from kgpu.formats.mig_request import MigLabelState
from kgpu.formats.partition_profiles import parse_profiles
from kgpu.operator.labels import deploy
from kgpu.operator.model import ClusterPlan, Object, ObservedCluster
from kgpu.operator.nodes import project, read_node
from kgpu.operator.plan import plan
from tests.operator.test_device_configs import SELECTOR, config, said, seen, status, working
from tests.operator.test_vendors import documents, fresh
from tests.operator.world import OPERANDS_LAYOUT, SETTINGS, condition_of, healthy_node, settle, status_of, world

LABEL = deploy("device-config-manager")
ROLE, SET = "device-config-manager", "kgpu-device-config-manager"
DEFAULT = agent_config.ConfigKey(config_map=names.AMD_PROFILES_MAP, key="config.json")
MINE = agent_config.ConfigKey(config_map="mine", key="config.json")


def managed(**fields: Any) -> Object:
    return {"selector": SELECTOR, "configManager": {"enable": True, **fields}}


def made(found: ClusterPlan, kind: str, name: str) -> Object:
    return next((one for one in found.objects if (one["kind"], one["metadata"]["name"]) == (kind, name)), {})


def readable(found: ClusterPlan) -> set[str]:
    rules = [rule for one in found.objects if one["kind"] == "Role" for rule in one["rules"]]
    return {name for rule in rules if "configmaps" in rule["resources"] for name in rule.get("resourceNames", ())}


def told(state: MigLabelState, *, profile: str = "cpx_nps1_all", asked: str = "cpx_nps1_all") -> ObservedCluster:
    """A settled cluster with one AMD node, whose agent says this of its label."""
    observed = working(world(fresh()))
    report = mig_request.report(config=profile, state=state, message="what it says")
    node = dataclasses.replace(
        observed.nodes[0], partition=report, labels={**observed.nodes[0].labels, names.AMD_PROFILE_LABEL: asked}
    )
    return settle(dataclasses.replace(observed, nodes=(node,)))


def test_it_runs_on_nodes_with_amd_gpus_alone_with_the_default_profiles() -> None:
    observed = world(fresh("n2"), healthy_node("n1"))
    by_name = {node.name: node for node in observed.nodes}
    assert by_name["n2"].labels[LABEL] == "true"
    assert LABEL not in by_name["n1"].labels
    found = plan(observed, SETTINGS)
    role = documents(found).kinds[names.AMD].roles[ROLE]
    assert (role.enabled, role.label, role.files) == (True, LABEL, {"DCM_CONFIG_FILE": DEFAULT})
    assert role.env == {names.ENV_MIG_OPERATIONS: "true"}
    assert documents(found).roles[ROLE].files == {}, "an agent elsewhere has no right to the ConfigMap"
    assert names.AMD_PROFILES_MAP in readable(found)
    text = made(found, "ConfigMap", names.AMD_PROFILES_MAP)["data"]["config.json"]
    assert parse_profiles(text).chosen("cpx_nps4_all").gpus == 8
    without = dataclasses.replace(SETTINGS, operations=False)
    assert documents(plan(observed, without)).kinds[names.AMD].roles[ROLE].env == {}


def test_a_label_that_somebody_else_has_set_on_a_node_of_nvidias_goes() -> None:
    node = read_node(healthy_node(labels={LABEL: "true"}))
    observed = dataclasses.replace(world(), nodes=(node,))
    change = next(one for one in plan(observed, SETTINGS).nodes if one.name == node.name)
    assert LABEL in change.clear


def test_without_amd_gpus_there_is_nothing_of_it() -> None:
    for settings in (SETTINGS, OPERANDS_LAYOUT):
        found = plan(world(healthy_node(), settings=settings), settings)
        assert not made(found, "ConfigMap", names.AMD_PROFILES_MAP)
        assert not made(found, "DaemonSet", SET)
        assert names.AMD_PROFILES_MAP not in readable(found)
        condition = condition_of(found, "DeviceConfigManagerReady")
        assert (condition["status"], condition["message"]) == ("True", "no node wants it now")


def test_where_amd_is_not_served_it_is_off_and_says_so() -> None:
    settings = dataclasses.replace(SETTINGS, vendors=frozenset({names.NVIDIA}))
    condition = condition_of(plan(world(healthy_node(), settings=settings), settings), "DeviceConfigManagerReady")
    assert condition["reason"] == "Disabled"
    assert "Helm value vendors" in condition["message"]


def test_a_config_map_that_somebody_else_has_made_is_read_and_stays() -> None:
    observed = dataclasses.replace(world(fresh()), given_maps=frozenset({names.AMD_PROFILES_MAP}))
    found = plan(observed, SETTINGS)
    assert not made(found, "ConfigMap", names.AMD_PROFILES_MAP)
    assert documents(found).kinds[names.AMD].roles[ROLE].files == {"DCM_CONFIG_FILE": DEFAULT}
    assert names.AMD_PROFILES_MAP in readable(found)


def test_in_a_pod_of_its_own_it_has_the_profiles_as_a_folder_and_bears_amds_taint() -> None:
    found = plan(world(fresh(), settings=OPERANDS_LAYOUT), OPERANDS_LAYOUT)
    pod = made(found, "DaemonSet", SET)["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {LABEL: "true"}
    (container,) = pod["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert (env["DCM_CONFIG_FILE"], env[names.ENV_MIG_OPERATIONS]) == ("/etc/config-manager/config.json", "true")
    (folder,) = (one for one in container["volumeMounts"] if one["mountPath"] == "/etc/config-manager")
    (volume,) = (one for one in pod["volumes"] if one["name"] == folder["name"])
    assert volume["configMap"] == {"name": names.AMD_PROFILES_MAP, "optional": True}
    assert container["securityContext"] == {"privileged": True}
    assert {"key": "amd-dcm", "operator": "Exists", "effect": "NoExecute"} in pod["tolerations"]
    others = [one for one in found.objects if one["kind"] == "DaemonSet" and one["metadata"]["name"] == SET]
    assert len(others) == 1
    assert made(found, "ServiceAccount", SET)


@pytest.mark.parametrize("name", ["kgpu-agent", names.FINDER_DAEMON_SET])
def test_agents_and_the_finder_bear_amds_taint(name: str) -> None:
    pod = made(plan(world(fresh()), SETTINGS), "DaemonSet", name)["spec"]["template"]["spec"]
    assert {"key": names.AMD_PARTITION_TAINT, "operator": "Exists", "effect": "NoExecute"} in pod["tolerations"]


# Of a DeviceConfig


@pytest.mark.parametrize(
    ("section", "on"),
    [
        (None, False), ({}, False), ({"enable": False}, False), ({"enable": True}, True),
        ({"enable": True, "selector": {"zone": "a"}}, False), ({"enable": True, "selector": SELECTOR}, True),
    ],
)  # fmt: skip
def test_a_device_config_says_whether_it_is_on_its_nodes(section: Object | None, on: bool) -> None:
    spec = {"selector": SELECTOR} | ({} if section is None else {"configManager": section})
    observed = seen(config(spec=spec))
    assert (observed.nodes[0].labels.get(LABEL) == "true") is on
    found = plan(observed, SETTINGS)
    assert not found.nodes, "and it stays so"
    assert status(found)["configManager"]["desiredNumber"] == int(on)


@pytest.mark.parametrize(
    ("named", "key"), [({}, DEFAULT), ({"config": {"name": "mine"}}, MINE), ({"config": {}}, DEFAULT)]
)
def test_its_nodes_have_the_profiles_that_it_names(named: Object, key: agent_config.ConfigKey) -> None:
    maps = {"mine": frozenset({"config.json"})}
    observed = dataclasses.replace(seen(config(spec=managed(**named))), config_maps=maps)
    found = plan(observed, SETTINGS)
    role = documents(found).kinds["amd/default"].roles[ROLE]
    assert (role.enabled, role.files) == (True, {"DCM_CONFIG_FILE": key})
    assert key.config_map in readable(found)


def test_it_is_ready_and_counted_once_the_role_runs_and_what_has_no_effect_is_told() -> None:
    spec = managed(image="rocm/device-config-manager:v1", configManagerTolerations=[{"key": "amd-dcm"}])
    begun = seen(config(spec=spec))
    assert said(plan(begun, SETTINGS))[:2] == ("False", "NotReady")
    found = plan(working(begun), SETTINGS)
    assert said(found)[:2] == ("True", "OperatorReady")
    assert status(found)["configManager"] == {
        "nodesMatchingSelectorNumber": 1, "desiredNumber": 1, "availableNumber": 1,
    }  # fmt: skip
    texts = [advice.what for advice in found.advice]
    for field in ("configManager.image", "configManager.configManagerTolerations"):
        assert any(f"{field} has no effect" in what for what in texts), field
    assert not [what for what in texts if "not built" in what or "device config manager runs beside" in what]


@pytest.mark.parametrize(
    ("maps", "reason", "words"),
    [
        ({"nine": frozenset({"config.json"})}, "ConfigMapMissing", 'which does not exist; did you mean "nine"?'),
        ({"mine": frozenset({"config.yaml"})}, "ConfigKeyMissing", "which has no key config.json"),
    ],
)
def test_a_config_map_that_is_missing_is_told_with_what_to_do(maps: Any, reason: str, words: str) -> None:
    observed = working(seen(config(spec=managed(config={"name": "mine"}))))
    found = plan(dataclasses.replace(observed, config_maps=maps), SETTINGS)
    state, why, message = said(found)
    assert (state, why) == ("False", "Error")
    assert "configManager.config of DeviceConfig" in message
    assert words in message
    assert "create configmap mine --from-file=config.json=FILE" in message
    assert condition_of(found, "DeviceConfigManagerReady")["reason"] == reason
    assert status(found)["configManager"]["availableNumber"] == 0


# What becomes of a label


@pytest.mark.parametrize(
    ("observed", "ready", "reason"),
    [
        (told(MigLabelState.SUCCESS), "True", "Ready"),
        (told(MigLabelState.PENDING), "False", "PartitionPending"),
        (told(MigLabelState.FAILED), "False", "PartitionFailed"),
        (told(MigLabelState.FAILED, asked="another"), "True", "Ready"),
    ],
)
def test_a_profile_that_is_not_in_force_keeps_the_policy_from_being_ready(
    observed: ObservedCluster, ready: str, reason: str
) -> None:
    found = plan(observed, SETTINGS)
    condition = condition_of(found, "DeviceConfigManagerReady")
    assert (condition["status"], condition["reason"]) == (ready, reason)
    assert (status_of(found)["state"] == "ready") is (ready == "True")
    if ready == "False":
        assert "what it says" in condition["message"]


def test_the_report_is_kept_of_a_node() -> None:
    text = mig_request.encode(mig_request.report(config="x", state=MigLabelState.FAILED, reason="PartitionGpusInUse"))
    node = fresh()
    node["metadata"]["annotations"] = {names.PARTITION_REPORT_ANNOTATION: text}
    kept = read_node(project(node)).partition
    assert kept is not None
    assert kept.reason == "PartitionGpusInUse"
    node["metadata"]["annotations"] = {names.PARTITION_REPORT_ANNOTATION: json.dumps({"version": "x"})}
    assert read_node(project(node)).partition is None
