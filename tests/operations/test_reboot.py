"""Reboot: what is written while a machine goes and comes back, and what ends one that does not."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kgpu.formats import names
from kgpu.formats.validation_report import encode, report
from kgpu.kube.port import EVENTS, NODES, PODS, Object
from kgpu.operations import reboot
from tests.operations.world import Cluster, Engine


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.node("n1")
    cluster.pod("web-1", "n1")
    return cluster


@pytest.fixture
async def engine(cluster: Cluster) -> AsyncIterator[Engine]:
    engine = Engine(cluster)
    await engine.start()
    yield engine
    await engine.stop()


def acts(cluster: Cluster) -> list[Object]:
    rows = (stored.obj for (resource, _, _), stored in cluster._objects.items() if resource == PODS)
    return [row for row in rows if row["metadata"].get("labels", {}).get("app") == names.ACT_APP]


def change(cluster: Cluster, **status: object) -> None:
    known = cluster.object(NODES, "n1")
    cluster.put(NODES, {**known, "status": {**known["status"], **status}})


async def test_a_node_is_emptied_rebooted_and_given_back(cluster: Cluster, engine: Engine) -> None:
    cluster.machines["n1"].looks = 20
    cluster.operation("m", "n1", type="Reboot")
    await engine.run_for(8)
    status = cluster.status("m")
    assert (status["phase"], status["act"]["bootID"]) == ("Acting", "boot-of-n1")
    assert status["message"].startswith(f"the node is asked to reboot by the pod {names.ACT_APP}-{status['act']['id']}")
    assert cluster.unschedulable("n1")

    await engine.run_for(5)
    status = cluster.status("m")
    assert (status["phase"], status["result"], status["reason"]) == ("Complete", "Succeeded", "Rebooted")
    assert not cluster.unschedulable("n1")
    assert cluster.machines["n1"].boots == 1
    assert not acts(cluster)
    words = {row["type"]: row["status"] for row in status["conditions"]}
    expected = ("Admitted", "Cordoned", "Drained", "ActDone", "Verified", "Restored", "Complete")
    assert words == dict.fromkeys(expected, "True")
    told = [
        obj["reason"] for (kind, _, _), stored in cluster._objects.items() if kind == EVENTS for obj in [stored.obj]
    ]
    assert told == ["OperationStarted", "Rebooting", "Verifying", "Rebooted", "OperationSucceeded"]


async def test_the_pod_of_an_act_can_do_nothing_else(cluster: Cluster, engine: Engine) -> None:
    cluster.machines["n1"].looks = 10**6
    cluster.operation("m", "n1", type="Reboot")
    await engine.run_for(2)
    (pod,) = acts(cluster)
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
    (container,) = spec["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["KILL"]}
    assert not container["securityContext"].get("privileged")
    assert [volume["hostPath"]["path"] for volume in spec["volumes"]] == [names.RUN_DIR]
    assert spec["nodeName"] == "n1"


async def test_a_refusal_is_told_and_gives_the_node_back(cluster: Cluster, engine: Engine) -> None:
    cluster.machines["n1"].forbids = True
    cluster.operation("m", "n1", type="Reboot")
    await engine.run_for(5)
    status = cluster.status("m")
    assert (status["phase"], status["result"], status["reason"]) == ("Failed", "PermanentFailure", "RebootRefused")
    assert "/run/kgpu/no-reboot is there" in status["message"]
    assert not cluster.unschedulable("n1")
    assert not acts(cluster)


async def test_a_machine_that_does_not_come_back_ends_it_in_time(cluster: Cluster, engine: Engine) -> None:
    cluster.machines["n1"].looks = 10**6
    cluster.operation("m", "n1", type="Reboot", actTimeoutSeconds=60)
    await engine.run_for(50)
    assert cluster.status("m")["phase"] == "Acting"
    await engine.run_for(20)
    status = cluster.status("m")
    assert (status["phase"], status["reason"]) == ("Failed", "RebootTimeout")
    assert "has not rebooted within 60 s" in status["message"]
    assert len(cluster.machines["n1"].asked) == 1


@pytest.mark.parametrize(
    ("sick", "why"),
    [
        ({"conditions": [{"type": "Ready", "status": "Unknown"}]}, "it is not Ready"),
        ({"allocatable": {"nvidia.com/gpu": "7"}}, "it offers 7 nvidia.com/gpu, and had 8"),
        ({"allocatable": {}}, "it offers 0 nvidia.com/gpu, and had 8"),
    ],
)
async def test_a_node_that_is_not_well_afterwards_is_told(
    cluster: Cluster, engine: Engine, sick: dict[str, object], why: str
) -> None:
    well = cluster.object(NODES, "n1")["status"]
    cluster.operation("m", "n1", type="Reboot")
    await engine.run_for(1)
    change(cluster, **sick)
    await engine.run_for(10)
    status = cluster.status("m")
    assert (status["phase"], status["message"]) == ("Verifying", f"the node has rebooted; {why}")
    assert cluster.unschedulable("n1")
    change(cluster, **{key: well[key] for key in sick})
    await engine.run_for(3)
    assert cluster.status("m")["result"] == "Succeeded"


def validation(cluster: Cluster, boot: str, status: str) -> None:
    """As the node's validator publishes it."""
    known = cluster.object(NODES, "n1")
    annotations = {names.VALIDATION_ANNOTATION: encode(report((), boot))}
    conditions = [{"type": "Ready", "status": "True"}, {"type": names.VALIDATED_CONDITION, "status": status}]
    metadata = {**known["metadata"], "annotations": {**known["metadata"].get("annotations", {}), **annotations}}
    cluster.put(NODES, {**known, "metadata": metadata, "status": {**known["status"], "conditions": conditions}})


