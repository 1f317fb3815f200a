"""What values become in the ClusterPolicy, and what is refused before anything is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kgpu.formats.crd import decode, field_support
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.operator.vendors import SERVED, VENDORS
from tests.charts.conftest import CHART, Chart, Object
from tests.charts.value_sets import FILES, SETS


def test_the_documents_defaults(chart: Chart) -> None:
    policy = chart().policy
    for section in ("driver", "toolkit", "dcgmExporter", "cdi", "devicePlugin", "gfd", "migManager"):
        assert policy[section]["enabled"] is True, section
    assert policy["dcgm"]["enabled"] is False
    assert policy["mig"] == {"strategy": "none"}
    assert policy["driver"]["version"]


def test_a_json_patch_of_the_documents_finds_its_place(chart: Chart) -> None:
    """``replace`` fails on a path that is not there: /spec/devicePlugin/config and /spec/migManager/config/name."""
    policy = chart().policy
    assert policy["devicePlugin"]["config"] == {}
    assert policy["migManager"]["config"] == {"name": "", "default": "all-disabled"}


def test_names_of_configurations(chart: Chart) -> None:
    made = chart(values=FILES["ConfigMaps from values"])
    assert made.policy["devicePlugin"]["config"] == {"name": "plugin-configs", "default": "any"}
    assert made.policy["migManager"]["config"]["name"] == "mig-configs"
    assert made.policy["dcgmExporter"]["config"] == {"name": "metrics"}
    assert list(made.one("ConfigMap", "plugin-configs")["data"]) == ["any"]
    assert made.has("ConfigMap", "mig-configs")
    assert made.has("ConfigMap", "metrics")
    named = chart(*SETS["a ConfigMap that is there"])
    assert named.policy["devicePlugin"]["config"] == {"name": "time-slicing-config", "default": "any"}
    assert not named.has("ConfigMap")


def test_the_charts_word_for_the_deletion_of_pods(chart: Chart) -> None:
    policy = chart(*SETS["upgrade policy"]).policy["driver"]["upgradePolicy"]
    assert policy["podDeletion"]["force"] is True
    assert "gpuPodDeletion" not in policy
    assert policy["maxParallelUpgrades"] == 4


def test_what_people_write_without_quotes_is_text(chart: Chart) -> None:
    made = chart("driver.version=550", "daemonsets.rollingUpdate.maxUnavailable=2", *SETS["environment without quotes"])
    assert made.policy["driver"]["version"] == "550"
    assert made.policy["daemonsets"]["rollingUpdate"] == {"maxUnavailable": "2"}
    assert made.policy["toolkit"]["env"] == [{"name": "CONTAINERD_SET_AS_DEFAULT", "value": "true"}]


def test_the_default_nvidiadriver(chart: Chart) -> None:
    made = chart(*SETS["NVIDIADriver"])
    assert made.policy["driver"]["useNvidiaDriverCRD"] is True
    spec = made.one("NVIDIADriver", "default")["spec"]
    assert spec["default"] is True
    assert (spec["repository"], spec["image"]) == ("nvcr.io/nvidia", "driver")
    assert "nodeSelector" not in spec
    assert spec["upgradePolicy"]["podDeletion"]["timeoutSeconds"] == 300
    selected = chart(*SETS["NVIDIADriver with a selector"]).one("NVIDIADriver", "default")["spec"]
    assert selected["default"] is False
    assert selected["nodeSelector"] == {"pool": "a"}
    assert selected["repoConfig"] == {"name": "repos"}
    assert selected["virtualTopologyConfig"] == {"name": "topo"}
    assert not chart(*SETS["NVIDIADriver without its default"]).has("NVIDIADriver")
    assert not chart().has("NVIDIADriver")


def test_extra_objects_are_templates(chart: Chart) -> None:
    made = chart(values=FILES["more objects"])
    assert made.has("ConfigMap", "kgpu-more")
    assert made.one("ConfigMap", "text")["data"] == {"a": "agent"}


UNKNOWN = {
    "drive.enabled=false": "did you mean driver?",
    "driver.enabl=false": "did you mean driver.enabled?",
    "dcgm-exporter.enabled=true": "did you mean dcgmExporter?",
    "deviceplugin.enabled=true": "did you mean devicePlugin?",
    "driver.upgradePolicy.drain.enabled=true": "did you mean driver.upgradePolicy.drain.enable?",
    "daemonsets.tolerations[0].kee=x": "did you mean daemonsets.tolerations[0].key?",
    "mig.stratgy=single": "did you mean mig.strategy?",
}


@pytest.mark.parametrize("one", UNKNOWN)
def test_an_unknown_name_is_refused_with_the_one_that_was_meant(chart: Chart, one: str) -> None:
    made = chart(one)
    assert made.code != 0
    assert f"the chart has no value {one.partition('=')[0].split('.enabled')[0].split('[')[0]}" in made.error
    assert UNKNOWN[one] in made.error


def test_nothing_is_suggested_for_what_is_like_nothing(chart: Chart) -> None:
    made = chart("xyzzy=1")
    assert "the chart has no value xyzzy\n" in made.error


REFUSED = {
    "cdi.nriPluginEnabled=true,cdi.enabled=false": "set cdi.enabled=true",
    "cdi.nriPluginEnabled=true,toolkit.enabled=false": "set toolkit.enabled=true",
    "devicePlugin.config.create=true": "give them in devicePlugin.config.data",
    "devicePlugin.config.create=true,devicePlugin.config.data.a=b": "set devicePlugin.config.name",
    "devicePlugin.config.create=true,devicePlugin.config.name=x,devicePlugin.config.data.a=b: c,"
    "devicePlugin.config.default=c": "expected: one of: a",
    "migManager.config.create=true": "give them in migManager.config.data",
    "dcgmExporter.config.create=true,dcgmExporter.config.data.a=b": "set dcgmExporter.config.name",
    "operations.remediation.drain.onTimeout=Force": "set operations.allowForce=true",
    "operations.allowForce=maybe": "'/operations/allowForce'",
    "gpuCluster.deployCR=true": "kgpu has no GPUCluster yet",
    "layout=both": "'/layout'",
    "mig.strategy=some": "'/mig/strategy'",
    "driver.enabled=maybe": "'/driver/enabled'",
    "daemonsets.updateStrategy=Never": "'/daemonsets/updateStrategy'",
    "operator.logging.level=loud": "'/operator/logging/level'",
    "image.repository=": "'/image/repository'",
    "image.repository=reg.io/kgpu:1.0": "without tag or digest",
    "image.tag=a b": 'image.tag is "a b"',
    "image.digest=xyz": "sha256: and 64 hexadecimal digits",
    "image=null": "image is empty",
    "operator=null": "operator is empty",
    "operator.logging=null": "operator.logging is empty",
    "daemonsets.rollingUpdate.maxUnavailable=abc": "a number of pods such as 1",
    "daemonsets.rollingUpdate.maxUnavailable=-1": "a number of pods such as 1",
    "daemonsets.rollingUpdate.maxUnavailable=0%": "more than 0",
    "driver.upgradePolicy.maxUnavailable=-5": "a number of nodes such as 1",
    "driver.upgradePolicy.maxParallelUpgrades=-1": "'/driver/upgradePolicy/maxParallelUpgrades'",
    "devicePlugin.config.name=My_Config": "a name in lower case",
    "devicePlugin.config.create=true,devicePlugin.config.name=x,devicePlugin.config.data.a=words": "no YAML mapping",
    "devicePlugin.config.create=true,devicePlugin.config.name=x,devicePlugin.config.data.a=b: [": "no YAML mapping",
    "devicePlugin.config.create=true,devicePlugin.config.name=x,devicePlugin.config.data.a/b=c: d": 'is "a/b"',
    "operator.resources.limits.memory=lots": "operator.resources.limits.memory is",
    "driver.resources.requests.cpu=-1": "a quantity such as",
    "operator.resources.limit.memory=1Gi": "did you mean operator.resources.limits?",
    "hostPaths.driverInstallDir=run/nvidia": "an absolute path",
    "hostPaths.kubeletRootDir=/var/../lib": "an absolute path",
    "driver.manager.env[0].name=A=B": "driver.manager.env[0].name",
    "validator.cuda.env[0].name=A=B": "validator.cuda.env[0].name",
    "imagePullSecrets[0]=A_b": "imagePullSecrets[0]",
}
# What looks odd, and is allowed.
TAKEN = (
    "operations.remediation.drain.onTimeout=Force,operations.allowForce=true",
    "image.repository=localhost:5000/kgpu",
    "image.repository=[::1]:5000/a/b_c",
    "image.tag=1.10",
    "hostPaths.driverInstallDir=/run/.driver/a..b/",
    "driver.upgradePolicy.maxUnavailable=0",
    "daemonsets.rollingUpdate.maxUnavailable=100%",
    "operator.resources.limits.memory=1073741824",
    "toolkit.env[0].name=with.dots-and-dashes,toolkit.env[0].value=1",
)


@pytest.mark.parametrize("sets", TAKEN)
def test_what_is_allowed_is_taken(chart: Chart, sets: str) -> None:
    assert chart(sets).objects


def sections(values: Object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield (*path, name)
            yield from sections(value, (*path, name))


def test_a_section_without_values_is_refused_or_has_no_effect(chart: Chart) -> None:
    """``cdi:`` and nothing below it takes the chart's own values away; no template may trip over that."""
    outer = [path for path in sections(defaults()) if len(path) == 1]
    for path in [*outer, ("operator", "logging"), ("driver", "upgradePolicy"), ("devicePlugin", "config")]:
        values: Any = None
        for name in reversed(path):
            values = {name: values}
        made = chart(values=values)
        assert made.code == 0 or f"{'.'.join(path)} is empty" in made.error, made.error


