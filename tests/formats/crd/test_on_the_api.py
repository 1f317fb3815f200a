"""The definitions at work: what documents print is taken by an API server, what breaks a rule is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kgpu.formats.crd.decode import clusterpolicy, nvidiadriver
from kgpu.formats.crd.definitions import crds
from kgpu.lab.embedded.lab import EmbeddedLab
from tests.formats.crd import samples

pytestmark = pytest.mark.timeout(120)
Raw = dict[str, Any]


@pytest.fixture(scope="module")
def lab(server: EmbeddedLab) -> EmbeddedLab:
    """With the definitions."""
    done = crds_command(server, "apply")
    assert done.returncode == 0, done.stderr
    return server


def kubectl(lab: EmbeddedLab, *words: str, stdin: Any = None) -> str:
    text = stdin if stdin is None or isinstance(stdin, str) else json.dumps(stdin)
    done = lab.kubectl_run(*words, stdin=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(lab: EmbeddedLab, *words: str, stdin: Any = None) -> str:
    done = lab.kubectl_run(*words, stdin=None if stdin is None else json.dumps(stdin))
    assert done.returncode != 0, done.stdout
    return done.stderr


def policy(name: str, **spec: Any) -> Raw:
    return {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": name}, "spec": spec}


def driver(name: str, **spec: Any) -> Raw:
    return {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": name}, "spec": spec}


def stored(lab: EmbeddedLab, what: str, name: str) -> Raw:
    return json.loads(kubectl(lab, "get", what, name, "-o", "json"))


def test_the_documents_sample_is_applied_as_it_is_printed(lab: EmbeddedLab) -> None:
    kubectl(lab, "apply", "-f", "-", stdin=samples.PRINTED)
    found = clusterpolicy(stored(lab, "clusterpolicy", "cluster-policy"))
    assert found.problem is None
    assert found.spec.toolkit.install_dir == "/usr/local/nvidia"
    assert found.spec.device_plugin.config.name == "device-plugin-config"


def test_the_documents_patches_work_on_a_policy_that_says_nothing(lab: EmbeddedLab) -> None:
    kubectl(lab, "create", "-f", "-", stdin={key: value for key, value in policy("bare").items() if key != "spec"})
    config = (
        '[{"op":"replace","path":"/spec/devicePlugin/config","value":{"name":"time-slicing-config","default":"any"}}]'
    )
    kubectl(lab, "patch", "clusterpolicy", "bare", "--type=json", f"-p={config}")
    layout = '[{"op":"replace","path":"/spec/migManager/config/name","value":"custom-mig-config"}]'
    kubectl(lab, "patch", "clusterpolicy", "bare", "--type=json", f"-p={layout}")
    found = clusterpolicy(stored(lab, "clusterpolicy", "bare")).spec
    assert (found.device_plugin.config.name, found.device_plugin.config.default) == ("time-slicing-config", "any")
    assert found.mig_manager.config.name == "custom-mig-config"


def test_an_empty_section_is_kept(lab: EmbeddedLab) -> None:
    kubectl(lab, "apply", "-f", "-", stdin=policy("empty", devicePlugin={"config": {}}, mig={}, hostPaths={}))
    spec = stored(lab, "clusterpolicy", "empty")["spec"]
    assert spec["devicePlugin"] == {"config": {}}
    assert spec["mig"] == {}
    assert spec["hostPaths"] == {"kubeletRootDir": "/var/lib/kubelet"}


def test_every_field_is_taken_and_comes_back(lab: EmbeddedLab) -> None:
    for what, make, block in (
        ("clusterpolicy", policy, "CLUSTERPOLICY"),
        ("nvidiadriver", driver, "NVIDIADRIVER"),
    ):
        spec = samples.full(block)
        if what == "nvidiadriver":
            del spec["nodeSelector"]  # the default one must not have it
        kubectl(lab, "apply", "--validate=strict", "-f", "-", stdin=make("full", **spec))
        assert stored(lab, what, "full")["spec"] == spec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"mig": {"strategy": "mixt"}}, 'spec.mig.strategy: Unsupported value: "mixt"'),
        ({"driver": {"kernelModuleType": "closed"}}, "spec.driver.kernelModuleType"),
        ({"driver": {"image": "§"}}, "spec.driver.image"),
        ({"driver": {"startupProbe": {"periodSeconds": 0}}}, "should be greater than or equal to 1"),
        ({"driver": {"env": [{"value": "x"}]}}, "spec.driver.env[0].name: Required value"),
        ({"driver": {"enabled": "yes"}}, 'spec.driver.enabled in body must be of type boolean: "string"'),
        ({"daemonsets": {"rollingUpdate": {"maxUnavailable": 1}}}, "must be of type string"),
        ({"gfd": {"resources": {"limits": {"cpu": "much"}}}}, "spec.gfd.resources.limits.cpu"),
        ({"dcgmExporter": {"serviceMonitor": {"interval": "often"}}}, "spec.dcgmExporter.serviceMonitor.interval"),
        ({"devicePlugin": {"konfig": {}}}, 'unknown field "spec.devicePlugin.konfig"'),
    ],
)
def test_a_policy_that_breaks_a_rule_is_refused(lab: EmbeddedLab, spec: Raw, message: str) -> None:
    assert message in refused(lab, "apply", "-f", "-", stdin=policy("wrong", **spec))
    assert "unknown field" in message or clusterpolicy(policy("wrong", **spec)).problem


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"daemonsets": {"rollingUpdate": {"maxUnavailable": "abc"}}}, "a number of pods such as '1'"),
        ({"daemonsets": {"rollingUpdate": {"maxUnavailable": "-1"}}}, "a number of pods such as '1'"),
        ({"daemonsets": {"rollingUpdate": {"maxUnavailable": "0%"}}}, "more than 0"),
        ({"driver": {"upgradePolicy": {"maxUnavailable": -5}}}, "it can't be less than 0"),
        ({"hostPaths": {"driverInstallDir": "run/nvidia"}}, "an absolute path"),
    ],
)
def test_what_only_one_operand_would_trip_over_is_refused_and_yet_readable(
    lab: EmbeddedLab, spec: Raw, message: str
) -> None:
    assert message in refused(lab, "apply", "-f", "-", stdin=policy("wrong", **spec))
    assert not clusterpolicy(policy("wrong", **spec)).problem


@pytest.mark.parametrize(
    "spec",
    [
        {"daemonsets": {"rollingUpdate": {"maxUnavailable": "10%"}}, "hostPaths": {"driverInstallDir": ""}},
        {"daemonsets": {"rollingUpdate": {"maxUnavailable": "10"}}, "hostPaths": {"rootFS": "/"}},
        {"daemonsets": {"rollingUpdate": {"maxUnavailable": ""}}, "driver": {"upgradePolicy": {"maxUnavailable": 0}}},
        {"driver": {"upgradePolicy": {"maxUnavailable": "25%"}}},
    ],
)
def test_what_has_always_worked_is_taken(lab: EmbeddedLab, spec: Raw) -> None:
    kubectl(lab, "apply", "-f", "-", stdin=policy("right", **spec))


def test_a_drivers_type_stays(lab: EmbeddedLab) -> None:
    kubectl(lab, "apply", "-f", "-", stdin=driver("typed", driverType="vgpu", usePrecompiled=False))
    kubectl(lab, "apply", "-f", "-", stdin=driver("typed", driverType="vgpu", usePrecompiled=False, version="570"))
    said = refused(lab, "apply", "-f", "-", stdin=driver("typed", driverType="gpu", usePrecompiled=False))
    assert "driverType is immutable" in said
    said = refused(lab, "apply", "-f", "-", stdin=driver("typed", driverType="vgpu", usePrecompiled=True))
    assert "usePrecompiled is immutable" in said


def test_the_default_driver_selects_no_nodes(lab: EmbeddedLab) -> None:
    said = refused(lab, "apply", "-f", "-", stdin=driver("chosen", default=True, nodeSelector={"a": "b"}))
    assert "the default NVIDIADriver can't have a nodeSelector" in said
    kubectl(lab, "apply", "-f", "-", stdin=driver("chosen", default=True, nodeSelector={}))
    kubectl(lab, "apply", "-f", "-", stdin=driver("pool", nodeSelector={"a": "b"}))
    found = nvidiadriver(stored(lab, "nvd", "pool"))
    assert found.problem is None
    assert found.spec.image == "nvcr.io/nvidia/driver"


def test_kubectl_explains_the_fields(lab: EmbeddedLab) -> None:
    text = kubectl(lab, "explain", "clusterpolicy.spec.driver")
    for field in ("kernelModuleType", "useNvidiaDriverCRD", "upgradePolicy"):
        assert field in text
    assert "mixed" in kubectl(lab, "explain", "clusterpolicy.spec.mig.strategy")
    assert "nodeSelectorTerms" in kubectl(lab, "explain", "nvidiadriver.spec.nodeAffinity", "--recursive")


def test_the_status_is_written_apart_and_shown(lab: EmbeddedLab) -> None:
    kubectl(lab, "apply", "-f", "-", stdin=policy("shown"))
    condition = {
        "type": "Ready", "status": "False", "reason": "OperandNotReady", "message": "ClusterPolicy is not ready",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    status = {"state": "notReady", "conditions": [condition], "nodes": {"total": 3, "gpu": 2, "validated": 1}}
    body = json.dumps({"status": status})
    kubectl(lab, "patch", "clusterpolicy", "shown", "--subresource=status", "--type=merge", "-p", body)
    assert stored(lab, "clusterpolicy", "shown")["status"] == status
    head, row = kubectl(lab, "get", "clusterpolicy", "shown", "-o", "wide").splitlines()
    assert head.split() == ["NAME", "STATUS", "GPU-NODES", "VALIDATED", "MESSAGE", "AGE"]
    assert row.split()[:4] == ["shown", "notReady", "2", "1"]
    assert "ClusterPolicy is not ready" in row
    assert kubectl(lab, "get", "clusterpolicy", "shown").split()[:3] == ["NAME", "STATUS", "AGE"]
    wrong = json.dumps({"status": {**status, "state": "fine"}})
    said = refused(lab, "patch", "clusterpolicy", "shown", "--subresource=status", "--type=merge", "-p", wrong)
    assert 'status.state: Unsupported value: "fine"' in said


def crds_command(server: EmbeddedLab, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kgpu", "crds", *words, "--kubeconfig", str(server.kubeconfig)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def of_group(group: str) -> Raw:
    """ClusterPolicy's definition under a group of the test's own."""
    definition = crds()[0]
    definition["metadata"]["name"] = f"clusterpolicies.{group}"
    definition["spec"]["group"] = group
    return definition


def test_a_definition_of_somebody_else_is_taken_over(server: EmbeddedLab, tmp_path: Path) -> None:
    theirs = of_group("theirs.example.com")
    schema = theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    schema["required"] = ["daemonsets"]
    del schema["default"], schema["properties"]["daemonsets"]["default"]
    kubectl(server, "create", "-f", "-", stdin=theirs)
    kubectl(server, "wait", "--for=condition=Established", f"crd/{theirs['metadata']['name']}", "--timeout=30s")
    body = {**policy("theirs"), "apiVersion": "theirs.example.com/v1"}
    assert "spec.daemonsets: Required value" in refused(server, "create", "-f", "-", stdin=body)
    file = tmp_path / "crd.json"
    file.write_text(json.dumps(of_group("theirs.example.com")))
    done = crds_command(server, "apply", "-f", str(file))
    assert done.returncode == 0, done.stderr
    kubectl(server, "create", "-f", "-", stdin=body)


def test_definitions_of_files_come_and_go(server: EmbeddedLab, tmp_path: Path) -> None:
    file = tmp_path / "crd.json"
    file.write_text(json.dumps(of_group("example.com")))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return crds_command(server, *words, "-f", str(file))

    assert run("apply").stdout == "clusterpolicies.example.com is installed\n"
    kubectl(server, "apply", "-f", "-", stdin={**policy("going"), "apiVersion": "example.com/v1"})
    found = run("delete")
    assert found.returncode == 2
    assert "going" in found.stderr
    assert run("delete", "--force").stdout == "clusterpolicies.example.com is deleted\n"
    assert run("delete").stdout == "clusterpolicies.example.com is not there\n"
