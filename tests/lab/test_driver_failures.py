"""Drivers that fail in each of their phases, in an embedded lab of four nodes: the rollout stops, and says where and why.

Each round has another driver and two nodes that fail, in phases of their own. The other two keep the driver that they
have, and their pods, until the last round, when the cause is mended and a person lets one of them begin.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.formats.crd.nodeoperation import ROLLOUT_STOPPED
from kgpu.formats.names import DRIVER_UPGRADE_STATE_LABEL
from kgpu.hw.simulator import container_settings
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.nodes import manage
from kgpu.lab.port import kubectl as run_kubectl
from tests.lab.driver_container import (
    CAUSES,
    DRIVER,
    SOON,
    TRAIN,
    Object,
    driver_lab,
    driver_pod,
    get,
    is_up,
    root,
    status,
    until,
)

pytestmark = pytest.mark.timeout(900)
FAILING, KEPT = ("fast-1", "fast-2"), ("fast-3", FIRST_NODE)
SCALE = 0.05
"""Of the back-off after which a container that has ended starts again."""
ROUNDS = (
    ("550.54.15", ("manager", "headers")),
    ("570.133.20", ("build", "sign")),
    ("575.57.08", ("load", "crash")),
    ("580.95.05", ("probe", "pull")),
)
FAILED_S = 600.0
"""An image that can't be pulled is waited for: a registry may be away for a moment."""


