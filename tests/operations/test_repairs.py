"""The engine and the verdicts of nodes: from the report of a lost GPU to the node that is well again."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from kgpu.formats import names
from kgpu.formats.gpu_report import ReportedGpu, encode, report
from kgpu.formats.xid.action import Action
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import CONFIG_MAPS, EVENTS, NODES, Object
from kgpu.operations.config import RemediationPolicy, Strongest
from kgpu.operations.remediation import BREAKER_WINDOW, KEPT
from tests.operations.world import OPEN, Cluster, Engine

REBOOT = RemediationPolicy(strongest=Strongest.REBOOT)
LOST = ReportedGpu(uuid="GPU-3", index=3, action=Action.REBOOT, what="Xid 79")


def says(cluster: Cluster, name: str, *gpus: ReportedGpu) -> None:
    """What the node's agent tells in the boot that it is in."""
    known = cluster.object(NODES, name)
    told = encode(report(gpus, count=8, boot=cluster.machines[name].boot))
    annotations = {**known["metadata"].get("annotations", {}), names.GPUS_ANNOTATION: told}
    kinds = {"Ready": "True", names.GPUS_HEALTHY_CONDITION: "False" if gpus else "True"}
    conditions = [{"type": kind, "status": status} for kind, status in kinds.items()]
    metadata = {**known["metadata"], "annotations": annotations}
    cluster.put(NODES, {**known, "metadata": metadata, "status": {**known["status"], "conditions": conditions}})


def made(cluster: Cluster) -> list[Object]:
    return [stored.obj for (kind, _, _), stored in sorted(cluster._objects.items(), key=str) if kind == NODE_OPERATIONS]


@contextlib.asynccontextmanager
async def engine(cluster: Cluster, policy: RemediationPolicy) -> AsyncIterator[Engine]:
    engine = Engine(cluster, OPEN, remediation=policy)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def nodes(count: int) -> Cluster:
    cluster = Cluster()
    for number in range(1, count + 1):
        cluster.node(f"n{number}")
    return cluster


async def test_a_lost_gpu_is_repaired_once() -> None:
    cluster = nodes(1)
    async with engine(cluster, REBOOT) as running:
        await running.run_for(2)
        says(cluster, "n1", LOST)
        await running.run_for(10)
        (operation,) = made(cluster)
        assert (operation["status"]["result"], operation["spec"]["reason"]) == ("Succeeded", "GPU 3 (GPU-3): Xid 79")
        assert cluster.machines["n1"].boots == 1
        await running.run_for(120, step=5)  # the report of the boot before stays for a while
        says(cluster, "n1")
        await running.run_for(10)
        assert len(made(cluster)) == 1


async def test_a_verdict_that_returns_leads_to_another_and_then_to_a_replacement() -> None:
    """Which waits for a person, as the policy allows reboots."""
    cluster = nodes(1)
    async with engine(cluster, REBOOT) as running:
        for _ in range(5):
            says(cluster, "n1", LOST)
            await running.run_for(900, step=20)
        assert cluster.machines["n1"].boots == 2
        assert [one["spec"]["type"] for one in made(cluster)] == ["Reboot", "Reboot", "Replace"]
        suggested = made(cluster)[-1]
        assert (suggested["spec"]["approved"], suggested["status"]["reason"]) == (False, "WaitsForApproval")
        told = [stored.obj for (kind, _, _), stored in cluster._objects.items() if kind == EVENTS]
        assert not [event for event in told if event["reason"] == "RepairGivenUp"], "something is to be done"


