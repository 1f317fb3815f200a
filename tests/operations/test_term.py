"""The engine against an API server in memory: maintenance from the wish to the node that is as it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kgpu.base.clock import settle
from kgpu.base.service import end
from kgpu.base.times import stamp_of
from kgpu.formats.crd.nodeoperation import NodeOperationStatus
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import EVENTS, NODES, PODS, KubeRefusedError, KubeUnreachableError, Listing, Object, Resource
from kgpu.operations import writing
from kgpu.operations.config import OperationBudget, Share
from kgpu.operations.model import Operation, Record, read_operation
from tests.operations.world import START, Cluster, Engine

ONE = OperationBudget(max_parallel=1, max_unavailable=Share(1))
TWO = (("DisruptionBudget", "The disruption budget web needs 2 healthy pods and has 2 currently"),)


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.node("n1")
    cluster.node("n2")
    return cluster


@pytest.fixture
async def engine(cluster: Cluster) -> AsyncIterator[Engine]:
    engine = Engine(cluster)
    await engine.start()
    yield engine
    await engine.stop()


async def test_a_node_is_emptied_held_and_given_back(cluster: Cluster, engine: Engine) -> None:
    cluster.pod("web-1", "n1")
    cluster.pod("web-2", "n2")
    cluster.daemon_set("agent")
    cluster.pod("agent-1", "n1", owner=("DaemonSet", "agent"))
    cluster.operation("m", "n1")

    await engine.run_for(5)

    status = cluster.status("m")
    assert (status["phase"], status["drain"]["total"], status["drain"]["gone"]) == ("Acting", 1, 1)
    assert "kgpu operations resume m" in status["message"]
    assert cluster.unschedulable("n1")
    assert cluster.pods_on("n1") == {"agent-1"}
    assert cluster.pods_on("n2") == {"web-2"}
    assert not cluster.unschedulable("n2")

    cluster.say("m", resume=True)
    await engine.run_for(3)

    status = cluster.status("m")
    assert (status["phase"], status["result"], status["reason"]) == ("Complete", "Succeeded", "Resumed")
    assert not cluster.unschedulable("n1")
    assert cluster.owners("n1") == ""
    words = {row["type"]: row["status"] for row in status["conditions"]}
    assert words == dict.fromkeys(("Admitted", "Cordoned", "Drained", "Restored", "Complete"), "True")


async def test_one_maintenance_right_after_another(cluster: Cluster, engine: Engine) -> None:
    """What was found out about DaemonSets is found out again."""
    cluster.daemon_set("agent")
    cluster.pod("agent-1", "n1", owner=("DaemonSet", "agent"))
    for name in ("first", "second"):
        cluster.operation(name, "n1")
        await engine.run_for(5)
        assert cluster.status(name)["phase"] == "Acting"
        cluster.say(name, resume=True)
        await engine.run_for(3)
        assert cluster.status(name)["result"] == "Succeeded"


async def test_a_node_that_was_cordoned_before_stays_so(cluster: Cluster, engine: Engine) -> None:
    cluster.node("n1", unschedulable=True)
    cluster.operation("m", "n1", resume=False)
    await engine.run_for(3)
    assert cluster.status("m")["phase"] == "Acting"
    cluster.say("m", resume=True)
    await engine.run_for(3)
    assert cluster.status("m")["result"] == "Succeeded"
    assert cluster.unschedulable("n1")
    assert cluster.owners("n1") == ""


async def test_a_pod_that_may_not_go_stops_it_before_anybody_is_asked(cluster: Cluster, engine: Engine) -> None:
    cluster.pod("web-1", "n1")
    cluster.pod("notebook", "n1", owner=None)
    cluster.operation("m", "n1")
    await engine.run_for(5)
    status = cluster.status("m")
    assert (status["phase"], status["reason"]) == ("Failed", "DrainRefused")
    assert "default/notebook: no controller would recreate it" in status["message"]
    assert not cluster.evictions
    assert not cluster.unschedulable("n1")


async def test_a_disruption_budget_that_never_gives_ends_the_drain_in_time(cluster: Cluster, engine: Engine) -> None:
    cluster.pod("web-1", "n1")
    cluster.budgets["default", "web-1"] = (429, "Cannot evict pod", TWO)
    cluster.operation("m", "n1", drain={"timeoutSeconds": 60})
    await engine.run_for(30)
    status = cluster.status("m")
    assert status["phase"] == "Draining"
    assert "needs 2 healthy pods" in status["drain"]["waiting"][0]["why"]
    await engine.run_for(40)
    status = cluster.status("m")
    assert (status["phase"], status["reason"]) == ("Failed", "DrainTimeout")
    assert "default/web-1: The disruption budget web needs 2 healthy pods" in status["message"]
    assert not cluster.unschedulable("n1")
    assert 3 <= len(cluster.evictions) <= 7


async def test_two_budgets_for_one_pod_are_told_at_once(cluster: Cluster, engine: Engine) -> None:
    cluster.pod("web-1", "n1")
    message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    cluster.budgets["default", "web-1"] = (500, message, ())
    cluster.operation("m", "n1")
    await engine.run_for(5)
    status = cluster.status("m")
    assert (status["phase"], status["reason"]) == ("Failed", "EvictionRefused")
    assert "more than one PodDisruptionBudget" in status["message"]


async def test_an_uncordon_ends_it(cluster: Cluster, engine: Engine) -> None:
    cluster.operation("m", "n1")
    await engine.run_for(3)
    cluster.uncordon("n1")
    await engine.run_for(3)
    status = cluster.status("m")
    assert (status["phase"], status["result"], status["reason"]) == ("Complete", "Cancelled", "Uncordoned")
    assert not cluster.unschedulable("n1")


async def test_a_record_that_is_deleted_gives_the_node_back(cluster: Cluster, engine: Engine) -> None:
    cluster.operation("m", "n1")
    await engine.run_for(3)
    assert cluster.unschedulable("n1")
    await cluster.delete(NODE_OPERATIONS, "m")
    await engine.run_for(3)
    assert not cluster.unschedulable("n1")
    assert cluster.owners("n1") == ""


async def test_a_kind_that_is_deleted_gives_the_node_back_after_a_minute(cluster: Cluster, engine: Engine) -> None:
    cluster.operation("m", "n1")
    await engine.run_for(3)
    await cluster.delete(NODE_OPERATIONS, "m")
    cluster.unserved.add(NODE_OPERATIONS)
    cluster.drop_watches()
    await engine.run_for(90)
    assert not cluster.unschedulable("n1")


async def test_a_node_that_is_made_again_is_another(cluster: Cluster, engine: Engine) -> None:
    cluster.operation("m", "n1")
    await engine.run_for(3)
    await cluster.delete(NODES, "n1")
    cluster.node("n1")
    await engine.run_for(3)
    status = cluster.status("m")
    assert (status["phase"], status["result"]) == ("Complete", "Superseded")
    assert not cluster.unschedulable("n1")


async def test_one_node_is_worked_on_by_one_operation(cluster: Cluster, engine: Engine) -> None:
    cluster.operation("a", "n1")
    cluster.operation("b", "n1")
    await engine.run_for(3)
    assert cluster.status("a")["phase"] == "Acting"
    assert (cluster.status("b")["phase"], cluster.status("b")["reason"]) == ("Pending", "NodeBusy")
    cluster.say("a", resume=True)
    await engine.run_for(3)
    assert cluster.status("b")["phase"] == "Acting"
    assert cluster.unschedulable("n1")


async def test_an_operation_of_a_later_version_keeps_its_node(cluster: Cluster, engine: Engine) -> None:
    cluster.operation("later", "n1", type="Repaint")
    cluster.operation("m", "n1")
    await engine.run_for(3)
    assert cluster.status("later") == {}
    assert cluster.status("m")["reason"] == "NodeBlocked"


async def test_a_pod_that_came_after_the_cordon_and_tolerates_it_stays(cluster: Cluster, engine: Engine) -> None:
    bears = {"tolerations": [{"operator": "Exists"}]}
    cluster.pod("bold-1", "n1", owner=("ReplicaSet", "bold"), spec=bears)
    cluster.pod("web-1", "n1")
    cluster.budgets["default", "web-1"] = (429, "Cannot evict pod", TWO)
    cluster.operation("m", "n1")
    await engine.run_for(2)
    assert cluster.pods_on("n1") == {"web-1"}
    after = {"creationTimestamp": "2099-01-01T00:00:00Z"}
    cluster.pod("bold-2", "n1", owner=("ReplicaSet", "bold"), spec=bears, metadata=after)
    cluster.pod("bare", "n1", owner=None, spec=bears, metadata=after)
    cluster.pod("late-1", "n1")
    await engine.run_for(2)
    cluster.budgets.clear()
    await engine.run_for(20)
    assert cluster.status("m")["phase"] == "Acting"
    assert cluster.pods_on("n1") == {"bold-2", "bare"}
    assert "default/bold-2" not in cluster.evictions


async def test_the_engine_does_not_evict_itself() -> None:
    cluster = Cluster()
    cluster.node("n1")
    cluster.pod("operator-1", "n1")
    engine = Engine(cluster, own_pod=("default", "operator-1"))
    await engine.start()
    cluster.operation("m", "n1")
    await engine.run_for(3)
    assert cluster.status("m")["phase"] == "Acting"
    assert cluster.pods_on("n1") == {"operator-1"}
    await engine.stop()


async def test_what_happens_is_told_as_events(cluster: Cluster, engine: Engine) -> None:
    cluster.operation("m", "n1", reason="a new power supply", requestedBy="jo")
    await engine.run_for(3)
    cluster.say("m", resume=True)
    await engine.run_for(3)
    events = [stored.obj for (resource, _, _), stored in cluster._objects.items() if resource == EVENTS]
    assert {event["reason"] for event in events} == {
        "OperationStarted",
        "InMaintenance",
        "Resumed",
        "OperationSucceeded",
    }
    assert any("for jo: a new power supply" in event["message"] for event in events)


def _in(seconds: float) -> str:
    """A time of the tests' clock."""
    return stamp_of(START + seconds)


