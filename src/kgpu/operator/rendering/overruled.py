"""Fields of a policy that another of its fields leaves without effect: which, by what, and what to do instead.

Only what asks for something is named. What the chart writes into every policy is not, images and the timing of probes
among it, so that one value changed gives one warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec, Driver
from kgpu.formats.crd.common import Drain, PodDeletion, UpgradePolicy, WaitForCompletion

USUAL_PODS: Final = ("", "1")
"""What the chart writes for ``rollingUpdate.maxUnavailable``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overruled:
    """``fields`` are dotted paths below ``spec``; ``why`` names the field that overrules them."""

    fields: tuple[str, ...]
    why: str
    remedy: str


def overruled(spec: ClusterPolicySpec) -> Iterator[Overruled]:
    """All of a policy, in a stable order."""
    exporter = spec.dcgm_exporter
    if exporter.pod_label_allowlist_regex and exporter.enabled is not False and not exporter.enable_pod_labels:
        yield Overruled(
            fields=("dcgmExporter.podLabelAllowlistRegex",),
            why="metrics have labels of pods only where dcgmExporter.enablePodLabels is true",
            remedy="set dcgmExporter.enablePodLabels: true, or remove the list",
        )
    rolling = spec.daemonsets.rolling_update
    if spec.daemonsets.update_strategy == "OnDelete" and rolling and rolling.max_unavailable not in (None, *USUAL_PODS):
        yield Overruled(
            fields=("daemonsets.rollingUpdate.maxUnavailable",),
            why="daemonsets.updateStrategy is OnDelete",
            remedy="set daemonsets.updateStrategy: RollingUpdate, or remove maxUnavailable",
        )
    if spec.driver.use_nvidia_driver_crd and spec.driver.enabled is not False:
        fields = tuple(_of_driver(spec))
        if fields:
            yield Overruled(
                fields=fields,
                why="driver.useNvidiaDriverCRD is true, and NVIDIADriver objects say what drivers are like",
                remedy="set it in the NVIDIADriver objects, or set driver.useNvidiaDriverCRD: false",
            )


def _of_driver(spec: ClusterPolicySpec) -> Iterator[str]:
    driver = spec.driver
    asked: dict[str, object] = {
        "kernelModuleType": driver.kernel_module_type != "auto",
        "usePrecompiled": driver.use_precompiled,
        "rdma.enabled": driver.rdma and driver.rdma.enabled,
        "env": driver.env,
        "args": driver.args,
        "secretEnv": driver.secret_env,
        "resources": driver.resources and (driver.resources.limits or driver.resources.requests),
        "hostNetwork": driver.host_network,
        "imagePullSecrets": driver.image_pull_secrets,
        "manager.imagePullSecrets": driver.manager and driver.manager.image_pull_secrets,
        **_files(driver),
        **_upgrades(driver.upgrade_policy or UpgradePolicy()),
    }
    yield from (f"driver.{name}" for name, value in asked.items() if value)
    for name, beside in (("gds", spec.gds), ("gdrcopy", spec.gdrcopy)):
        if beside is not None and beside.enabled:
            yield f"{name}.enabled"


def _upgrades(policy: UpgradePolicy) -> dict[str, object]:
    """What of the upgrade policy differs from what the chart writes; each NVIDIADriver has one of its own."""
    usual = UpgradePolicy(wait_for_completion=WaitForCompletion(), pod_deletion=PodDeletion(), drain=Drain())
    rows: dict[str, object] = {
        "upgradePolicy.maxParallelUpgrades": policy.max_parallel_upgrades != usual.max_parallel_upgrades,
        "upgradePolicy.maxUnavailable": policy.max_unavailable not in (None, "", usual.max_unavailable),
    }
    for block in ("wait_for_completion", "pod_deletion", "drain"):
        asked, known = getattr(policy, block), getattr(usual, block)
        for field in msgspec.structs.fields(known):
            path = f"upgradePolicy.{_CAMEL[block]}.{field.encode_name}"
            rows[path] = asked is not None and getattr(asked, field.name) != getattr(known, field.name)
    return rows


_CAMEL: Final = {"wait_for_completion": "waitForCompletion", "pod_deletion": "podDeletion", "drain": "drain"}


def _files(driver: Driver) -> dict[str, object]:
    """ConfigMaps and Secrets that a driver container gets."""
    licence = driver.licensing_config
    return {
        "repoConfig.configMapName": driver.repo_config and driver.repo_config.config_map_name,
        "certConfig.name": driver.cert_config and driver.cert_config.name,
        "virtualTopology.config": driver.virtual_topology and driver.virtual_topology.config,
        "kernelModuleConfig.name": driver.kernel_module_config and driver.kernel_module_config.name,
        "licensingConfig.configMapName": licence and licence.config_map_name,
        "licensingConfig.secretName": licence and licence.secret_name,
    }
