"""The operands that share GPUs: where MPS runs, and what becomes of a node's layout of MIG slices."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.formats import agent_config, mig_request, names, yaml
from kgpu.formats.mig_config import parse_mig_configs
from kgpu.formats.mig_request import MigLabelState
from kgpu.operator.model import Object, ObservedCluster, OperatorSettings
from kgpu.operator.plan import plan
from tests.operator.world import (
    HOST_DRIVER,
    OPERANDS_LAYOUT,
    SETTINGS,
    condition_of,
    healthy_node,
    policy,
    status_of,
    world,
)

MPS_SET, MIG_SET = "nvidia-device-plugin-mps-control-daemon", "nvidia-mig-manager"
ASKED = {names.LABEL_MIG_CAPABLE: "true", names.MIG_CONFIG_LABEL: "all-1g.10gb"}


def made(kind: str, name: str, *, settings: OperatorSettings = OPERANDS_LAYOUT, **spec: Any) -> Object:
    observed = ObservedCluster(policies=(policy(spec={**HOST_DRIVER, **spec}),))
    objects = plan(observed, settings).objects
    return next((one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)), {})


def cut(state: MigLabelState, reason: str = "", message: str = "", *, config: str = "all-1g.10gb") -> Object:
    """A node whose MIG manager says so of the label's layout."""
    node = healthy_node(labels=ASKED)
    said = mig_request.report(config=config, state=state, reason=reason, message=message)
    node["metadata"]["annotations"][names.MIG_REPORT_ANNOTATION] = mig_request.encode(said)
    return node