async def test_a_lost_answer_admits_nobody_else(cluster: Cluster) -> None:
    """The write has arrived, the watch is behind, and another would go first now."""
    engine = Engine(cluster, ONE)
    cluster.operation("a", "n1", notBefore=_in(4))
    cluster.operation("b", "n2", approved=False)
    await engine.start()
    await engine.run_for(2)
    cluster.lose_at = cluster.writes + 1  # and watches are blind from then on
    cluster.say("b", approved=True)
    await engine.run_for(10)
    cluster.blind = False
    await engine.run_for(10)
    assert {name: cluster.status(name)["phase"] for name in ("a", "b")} == {"a": "Pending", "b": "Acting"}
    await engine.stop()


async def test_who_takes_over_reads_what_the_last_leader_wrote(cluster: Cluster) -> None:
    """A standby whose watch is behind would give the only slot away a second time."""
    cluster.operation("a", "n1", notBefore=_in(6))
    cluster.operation("b", "n2", approved=False)
    former, standby = Engine(cluster, ONE), Engine(cluster, ONE)
    watching = asyncio.create_task(standby.controller.watch())
    await former.start()
    await former.run_for(2)
    await standby.clock.advance(2)
    cluster.say("b", approved=True)
    await settle()
    cluster.blind = True
    await former.run_for(3)
    await former.stop()
    terms = [asyncio.create_task(work) for work in standby.controller.term(cluster)]
    await standby.clock.advance(8)
    await end(*terms, watching)
    begun = [name for name in ("a", "b") if cluster.status(name).get("phase") not in {None, "Pending"}]
    assert begun == ["b"]
    assert cluster.unschedulable("n2")