async def test_a_machine_that_reboots_do_not_help_is_emptied_and_held() -> None:
    cluster = nodes(1)
    async with engine(cluster, RemediationPolicy(strongest=Strongest.REPLACE)) as running:
        for _ in range(5):
            says(cluster, "n1", LOST)
            await running.run_for(900, step=20)
        assert cluster.machines["n1"].boots == 2
        (held,) = [one for one in made(cluster) if one["spec"]["type"] == "Replace"]
        assert (held["status"]["phase"], held["status"]["reason"]) == ("Acting", "NeedsReplacement")
        assert cluster.marked("n1")
        assert cluster.unschedulable("n1")
        assert cluster.collected == ["n1"]
        cluster.say(held["metadata"]["name"], resume=True)
        await running.run_for(900, step=20)
        assert not cluster.marked("n1")
        assert not cluster.unschedulable("n1")
        assert len(made(cluster)) == 3, "a person has decided, for as long as this boot lasts"


async def test_a_replacement_that_fails_is_a_persons_turn() -> None:
    cluster = nodes(1)
    async with engine(cluster, RemediationPolicy(strongest=Strongest.REPLACE)) as running:
        for _ in range(2):
            says(cluster, "n1", LOST)
            await running.run_for(900, step=20)
        cluster.pod("bare", "n1", owner=None)
        says(cluster, "n1", LOST)
        await running.run_for(900, step=20)
        told = [stored.obj for (kind, _, _), stored in cluster._objects.items() if kind == EVENTS]
        (turn,) = [event for event in told if event["reason"] == "RepairGivenUp"]
        assert "pods on the node may not go: default/bare" in turn["message"]
        assert not cluster.unschedulable("n1")


ILL = ReportedGpu(uuid="GPU-5", index=5, action=Action.RESET_GPU, what="Xid 48")


async def test_an_ill_gpu_is_reset_and_pods_with_others_go_on() -> None:
    cluster = nodes(1)
    machine = cluster.machines["n1"]
    machine.ill["GPU-5"] = "the driver asks for a reset"
    machine.agent.holders = ["train"]
    cluster.pod("train", "n1")
    cluster.pod("infer", "n1")
    async with engine(cluster, RemediationPolicy(strongest=Strongest.RESET)) as running:
        says(cluster, "n1", ILL)
        await running.run_for(20)
    (operation,) = made(cluster)
    assert (operation["spec"]["type"], operation["status"]["result"]) == ("GpuReset", "Succeeded")
    assert (machine.reset_gpus, machine.boots) == ([("GPU-5",)], 0)
    assert cluster.pods_on("n1") == {"infer"}
    assert not cluster.unschedulable("n1")
    assert not cluster.order("n1")


async def test_a_reset_that_does_not_help_leads_to_a_reboot() -> None:
    cluster = nodes(1)
    machine = cluster.machines["n1"]
    machine.ill["GPU-5"], machine.cures = "it still asks for a reset", False
    async with engine(cluster, REBOOT) as running:
        says(cluster, "n1", ILL)
        await running.run_for(1800, step=5)
    assert [one["spec"]["type"] for one in made(cluster)] == ["Reboot", "GpuReset"]
    assert (machine.reset_gpus, machine.boots) == ([("GPU-5",)], 1)


async def test_a_suggestion_is_made_and_waits() -> None:
    cluster = nodes(1)
    async with engine(cluster, RemediationPolicy()) as running:
        says(cluster, "n1", LOST)
        await running.run_for(10)
        (operation,) = made(cluster)
        assert operation["status"]["reason"] == "WaitsForApproval"
        assert not cluster.unschedulable("n1")
        cluster.say(operation["metadata"]["name"], approved=True)
        await running.run_for(10)
        assert cluster.machines["n1"].boots == 1


async def test_a_suggestion_begins_once_nobody_has_to_be_asked() -> None:
    cluster = nodes(1)
    says(cluster, "n1", LOST)
    async with engine(cluster, RemediationPolicy()) as running:
        await running.run_for(5)
    async with engine(cluster, REBOOT) as running:
        await running.run_for(10)
    (operation,) = made(cluster)
    assert (operation["spec"]["approved"], operation["status"]["result"]) == (True, "Succeeded")


