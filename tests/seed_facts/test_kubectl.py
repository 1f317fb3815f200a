"""Every ``kubectl`` command about the ClusterPolicy that the documents print, given to an API server as it is printed.

The ids in names and comments are those of the checklist of facts; T-nn are its contested statements.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from kgpu.formats.crd import decode
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from tests.charts.conftest import Chart
from tests.formats.crd import samples
from tests.operator.world import healthy_node
from tests.seed_facts.conftest import Kubectl
from tests.seed_facts.support import lacks, planned, told

pytestmark = pytest.mark.timeout(900)
NAME = ("clusterpolicy", "cluster-policy")
SET_CONFIG = (
    '[{"op":"replace","path":"/spec/devicePlugin/config","value":{"name":"time-slicing-config","default":"any"}}]'
)
SET_MIG_CONFIG = '[{"op": "replace", "path": "/spec/migManager/config/name", "value": "custom-mig-config"}]'
MERGE_CONFIG = '{"spec": {"devicePlugin": {"config": {"name": "time-slicing-config", "default": "any"}}}}'


@pytest.fixture
def fresh(kubectl: Kubectl, chart: Chart) -> Iterator[Kubectl]:
    """With the ClusterPolicy as the chart makes it with no option."""
    kubectl("create", "-f", "-", stdin=chart().one("ClusterPolicy", "cluster-policy"))
    yield kubectl
    kubectl("delete", *NAME)


def stored(kubectl: Kubectl) -> ClusterPolicySpec:
    decoded = decode.clusterpolicy(json.loads(kubectl("get", *NAME, "-o", "json")))
    assert decoded.problem is None
    return decoded.spec


def test_a84_t06_the_patch_of_the_lab_succeeds_on_a_fresh_install(fresh: Kubectl) -> None:
    """T-06: on the replaced chart's fresh install the path is not there, and the patch fails."""
    fresh("patch", *NAME, "--type=json", f"-p={SET_CONFIG}")
    config = stored(fresh).device_plugin.config
    assert (config.name, config.default) == ("time-slicing-config", "any")


def test_a85_the_patched_policy_is_shown(fresh: Kubectl) -> None:
    fresh("patch", *NAME, "--type=json", f"-p={SET_CONFIG}")
    shown = yaml.safe_load(fresh("get", *NAME, "-o", "yaml"))
    assert shown["spec"]["devicePlugin"]["config"] == {"name": "time-slicing-config", "default": "any"}


def test_d26_t06_the_mig_managers_configuration_is_patched_by_the_long_name(fresh: Kubectl) -> None:
    fresh("patch", "clusterpolicies.nvidia.com/cluster-policy", "--type=json", "-p", SET_MIG_CONFIG)
    assert stored(fresh).mig_manager.config.name == "custom-mig-config"


def test_d34_the_merge_patch(fresh: Kubectl) -> None:
    fresh("patch", *NAME, "--type=merge", "-p", MERGE_CONFIG)
    config = stored(fresh).device_plugin.config
    assert (config.name, config.default) == ("time-slicing-config", "any")


def test_b32_t05_the_printed_sample_is_applied_as_it_is(kubectl: Kubectl) -> None:
    """T-05: the replaced operator's definition refuses it; here what has no effect is told instead."""
    kubectl("apply", "-f", "-", stdin=samples.PRINTED)
    try:
        spec = stored(kubectl)
    finally:
        kubectl("delete", *NAME)
    assert (spec.driver.version, spec.toolkit.version) == ("550.127.08", "v1.16.2-ubuntu22.04")
    assert (spec.device_plugin.config.name, spec.device_plugin.config.default) == ("device-plugin-config", "default")
    assert (spec.dcgm_exporter.version, spec.gfd.enabled) == ("3.3.8-3.6.0-ubuntu22.04", True)
    assert spec.mig is not None
    assert spec.mig.strategy == "single"


def test_b32_t05_opr14_what_of_the_sample_has_no_effect_is_said() -> None:
    made = planned(yaml.safe_load(samples.PRINTED)["spec"], healthy_node())
    said = told_warnings(made)
    assert lacks(said, "spec.operator.defaultRuntime", "spec.nodeFeatureDiscovery", "nfd.enabled") == []


def told_warnings(made: Any) -> str:
    return "; ".join(one.one_line() for one in told(made, "ManifestWarning"))


def test_opr14_no_section_has_to_be_there(kubectl: Kubectl) -> None:
    """daemonsets, dcgm and nodeStatusExporter, which samples of blogs leave out, are not required."""
    body = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}
    kubectl("create", "-f", "-", stdin={**body, "spec": {"driver": {"enabled": False}}})
    try:
        assert stored(kubectl).driver.enabled is False
    finally:
        kubectl("delete", *NAME)


def test_opr14_an_unknown_field_is_said_with_what_was_meant() -> None:
    made = planned({"driver": {"enabled": False}, "devicePlugn": {"enabled": True}}, healthy_node())
    assert lacks(told_warnings(made), "spec.devicePlugn", 'did you mean "devicePlugin"') == []


def test_opr01_every_field_of_the_policy_is_in_the_definition(kubectl: Kubectl) -> None:
    """What the operator reads is not pruned: a policy with every field comes back whole under strict validation."""
    body = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}
    spec = samples.full("CLUSTERPOLICY")
    kubectl("create", "--validate=strict", "-f", "-", stdin={**body, "spec": spec})
    try:
        assert json.loads(kubectl("get", *NAME, "-o", "json"))["spec"] == spec
    finally:
        kubectl("delete", *NAME)
