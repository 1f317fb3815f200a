"""NodeOperations that people make by hand, with every field of an upgrade too large, of another kind or contradictory.

What the definition refuses is shown on the embedded API server. What it lets pass ends in the engine with a clear state:
no node stays held, and no pod is deleted that is not the driver's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kgpu.formats.crd.definitions import crds
from kgpu.kube.kinds import CUSTOM_RESOURCE_DEFINITIONS, DAEMON_SETS, NODE_OPERATIONS
from kgpu.kube.port import KubeRefusedError
from tests.lab.embedded.support import Whole, whole
from tests.operations.sim_drivers import NAMESPACE, wanted
from tests.operations.world import Cluster, Engine

MOST = 2**31 - 1
ROLLOUT = {"name": "r"}
UPGRADE: dict[str, Any] = {"nodeName": "n1", "type": "DriverUpgrade", "driver": wanted()}
TEXTS = {"namespace": 253, "daemonSet": 253, "digest": 63, "image": 1024, "version": 253, "fromVersion": 253}
"""The most characters of each field of ``driver``."""
NEEDED = ("namespace", "daemonSet", "digest")


def driver(**given: Any) -> dict[str, Any]:
    return {"driver": {**wanted(), **given}}


def rollout(**given: Any) -> dict[str, Any]:
    return {"rollout": {**ROLLOUT, **given}}


def drain(**given: Any) -> dict[str, Any]:
    return {"drain": given}


REFUSED: tuple[dict[str, Any], ...] = (
    *(driver(**{field: "x" * (most + 1)}) for field, most in TEXTS.items()),
    *(driver(**{field: value}) for field in TEXTS for value in (7, ["x"], {"a": "b"}, True)),
    *(driver(**{field: ""}) for field in NEEDED),
    {"driver": []},
    {"driver": "570"},
    {"rollout": []},
    {"rollout": {}},
    rollout(name=""),
    rollout(name="x" * 254),
    *(
        rollout(**{field: value})
        for field in ("maxParallel", "stopAfterFailures")
        for value in (-1, MOST + 1, 2**63, 1.5, "1", [])
    ),
    *(
        rollout(maxUnavailable=value)
        for value in (-1, 1.5, "", "-1", "101%", "1000%", "%", "25 %", "25%\n", "x" * 17, "1e3", [], {}, True)
    ),
    *(drain(timeoutSeconds=value) for value in (0, -1, MOST + 1, 2**63, 1.5, "300")),
    *(drain(gracePeriodSeconds=value) for value in (-1, MOST + 1, "x")),
    *(drain(onTimeout=value) for value in ("force", "", 1)),
    *(drain(**{field: "true"}) for field in ("force", "deleteEmptyDirData", "onlyGpuPods")),
    *(drain(podSelector=value) for value in ("x" * 1025, 7, {"matchLabels": {}})),
    *(drain(waitFor=value) for value in ([], {}, {"podSelector": ""}, {"podSelector": "x" * 1025})),
    *(drain(waitFor={"podSelector": "a", "timeoutSeconds": value}) for value in (-1, MOST + 1, "1")),
    {"actTimeoutSeconds": 0},
    {"actTimeoutSeconds": MOST + 1},
    {"durationSeconds": 60},
    {"gpus": ["GPU-1"]},
)
TAKEN: tuple[dict[str, Any], ...] = (
    *(driver(**{field: "x" * most}) for field, most in TEXTS.items()),
    rollout(name="x" * 253, maxParallel=MOST, maxUnavailable=MOST, stopAfterFailures=MOST),
    rollout(maxParallel=0, maxUnavailable=0, stopAfterFailures=0),
    rollout(maxUnavailable="999999"),
    drain(timeoutSeconds=MOST, gracePeriodSeconds=MOST, podSelector="x" * 1024),
    drain(waitFor={"podSelector": "x" * 1024, "timeoutSeconds": MOST}),
    {"actTimeoutSeconds": MOST},
)


async def answer(found: Whole, name: str, given: dict[str, Any]) -> int:
    """The code with which the API server refuses it, 0 if it does not."""
    try:
        await found.api.create(NODE_OPERATIONS, {"metadata": {"name": name}, "spec": {**UPGRADE, **given}})
    except KubeRefusedError as refused:
        return refused.code if len(str(refused)) < 20_000 else -1
    return 0


async def test_what_the_definition_refuses(tmp_path: Path) -> None:
    async with whole(tmp_path, "controllers") as found:
        for crd in crds():
            await found.api.create(CUSTOM_RESOURCE_DEFINITIONS, crd)
        await found.until(lambda: found.core.kinds.stored("kgpu.dev", "nodeoperations"), "the CRD")
        answers = [await answer(found, f"refused-{number}", given) for number, given in enumerate(REFUSED)]
        assert [given for given, code in zip(REFUSED, answers, strict=True) if code not in (400, 422)] == []
        answers = [await answer(found, f"taken-{number}", given) for number, given in enumerate(TAKEN)]
        assert [given for given, code in zip(TAKEN, answers, strict=True) if code] == []


# What the definition lets pass, and how it ends: phase, result and reason.
ENDS: dict[str, tuple[dict[str, Any], tuple[str, str, str]]] = {
    "a DaemonSet that is none of a driver": (driver(daemonSet="kgpu-agent"), ("Complete", "Superseded", "NoDriverPod")),
    "a DaemonSet that is not there": (driver(daemonSet="x" * 253), ("Complete", "Superseded", "NoDriverPod")),
    "another namespace": (driver(namespace="kube-system"), ("Complete", "Superseded", "NoDriverPod")),
    "a digest that nobody asks for": (driver(digest="x" * 63), ("Complete", "Superseded", "DriverChanged")),
    "what runs, by its digest, with another image": (
        driver(digest="1", image="x" * 1024),
        ("Complete", "Succeeded", "RunsAlready"),
    ),
    "another digest with the image that runs": (
        driver(image="nvcr.io/nvidia/driver:550.90.07-ubuntu24.04"),
        ("Complete", "Succeeded", "DriverUpgraded"),
    ),
    "no image": (driver(image=""), ("Complete", "Succeeded", "DriverUpgraded")),
    "a release that is not the image's": (driver(version="575.1"), ("Failed", "TransientFailure", "NotWell")),
    "a release that is none": (driver(version="\x1b[2J" + "x" * 200), ("Failed", "TransientFailure", "NotWell")),
    "a selector that can't be read": (drain(podSelector="app in"), ("Failed", "PermanentFailure", "Refused")),
    "pods to wait for that can't be read": (
        drain(waitFor={"podSelector": "!"}),
        ("Failed", "PermanentFailure", "Refused"),
    ),
    "a selector that no pod has": (drain(podSelector="a=b"), ("Complete", "Succeeded", "DriverUpgraded")),
    "selectors that exclude each other": (
        drain(podSelector="app=web,app!=web", onlyGpuPods=True),
        ("Complete", "Succeeded", "DriverUpgraded"),
    ),
    "pods to wait for that never were": (
        drain(waitFor={"podSelector": "nope", "timeoutSeconds": 0}),
        ("Complete", "Succeeded", "DriverUpgraded"),
    ),
    "a drain of 68 years": (drain(timeoutSeconds=MOST, onlyGpuPods=True), ("Complete", "Succeeded", "DriverUpgraded")),
    "a grace period of 68 years": (drain(gracePeriodSeconds=MOST), ("Complete", "Succeeded", "DriverUpgraded")),
    "a drain of one second": (drain(timeoutSeconds=1, onlyGpuPods=True), ("Complete", "Succeeded", "DriverUpgraded")),
    "an act of 68 years": ({"actTimeoutSeconds": MOST}, ("Complete", "Succeeded", "DriverUpgraded")),
    "an act of one second": ({"actTimeoutSeconds": 1}, ("Failed", "TransientFailure", "DriverTimeout")),
    # A definition of before has let these pass.
    "a drain for longer than there is time": (
        drain(timeoutSeconds=2**62, gracePeriodSeconds=2**62, waitFor={"podSelector": "nope", "timeoutSeconds": 2**62}),
        ("Complete", "Succeeded", "DriverUpgraded"),
    ),
    "an act for longer than there is time": ({"actTimeoutSeconds": 2**62}, ("Complete", "Succeeded", "DriverUpgraded")),
    "a rollout of more than there are": (
        rollout(maxParallel=2**62, maxUnavailable=2**62, stopAfterFailures=2**62),
        ("Complete", "Succeeded", "DriverUpgraded"),
    ),
    "force, which nobody has allowed": (drain(onTimeout="Force"), ("Failed", "PermanentFailure", "Refused")),
    "a rollout of any number": (
        rollout(maxParallel=MOST, maxUnavailable=MOST, stopAfterFailures=MOST),
        ("Complete", "Succeeded", "DriverUpgraded"),
    ),
    "a rollout of none": (rollout(maxUnavailable=0), ("Pending", "", "WaitsForRollout")),
    "a rollout that stops after none": (rollout(stopAfterFailures=0), ("Complete", "Succeeded", "DriverUpgraded")),
    "a deadline that is over": ({"deadline": "1970-01-01T00:00:00Z"}, ("Failed", "TransientFailure", "DeadlinePassed")),
}


def cluster_with_driver() -> Cluster:
    cluster = Cluster()
    cluster.node("n1")
    cluster.driven("n1")
    cluster.drivers.template = "2"
    gpus = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    cluster.pod("train", "n1", spec=gpus)
    owner = {"kind": "DaemonSet", "name": "kgpu-agent", "uid": "agents", "controller": True}
    cluster.put(DAEMON_SETS, {"metadata": {"namespace": NAMESPACE, "name": "kgpu-agent"}})
    cluster.pod("agent", "n1", metadata={"namespace": NAMESPACE, "ownerReferences": [owner]})
    return cluster


@pytest.mark.parametrize("case", ENDS)
async def test_what_becomes_of_what_passes(case: str) -> None:
    given, ends = ENDS[case]
    cluster = cluster_with_driver()
    cluster.operation("m", "n1", **{**UPGRADE, **given})
    engine = Engine(cluster)
    await engine.start()
    try:
        for _ in range(120):
            await engine.run_for(10)
            if cluster.status("m").get("phase") in ("Complete", "Failed"):
                break
        await engine.run_for(60)
    finally:
        await engine.stop()
    status = cluster.status("m")
    assert (status["phase"], status.get("result", ""), status["reason"]) == ends
    assert "\x1b" not in status["message"]
    assert (cluster.unschedulable("n1"), cluster.owners("n1"), cluster.order("n1")) == (False, "", "")
    assert "agent" in cluster.pods_on("n1")
    assert set(cluster.driver_deletions) <= {"driver-1"}, "only the driver's own pod, and once"


WITHOUT_RIGHTS: dict[str, dict[str, Any]] = {
    "refused": drain(podSelector="app in"),
    "late": {"deadline": "1970-01-01T00:00:00Z"},
    "of no node": {"nodeName": "nowhere"},
}


@pytest.mark.parametrize("how", WITHOUT_RIGHTS)
async def test_who_may_only_ask_stops_no_rollout(how: str) -> None:
    """Such operations fail although nobody has approved them; they say nothing about the driver."""
    cluster = cluster_with_driver()
    shared = {"rollout": {"name": "clusterpolicy-cluster-policy", "maxParallel": 1}}
    for number in range(3):
        spec = {**UPGRADE, **shared, "approved": False, **WITHOUT_RIGHTS[how]}
        cluster.operation(f"forged-{number}", "n1", **spec)
    engine = Engine(cluster)
    await engine.start()
    await engine.run_for(90)
    assert {cluster.status(f"forged-{number}")["phase"] for number in range(3)} == {"Failed"}
    cluster.operation("m", "n1", **{**UPGRADE, **shared})
    await engine.run_for(60)
    await engine.stop()
    assert (cluster.status("m")["phase"], cluster.status("m")["reason"]) == ("Complete", "DriverUpgraded")
