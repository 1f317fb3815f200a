"""A real node whose driver comes in a real container: installed, exchanged under a pod with a GPU, and kept in use.

The image is a stand-in that loads simulated modules; manager, probe, mounts and their propagation are the real ones.
Pods are exchanged by hand first. Then three simulated nodes join it, with a driver image of their own as their operating system
is another, and the operator and the engine exchange the drivers of all four, looked at once a second.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kgpu.cli.doctor import look, parse_target
from kgpu.cli.preflight import preflight as preflight_command
from kgpu.doctor.preflight import probe
from kgpu.doctor.rules.operator.sentences import PSA
from kgpu.formats.crd.nodeoperation import ROLLOUT_STOPPED
from kgpu.formats.names import (
    DRIVER_MANAGER_ANNOTATION,
    GPU_OPERATOR_NAMESPACE,
    GPU_RESOURCE,
    LABEL_DEPLOY_PREFIX,
    NFD_PCI_NVIDIA,
)
from kgpu.hw.simulator import container_settings
from kgpu.lab import operator
from kgpu.lab.nodes import manage
from kgpu.lab.nodes.folder import give_to_operator
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import bootstrap, kgpu_image
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.images import CUDA_BASE_IMAGES
from kgpu.lab.real.model import NODE_NAME, LabSpec
from tests.budget import count
from tests.lab.driver_container import CAUSES, SOON
from tests.lab.real.conftest import until
from tests.lab.real.driver_samples import POLICY, DriverSampler

OLD, NEW = "550.54.15", "570.133.20"
FAILING_IN = count(
    {"build": "575.57.08"},
    {
        "build": "575.57.08", "manager": "570.148.08", "headers": "570.158.01", "sign": "570.172.08",
        "load": "575.64.03", "crash": "580.65.06", "probe": "580.82.07", "pull": "580.95.05",
    },
)  # fmt: skip
"""Drivers that fail at first, by the phase; all phases in deep runs, as the embedded lab has all of them each time."""
MANAGER = "k8s-driver-manager"
DRIVER = "app.kubernetes.io/component=nvidia-driver"
Object = dict[str, Any]
TRAIN = {
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "train"},
    "spec": {
        "selector": {"matchLabels": {"app": "train"}},
        "template": {
            "metadata": {"labels": {"app": "train"}},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main", "image": CUDA_BASE_IMAGES[0], "imagePullPolicy": "IfNotPresent",
                    "command": ["sh", "-c", "nvidia-smi --query-gpu=driver_version --format=csv,noheader; sleep 10000"],
                    "resources": {"limits": {GPU_RESOURCE: 1}},
                }],
            },
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def node(real_machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealLab]:
    """A lab of its own, with the operator in it, and the old driver wanted; the images are there."""
    folder = tmp_path_factory.mktemp("driver") / "lab"
    spec = LabSpec(name=f"driver-{os.getpid()}", profile="l4", gpus=2, agent=False)
    lab = RealLab(spec, folder=folder, progress=PlainProgress())
    try:
        lab.up()
        bootstrap.import_archive(lab, kgpu_image.ensure_image(PlainProgress()))
        bootstrap.show_machine(lab)
        container_settings.change(lab.hw_root, takes=0.5)
        operator.install(lab.kubeconfig, driver=True)
        # The real machine's bus has no GPU: as node feature discovery would say of the simulated one.
        lab.kubectl("label", "node", NODE_NAME, f"{NFD_PCI_NVIDIA[0]}=true")
        want(lab, OLD)
        until(lambda: f":{OLD}-" in image(lab), "a DaemonSet of the driver")
        there = [version for phase, version in FAILING_IN.items() if phase != "pull"]
        bootstrap.import_driver(lab, OLD, NEW, *there, system=image(lab).partition(f":{OLD}-")[2])
        yield lab
    finally:
        lab.down()


def want(lab: RealLab, version: str, *, auto: bool = False, **more: object) -> None:
    change = {"spec": {"driver": {"version": version, "upgradePolicy": {"autoUpgrade": auto}, **more}}}
    lab.kubectl("patch", "clusterpolicy", "cluster-policy", "--type", "merge", "--patch", json.dumps(change))


def items(lab: RealLab, path: str) -> list[Object]:
    found: list[Object] = (lab.ask(path) or {}).get("items") or []
    return found


def image(lab: RealLab) -> str:
    """The image of the driver's DaemonSet, "" for none; while there is one alone."""
    sets = items(lab, f"/apis/apps/v1/namespaces/{GPU_OPERATOR_NAMESPACE}/daemonsets?labelSelector={DRIVER}")
    return str(sets[0]["spec"]["template"]["spec"]["containers"][0]["image"]) if sets else ""


