"""A node's driver is exchanged: from the order to its agent to the pod that loads the next one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from kgpu.formats import names, validation_report
from kgpu.formats.crd.nodeoperation import STEADY_SECONDS, WAITING_FOR_PODS, NodeOperationSpec
from kgpu.formats.node_order import OrderStep, read_order
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import NODES
from kgpu.operations.drain import Fate
from kgpu.operations.requests import preview_of
from tests.operations.sim_drivers import wanted
from tests.operations.world import Cluster, Engine

GPU_POD = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}


def cluster_with_driver(**given: Any) -> Cluster:
    cluster = Cluster()
    cluster.node("n1")
    cluster.driven("n1", **given)
    cluster.drivers.template = "2"
    cluster.pod("train", "n1", spec=GPU_POD)
    cluster.pod("web", "n1")
    return cluster


@contextlib.asynccontextmanager
async def upgrading(cluster: Cluster, **spec: Any) -> AsyncIterator[Engine]:
    whole = {"type": "DriverUpgrade", "driver": wanted(), "drain": {"onlyGpuPods": True}, **spec}
    cluster.operation("m", "n1", **whole)
    engine = Engine(cluster)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def until(engine: Engine, phase: str, seconds: float = 200.0) -> None:
    while engine.clock.monotonic() < seconds and engine.cluster.status("m").get("phase") != phase:
        await engine.run_for(0.5)
    assert engine.cluster.status("m").get("phase") == phase


def condition(cluster: Cluster, kind: str) -> dict[str, Any]:
    rows = (row for row in cluster.status("m").get("conditions") or () if row["type"] == kind)
    return dict(next(rows, {}))


async def test_the_driver_of_a_node_is_exchanged() -> None:
    cluster = cluster_with_driver()
    async with upgrading(cluster) as engine:
        await engine.run_for(30)
    status = cluster.status("m")
    assert (status["phase"], status["result"], status["reason"]) == ("Complete", "Succeeded", "DriverUpgraded")
    assert "570.86.15" in status["message"]
    assert cluster.evictions == ["default/train"]
    assert cluster.driver_deletions == ["driver-1"]
    assert cluster.drivers.digest("n1") == "2"
    assert (cluster.unschedulable("n1"), cluster.owners("n1"), cluster.order("n1")) == (False, "", "")


async def test_the_agent_lets_go_before_the_pod_goes_and_reads_the_driver_afterwards() -> None:
    cluster = cluster_with_driver(looks=6)
    steps: list[str] = []
    async with upgrading(cluster) as engine:
        for _ in range(60):
            await engine.run_for(0.5)
            order = read_order(cluster.object(NODES, "n1")["metadata"].get("annotations") or {})
            if order is not None and (not steps or steps[-1] != order.step):
                steps.append(order.step)
                assert order.exchange
                assert not cluster.driver_deletions or order.step is OrderStep.RESUME or cluster.machines["n1"].released
    assert steps == ["release", "resume"]
    assert condition(cluster, "DriverReleased")["status"] == "True"


async def test_a_silent_agent_holds_nothing_up_and_that_is_said() -> None:
    cluster = cluster_with_driver()
    cluster.machines["n1"].agent.silent = True
    async with upgrading(cluster) as engine:
        await engine.run_for(50)
        assert not cluster.driver_deletions
        await engine.run_for(100)
    assert cluster.status("m")["result"] == "Succeeded"
    released = condition(cluster, "DriverReleased")
    assert released["status"] == "False"
    assert "has not answered" in released["message"]


async def test_it_is_complete_at_once_where_the_driver_runs_already() -> None:
    cluster = cluster_with_driver(digest="2")
    async with upgrading(cluster, approved=False) as engine:
        await engine.run_for(3)
    assert (cluster.status("m")["phase"], cluster.status("m")["reason"]) == ("Complete", "RunsAlready")
    assert not cluster.driver_deletions


async def test_a_driver_that_has_failed_is_tried_again_on_a_node_that_is_emptied_for_it() -> None:
    cluster = cluster_with_driver(fails="manager")
    pod, driver = cluster.drivers.pod("n1"), cluster.machines["n1"].driver
    assert pod is not None
    assert driver is not None
    await cluster.delete(cluster_pods(), pod["metadata"]["name"], namespace="gpu-operator")
    async with upgrading(cluster, approved=False) as engine:
        await engine.run_for(30)
        assert cluster.status("m")["reason"] == "WaitsForApproval"
        before = len(cluster.driver_deletions)
        await cluster.patch(NODE_OPERATIONS, "m", {"spec": {"approved": True}})
        while len(cluster.driver_deletions) == before and engine.clock.monotonic() < 200:
            await engine.run_for(0.5)
        assert cluster.evictions == ["default/train"]
        driver.fails = ""
        await until(engine, "Complete")
    assert cluster.status("m")["reason"] == "DriverUpgraded"


async def test_one_that_waits_for_approval_ends_once_the_pod_was_exchanged_by_hand() -> None:
    cluster = cluster_with_driver()
    async with upgrading(cluster, approved=False) as engine:
        await engine.run_for(3)
        assert cluster.status("m")["reason"] == "WaitsForApproval"
        pod = cluster.drivers.pod("n1")
        assert pod is not None
        await cluster.delete(cluster_pods(), pod["metadata"]["name"], namespace="gpu-operator")
        await engine.run_for(10)
    assert cluster.status("m")["reason"] == "RunsAlready"


def cluster_pods() -> Any:
    from kgpu.kube.port import PODS

    return PODS


async def test_pods_of_other_rules_are_compared_by_their_image() -> None:
    cluster = Cluster()
    cluster.node("n1")
    cluster.drivers.rules = ""
    cluster.driven("n1", digest="2")
    cluster.operation("m", "n1", type="DriverUpgrade", driver={**wanted(), "digest": "77"})
    engine = Engine(cluster)
    await engine.start()
    await engine.run_for(3)
    await engine.stop()
    assert cluster.status("m")["reason"] == "RunsAlready"


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        (
            "manager",
            "k8s-driver-manager has ended 3 times, last with exit code 1: nvidia is in use by pid 77 (python3)",
        ),
        ("install", "nvidia-driver-ctr has ended 3 times, last with exit code 1: no headers"),
        ("image", "nvidia-driver-ctr can't be started: Back-off pulling image"),
    ],
)
async def test_a_driver_that_can_not_be_loaded_ends_it_early_with_the_pods_own_words(fails: str, words: str) -> None:
    cluster = cluster_with_driver(fails=fails)
    async with upgrading(cluster) as engine:
        await until(engine, "Failed")
        took = engine.clock.monotonic()
    status = cluster.status("m")
    assert (status["result"], status["reason"]) == ("PermanentFailure", "DriverFailed")
    assert words in status["message"]
    assert not cluster.unschedulable("n1")
    assert (took > 120.0) is (fails == "image")


async def test_a_registry_that_is_away_for_a_minute_is_waited_for() -> None:
    cluster = cluster_with_driver(fails="image")
    async with upgrading(cluster) as engine:
        await engine.run_for(90)
        assert cluster.status("m")["phase"] == "Acting"
        assert condition(cluster, "ActDone")["reason"] == "ImageNotPulled"
        driver = cluster.machines["n1"].driver
        assert driver is not None
        driver.fails = ""
        await engine.run_for(30)
    assert cluster.status("m")["result"] == "Succeeded"


async def test_a_driver_that_takes_too_long_ends_it_by_its_limit() -> None:
    cluster = cluster_with_driver(looks=10_000)
    async with upgrading(cluster, actTimeoutSeconds=40) as engine:
        await until(engine, "Failed")
    assert cluster.status("m")["reason"] == "DriverTimeout"
    assert "within 40 s; its pod: k8s-driver-manager is at work" in cluster.status("m")["message"]


async def test_a_template_that_changes_midway_is_finished_with_and_told() -> None:
    cluster = cluster_with_driver(looks=6)
    async with upgrading(cluster) as engine:
        await until(engine, "Acting")
        assert not cluster.driver_deletions  # the agent still has the driver
        cluster.drivers.template = "3"
        await engine.run_for(200)
    assert (cluster.status("m")["phase"], cluster.status("m")["result"]) == ("Complete", "Superseded")
    assert cluster.status("m")["reason"] == "DriverChanged"
    assert cluster.drivers.digest("n1") == "3"


async def test_another_release_than_the_one_that_is_wanted_is_not_well() -> None:
    cluster = cluster_with_driver()
    async with upgrading(cluster, driver={**wanted(), "version": "575.1"}) as engine:
        await until(engine, "Failed", 1200)
    assert cluster.status("m")["reason"] == "NotWell"
    assert "driver 570.86.15 is loaded, and 575.1 is wanted" in cluster.status("m")["message"]


async def test_it_ends_where_the_daemon_set_makes_no_other_pod() -> None:
    cluster = cluster_with_driver()
    async with upgrading(cluster) as engine:
        while not cluster.driver_deletions:
            await engine.run_for(0.5)
        cluster.drivers.of.clear()
        pod = cluster.drivers.pod("n1")
        if pod is not None:
            await cluster.delete(cluster_pods(), pod["metadata"]["name"], namespace="gpu-operator")
        await until(engine, "Failed", 500)
    assert cluster.status("m")["reason"] == "DriverFailed"
    assert "has made no pod on the node" in cluster.status("m")["message"]


async def test_a_node_without_a_driver_pod_has_nothing_to_exchange() -> None:
    cluster = Cluster()
    cluster.node("n1")
    async with upgrading(cluster) as engine:
        await until(engine, "Complete")
    assert (cluster.status("m")["result"], cluster.status("m")["reason"]) == ("Superseded", "NoDriverPod")


async def test_another_namespace_is_not_looked_into() -> None:
    cluster = cluster_with_driver()
    async with upgrading(cluster, driver={**wanted(), "namespace": "kube-system"}) as engine:
        await until(engine, "Complete")
    assert cluster.status("m")["reason"] == "NoDriverPod"
    assert not cluster.driver_deletions


async def test_a_cancel_before_the_pod_goes_leaves_the_driver() -> None:
    cluster = cluster_with_driver()
    cluster.machines["n1"].agent.silent = True
    async with upgrading(cluster) as engine:
        await until(engine, "Acting")
        cluster.say("m", cancel=True)
        await engine.run_for(5)
    assert cluster.status("m")["result"] == "Cancelled"
    assert (cluster.driver_deletions, cluster.drivers.digest("n1")) == ([], "1")


async def test_a_cancel_after_it_waits_until_the_driver_is_there() -> None:
    """Given back at once, the node would take pods while its driver is being unloaded under them."""
    cluster = cluster_with_driver(looks=20)
    async with upgrading(cluster) as engine:
        while not cluster.driver_deletions:
            await engine.run_for(0.5)
        cluster.say("m", cancel=True)
        await engine.run_for(4)
        assert cluster.unschedulable("n1")
        await engine.run_for(20)
    assert cluster.status("m")["result"] == "Cancelled"
    assert cluster.drivers.digest("n1") == "2"


async def test_a_person_who_uncordons_ends_it() -> None:
    cluster = cluster_with_driver(looks=100)
    async with upgrading(cluster) as engine:
        while not cluster.driver_deletions:
            await engine.run_for(0.5)
        cluster.uncordon("n1")
        await engine.run_for(5)
    assert (cluster.status("m")["result"], cluster.status("m")["reason"]) == ("Cancelled", "Uncordoned")


def _validated(cluster: Cluster, status: str) -> None:
    known = cluster.object(NODES, "n1")
    report = validation_report.encode(validation_report.report((), "boot-of-n1"))
    annotations = {**(known["metadata"].get("annotations") or {}), names.VALIDATION_ANNOTATION: report}
    rows = [row for row in known["status"]["conditions"] if row["type"] != names.VALIDATED_CONDITION]
    conditions = [*rows, {"type": names.VALIDATED_CONDITION, "status": status}]
    metadata = {**known["metadata"], "annotations": annotations}
    cluster.put(NODES, {**known, "metadata": metadata, "status": {**known["status"], "conditions": conditions}})


async def test_only_what_is_validated_with_the_next_driver_counts() -> None:
    cluster = cluster_with_driver()
    _validated(cluster, "True")
    async with upgrading(cluster) as engine:
        await until(engine, "Acting")
        await engine.run_for(5)
        assert not cluster.driver_deletions, "the node counts as validated with the driver of before"
        _validated(cluster, "Unknown")
        await until(engine, "Verifying")
        await engine.run_for(20)
        assert cluster.status("m")["phase"] == "Verifying"
        _validated(cluster, "True")
        await engine.run_for(5)
    assert cluster.status("m")["result"] == "Succeeded"


async def test_a_driver_that_was_ready_and_ends_again_and_again_is_not_waited_for() -> None:
    cluster = cluster_with_driver(fails="crash")
    _validated(cluster, "True")
    async with upgrading(cluster) as engine:
        await until(engine, "Acting")
        _validated(cluster, "Unknown")
        await until(engine, "Verifying")
        await until(engine, "Failed")
    status = cluster.status("m")
    assert (status["result"], status["reason"]) == ("PermanentFailure", "DriverFailed")
    assert "nvidia-driver-ctr has ended 3 times, last with exit code 1: no headers" in status["message"]
    assert not cluster.unschedulable("n1")


async def test_a_driver_that_is_up_has_to_stay_before_the_node_is_given_back() -> None:
    cluster = cluster_with_driver(fails="crash", lives=6)
    async with upgrading(cluster) as engine:
        await until(engine, "Failed")
    assert cluster.status("m")["reason"] == "DriverFailed"
    assert not cluster.unschedulable("n1")


async def test_one_that_has_ended_is_watched_from_then_on() -> None:
    cluster = cluster_with_driver(fails="crash", lives=6)
    driver = cluster.machines["n1"].driver
    assert driver is not None
    async with upgrading(cluster) as engine:
        await until(engine, "Verifying")
        while "lastState" not in str(cluster.drivers.pod("n1")):
            await engine.run_for(0.5)
        driver.fails, ended = "", engine.clock.monotonic()
        await until(engine, "Complete")
    assert cluster.status("m")["result"] == "Succeeded"
    assert engine.clock.monotonic() - ended >= STEADY_SECONDS


async def test_jobs_are_waited_for_and_the_drain_begins_after_them() -> None:
    cluster = cluster_with_driver()
    cluster.pod("job", "n1", metadata={"labels": {"app": "job"}})
    drain = {"onlyGpuPods": True, "waitFor": {"podSelector": "app in (job)"}}
    async with upgrading(cluster, drain=drain) as engine:
        await engine.run_for(400)
        assert (cluster.status("m")["phase"], cluster.status("m")["reason"]) == ("Draining", WAITING_FOR_PODS)
        assert "default/job" in cluster.status("m")["message"]
        assert not cluster.evictions
        known = cluster.object(cluster_pods(), "job", "default")
        cluster.put(cluster_pods(), {**known, "status": {"phase": "Succeeded"}})
        await engine.run_for(30)
    assert cluster.status("m")["result"] == "Succeeded"
    assert condition(cluster, "PodsCompleted")["status"] == "True"


async def test_a_cancel_ends_the_wait_for_jobs() -> None:
    cluster = cluster_with_driver()
    cluster.pod("job", "n1", metadata={"labels": {"app": "job"}})
    async with upgrading(cluster, drain={"waitFor": {"podSelector": "app=job"}}) as engine:
        await engine.run_for(10)
        cluster.say("m", cancel=True)
        await engine.run_for(5)
    assert (cluster.status("m")["result"], cluster.unschedulable("n1")) == ("Cancelled", False)


async def test_jobs_that_do_not_end_are_told_and_the_drain_goes_on() -> None:
    cluster = cluster_with_driver()
    cluster.pod("job", "n1", metadata={"labels": {"app": "job"}})
    drain = {"onlyGpuPods": True, "waitFor": {"podSelector": "app=job", "timeoutSeconds": 20}}
    async with upgrading(cluster, drain=drain) as engine:
        await engine.run_for(60)
    assert cluster.status("m")["result"] == "Succeeded"
    assert "default/job" in condition(cluster, "PodsCompleted")["message"]


async def test_a_selector_that_can_not_be_read_is_refused() -> None:
    cluster = cluster_with_driver()
    async with upgrading(cluster, drain={"podSelector": "app in"}) as engine:
        await engine.run_for(5)
    assert (cluster.status("m")["phase"], cluster.status("m")["reason"]) == ("Failed", "Refused")
    assert "spec.drain.podSelector can't be read" in cluster.status("m")["message"]


def _crashes(cluster: Cluster, ends: int) -> None:
    """The driver's container ends, so that the kubelet waits before it starts it again."""
    pod = cluster.drivers.pod("n1")
    assert pod is not None
    last = {"terminated": {"exitCode": 7, "message": "NVRM: Xid 79, the GPU has fallen off the bus"}}
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    row = {"name": names.DRIVER_CONTAINER, "restartCount": ends, "ready": False, "state": state, "lastState": last}
    cluster.drivers.of.clear()  # it stays so
    cluster.put(cluster_pods(), {**pod, "status": {"phase": "Running", "containerStatuses": [row]}})