@pytest.fixture(scope="module")
def bare(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    del kubectl
    yield from driver_lab(tmp_path_factory.mktemp("failures"), gpus=1)


@pytest.fixture(scope="module")
def lab(bare: EmbeddedLab) -> EmbeddedLab:
    """A lab whose nodes run the driver that it comes with, two of them with a pod on their GPU."""
    manage.add_to_running(bare.folder, "l4", 3, gpus=1, driver="container", name_prefix="fast", time_scale=SCALE)
    before = get(bare, "clusterpolicy", "cluster-policy")["spec"]["driver"]["version"]
    until(bare, lambda: runs(bare, before, *FAILING, *KEPT), f"driver {before} is up on all nodes")
    for name in (*FAILING, *KEPT):
        container_settings.change(root(bare, name), takes=0.1)
    for name in KEPT:
        run_kubectl(bare, "apply", "--filename", "-", stdin=json.dumps(train(name)))
    until(bare, lambda: len(trainers(bare)) == len(KEPT), "a pod on the GPU of each node that is to be kept")
    return bare


def train(name: str) -> Object:
    """A Deployment of one pod with a GPU on a node."""
    made: Any = copy.deepcopy(TRAIN)
    made["metadata"]["name"] = f"train-{name}"
    labels = {"app": "train", "on": name}
    made["spec"]["selector"]["matchLabels"] = made["spec"]["template"]["metadata"]["labels"] = labels
    made["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": name}
    return dict(made)


def trainers(lab: EmbeddedLab) -> dict[str, str]:
    """The uids of the pods with GPUs that run, by node."""
    pods = get(lab, "pods", "--selector", "app=train")["items"]
    return {pod["spec"]["nodeName"]: pod["metadata"]["uid"] for pod in pods if pod["status"]["phase"] == "Running"}


def nodes(lab: EmbeddedLab) -> dict[str, Object]:
    return {one["metadata"]["name"]: one for one in get(lab, "nodes")["items"]}


def runs(lab: EmbeddedLab, version: str, *names: str) -> bool:
    """Whether all these nodes are there and offer their GPU with that driver."""
    return set(names) <= set(nodes(lab)) and all(is_up(lab, version, name, gpus=1) for name in names)


def want(lab: EmbeddedLab, version: str) -> None:
    driver = {"version": version, **({"startupProbe": SOON} if version == ROUNDS[-1][0] else {})}
    change = json.dumps({"spec": {"driver": driver}})
    run_kubectl(lab, "patch", "clusterpolicy", "cluster-policy", "--type", "merge", "--patch", change)


def operations(lab: EmbeddedLab, version: str) -> dict[str, Object]:
    """The operations for a driver, by node."""
    found = get(lab, "nodeoperations")["items"]
    return {one["spec"]["nodeName"]: one for one in found if one["spec"].get("driver", {}).get("version") == version}


def states(lab: EmbeddedLab) -> list[str]:
    """How far the upgrades are, by the nodes' labels."""
    now = nodes(lab)
    return [now[name]["metadata"]["labels"][DRIVER_UPGRADE_STATE_LABEL] for name in (*FAILING, *KEPT)]


def policy(lab: EmbeddedLab) -> Object:
    found: Object = get(lab, "clusterpolicy", "cluster-policy")["status"]
    return found


def kgpu(lab: EmbeddedLab, *words: str) -> str:
    """What a command prints; its exit code is told by ``words`` of its own."""
    command = [sys.executable, "-m", "kgpu", *words, "--kubeconfig", str(lab.folder / "kubeconfig")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return " ".join((done.stdout + done.stderr).split())


def has_stopped(lab: EmbeddedLab, version: str) -> bool:
    """Whether the two nodes have failed, and the others do not begin for that."""
    found = {name: one.get("status", {}) for name, one in operations(lab, version).items()}
    return all(found.get(name, {}).get("phase") == "Failed" for name in FAILING) and all(
        found.get(name, {}).get("reason") == ROLLOUT_STOPPED for name in KEPT
    )


@pytest.mark.parametrize(("version", "phases"), ROUNDS, ids=[" and ".join(phases) for _, phases in ROUNDS])
def test_two_failures_stop_the_rollout_and_are_told(lab: EmbeddedLab, version: str, phases: tuple[str, str]) -> None:
    before = trainers(lab), [driver_pod(lab, name)["metadata"]["uid"] for name in KEPT]
    for name, phase in zip(FAILING, phases, strict=True):
        container_settings.change(root(lab, name), fail=phase)
    want(lab, version)
    until(lab, lambda: has_stopped(lab, version), "two have failed, and the rollout has stopped", within=FAILED_S)
    made, causes = operations(lab, version), dict(zip(FAILING, map(CAUSES.__getitem__, phases), strict=True))
    waits = made[KEPT[0]]["status"]["message"]
    for name, cause in causes.items():
        ended = made[name]["status"]
        assert (ended["result"], ended["reason"]) == ("PermanentFailure", "DriverFailed")
        assert cause in ended["message"]
        assert (name in waits, cause in waits) == (True, True), waits
    until(lab, lambda: is_told(lab, [*causes, *causes.values()]), "the policy tells of both")
    shown, listed = kgpu(lab, "status"), kgpu(lab, "operations", "list", "--all")
    for name, cause in causes.items():
        assert f"{name}: " in shown
        assert cause in shown
        assert made[name]["metadata"]["name"] in listed
        assert cause in kgpu(lab, "operations", "show", made[name]["metadata"]["name"])
    assert f"kgpu operations approve {made[KEPT[0]]['metadata']['name']}" in shown
    assert not [name for name, one in nodes(lab).items() if one["spec"].get("unschedulable")]
    until(lab, lambda: states(lab) == ["upgrade-failed"] * 2 + ["upgrade-required"] * 2, "the labels say the same")
    assert (trainers(lab), [driver_pod(lab, name)["metadata"]["uid"] for name in KEPT]) == before
    assert all(status(driver_pod(lab, name), DRIVER)["ready"] for name in KEPT)
    for name in FAILING:
        container_settings.change(root(lab, name), fail="")
    until(lab, lambda: runs(lab, version, *FAILING), "the pods try on, and the driver is there")


def is_told(lab: EmbeddedLab, words: list[str]) -> bool:
    """Whether the policy is not ready, and its conditions have all these words."""
    found = policy(lab)
    said = " ".join(row["message"] for row in found["conditions"])
    return found["state"] == "notReady" and all(word in said for word in words)


def test_once_it_is_mended_a_persons_word_brings_the_driver_to_all(lab: EmbeddedLab) -> None:
    version = ROUNDS[-1][0]
    waiting = operations(lab, version)[KEPT[0]]["metadata"]["name"]
    kgpu(lab, "operations", "approve", waiting)
    until(lab, lambda: runs(lab, version, *FAILING, *KEPT), f"driver {version} is up on all nodes")
    until(lab, lambda: policy(lab)["state"] == "ready", "the policy is ready")
    until(lab, lambda: len(trainers(lab)) == len(KEPT), "the pods have their GPUs again")
    results = {name: one["status"]["result"] for name, one in operations(lab, version).items()}
    assert results == {**dict.fromkeys(FAILING, "PermanentFailure"), **dict.fromkeys(KEPT, "Succeeded")}
    assert not [name for name, one in nodes(lab).items() if one["spec"].get("unschedulable")]