def driver_pod(lab: RealLab) -> Object:
    """The real node's driver pod that is not being deleted; {} for none."""
    everywhere = items(lab, f"/api/v1/namespaces/{GPU_OPERATOR_NAMESPACE}/pods?labelSelector={DRIVER}")
    pods = [pod for pod in everywhere if pod["spec"].get("nodeName") == NODE_NAME]
    return next((pod for pod in pods if "deletionTimestamp" not in pod["metadata"]), {})


def is_up(lab: RealLab, version: str) -> bool:
    pod, now = driver_pod(lab), lab.node()
    rows = pod.get("status", {}).get("containerStatuses") or [{}]
    return (
        bool(rows[0].get("ready"))
        and f":{version}-" in pod["spec"]["containers"][0]["image"]
        and now["status"]["allocatable"].get(GPU_RESOURCE) == "2"
        and now["metadata"]["labels"].get("nvidia.com/cuda.driver-version.full") == version
    )


def image_of(lab: RealLab) -> str:
    """The driver's image that the real node's pod asks for."""
    return str(driver_pod(lab)["spec"]["containers"][0]["image"])


def replace_pod(lab: RealLab) -> None:
    name, uid = driver_pod(lab)["metadata"]["name"], driver_pod(lab)["metadata"]["uid"]
    lab.kubectl("delete", "pod", name, "--namespace", GPU_OPERATOR_NAMESPACE, "--wait=false")
    until(lambda: driver_pod(lab).get("metadata", {}).get("uid", uid) != uid, "another pod of the driver")


def printed(lab: RealLab) -> list[str]:
    """What the pods with a GPU have printed."""
    return lab.kubectl_run("logs", "--selector", "app=train").stdout.split()


def test_the_driver_is_installed_and_its_gpus_are_offered(node: RealLab) -> None:
    until(lambda: is_up(node, OLD), f"driver {OLD} to be up")
    node.kubectl("apply", "-f", "-", stdin=json.dumps(TRAIN))
    until(lambda: printed(node) == [OLD], f"a pod on driver {OLD}")


def test_another_driver_takes_its_place_and_the_node_is_given_back(node: RealLab) -> None:
    want(node, NEW)
    until(lambda: f":{NEW}-" in image(node), f"driver {NEW} to be wanted")
    assert is_up(node, OLD), "the pod is replaced by hand alone"
    replace_pod(node)
    until(lambda: is_up(node, NEW), f"driver {NEW} to be up")
    until(lambda: printed(node) == [NEW], f"a pod on driver {NEW}")
    now = node.node()
    assert not now["spec"].get("unschedulable")
    assert DRIVER_MANAGER_ANNOTATION not in now["metadata"].get("annotations", {})
    assert now["metadata"]["labels"][f"{LABEL_DEPLOY_PREFIX}device-plugin"] == "true"


def preflight(lab: RealLab, *options: str) -> Object:
    """What ``kgpu preflight --probe`` says of the lab's node, without a registry."""
    words = [
        "--kubeconfig",
        str(lab.kubeconfig),
        "--probe",
        "--no-registry",
        "--node",
        NODE_NAME,
        "-o",
        "json",
        *options,
    ]
    done = CliRunner().invoke(preflight_command, words)
    assert done.exit_code in (0, 1), done.output
    found: Object = json.loads(done.stdout)
    return found