async def test_a_status_is_written_in_the_version_that_was_read(cluster: Cluster) -> None:
    cluster.operation("m", "n1")
    operation = read_operation(cluster.object(NODE_OPERATIONS, "m"))
    assert isinstance(operation, Operation)
    cluster.say("m", cancel=True)
    with pytest.raises(KubeRefusedError) as refused:
        await writing.record(cluster, Record(operation=operation, status=NodeOperationStatus(phase="Complete")))
    assert refused.value.conflict


async def test_pods_without_a_node_are_nobodys(cluster: Cluster, engine: Engine) -> None:
    cluster.put(PODS, {"metadata": {"namespace": "default", "name": "waits"}, "spec": {}})
    cluster.operation("m", "n1")
    await engine.run_for(3)
    assert cluster.status("m")["phase"] == "Acting"


async def test_the_figures_are_prometheus_text(cluster: Cluster, engine: Engine) -> None:
    cluster.operation("m", "n1")
    cluster.operation("later", "n2", type="Repaint")
    await engine.run_for(3)
    families = {family.name: family for family in text_string_to_metric_families(engine.controller.metrics())}
    (sample,) = families["kgpu_node_operations"].samples
    assert (sample.labels, sample.value) == ({"type": "Maintenance", "phase": "Acting"}, 1)
    assert families["kgpu_node_operations_unreadable"].samples[0].value == 1
    assert families["kgpu_node_operations_served"].samples[0].value == 1
    writes = {sample.labels["what"]: sample.value for sample in families["kgpu_node_operation_writes"].samples}
    assert writes["hold"] == 1
    assert writes["record"] >= 4
    assert engine.controller.status()["operations"]["begun"] == ["m"]  # type: ignore[index]


