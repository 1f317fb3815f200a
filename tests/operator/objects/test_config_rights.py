"""Which ConfigMaps accounts may read: the agents' own, and what the policy names for what they run."""

from __future__ import annotations

import pytest

from kgpu.operator.model import ObservedCluster, OperatorSettings
from tests.operator import account_rights
from tests.operator.objects.scenes import HOST_DRIVER, OPERANDS, SETTINGS, Case, policy

AGENT = "kgpu-agent"
EXPORTER, PLUGIN, LABELS = "nvidia-dcgm-exporter", "nvidia-device-plugin", "nvidia-gpu-feature-discovery"
MIG_MANAGER = "nvidia-mig-manager"
VALIDATOR, FINDER = "nvidia-operator-validator", "kgpu-node-features"


LAYOUTS = {"default-mig-parted-config", "default-gpu-clients"}
"""What the MIG manager reads in every cluster."""


def readable(settings: OperatorSettings, spec: str, account: str) -> set[str]:
    """The names of ConfigMaps to which the operator lets the account; "" for all of them."""
    case = Case(policy=policy(f"{HOST_DRIVER}\n{spec}"), settings=settings, observed=ObservedCluster())
    found = case.rendered()
    assert found.errors == {}
    rights = account_rights.rights_of(account, found.objects)
    return {name for _, (resource, name, _) in _all(rights) if resource == "configmaps"}


def _all(rights: account_rights.Rights) -> list[tuple[str, account_rights.Right]]:
    return [(namespace, right) for namespace, found in rights.items() for right in found]


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("{}", set()),
        ("dcgmExporter: {config: {name: counters}}", {"counters"}),
        ("dcgmExporter: {env: [{name: DCGM_EXPORTER_CONFIGMAP_DATA, value: 'gpu-operator:by-env'}]}", {"by-env"}),
        ("dcgmExporter: {args: [-m, 'gpu-operator:by-flag', --no-hostname]}", {"by-flag"}),
        ("dcgmExporter: {args: [--configmap-data=gpu-operator:by-flag]}", {"by-flag"}),
        ("dcgmExporter: {config: {name: counters}, args: ['-m=gpu-operator:by-flag']}", {"counters", "by-flag"}),
        ("dcgmExporter: {args: [-m, 'elsewhere:theirs']}", set()),
        ("dcgmExporter: {args: [-m]}", set()),
    ],
)
def test_the_exporter_reads_its_counters(spec: str, named: set[str]) -> None:
    spec = "" if spec == "{}" else spec
    assert readable(SETTINGS, spec, AGENT) == named | LAYOUTS  # the chart has its right to the agents' own
    assert readable(OPERANDS, spec, EXPORTER) == {AGENT, *named}
    for account in (PLUGIN, LABELS, VALIDATOR, FINDER):
        assert readable(OPERANDS, spec, account) == {AGENT}


def test_plugin_and_labels_read_the_plugins_configurations() -> None:
    spec = "devicePlugin: {config: {name: shares}}"
    assert readable(SETTINGS, spec, AGENT) == {"shares"} | LAYOUTS
    for account in (PLUGIN, LABELS):
        assert readable(OPERANDS, spec, account) == {AGENT, "shares"}
    for account in (EXPORTER, VALIDATOR, FINDER):
        assert readable(OPERANDS, spec, account) == {AGENT}


def test_what_is_switched_off_reads_nothing() -> None:
    spec = "dcgmExporter: {enabled: false, config: {name: counters}}\nmigManager: {enabled: false}"
    assert readable(SETTINGS, spec, AGENT) == set()


def test_the_mig_manager_reads_the_layouts_that_the_policy_names() -> None:
    spec = "migManager: {config: {name: ours}, gpuClientsConfig: {name: services}}"
    assert readable(SETTINGS, spec, AGENT) == {"ours", "services"}
    assert readable(OPERANDS, spec, MIG_MANAGER) == {AGENT}, "its pod has them as folders"