def left_of_probes(lab: RealLab) -> list[str]:
    """The names of a preflight's pods and accounts that are there, in any namespace."""
    rows = [row for kind in ("pods", "serviceaccounts") for row in items(lab, f"/api/v1/{kind}")]
    return [row["metadata"]["name"] for row in rows if row["metadata"]["name"].startswith(probe.NAME)]


def test_a_probe_looks_at_the_nodes_own_files_and_leaves_nothing(node: RealLab) -> None:
    found = preflight(node, "-n", GPU_OPERATOR_NAMESPACE, "--timeout", "300")
    assert [one for one in found["predictions"] if one["level"] == "problem"] == []
    verdicts = found["verdicts"][NODE_NAME]
    assert (verdicts["nouveau"], verdicts["disk"]) == ("fine", "fine"), found
    assert left_of_probes(node) == []


def test_a_namespace_without_privileged_pods_is_predicted_and_takes_none(node: RealLab) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": {PSA: "baseline"}}}
    node.kubectl("apply", "-f", "-", stdin=json.dumps(space))
    until(lambda: node.ask("/api/v1/namespaces/strict/serviceaccounts/default"), "the namespace's account")
    found = preflight(node, "-n", "strict")
    (said,) = (one for one in found["predictions"] if one["level"] == "problem")
    assert said["id"] == "OPR-02"
    assert any("violates PodSecurity" in row for row in said["evidence"]), said
    assert left_of_probes(node) == []
    (driver,) = items(node, f"/apis/apps/v1/namespaces/{GPU_OPERATOR_NAMESPACE}/daemonsets?labelSelector={DRIVER}")
    about = {key: driver["metadata"][key] for key in ("name", "labels")} | {"namespace": "strict"}
    copy = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": about, "spec": driver["spec"]}
    copy["spec"]["template"]["spec"]["serviceAccountName"] = "default"
    node.kubectl("apply", "-f", "-", stdin=json.dumps(copy))

    def refused() -> bool:
        events = items(node, "/api/v1/namespaces/strict/events")
        return any("violates PodSecurity" in str(one.get("message")) for one in events)

    until(refused, "the API server to refuse the driver's pods")
    assert items(node, "/api/v1/namespaces/strict/pods") == []
    report = asyncio.run(look(parse_target((), ""), "", str(node.kubeconfig), ""))
    assert "OPR-02" in [one.id for one in report.findings]
    node.kubectl("delete", "namespace", "strict", "--wait=false")


def test_a_driver_that_is_kept_in_use_is_told_by_the_managers_last_words(node: RealLab) -> None:
    container_settings.change(node.hw_root, fail="manager")
    want(node, OLD)
    until(lambda: f":{OLD}-" in image(node), f"driver {OLD} to be wanted")
    replace_pod(node)

    def last_words() -> str:
        rows = driver_pod(node).get("status", {}).get("initContainerStatuses") or [{}]
        ended = [state.get("terminated") or {} for key in ("state", "lastState") if (state := rows[0].get(key))]
        return next((str(end["message"]) for end in ended if end.get("message")), "")

    until(lambda: "the driver is in use and can't be unloaded" in last_words(), "the manager to say what is wrong")
    container_settings.change(node.hw_root, fail="")
    until(lambda: is_up(node, OLD), f"driver {OLD} to be up")


SIMULATED = ("sim-1", "sim-2", "sim-3")
SPREAD = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "train"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}
"""One of the pods on each node."""


@pytest.fixture(scope="module")
def fleet(node: RealLab) -> dict[str, Path]:
    """The machines of four nodes that run the old driver, each with a pod on a GPU: the real one and three simulated."""
    give_to_operator(manage.nodes_dir(node.paths.root))
    manage.add_to_running(
        node.paths.root, "l4", len(SIMULATED), gpus=2, driver="container", name_prefix="sim", time_scale=0.1
    )  # fmt: skip
    machines = {NODE_NAME: node.hw_root}
    machines |= {name: manage.nodes_dir(node.paths.root) / name / "hw" for name in SIMULATED}
    until(lambda: run_it(node, OLD), f"driver {OLD} on all nodes")
    deployment: Any = copy.deepcopy(TRAIN)
    deployment["spec"]["replicas"] = len(machines)
    deployment["spec"]["template"]["spec"]["affinity"] = SPREAD
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = CUDA_BASE_IMAGES[1]
    node.kubectl("apply", "-f", "-", stdin=json.dumps(deployment))
    until(lambda: printed(node) == [OLD] * len(machines), f"a pod on driver {OLD} on each node")
    return machines


