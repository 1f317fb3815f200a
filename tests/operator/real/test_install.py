"""The chart on a real cluster: from ``helm install`` to GPUs, and away again without a trace."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kgpu.cli.doctor import snapshot_of
from kgpu.doctor.model import Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.render import as_text
from kgpu.formats import names
from kgpu.kube.port import Object
from kgpu.lab.real.configs import PAUSE_IMAGE
from tests.operator.real.conftest import Site, is_ready
from tests.operator.real.picture import difference, take

IMAGE = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"
# Empty folders that the kubelet made for mounts stay, and so does what it writes down itself.
HOST_FILES = (
    "find /run/nvidia /var/run/cdi /etc/cdi /var/lib/kgpu /var/lib/kubelet/device-plugins "
    "! -type d ! -name kubelet_internal_checkpoint 2>/dev/null"
)
# Reasons of Warnings that nothing outside of kgpu gives cause for.
OUR_FAULT = ("ApplyFailed", "PodNotShown")


@dataclass
class Story:
    """One installation, from before to after; ``seconds`` from ``helm install`` to 8 GPUs."""

    site: Site
    before: dict
    host_before: set[str]
    events_before: set[str]
    seconds: float


def host_files(site: Site) -> set[str]:
    return set(site.shell(f"{HOST_FILES} || true").splitlines())


@pytest.fixture(scope="module")
def story(site: Site) -> Iterator[Story]:
    site.gone()
    before, host = take(site.lab), host_files(site)
    events = {one["metadata"]["uid"] for one in site.get("events", "-A")["items"]}
    begun = time.monotonic()
    site.install()
    site.until(lambda: site.allocatable() == "8", "8 GPUs to be allocatable")
    seconds = time.monotonic() - begun
    print(f"from helm install to nvidia.com/gpu: 8 allocatable: {seconds:.1f} s")
    yield Story(site, before, host, events, seconds)
    if site.installed():
        site.uninstall()


def test_the_node_offers_its_gpus_and_the_policy_is_ready(story: Story) -> None:
    story.site.ready()
    conditions = story.site.conditions()
    assert conditions["Ready"]["status"] == "True"
    assert conditions["Ready"]["message"] == (
        "ClusterPolicy is ready as all resources have been successfully reconciled"
    )
    assert conditions["Error"]["status"] == "False"


def test_every_gpu_has_passed_before_the_policy_is_ready(story: Story) -> None:
    story.site.ready()
    node = story.site.lab.node()
    validated = next(one for one in node["status"]["conditions"] if one["type"] == names.VALIDATED_CONDITION)
    assert validated["status"] == "True"
    assert "8 of 8" in validated["message"]


def test_nothing_is_refused_and_kgpus_own_checks_are_no_strangers(story: Story) -> None:
    """Warnings of probes that came late are left out: a busy machine may cause them."""
    story.site.ready()
    told = [one for one in story.site.get("events", "-A")["items"] if one["metadata"]["uid"] not in story.events_before]
    warned = [f"{one['involvedObject']['name']}: {one['message']}" for one in told if one["reason"] in OUR_FAULT]
    assert warned == []


def test_pods_run_and_none_restarted(story: Story) -> None:
    story.site.ready()

    def apps() -> list[str]:
        return sorted(pod["metadata"]["labels"]["app"] for pod in story.site.get("pods", "-n", "gpu-operator")["items"])

    # The finder, which has made room for the agent, may still be ending.
    story.site.until(lambda: apps() == ["gpu-operator", "kgpu-agent"], "one pod of kgpu's on the node")
    pods = story.site.get("pods", "-n", "gpu-operator")["items"]
    for pod in pods:
        assert pod["status"]["phase"] == "Running"
        assert [one["restartCount"] for one in pod["status"]["containerStatuses"]] == [0]
    # What a document tells its readers to wait with.
    story.site.lab.kubectl("-n", "gpu-operator", "wait", "--for=condition=Ready", "pods", "--all", "--timeout=60s")


def test_a_pod_with_two_gpus(story: Story) -> None:
    story.site.ready()
    text = story.site.run_pod("two", gpus=2)
    assert "Test PASSED" in text
    assert text.count("compute capability") == 2


def test_the_doctor_finds_nothing(story: Story) -> None:
    """With the node's own facts before it, whose PCI bus is that of the simulated hardware."""
    story.site.ready()
    report = story.site.until(lambda: _report_with_facts(story.site), "the agent to tell its node's facts")
    assert not report.findings, as_text(report)