async def test_a_suggestion_that_a_person_ends_does_not_come_again_in_this_boot() -> None:
    cluster = nodes(1)
    async with engine(cluster, RemediationPolicy()) as running:
        says(cluster, "n1", LOST)
        await running.run_for(5)
        (operation,) = made(cluster)
        cluster.say(operation["metadata"]["name"], cancel=True)
        await running.run_for(1800, step=30)
        assert len(made(cluster)) == 1


async def test_many_at_once_stop_it_until_a_person_has_looked() -> None:
    cluster = nodes(10)
    async with engine(cluster, REBOOT) as running:
        for number in range(1, 11):
            says(cluster, f"n{number}", LOST)
        await running.run_for(5)
        assert made(cluster) == []
        stopped = cluster.object(CONFIG_MAPS, names.REMEDIATION_CONFIG_MAP, "gpu-operator")
        assert stopped["data"]["open"].startswith("10 of 10 nodes with GPUs call for a repair")
        told = [stored.obj["reason"] for (kind, _, _), stored in cluster._objects.items() if kind == EVENTS]
        assert told == ["RemediationStopped"]
        assert "kgpu_remediation_stopped 1" in running.controller.metrics()
        for number in range(2, 11):
            says(cluster, f"n{number}")
        await running.run_for(900, step=30)
        assert made(cluster) == [], "it stays open when the signal goes"
    async with engine(cluster, REBOOT) as running:
        await running.run_for(5)
        assert made(cluster) == [], "and for the next leader"
        await cluster.delete(CONFIG_MAPS, names.REMEDIATION_CONFIG_MAP, namespace="gpu-operator")
        await running.run_for(10)
        assert [one["spec"]["nodeName"] for one in made(cluster)] == ["n1"]


async def test_a_cluster_without_the_kind_is_left_alone() -> None:
    cluster = nodes(1)
    cluster.unserved.add(NODE_OPERATIONS)
    async with engine(cluster, REBOOT) as running:
        says(cluster, "n1", LOST)
        await running.run_for(10)
        assert not [call for call in cluster.calls if call[:2] == ("create", "nodeoperations")]


async def test_a_person_reboots_and_the_suggestion_goes() -> None:
    cluster = nodes(1)
    async with engine(cluster, RemediationPolicy()) as running:
        says(cluster, "n1", LOST)
        await running.run_for(5)
        (suggested,) = made(cluster)
        cluster.operation("mine", "n1", type="Reboot")
        await running.run_for(10)
        says(cluster, "n1")
        await running.run_for(30)
        assert [obj["metadata"]["name"] for obj in made(cluster)] == ["mine"]
        assert cluster.machines["n1"].boots == 1
        assert suggested["metadata"]["name"] != "mine"


async def test_what_was_approved_while_a_person_rebooted_never_begins() -> None:
    cluster = nodes(1)
    async with engine(cluster, RemediationPolicy()) as running:
        says(cluster, "n1", LOST)
        await running.run_for(5)
        (suggested,) = made(cluster)
        cluster.operation("mine", "n1", type="Reboot")
        await running.run_for(0.3)
        await cluster.patch(NODE_OPERATIONS, suggested["metadata"]["name"], {"spec": {"approved": True}})
        await running.run_for(60)
        assert cluster.machines["n1"].boots == 1
        assert "mine" in [obj["metadata"]["name"] for obj in made(cluster)]


def reasons(cluster: Cluster) -> list[str]:
    return [stored.obj["reason"] for (kind, _, _), stored in cluster._objects.items() if kind == EVENTS]


async def test_a_verdict_that_flaps_is_suggested_once() -> None:
    cluster = nodes(1)
    async with engine(cluster, RemediationPolicy()) as running:
        for _ in range(14):
            says(cluster, "n1", LOST)
            await running.run_for(10, step=1)
            says(cluster, "n1")
            await running.run_for(10, step=1)
        assert len([call for call in cluster.calls if call[:2] == ("create", "nodeoperations")]) == 1
        assert reasons(cluster) == ["WaitsForApproval"]
        assert len(made(cluster)) == 1
        await running.run_for(KEPT + 60, step=5)
        assert made(cluster) == [], "the GPUs are well and stay so"