async def test_brothers_of_a_pod_that_went_have_to_go_too(cluster: Cluster, engine: Engine) -> None:
    """They tolerate the cordon as well, and were there before it."""
    bears = {"tolerations": [{"operator": "Exists"}]}
    for number in range(15):
        cluster.pod(f"job-{number}", "n1", owner=("Job", "job"), spec=bears)
    cluster.operation("m", "n1")
    await engine.run_for(10)
    assert cluster.status("m")["phase"] == "Acting"
    assert cluster.pods_on("n1") == set()


class Hanging(Cluster):
    """Writes of one Node have no answer."""

    hangs = ""

    async def apply(self, resource: Resource, obj: Object, **more: Any) -> Object:
        if resource == NODES and obj["metadata"]["name"] == self.hangs:
            raise KubeUnreachableError("no answer", "an answer", "wait")
        return await super().apply(resource, obj, **more)


async def test_a_write_without_an_answer_holds_up_no_other_operation() -> None:
    cluster = Hanging()
    for name in ("n1", "n2"):
        cluster.node(name)
        cluster.operation(f"m-{name}", name)
    engine = Engine(cluster)
    await engine.start()
    await engine.run_for(3)
    cluster.hangs = "n1"
    for name in ("n1", "n2"):
        cluster.say(f"m-{name}", resume=True)
    await engine.run_for(10)
    assert cluster.status("m-n2")["phase"] == "Complete"
    assert cluster.status("m-n1")["phase"] == "Restoring"
    cluster.hangs = ""
    await engine.run_for(70)
    assert cluster.status("m-n1")["phase"] == "Complete"
    await engine.stop()


async def test_a_record_that_nobody_should_have_written_stops_nobody(cluster: Cluster, engine: Engine) -> None:
    cluster.operation("odd", "n1")
    odd = {**cluster.object(NODE_OPERATIONS, "odd"), "status": {"phase": "Restoring", "phaseSince": _in(0)}}
    cluster.put(NODE_OPERATIONS, odd)
    cluster.operation("m", "n2")
    await engine.run_for(3)
    assert cluster.status("m")["phase"] == "Acting"