@pytest.mark.parametrize(("ends", "reason"), [(3, "DriverFailed"), (1, "NotWell")])
async def test_a_driver_that_ends_right_after_it_was_loaded_is_told_with_its_last_words(ends: int, reason: str) -> None:
    cluster = cluster_with_driver()
    _validated(cluster, "True")
    async with upgrading(cluster) as engine:
        await until(engine, "Acting")
        await engine.run_for(5)
        _validated(cluster, "Unknown")
        await until(engine, "Verifying")
        _crashes(cluster, ends)
        began = engine.clock.monotonic()
        await until(engine, "Failed", 1200)
        took = engine.clock.monotonic() - began
    assert cluster.status("m")["reason"] == reason
    assert "exit code 7: NVRM: Xid 79, the GPU has fallen off the bus" in cluster.status("m")["message"]
    assert (took < 60) is (reason == "DriverFailed")
    assert not cluster.unschedulable("n1")


async def test_a_pod_that_a_finalizer_keeps_leaves_the_driver_as_it_is() -> None:
    """Its containers may run still, so the driver is not unloaded under it; what keeps it is named."""
    cluster = cluster_with_driver()
    cluster.pod("kept", "n1", spec=GPU_POD, metadata={"finalizers": ["example.org/backup"]})
    async with upgrading(cluster, drain={"onlyGpuPods": True, "timeoutSeconds": 60}) as engine:
        await until(engine, "Draining")
        await engine.run_for(40)
        assert cluster.status("m")["phase"] == "Draining"
        known = cluster.object(cluster_pods(), "kept", "default")
        # The fake API server's clock is another one: its grace period is over long ago.
        metadata = {**known["metadata"], "deletionTimestamp": "2023-11-14T22:13:25Z"}
        cluster.put(cluster_pods(), {**known, "metadata": metadata})
        await until(engine, "Failed")
        await engine.run_for(60)
    status = cluster.status("m")
    assert (status["result"], status["reason"]) == ("TransientFailure", "DrainTimeout")
    assert "it is kept by its finalizer example.org/backup" in status["message"]
    assert cluster.evictions.count("default/kept") == 1
    assert (cluster.driver_deletions, cluster.drivers.digest("n1")) == ([], "1")
    assert (cluster.unschedulable("n1"), cluster.owners("n1"), cluster.order("n1")) == (False, "", "")


async def test_the_preview_leaves_the_drivers_own_pod_to_the_upgrade() -> None:
    """A drain of the whole node would otherwise seem to be refused by a driver's pod that nobody owns."""
    cluster = cluster_with_driver()
    pod = cluster.drivers.pod("n1")
    assert pod is not None
    cluster.put(cluster_pods(), {**pod, "metadata": {**pod["metadata"], "ownerReferences": []}})
    whole = {"nodeName": "n1", "type": "DriverUpgrade", "driver": wanted()}
    seen = await preview_of(cluster, "n1", msgspec.convert(whole, NodeOperationSpec))
    assert ({row.pod.name for row in seen.pods if row.fate is Fate.EVICT}, seen.refused) == ({"train", "web"}, ())
    maintenance = {"nodeName": "n1", "type": "Maintenance"}
    refused = (await preview_of(cluster, "n1", msgspec.convert(maintenance, NodeOperationSpec))).refused
    assert [row.pod.name for row in refused] == ["driver-1"]