def _report_with_facts(site: Site) -> Report | None:
    snapshot = asyncio.run(snapshot_of("", str(site.lab.kubeconfig)))
    return diagnose(snapshot, strict=True) if snapshot.hosts else None


@pytest.mark.parametrize(
    ("name", "about", "wanted", "words"),
    [
        ("cmd", {"command": ["no-such-program"]}, "POD-01", "no program no-such-program"),
        ("secret", {"envFrom": [{"secretRef": {"name": "nope"}}]}, "POD-02", "names the secret nope"),
        ("key", {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "kube-root-ca.crt", "key": "b"}}}]},
         "POD-03", "the key b of ConfigMap kube-root-ca.crt"),
    ],
)  # fmt: skip
def test_the_kubelets_own_sentences_are_understood(
    story: Story, name: str, about: Object, wanted: str, words: str
) -> None:
    site = story.site
    site.ready()
    container = {"name": "main", "image": IMAGE, "resources": {"limits": {"nvidia.com/gpu": 1}}, **about}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(pod))

    def told() -> bool:
        report = diagnose(asyncio.run(snapshot_of("", str(site.lab.kubeconfig))), strict=True)
        return [one.id for one in report.findings] == [wanted] and words in report.findings[0].cause

    try:
        site.until(told, f"{wanted} about {name}")
    finally:
        site.lab.kubectl("delete", "pod", name, "--force", "--grace-period=0")


def test_the_documents_patch_works_on_a_fresh_install(story: Story) -> None:
    site = story.site
    site.ready()
    config = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}\n"
    site.lab.kubectl("-n", "gpu-operator", "create", "configmap", "time-slicing-config", f"--from-literal=any={config}")
    patch = '[{"op":"replace","path":"/spec/devicePlugin/config","value":%s}]'
    try:
        chosen = '{"name":"time-slicing-config","default":"any"}'
        site.lab.kubectl("patch", "clusterpolicy", "cluster-policy", "--type=json", "-p", patch % chosen)
        site.until(lambda: site.allocatable() == "80", "80 shared GPUs")
        site.ready("80")
    finally:
        site.lab.kubectl("patch", "clusterpolicy", "cluster-policy", "--type=json", "-p", patch % "{}")
        site.lab.kubectl("-n", "gpu-operator", "delete", "configmap", "time-slicing-config")
    site.ready("8")


def test_an_upgrade_of_nothing_restarts_nothing(story: Story) -> None:
    site = story.site
    site.ready()

    def pods() -> set[str]:
        return {pod["metadata"]["uid"] for pod in site.get("pods", "-n", "gpu-operator")["items"]}

    before = pods()
    site.install(verb="upgrade", words=("--wait",))
    site.ready()
    assert pods() == before


def test_a_workload_survives_the_operator_and_the_agent(story: Story) -> None:
    site = story.site
    site.ready()
    site.lab.kubectl("-n", "gpu-operator", "delete", "pod", "-l", "app in (gpu-operator, kgpu-agent)", "--wait=true")

    def are_back() -> bool:
        pods = site.get("pods", "-n", "gpu-operator")["items"]
        return len(pods) == 2 and all(map(is_ready, pods))

    # What the policy and the Node say may be of before; an agent that is ready has registered with the kubelet.
    site.until(are_back, "both pods to be there again")
    site.ready()
    assert "Test PASSED" in site.run_pod("after", gpus=8)