async def test_a_suggestion_that_is_approved_while_the_gpus_are_well_waits_for_the_verdict() -> None:
    cluster = nodes(1)
    async with engine(cluster, RemediationPolicy()) as running:
        says(cluster, "n1", LOST)
        await running.run_for(5)
        (suggested,) = made(cluster)
        says(cluster, "n1")
        cluster.say(suggested["metadata"]["name"], approved=True)
        await running.run_for(60, step=1)
        assert cluster.status(suggested["metadata"]["name"])["reason"] == "WaitsForVerdict"
        assert (cluster.machines["n1"].boots, cluster.unschedulable("n1")) == (0, False)
        says(cluster, "n1", LOST)
        await running.run_for(10)
        assert cluster.machines["n1"].boots == 1


async def test_a_person_who_closes_the_breaker_has_seen_what_opened_it() -> None:
    cluster = nodes(8)
    async with engine(cluster, RemediationPolicy()) as running:
        for number in (1, 2, 3):
            says(cluster, f"n{number}", LOST)
        await running.run_for(5)
        stopped = cluster.object(CONFIG_MAPS, names.REMEDIATION_CONFIG_MAP, "gpu-operator")
        assert (stopped["data"]["nodes"], made(cluster)) == ("n1,n2,n3", [])
        await cluster.delete(CONFIG_MAPS, names.REMEDIATION_CONFIG_MAP, namespace="gpu-operator")
        await running.run_for(30)
        assert [one["spec"]["nodeName"] for one in made(cluster)] == ["n1", "n2", "n3"]
        assert reasons(cluster).count("RemediationStopped") == 1
        for number in (4, 5):
            says(cluster, f"n{number}", LOST)
        await running.run_for(5)
        assert len(made(cluster)) == 5, "two new ones are no mass signal"
        says(cluster, "n6", LOST)
        await running.run_for(5)
        stopped = cluster.object(CONFIG_MAPS, names.REMEDIATION_CONFIG_MAP, "gpu-operator")
        assert (stopped["data"]["nodes"], len(made(cluster))) == ("n4,n5,n6", 5)


async def test_known_nodes_count_again_once_they_have_been_well() -> None:
    cluster = nodes(8)
    async with engine(cluster, RemediationPolicy()) as running:
        for number in (1, 2, 3):
            says(cluster, f"n{number}", LOST)
        await running.run_for(5)
        await cluster.delete(CONFIG_MAPS, names.REMEDIATION_CONFIG_MAP, namespace="gpu-operator")
        await running.run_for(5)
        for number in (1, 2, 3):
            says(cluster, f"n{number}")
        await running.run_for(BREAKER_WINDOW + 120, step=10)
        assert made(cluster) == []
        for number in (1, 2, 3):
            says(cluster, f"n{number}", LOST)
        await running.run_for(5)
        stopped = cluster.object(CONFIG_MAPS, names.REMEDIATION_CONFIG_MAP, "gpu-operator")
        assert (stopped["data"]["nodes"], made(cluster)) == ("n1,n2,n3", [])


async def test_a_record_that_somebody_empties_after_the_reboot_leads_to_no_second_one() -> None:
    """The API server refuses it; even where it does not, the boot that was to end is part of the name."""
    cluster = nodes(1)
    async with engine(cluster, REBOOT) as running:
        says(cluster, "n1", LOST)
        await running.run_for(10)
        (done,) = made(cluster)
        assert (done["status"]["result"], cluster.machines["n1"].boots) == ("Succeeded", 1)
        cluster.put(NODE_OPERATIONS, {**done, "status": {}})
        await running.run_for(120, step=2)
        assert (made(cluster), cluster.machines["n1"].boots) == ([], 1)