@pytest.mark.parametrize("sets", REFUSED)
def test_what_cannot_work_is_refused(chart: Chart, sets: str) -> None:
    made = chart(sets)
    assert made.code != 0
    assert REFUSED[sets] in made.error


def test_an_old_kubernetes_is_refused(chart: Chart) -> None:
    made = chart(words=("--kube-version", "v1.27.9"))
    assert "kubeVersion" in made.error


def test_the_notes_say_where_to_look(helm: str) -> None:
    text = (CHART / "templates" / "NOTES.txt").read_text()
    for hint in ("kubectl get clusterpolicy", "kgpu status", "helm uninstall"):
        assert hint in text


def notes(helm: str, tmp_path: Path, *sets: str) -> str:
    """What NOTES.txt says, which ``helm template`` does not print: as a text of an object, in a copy of the chart."""
    copy = tmp_path / "chart"
    shutil.copytree(CHART, copy, dirs_exist_ok=True)
    text = (CHART / "templates" / "NOTES.txt").read_text()
    shown = (
        f'{{{{- define "shown" -}}}}\n{text}{{{{- end -}}}}\nkind: Notes\ntext: {{{{ include "shown" . | toJson }}}}\n'
    )
    (copy / "templates" / "shown.yaml").write_text(shown)
    command = [
        helm,
        "template",
        "kgpu",
        str(copy),
        "--namespace",
        "gpu-operator",
        "--show-only",
        "templates/shown.yaml",
    ]
    env = {**os.environ, "HELM_CACHE_HOME": str(tmp_path), "HELM_CONFIG_HOME": str(tmp_path)}
    for one in sets:
        command += ["--set", one]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    return str(yaml.safe_load(done.stdout)["text"])