async def test_a_late_list_does_not_undo_what_was_written(cluster: Cluster, engine: Engine) -> None:
    """A list that the server made before the cordon, and that comes after it, is not a person's uncordon."""
    cluster.operation("m", "n1", notBefore=_in(3))
    await engine.run_for(2)
    before = {resource: await FakeApi.list(cluster, resource) for resource in (NODES, NODE_OPERATIONS)}
    await engine.run_for(4)
    assert cluster.status("m")["phase"] == "Acting"
    watching = engine.controller.watching
    for informer in (watching._nodes._shared.informer, watching._operations):
        resource = informer._scope.resource
        listing = before[resource]
        project = informer._project
        late = Listing(tuple(project(obj) for obj in listing.items), listing.resource_version)

        async def answer(*_: Any, late: Listing = late, **__: Any) -> Listing:
            return late

        informer._api = SimpleNamespace(list=answer)  # type: ignore[assignment]
        await informer._list()
        informer._api = cluster
    engine.controller.watching.news.set()
    await engine.run_for(2)
    assert cluster.status("m")["phase"] == "Acting"
    assert cluster.unschedulable("n1")


async def test_a_pod_that_a_finalizer_keeps_ends_the_drain_in_time(cluster: Cluster, engine: Engine) -> None:
    cluster.pod("web-1", "n1", metadata={"finalizers": ["example.com/wait"]})
    cluster.operation("m", "n1", drain={"timeoutSeconds": 60})
    await engine.run_for(50)
    assert cluster.status("m")["phase"] == "Draining"
    await engine.run_for(20)
    status = cluster.status("m")
    assert (status["phase"], status["reason"]) == ("Failed", "DrainTimeout")
    assert "default/web-1: it" in status["message"]
    assert cluster.evictions == ["default/web-1"], "asked once, and not again while it ends"
    assert not cluster.unschedulable("n1")


async def test_a_cordon_of_a_person_in_the_middle_changes_nothing(cluster: Cluster, engine: Engine) -> None:
    """`kubectl cordon` writes nothing to a node that is cordoned, so the engine's cordon goes with the operation."""
    cluster.operation("m", "n1")
    await engine.run_for(3)
    await cluster.patch(NODES, "n1", {"spec": {"unschedulable": True}})
    cluster.say("m", resume=True)
    await engine.run_for(3)
    assert cluster.status("m")["result"] == "Succeeded"
    assert not cluster.unschedulable("n1")


async def test_what_was_cordoned_is_on_record_before_the_first_pod_is_asked(cluster: Cluster, engine: Engine) -> None:
    cluster.pod("web-1", "n1")
    cluster.operation("m", "n1")
    while not cluster.evictions:
        await engine.run_for(0.1, step=0.1)
        if not cluster.unschedulable("n1"):
            assert not cluster.evictions
    assert {row["type"] for row in cluster.status("m")["conditions"]} >= {"Admitted", "Cordoned"}


async def test_operations_that_have_ended_count_for_the_hour() -> None:
    cluster = Cluster()
    for name in ("n1", "n2"):
        cluster.node(name)
    engine = Engine(cluster, OperationBudget(max_parallel=10, max_unavailable=Share(percent=100), max_per_hour=1))
    await engine.start()
    try:
        cluster.operation("a", "n1")
        await engine.run_for(3)
        cluster.say("a", resume=True)
        await engine.run_for(3)
        assert cluster.status("a")["phase"] == "Complete"
        cluster.operation("b", "n2")
        await engine.run_for(3)
        assert cluster.status("b")["reason"] == "WaitsForRate"
        await engine.run_for(3700, step=10)
        assert cluster.status("b")["phase"] == "Acting"
    finally:
        await engine.stop()