def kgpu(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    """kgpu's command line, as the cluster's admin."""
    env = {**os.environ, "KUBECONFIG": str(site.lab.kubeconfig)}
    command = [sys.executable, "-m", "kgpu", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=300)


@pytest.fixture
def web(story: Story) -> Iterator[Site]:
    """Two pods of a Deployment, and no NodeOperation before and after."""
    kubectl = story.site.lab.kubectl
    kubectl("create", "deployment", "web", f"--image={PAUSE_IMAGE}", "--replicas=2")
    kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    yield story.site
    kubectl("delete", "nodeoperations", "--all")
    kubectl("delete", "deployment", "web", "--wait=true")
    kubectl("uncordon", story.site.node)
    kubectl("delete", "pdb", "--all")
    # They go after their Deployment, and the next one's have the same name and labels.
    story.site.until(lambda: not running(story.site), "web's pods to go")


def running(site: Site) -> set[str]:
    """The uids of web's pods that are on the node."""
    pods = site.get("pods", "-n", "default")["items"]
    return {
        pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName") and pod["metadata"]["name"][:4] == "web-"
    }


def operation(site: Site) -> Object:
    (obj,) = site.get("nodeoperations")["items"]
    return obj


def told(site: Site) -> set[str]:
    """The reasons of the operations' Events; they are written beside the status, not before it."""
    events = site.get("events", "-n", "default")["items"]
    return {one["reason"] for one in events if one["source"].get("component") == names.OPERATIONS_COMPONENT}


def test_a_maintenance_empties_the_node_and_gives_it_back(web: Site) -> None:
    before = running(web)
    assert len(before) == 2
    planned = kgpu(web, "node", "maintain", web.node, "--dry-run")
    assert planned.stdout.count("would go    default/web-") == 2, planned.stderr
    done = kgpu(web, "node", "maintain", web.node, "--reason", "fans")
    assert done.returncode == 0, done.stdout + done.stderr
    assert web.lab.node()["spec"]["unschedulable"] is True
    assert running(web) == set()
    assert len(web.get("pods", "-n", "gpu-operator")["items"]) == 2  # the operator itself, and its agent
    assert kgpu(web, "operations", "resume", operation(web)["metadata"]["name"]).returncode == 0
    web.until(lambda: operation(web)["status"]["phase"] == "Complete", "the end")
    assert "unschedulable" not in web.lab.node()["spec"]
    assert names.CORDON_ANNOTATION not in web.lab.node()["metadata"]["annotations"]
    web.until(lambda: len(running(web)) == 2, "the pods to be back")
    web.until(lambda: told(web) >= {"OperationStarted", "InMaintenance", "Resumed", "OperationSucceeded"}, "its Events")


def test_a_disruption_budget_ends_a_maintenance_and_is_named(web: Site) -> None:
    web.lab.kubectl("create", "pdb", "web", "--selector=app=web", "--min-available=2")
    web.until(lambda: web.get("pdb", "web").get("status", {}).get("currentHealthy") == 2, "the budget's status")
    done = kgpu(web, "node", "maintain", web.node, "--timeout", "30s")  # in which evictions are asked for
    assert done.returncode == 3, done.stdout + done.stderr
    assert "The disruption budget web needs 2 healthy pods and has 2 currently" in done.stdout
    assert "unschedulable" not in web.lab.node()["spec"]
    assert len(running(web)) == 2


def test_a_cordon_of_the_admin_stays_and_an_uncordon_ends_a_maintenance(web: Site) -> None:
    web.lab.kubectl("cordon", web.node)
    assert kgpu(web, "node", "maintain", web.node).returncode == 0
    kgpu(web, "operations", "resume", operation(web)["metadata"]["name"])
    web.until(lambda: operation(web)["status"]["phase"] == "Complete", "the end")
    assert web.lab.node()["spec"]["unschedulable"] is True
    web.lab.kubectl("uncordon", web.node)
    web.lab.kubectl("delete", "nodeoperations", "--all")
    assert kgpu(web, "node", "maintain", web.node).returncode == 0
    web.lab.kubectl("uncordon", web.node)
    web.until(lambda: operation(web)["status"]["phase"] == "Complete", "the end")
    assert operation(web)["status"]["result"] == "Cancelled"
    assert "unschedulable" not in web.lab.node()["spec"]


def test_a_record_that_is_deleted_gives_the_node_back(web: Site) -> None:
    assert kgpu(web, "node", "maintain", web.node).returncode == 0
    web.lab.kubectl("delete", "nodeoperations", "--all")
    web.until(lambda: "unschedulable" not in web.lab.node()["spec"], "the node to be given back")


def test_uninstalling_gives_held_nodes_back_and_leaves_the_cluster_as_it_was(story: Story) -> None:
    """Last: object by object, label by label, file by file."""
    site = story.site
    site.ready()
    assert kgpu(site, "node", "maintain", site.node).returncode == 0
    assert site.lab.node()["spec"]["unschedulable"] is True
    site.uninstall()
    site.until(lambda: not site.get("pods", "-n", "gpu-operator")["items"], "the last pods to go")
    assert "unschedulable" not in site.lab.node()["spec"]
    assert [obj["status"]["phase"] for obj in site.get("nodeoperations")["items"]] == ["Acting"]
    site.lab.kubectl("delete", "crd", "nodeoperations.kgpu.dev")
    assert difference(story.before, take(site.lab)) == []
    assert host_files(site) == story.host_before
    # The kubelet itself remembers the resource, with nothing of it, until it is started anew.
    assert site.allocatable() in {"", "0"}