@pytest.mark.parametrize("served", [["amd"], ["gaudi", "intel"], ["nvidia"], ["nvidia", "amd", "gaudi"]])
def test_the_notes_speak_of_the_vendors_that_are_served(helm: str, tmp_path: Path, served: list[str]) -> None:
    value = "null" if frozenset(served) == SERVED else f"{{{','.join(served)}}}"
    shown = notes(helm, tmp_path, f"vendors={value}", "driver.enabled=true")
    (line,) = [line for line in shown.splitlines() if "custom-columns" in line]
    offered = [
        name for vendor in served for name in dict.fromkeys((VENDORS[vendor].resource, *VENDORS[vendor].resources))
    ]
    columns = [f"{name}:.status.allocatable.{name.replace('.', chr(92) + '.')}" for name in offered if "*" not in name]
    assert line.strip() == f"kubectl get nodes -o custom-columns='NODE:.metadata.name,{','.join(columns)}'"
    assert ("NVIDIA" in shown) is ("nvidia" in served)


def test_the_notes_name_values_of_which_nothing_comes(helm: str, tmp_path: Path) -> None:
    assert "nothing comes of them" not in notes(helm, tmp_path)
    told = notes(
        helm, tmp_path, "dcgm.enabled=true", "vgpuManager.enabled=true",
        "vgpuDeviceManager.config.name=mine", "migManager.enabled=true", "toolkit.installDir=/opt/x",
    )  # fmt: skip
    named = {
        line.strip().partition(":")[0]
        for line in told.partition("(condition FieldsProvided):")[2].partition("\n\n")[0].splitlines()
    }
    assert {"dcgm.enabled", "vgpuManager.enabled"} <= named
    assert "migManager.enabled" not in named


def test_the_notes_name_values_of_the_subchart_that_change_nothing(helm: str, tmp_path: Path) -> None:
    assert "change nothing" not in notes(helm, tmp_path)
    discovery = ("worker.tolerations[0].key=a", "worker.config.core.klog.v=1", "gc.enable=true", "gc.replicaCount=1",
                 "topologyUpdater.enable=true", "priorityClassName=high", "master.config.extraLabelNs[0]=nvidia.com",
                 "master.serviceAccount.create=true", "featureGates.NodeFeatureGroupAPI=true")  # fmt: skip

    def told(*more: str) -> dict[str, str]:
        shown = notes(helm, tmp_path, *(f"node-feature-discovery.{one}" for one in discovery), *more)
        lines = shown.partition("finds node features itself:")[2].partition("\n\n")[0].strip().splitlines()
        return {
            path.strip().removeprefix("node-feature-discovery."): say
            for path, _, say in (one.partition(": ") for one in lines)
        }

    gone = "kgpu has no pods of node feature discovery"
    always = {
        "worker.tolerations": "set daemonsets.tolerations", "gc.enable": gone, "gc.replicaCount": gone,
        "priorityClassName": "set daemonsets.priorityClassName and operator.priorityClassName", "master.serviceAccount": gone,
        "topologyUpdater": "kgpu makes no NodeResourceTopologies; install node feature discovery's own chart beside it with "
        "nothing but its topologyUpdater",
    }  # fmt: skip
    rules = dict.fromkeys(("master.config", "featureGates"), "set nfd.nodefeaturerules=true")
    assert told() == {**always, **rules}
    assert told("nfd.nodefeaturerules=true") == always
    assert told("nfd.enabled=false") == {**always, **rules, "worker.config": "set nfd.enabled=true"}


