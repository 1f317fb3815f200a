"""A node whose machine has to be replaced: its evidence is kept, it is emptied and held, and each way in which that ends."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from kgpu.base.errors import HostError
from kgpu.formats import names
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import CONFIG_MAPS, NODES
from kgpu.operations.config import OperationBudget, Share
from kgpu.operations.replace import EVIDENCE_SECONDS
from tests.operations.world import Cluster, Engine


async def held(cluster: Cluster | None = None, **more: Any) -> tuple[Cluster, Engine]:
    """A node with a pod, once it is held for replacement."""
    cluster = cluster or Cluster()
    cluster.node("n1")
    cluster.pod("web-1", "n1")
    cluster.operation("r", "n1", type="Replace")
    engine = Engine(cluster, **more)
    await engine.start()
    await engine.run_for(10)
    return cluster, engine


def condition(cluster: Cluster, kind: str) -> tuple[str, str]:
    rows = {row["type"]: (row["status"], row["reason"]) for row in cluster.status("r")["conditions"]}
    return rows[kind]


async def test_it_is_emptied_labelled_and_held_with_its_evidence() -> None:
    cluster, engine = await held()
    status = cluster.status("r")
    assert (status["phase"], status["reason"]) == ("Acting", "NeedsReplacement")
    assert "`kgpu operations resume r` gives it back as it is" in status["message"]
    assert cluster.unschedulable("n1")
    assert cluster.marked("n1")
    assert not cluster.pods_on("n1")
    assert status["evidence"] == {"namespace": "gpu-operator", "name": "kgpu-evidence-r", "sizeBytes": 10}
    bundle = cluster.object(CONFIG_MAPS, "kgpu-evidence-r", "gpu-operator")
    uid = cluster.object(NODE_OPERATIONS, "r")["metadata"]["uid"]
    assert base64.b64decode(bundle["binaryData"]["bundle.tar.gz"]) == b"an archive"
    assert bundle["metadata"]["ownerReferences"] == [
        {"apiVersion": "kgpu.dev/v1alpha1", "kind": "NodeOperation", "name": "r", "uid": uid}
    ]
    assert bundle["metadata"]["labels"][names.OPERATION_LABEL] == uid
    assert cluster.collected == ["n1"]
    await engine.run_for(3600, step=60)
    assert cluster.status("r") == status, "it has no limit, and writes nothing"
    await engine.stop()


async def test_the_evidence_is_from_before_the_pods_went() -> None:
    Cluster()
    seen: list[set[str]] = []

    class Looking(Cluster):
        async def _evict(self, *args: Any) -> Any:
            seen.append(set(self.bundles()))
            return await super()._evict(*args)

    _cluster, engine = await held(Looking())
    assert seen == [{"kgpu-evidence-r"}]
    await engine.stop()


@pytest.mark.parametrize(
    ("spec", "result", "reason"),
    [({"resume": True}, "Succeeded", "Resumed"), ({"cancel": True}, "Cancelled", "Cancelled")],
)
async def test_a_person_ends_it(spec: dict[str, bool], result: str, reason: str) -> None:
    cluster, engine = await held()
    cluster.say("r", **spec)
    await engine.run_for(5)
    status = cluster.status("r")
    assert (status["phase"], status["result"], status["reason"]) == ("Complete", result, reason)
    assert not cluster.unschedulable("n1")
    assert not cluster.marked("n1")
    assert not cluster.owners("n1")
    await engine.stop()


async def test_a_repaired_machine_is_given_back() -> None:
    cluster, engine = await held()
    known = cluster.object(NODES, "n1")
    cluster.put(NODES, {**known, "status": {**known["status"], "nodeInfo": {"bootID": "another"}}})
    await engine.run_for(5)
    assert cluster.status("r")["phase"] == "Acting", "nobody has said that its GPUs are well"
    cluster.repair("n1")
    await engine.run_for(5)
    status = cluster.status("r")
    assert (status["result"], status["reason"], condition(cluster, "Verified")) == (
        "Succeeded", "Repaired", ("True", "Well"),
    )  # fmt: skip
    assert not cluster.unschedulable("n1")
    assert not cluster.marked("n1")
    await engine.stop()


async def test_healthy_gpus_in_the_same_boot_change_nothing() -> None:
    cluster, engine = await held()
    known = cluster.object(NODES, "n1")
    well = {"type": names.GPUS_HEALTHY_CONDITION, "status": "True"}
    conditions = [*known["status"]["conditions"], well]
    cluster.put(NODES, {**known, "status": {**known["status"], "conditions": conditions}})
    await engine.run_for(5)
    assert cluster.status("r")["phase"] == "Acting"
    assert cluster.marked("n1")
    await engine.stop()


@pytest.mark.parametrize("again", [False, True])
async def test_a_node_that_is_gone_was_replaced(again: bool) -> None:
    cluster, engine = await held()
    await cluster.delete(NODES, "n1")
    if again:
        cluster.node("n1", labels={"new": "true"})
    await engine.run_for(5)
    status = cluster.status("r")
    reason = "NodeReplaced" if again else "NodeGone"
    assert (status["phase"], status["result"], status["reason"]) == ("Complete", "Succeeded", reason)
    assert "Restored" not in {row["type"] for row in status["conditions"]}, "nothing was given back"
    assert not again or not cluster.unschedulable("n1")
    await engine.stop()


async def test_a_label_that_was_taken_away_comes_back_and_a_persons_own_stays() -> None:
    cluster, engine = await held()
    known = cluster.object(NODES, "n1")
    labels = {key: text for key, text in known["metadata"]["labels"].items() if key != names.NEEDS_REPLACEMENT_LABEL}
    cluster.put(NODES, {**known, "metadata": {**known["metadata"], "labels": labels}})
    await engine.run_for(2)
    assert cluster.marked("n1")
    await engine.stop()


@pytest.mark.parametrize("evidence", [HostError("kgpu collect has failed", "an archive", "by hand"), b"x" * 600_000])
async def test_it_goes_on_without_evidence(evidence: Any) -> None:
    cluster = Cluster()
    cluster.evidence = evidence
    cluster, engine = await held(cluster)
    assert cluster.status("r")["phase"] == "Acting"
    assert condition(cluster, "EvidenceCollected") == ("False", "NotCollected")
    assert "there is no evidence bundle" in cluster.status("r")["message"]
    assert cluster.collected == ["n1"]
    assert not cluster.bundles()
    await engine.stop()


async def test_evidence_that_never_comes_is_not_waited_for() -> None:
    cluster = Cluster()
    cluster.collecting_ends.clear()
    cluster, engine = await held(cluster)
    assert (cluster.status("r")["phase"], cluster.pods_on("n1")) == ("Cordoning", {"web-1"})
    await engine.run_for(EVIDENCE_SECONDS + 5, step=1)
    assert cluster.status("r")["phase"] == "Acting"
    assert condition(cluster, "EvidenceCollected") == ("False", "TookTooLong")
    assert cluster.collected == ["n1"]
    await engine.stop()


async def test_a_config_map_of_somebody_else_is_left_alone() -> None:
    cluster = Cluster()
    theirs = {"metadata": {"name": "kgpu-evidence-r", "namespace": "gpu-operator"}, "data": {"a": "b"}}
    cluster.put(CONFIG_MAPS, theirs)
    cluster, engine = await held(cluster)
    assert condition(cluster, "EvidenceCollected") == ("False", "NotCollected")
    assert cluster.object(CONFIG_MAPS, "kgpu-evidence-r", "gpu-operator")["data"] == {"a": "b"}
    await engine.stop()


async def test_a_held_node_takes_no_slot_but_counts_as_unavailable() -> None:
    cluster = Cluster()
    for name in ("n2", "n3", "n4"):
        cluster.node(name)
    cluster, engine = await held(cluster, budget=OperationBudget(max_parallel=1, max_unavailable=Share(2)))
    assert cluster.status("r")["phase"] == "Acting"
    cluster.operation("m2", "n2")
    cluster.operation("m3", "n3")
    await engine.run_for(5)
    assert (cluster.status("m2")["phase"], cluster.status("m3")["phase"]) == ("Acting", "Pending")
    cluster.say("m2", resume=True)
    await engine.run_for(5)
    assert cluster.status("m3")["phase"] == "Acting"
    cluster.operation("m4", "n4")
    await engine.run_for(5)
    assert cluster.status("m4")["reason"] == "WaitsForBudget"
    await engine.stop()


async def test_a_node_without_a_boot_id_is_refused() -> None:
    cluster = Cluster()
    known = cluster.node("n1")
    cluster.put(NODES, {**known, "status": {**known["status"], "nodeInfo": {}}})
    cluster.operation("r", "n1", type="Replace")
    engine = Engine(cluster)
    await engine.start()
    await engine.run_for(5)
    assert (cluster.status("r")["phase"], cluster.status("r")["reason"]) == ("Failed", "Refused")
    assert not cluster.collected
    await engine.stop()