async def test_a_validated_node_is_well_once_this_boot_is_validated(cluster: Cluster, engine: Engine) -> None:
    """What an earlier boot has passed says nothing."""
    validation(cluster, "boot-of-n1", "True")
    cluster.operation("m", "n1", type="Reboot")
    await engine.run_for(15)
    assert cluster.status("m")["message"] == "the node has rebooted; its GPUs have not been validated since"
    validation(cluster, cluster.machines["n1"].boot, "False")
    await engine.run_for(8)
    assert "it has not passed every check" in cluster.status("m")["message"]
    validation(cluster, cluster.machines["n1"].boot, "True")
    await engine.run_for(3)
    assert cluster.status("m")["result"] == "Succeeded"


async def test_one_that_never_gets_well_is_given_back_all_the_same(cluster: Cluster, engine: Engine) -> None:
    cluster.operation("m", "n1", type="Reboot")
    await engine.run_for(1)
    change(cluster, allocatable={})
    await engine.run_for(reboot.VERIFY_SECONDS + 60, step=5)
    status = cluster.status("m")
    assert (status["phase"], status["reason"]) == ("Failed", "NotWell")
    assert "it offers 0 nvidia.com/gpu, and had 8" in status["message"]
    assert not cluster.unschedulable("n1")


async def test_one_that_somebody_else_has_rebooted_is_not_rebooted_again(cluster: Cluster, engine: Engine) -> None:
    """While its pods went, which the record of the act is newer than, or before the pod came."""
    cluster.machines["n1"].looks = 10**6
    cluster.operation("m", "n1", type="Reboot")
    await engine.run_for(2)
    assert cluster.status("m")["phase"] == "Acting"
    cluster.machines["n1"].boot_anew()
    change(cluster, nodeInfo={"bootID": cluster.machines["n1"].boot})
    await engine.run_for(3)
    assert cluster.status("m")["result"] == "Succeeded"


async def test_an_uncordon_meanwhile_ends_it(cluster: Cluster, engine: Engine) -> None:
    cluster.machines["n1"].looks = 10**6
    cluster.operation("m", "n1", type="Reboot")
    await engine.run_for(2)
    cluster.uncordon("n1")
    await engine.run_for(3)
    status = cluster.status("m")
    assert (status["result"], status["reason"]) == ("Cancelled", "Uncordoned")
    assert not acts(cluster)


async def test_a_node_without_a_boot_id_is_refused(cluster: Cluster, engine: Engine) -> None:
    change(cluster, nodeInfo={})
    cluster.operation("m", "n1", type="Reboot")
    await engine.run_for(3)
    status = cluster.status("m")
    assert (status["phase"], status["reason"]) == ("Failed", "Refused")
    assert "has no boot ID" in status["message"]
    assert cluster.pods_on("n1") == {"web-1"}


async def test_why_the_pod_waits_is_told(cluster: Cluster, engine: Engine) -> None:
    cluster.machines["n1"].looks = 10**6
    cluster.machines["n1"].left = 10**6  # its kubelet runs nothing
    cluster.operation("m", "n1", type="Reboot")
    await engine.run_for(2)
    (pod,) = acts(cluster)
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "kgpu"'}
    cluster.put(PODS, {**pod, "status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}})
    await engine.run_for(6)
    assert cluster.status("m")["message"].endswith(': Back-off pulling image "kgpu"')


async def test_a_pod_that_somebody_deletes_is_made_again_and_asks_for_nothing_twice(
    cluster: Cluster, engine: Engine
) -> None:
    cluster.machines["n1"].looks = 20
    cluster.operation("m", "n1", type="Reboot")
    await engine.run_for(2)
    (pod,) = acts(cluster)
    cluster.machines["n1"].left, left = 0, cluster.machines["n1"].left
    await cluster.delete(PODS, pod["metadata"]["name"], namespace=pod["metadata"]["namespace"], grace=0)
    await engine.run_for(2)
    assert len(acts(cluster)) == 1
    cluster.machines["n1"].left = left
    await engine.run_for(30)
    assert cluster.status("m")["result"] == "Succeeded"
    assert (len(cluster.machines["n1"].asked), cluster.machines["n1"].boots) == (1, 1)