def test_the_notes_and_the_policy_s_condition_name_the_same(helm: str, chart: Chart, tmp_path: Path) -> None:
    sets = ("driver.upgradePolicy.maxParallelUpgrades=0", "sandboxWorkloads.enabled=true", "dcgm.enabled=true",
            "vgpuManager.enabled=true", "ccManager.enabled=true", "ccManager.defaultMode=off",
            "gds.enabled=true")  # fmt: skip
    told = notes(helm, tmp_path, *sets).partition("(condition FieldsProvided):")[2].partition("\n\n")[0]
    policy = decode.clusterpolicy({"metadata": {"name": "p"}, "spec": chart(*sets).policy})
    said = {
        f"spec.{path}": says for path, _, says in (one.strip().partition(": ") for one in told.splitlines()) if path
    }
    assert said == {path: field_support.instead(ClusterPolicySpec, path) for path in policy.unbuilt}
    assert all(said.values())
    assert {"spec.dcgm.enabled", "spec.sandboxWorkloads.enabled"} <= said.keys()


def defaults() -> Object:
    return yaml.safe_load((CHART / "values.yaml").read_text())


# The names that a values file of NVIDIA's chart may have.
NAMES = """
platform.openshift nfd.enabled nfd.nodefeaturerules psa.enabled cdi.enabled cdi.nriPluginEnabled
sandboxWorkloads.enabled sandboxWorkloads.defaultWorkload sandboxWorkloads.mode hostPaths.rootFS
hostPaths.driverInstallDir daemonsets.labels daemonsets.annotations daemonsets.priorityClassName daemonsets.tolerations
daemonsets.updateStrategy daemonsets.rollingUpdate.maxUnavailable validator.plugin.env operator.priorityClassName
operator.runtimeClass operator.nodeSelector operator.use_ocp_driver_toolkit operator.cleanupCRD operator.upgradeCRD
operator.tolerations operator.affinity operator.annotations operator.logging.timeEncoding operator.logging.level
operator.logging.develMode operator.resources mig.strategy driver.enabled driver.nvidiaDriverCRD.enabled
driver.nvidiaDriverCRD.deployDefaultCR driver.nvidiaDriverCRD.driverType driver.nvidiaDriverCRD.nodeSelector
driver.kernelModuleType driver.usePrecompiled driver.repository driver.image driver.version driver.startupProbe
driver.rdma.enabled driver.upgradePolicy.autoUpgrade driver.upgradePolicy.maxParallelUpgrades
driver.upgradePolicy.maxUnavailable driver.upgradePolicy.waitForCompletion driver.upgradePolicy.gpuPodDeletion
driver.upgradePolicy.drain driver.manager.version driver.repoConfig.configMapName driver.certConfig.name
driver.licensingConfig.secretName driver.licensingConfig.nlsEnabled driver.virtualTopology.config
driver.kernelModuleConfig.name driver.secretEnv driver.hostNetwork toolkit.enabled toolkit.installDir
devicePlugin.enabled devicePlugin.config.create devicePlugin.config.name devicePlugin.config.default
devicePlugin.config.data devicePlugin.mps.root dcgm.enabled dcgmExporter.enabled
dcgmExporter.service.internalTrafficPolicy dcgmExporter.serviceMonitor.enabled gfd.enabled migManager.enabled
migManager.config.default migManager.config.create migManager.config.name migManager.config.data
migManager.gpuClientsConfig.name nodeStatusExporter.enabled gds.enabled gdrcopy.enabled vgpuManager.enabled
vgpuDeviceManager.enabled vfioManager.enabled kataManager.enabled sandboxDevicePlugin.enabled
kataSandboxDevicePlugin.enabled ccManager.enabled ccManager.defaultMode clusterPolicy.deployCR gpuCluster.deployCR
draDriver extraObjects node-feature-discovery
"""


@pytest.mark.parametrize("path", NAMES.split())
def test_a_name_of_the_replaced_chart_is_there(path: str) -> None:
    value = defaults()
    for part in path.split("."):
        assert part in value
        value = value[part]