def test_mps_is_only_where_something_is_shared_by_it() -> None:
    selector = made("DaemonSet", MPS_SET)["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {"nvidia.com/gpu.deploy.device-plugin": "true", names.LABEL_MPS_CAPABLE: "true"}
    without_labels = made("DaemonSet", MPS_SET, gfd={"enabled": False})["spec"]["template"]["spec"]["nodeSelector"]
    assert names.LABEL_MPS_CAPABLE not in without_labels, "nobody writes the label then"
    shares, plain = healthy_node("a", labels={names.LABEL_MPS_CAPABLE: "true"}), healthy_node("b")
    condition = condition_of(plan(world(shares, plain), SETTINGS), "MPSReady")
    assert (condition["status"], condition["message"]) == ("True", "1 of 1 nodes")


def test_the_daemons_folder_is_the_hosts_in_both_layouts() -> None:
    root: dict[str, Any] = {"devicePlugin": {"mps": {"root": "/var/mps"}}}
    for settings, name in ((OPERANDS_LAYOUT, MPS_SET), (SETTINGS, "kgpu-agent")):
        pod = made("DaemonSet", name, settings=settings, **root)["spec"]["template"]["spec"]
        (volume,) = (one for one in pod["volumes"] if one["name"] == "mps-root")
        assert volume["hostPath"] == {"path": "/var/mps", "type": "DirectoryOrCreate"}
        (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "mps-root")
        assert (mount["mountPath"], mount["mountPropagation"]) == ("/mps", "Bidirectional")
        assert pod["hostPID"] is True
        assert pod["containers"][0]["securityContext"] == {"privileged": True}


def test_a_folder_that_no_pod_can_have_is_refused() -> None:
    observed = ObservedCluster(policies=(policy(spec={**HOST_DRIVER, "devicePlugin": {"mps": {"root": "/etc"}}}),))
    assert "devicePlugin.mps.root" in str(status_of(plan(observed, SETTINGS)))


def test_the_layouts_of_the_replaced_operator_are_there_unless_others_are_named() -> None:
    for settings in (SETTINGS, OPERANDS_LAYOUT):
        layouts = made("ConfigMap", "default-mig-parted-config", settings=settings)["data"]
        assert len(parse_mig_configs(layouts["config.yaml"]).configs) == 81
        clients = yaml.load(made("ConfigMap", "default-gpu-clients", settings=settings)["data"]["clients.yaml"])
        assert clients["version"] == "v1"
        assert "nvidia-dcgm.service" in clients["systemd-services"]
    others: dict[str, Any] = {"migManager": {"config": {"name": "ours"}, "gpuClientsConfig": {"name": "services"}}}
    assert made("ConfigMap", "default-mig-parted-config", **others) == {}
    assert made("ConfigMap", "default-gpu-clients", **others) == {}


@pytest.mark.parametrize(("name", "variable"), [("", "DEFAULT_CONFIG_FILE"), ("ours", "CONFIG_FILE")])
def test_the_mig_manager_gets_its_files_in_both_layouts(name: str, variable: str) -> None:
    spec: dict[str, Any] = {"migManager": {"config": {"name": name}}}
    text = made("ConfigMap", names.AGENT_CONFIG_MAP, settings=SETTINGS, **spec)["data"][names.AGENT_CONFIG_KEY]
    role = agent_config.decode(text, source="test").roles["mig-manager"]
    config_map = name or "default-mig-parted-config"
    assert role.files[variable] == agent_config.ConfigKey(config_map=config_map, key="config.yaml")
    assert role.env[names.ENV_MIG_OPERATIONS] == "true"
    pod = made("DaemonSet", MIG_SET, **spec)["spec"]["template"]["spec"]
    env = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert env[variable] == "/mig-parted-config/config.yaml"
    assert env["GPU_CLIENTS_FILE"] == "/gpu-clients/clients.yaml"
    volumes = {one["name"]: one.get("configMap") for one in pod["volumes"]}
    assert volumes["mig-parted-config"] == {"name": config_map, "optional": True}


def test_a_config_map_that_is_missing_or_has_another_key_is_told() -> None:
    spec = {**HOST_DRIVER, "migManager": {"config": {"name": "layouts"}}}

    def message(keys: frozenset[str] | None) -> str:
        config_maps = {"layout": frozenset({"x"})} if keys is None else {"layouts": keys}
        observed = world(healthy_node(labels=ASKED), policies=(policy(spec=spec),), config_maps=config_maps)
        return str(condition_of(plan(observed, SETTINGS), "MIGManagerReady")["message"])

    assert 'ConfigMap gpu-operator/layouts, which does not exist; did you mean "layout"' in message(None)
    assert "has no key config.yaml or config-default.yaml" in message(frozenset({"mig.yaml"}))
    assert message(frozenset({"config-default.yaml"})) == "1 of 1 nodes"


def test_a_layout_that_is_not_in_force_is_told() -> None:
    message = "all-1g.11gb is no layout; expected one of the file; correct the label"
    node = cut(MigLabelState.FAILED, "UnknownConfig", message)
    condition = condition_of(plan(world(node), SETTINGS), "MIGManagerReady")
    assert (condition["status"], condition["reason"]) == ("False", "UnknownConfig")
    assert message in condition["message"]


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (cut(MigLabelState.SUCCESS), "Ready"),
        (cut(MigLabelState.SUCCESS, "Adopted", "slices are there"), "Ready"),
        (cut(MigLabelState.FAILED, config="another"), "Ready"),
        (cut(MigLabelState.PENDING, message="waits for a budget"), "MIGConfigPending"),
        (cut(MigLabelState.FAILED), "MIGConfigFailed"),
        (cut(MigLabelState.FAILED, "no word at all"), "MIGConfigFailed"),
    ],
)
def test_what_the_mig_manager_says_counts_for_its_label_alone(node: Object, reason: str) -> None:
    assert condition_of(plan(world(node), SETTINGS), "MIGManagerReady")["reason"] == reason


def test_a_node_without_mig_is_not_called_switched_off() -> None:
    condition = condition_of(plan(world(healthy_node()), SETTINGS), "MIGManagerReady")
    assert condition["message"] == "no node wants it now"