def run_it(lab: RealLab, version: str) -> bool:
    """Whether the policy is ready for that driver, on four nodes that offer their GPUs."""
    policy, nodes = lab.ask(POLICY) or {}, items(lab, "/api/v1/nodes")
    ready: Object = next((row for row in policy.get("status", {}).get("conditions", ()) if row["type"] == "Ready"), {})
    return (
        (ready.get("status"), ready.get("observedGeneration")) == ("True", policy["metadata"]["generation"])
        and policy["spec"]["driver"]["version"] == version
        and [one["status"]["allocatable"].get(GPU_RESOURCE) for one in nodes] == ["2"] * 4
    )


def operations(lab: RealLab, version: str) -> dict[str, Object]:
    """The rollout's operations that bring nodes that driver, by node."""
    found = items(lab, "/apis/kgpu.dev/v1alpha1/nodeoperations")
    rollout = [one for one in found if one["spec"].get("rollout")]
    return {one["spec"]["nodeName"]: one for one in rollout if one["spec"].get("driver", {}).get("version") == version}


def states(lab: RealLab, version: str, field: str = "phase") -> dict[str, str]:
    return {name: one.get("status", {}).get(field, "") for name, one in operations(lab, version).items()}


def kgpu(lab: RealLab, *words: str) -> tuple[int, str]:
    """The exit code of a command, and what it prints, with single blanks."""
    command = [sys.executable, "-m", "kgpu", *words, "--kubeconfig", str(lab.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_the_engine_brings_the_new_driver_to_all_nodes_and_ready_means_that(
    node: RealLab, fleet: dict[str, Path]
) -> None:
    with DriverSampler(node.kubeconfig, fleet) as watched:
        until(lambda: watched.samples, "a sample of before")
        want(node, NEW, auto=True)
        until(lambda: states(node, NEW).get(NODE_NAME) in ("Acting", "Verifying"), "the real node's exchange")
        code, shown = kgpu(node, "status")
        until(
            lambda: list(states(node, NEW, "reason").values()) == ["DriverUpgraded"] * len(fleet), "all to be upgraded"
        )
        until(lambda: run_it(node, NEW), f"the policy to be ready for driver {NEW}")
        until(lambda: printed(node) == [NEW] * len(fleet), f"a pod on driver {NEW} on each node")
        ready = len(watched.samples)
        until(lambda: len(watched.samples) > ready, "a sample of afterwards")
    report(watched)
    assert not watched.false_readiness()
    assert code == 3
    name = operations(node, NEW)[NODE_NAME]["metadata"]["name"]
    assert "of 4 nodes run the driver that is asked for; 1 under way" in shown
    ways = (f"{OLD} → {NEW}: pod-restart", f"no driver → {NEW}: pod-restart", f"{NEW}: validation")
    assert any(f"{NODE_NAME}: {way}-required ({name})" in shown for way in ways), shown
    before = watched.samples[0].pods
    for sample in watched.samples:
        assert len(sample.cordoned) <= 1
        for one in fleet:
            assert sample.loaded[one] or not sample.pods[one], "a pod with a GPU runs on a node without a driver"
            assert sample.loaded[one] == OLD or not sample.pods[one] & before[one], "a pod has outlived its driver"
    for one in fleet:
        held = watched.first(lambda sample, one=one: one in sample.cordoned)  # type: ignore[misc]
        gone = watched.first(lambda sample, one=one: not sample.pods[one])  # type: ignore[misc]
        there = watched.first(lambda sample, one=one: sample.served[one] == NEW)  # type: ignore[misc]
        back = watched.first(lambda sample, one=one, held=held: sample.at > held and one not in sample.cordoned)  # type: ignore[misc]
        assert held <= gone < there <= back


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("phase", FAILING_IN)
def test_a_driver_that_fails_on_the_real_node_stops_the_rollout_and_the_others_keep_theirs(
    node: RealLab, fleet: dict[str, Path], phase: str
) -> None:
    version, cause = FAILING_IN[phase], CAUSES[phase]
    # A driver is an image: the one of the real node's system fails there, the other one on two nodes in a row.
    failing, kept = (NODE_NAME, *SIMULATED[:2]), SIMULATED[2]
    for name in failing:
        container_settings.change(fleet[name], fail=phase)
    with DriverSampler(node.kubeconfig, fleet) as watched:
        # A pod's words can be read a moment before the API server calls it Running.
        until(lambda: watched.samples and all(watched.samples[-1].pods.values()), "a pod to run on each node")
        first = watched.samples[-1]
        want(node, version, auto=True, **({"startupProbe": SOON} if phase == "probe" else {}))
        until(lambda: states(node, version, "reason").get(kept) == ROLLOUT_STOPPED, "the rollout to stop", 900)
        made = operations(node, version)
        waits = made[kept]["status"]["message"]
        for name in failing:
            ended = made[name]["status"]
            assert (ended["result"], ended["reason"]) == ("PermanentFailure", "DriverFailed")
            assert cause in ended["message"]
        assert all(word in waits for word in (*SIMULATED[:2], cause)), waits
        until(lambda: is_told(node, [*failing, cause]), "the policy to tell nodes and cause")
        code, shown = kgpu(node, "status")
        stopped = watched.samples[-1]
        for name in failing:
            container_settings.change(fleet[name], fail="")
        if phase == "pull":
            bootstrap.import_driver(node, version, system=image_of(node).rpartition(f"{version}-")[2])
        if phase == "manager":
            # The former driver is still loaded on these nodes, and their pods are back: it is not exchanged under them.
            assert printed(node).count(version) == 0
            for name in failing:
                code_of_retry, retried = kgpu(node, "node", "upgrade-driver", name)
                assert code_of_retry == 0, retried
        _, approved = kgpu(node, "operations", "approve", made[kept]["metadata"]["name"])
        until(lambda: run_it(node, version), f"driver {version} on all nodes, after {approved}", 600)
        until(lambda: printed(node) == [version] * len(fleet), f"a pod on driver {version} on each node")
    report(watched)
    assert not watched.false_readiness()
    assert code == 3
    for word in (*failing, cause, f"kgpu operations approve {made[kept]['metadata']['name']}"):
        assert word in shown
    assert (stopped.loaded[kept], stopped.pods[kept], stopped.cordoned) == (
        first.loaded[kept], first.pods[kept], frozenset(),
    )  # fmt: skip
    assert [states(node, version, "result")[name] for name in (*failing, kept)] == ["PermanentFailure"] * 3 + [
        "Succeeded"
    ]


def is_told(lab: RealLab, words: list[str]) -> bool:
    """Whether the policy is not ready, and its conditions have all these words."""
    status = (lab.ask(POLICY) or {}).get("status", {})
    said = " ".join(row["message"] for row in status.get("conditions", ()))
    return status.get("state") == "notReady" and all(word in said for word in words)


def report(watched: DriverSampler) -> None:
    """Print what the samples were, for those who read the test's output."""
    rows = [(sample.state, tuple(sample.loaded.values()), sorted(sample.cordoned)) for sample in watched.samples]
    changes = [
        f"{sample.at:g} s: {row}"
        for sample, row, last in zip(watched.samples, rows, [None, *rows], strict=False)
        if row != last
    ]
    behind = sum(bool(sample.behind()) for sample in watched.samples)
    print(
        f"{len(rows)} samples, {behind} with a node that did not run the wanted driver, "
        f"{len(watched.false_readiness())} of them called ready, {len(watched.unheeded())} of a wish not yet read, "
        f"{watched.unanswered} without an answer",
        *changes, sep="\n",
    )  # fmt: skip
