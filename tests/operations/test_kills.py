"""The process is killed before and after each write, and a new one goes on: nothing is left behind, nothing is done twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from kgpu.base.errors import HostError
from kgpu.kube.port import NODES
from kgpu.operations.config import OperationBudget, Share
from tests.budget import count
from tests.operations.orders import Processes, Watched
from tests.operations.sim_drivers import wanted
from tests.operations.sim_mig import SMALL, Ends, ask, told
from tests.operations.sim_mig import spec as cut
from tests.operations.world import Cluster, Engine

SECONDS = 30.0


@dataclass(frozen=True)
class Story:
    """What is done to a cluster with an operation ``m`` on ``n1``: at the start, and once the node is empty."""

    begin: Callable[[Cluster], object]
    then: Callable[[Cluster], object]
    phase: str
    result: str
    type: str = "Maintenance"
    boots: int = 0
    resets: int = 0
    forced: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    """One of these digests runs in the end."""
    spec: Mapping[str, object] = field(default_factory=dict)
    slices: tuple[Mapping[str, int], ...] = ({},)
    """GPU-1 has one of these layouts in the end."""

    @property
    def bundle(self) -> bool:
        """Whether what was known of the node is kept."""
        return self.type == "Replace" and self.begin is not _no_evidence


def _pods(cluster: Cluster) -> None:
    for number in range(3):
        cluster.pod(f"web-{number}", "n1")


def _refusing(cluster: Cluster) -> None:
    _pods(cluster)
    cluster.budgets["default", "web-1"] = (429, "Cannot evict pod", (("DisruptionBudget", "needs 3"),))


def _forbidden(cluster: Cluster) -> None:
    _pods(cluster)
    cluster.machines["n1"].forbids = True


def _ill(cluster: Cluster) -> None:
    """GPU-1 is ill, and two of three pods hold it."""
    _pods(cluster)
    machine = cluster.machines["n1"]
    machine.ill["GPU-1"] = "the driver asks for a reset"
    machine.agent.holders = ["web-0", "web-1"]


def _failing(code: int) -> Callable[[Cluster], None]:
    def begin(cluster: Cluster) -> None:
        _ill(cluster)
        cluster.machines["n1"].reset_ends = code

    return begin


def _refusing_agent(cluster: Cluster) -> None:
    _ill(cluster)
    cluster.machines["n1"].agent.refuses = "it has MIG instances, which a reset would end"


def _no_evidence(cluster: Cluster) -> None:
    _pods(cluster)
    cluster.evidence = HostError("kgpu collect has failed", "an archive", "collect it by hand")


def _repaired(cluster: Cluster) -> None:
    cluster.repair("n1")


def _holding(cluster: Cluster) -> None:
    _ill(cluster)
    cluster.budgets["default", "web-1"] = (429, "Cannot evict pod", (("DisruptionBudget", "needs 3"),))


def _old_driver(cluster: Cluster) -> None:
    _pods(cluster)
    cluster.driven("n1")
    cluster.drivers.template = "2"


def _bad_driver(cluster: Cluster) -> None:
    _old_driver(cluster)
    cluster.drivers.of["n1"].fails = "install"


def _changed_again(cluster: Cluster) -> None:
    """The DaemonSet asks for a third driver by now."""
    _old_driver(cluster)
    cluster.drivers.template = "3"


def _asking(ends: Ends = Ends.DONE) -> Callable[[Cluster], None]:
    """The node asks for GPU-1 to be cut, which two of three pods hold."""

    def begin(cluster: Cluster) -> None:
        _pods(cluster)
        agent = cluster.machines["n1"].agent
        agent.holders, agent.mig.ends = ["web-0", "web-1"], ends
        ask(cluster, "n1", "r1")

    return begin


def _asking_past_a_budget(cluster: Cluster) -> None:
    _asking()(cluster)
    cluster.budgets["default", "web-1"] = (429, "Cannot evict pod", (("DisruptionBudget", "needs 3"),))


_UPGRADE = {"driver": wanted()}
_GPU = {"gpus": ["GPU-1"]}
_FORCED = {"drain": {"timeoutSeconds": 5, "onTimeout": "Force"}}
BUDGET = OperationBudget(max_parallel=100, max_unavailable=Share(percent=100), allow_force=True)

STORIES = {
    "resumed": Story(_pods, lambda cluster: cluster.say("m", resume=True), "Complete", "Succeeded"),
    "cancelled": Story(_pods, lambda cluster: cluster.say("m", cancel=True), "Complete", "Succeeded"),
    "uncordoned": Story(_pods, lambda cluster: cluster.uncordon("n1"), "Complete", "Cancelled"),
    "a budget never gives": Story(_refusing, lambda _: None, "Failed", "TransientFailure"),
    "a budget never gives, and is overridden": Story(
        _refusing, lambda cluster: cluster.say("m", resume=True), "Complete", "Succeeded", forced=("default/web-1",),
        spec=_FORCED,
    ),
    "a reboot past a budget": Story(
        _refusing, lambda _: None, "Complete", "Succeeded", "Reboot", 1, forced=("default/web-1",), spec=_FORCED
    ),
    "GPUs emptied past a budget": Story(
        _holding, lambda _: None, "Complete", "Succeeded", "GpuReset", resets=1, forced=("default/web-1",),
        spec={**_FORCED, "gpus": ["GPU-1"]},
    ),
    "a bare pod": Story(lambda cluster: cluster.pod("bare", "n1", owner=None), lambda _: None, "Failed", "PermanentFailure"),
    "rebooted": Story(_pods, lambda _: None, "Complete", "Succeeded", "Reboot", 1),
    "a reboot refused": Story(_forbidden, lambda _: None, "Failed", "PermanentFailure", "Reboot"),
    "a reboot with a pod that may not go": Story(_refusing, lambda _: None, "Failed", "TransientFailure", "Reboot"),
    "GPUs kept empty, resumed": Story(_ill, lambda cluster: cluster.say("m", resume=True), "Complete", "Succeeded", spec=_GPU),
    "GPUs kept empty, cancelled": Story(_ill, lambda cluster: cluster.say("m", cancel=True), "Complete", "Succeeded", spec=_GPU),
    "a GPU reset": Story(_ill, lambda _: None, "Complete", "Succeeded", "GpuReset", resets=1, spec=_GPU),
    "a reset that fails": Story(_failing(1), lambda _: None, "Failed", "TransientFailure", "GpuReset", resets=1, spec=_GPU),
    "a reset that hangs": Story(_failing(15), lambda _: None, "Failed", "TransientFailure", "GpuReset", resets=1, spec=_GPU),
    "replaced, resumed": Story(_pods, lambda cluster: cluster.say("m", resume=True), "Complete", "Succeeded", "Replace"),
    "replaced, cancelled": Story(_pods, lambda cluster: cluster.say("m", cancel=True), "Complete", "Cancelled", "Replace"),
    "replaced, repaired": Story(_pods, _repaired, "Complete", "Succeeded", "Replace"),
    "replaced, uncordoned": Story(_pods, lambda cluster: cluster.uncordon("n1"), "Complete", "Cancelled", "Replace"),
    "replaced without evidence": Story(_no_evidence, lambda cluster: cluster.say("m", resume=True), "Complete", "Succeeded", "Replace"),
    "a driver exchanged": Story(_old_driver, lambda _: None, "Complete", "Succeeded", "DriverUpgrade", drivers=("2",), spec=_UPGRADE),
    "a driver that fails": Story(_bad_driver, lambda _: None, "Failed", "PermanentFailure", "DriverUpgrade", drivers=("2",), spec=_UPGRADE),
    "a driver that changes again": Story(
        _changed_again, lambda _: None, "Complete", "Superseded", "DriverUpgrade", drivers=("3",), spec=_UPGRADE
    ),
    "a driver, cancelled": Story(
        _old_driver, lambda cluster: cluster.say("m", cancel=True), "Complete", "Cancelled", "DriverUpgrade",
        drivers=("1", "2"), spec=_UPGRADE,
    ),
    "a driver, uncordoned": Story(
        _old_driver, lambda cluster: cluster.uncordon("n1"), "Complete", "Cancelled", "DriverUpgrade",
        drivers=("1", "2"), spec=_UPGRADE,
    ),
    "GPUs cut anew": Story(_asking(), lambda _: None, "Complete", "Succeeded", "MigChange", spec=cut(), slices=(SMALL,)),
    "GPUs cut anew after a reset": Story(
        _asking(), lambda _: None, "Complete", "Succeeded", "MigChange", spec=cut(release=True), slices=(SMALL,)
    ),
    "GPUs cut anew on an empty node": Story(
        _asking(), lambda _: None, "Complete", "Succeeded", "MigChange", spec=cut(drain="node"), slices=(SMALL,)
    ),
    "GPUs that can't be cut": Story(_asking(Ends.FAILED), lambda _: None, "Failed", "TransientFailure", "MigChange", spec=cut()),
    "GPUs cut anew, cancelled too late": Story(
        _asking(), lambda cluster: cluster.say("m", cancel=True), "Complete", "Cancelled", "MigChange", spec=cut(), slices=(SMALL,)
    ),
    "GPUs cut anew past a budget": Story(
        _asking_past_a_budget, lambda _: None, "Failed", "TransientFailure", "MigChange", spec=cut()
    ),
    "an agent that refuses": Story(_refusing_agent, lambda _: None, "Failed", "PermanentFailure", "GpuReset", spec=_GPU),
}  # fmt: skip


async def _play(story: Story, die_at: int = 0) -> Cluster:
    cluster = Cluster()
    cluster.die_at = die_at
    cluster.node("n1")
    story.begin(cluster)
    cluster.operation("m", "n1", **{"type": story.type, "drain": {"timeoutSeconds": 15}, **story.spec})
    engine = Engine(cluster, BUDGET)
    await engine.start()
    said = False
    while engine.clock.monotonic() < SECONDS:
        await engine.run_for(1)
        if engine.killed:
            await engine.stop()
            engine = Engine(cluster, BUDGET, clock=engine.clock)
            await engine.start()
        if not said and cluster.status("m").get("phase") == "Acting":
            story.then(cluster)
            said = True
    await engine.stop()
    return cluster


async def _writes(story: Story) -> int:
    return (await _play(story)).writes


@pytest.mark.parametrize("name", STORIES)
async def test_nothing_is_left_behind_by_a_kill(name: str) -> None:
    story = STORIES[name]
    total = await _writes(story)
    assert total >= 4
    for number in range(1, total + 1):
        for die_at in (number, -number):
            cluster = await _play(story, die_at)
            status = cluster.status("m")
            assert (status["phase"], status["result"]) == (story.phase, story.result), die_at
            assert not cluster.unschedulable("n1"), die_at
            assert cluster.owners("n1") == "", die_at
            machine = cluster.machines["n1"]
            assert (len(machine.asked), machine.boots) == (story.boots, story.boots + (story.then is _repaired)), die_at
            assert cluster.bundles() == (["kgpu-evidence-m"] if story.bundle else []), die_at
            assert machine.reset_gpus == [("GPU-1",)] * story.resets, die_at
            assert not cluster.order("n1"), die_at
            assert machine.agent.mig.layouts["GPU-1"] in story.slices, die_at
            assert len(machine.agent.mig.cut) <= 1, die_at
            assert not cluster.marked("n1"), die_at
            assert {where for where, _ in cluster.deletions} == set(story.forced), die_at
            assert cluster.pods_on("n1") - set(cluster.driver_pods("n1")) <= {"web-0", "web-1", "web-2", "bare"}, die_at
            assert not story.drivers or cluster.drivers.digest("n1") in story.drivers, die_at
            assert len(set(cluster.driver_deletions)) <= 1, die_at


def _act(cluster: Watched, chance: random.Random) -> None:
    """Something that people or the weather do."""
    name, operation = chance.choice(cluster.names), chance.choice(cluster.operations)
    known = cluster.object(NODES, name)
    what = chance.randrange(11)
    if what == 10:
        ask(cluster, name, chance.choice(("", "another", operation)))
        cluster.machines[name].agent.mig.ends = chance.choice((Ends.DONE, Ends.FAILED, Ends.NEVER))
    elif what == 0:
        cluster.uncordon(name)
    elif what == 1:
        cluster.say(operation, cancel=True)
    elif what == 2:
        cluster.say(operation, resume=True)
    elif what == 3:
        status = {**known["status"], "conditions": [{"type": "Ready", "status": chance.choice(("True", "False"))}]}
        cluster.put(NODES, {**known, "status": status})
    elif what == 4:
        cluster.pod(f"web-{chance.randrange(10**6)}", name)
    elif what == 5:
        cluster.drop_watches()
    elif what == 6:
        agent = cluster.machines[name].agent
        agent.silent, agent.holders = chance.random() < 0.3, [f"web-{name}"] * chance.randrange(2)
    elif what == 8:
        cluster.repair(name)
    elif what == 7:
        cluster.machines[name].reset_ends = chance.choice((0, 0, 1, 14, 15))
    else:
        cluster.die_at = chance.choice((1, -1)) * (cluster.writes + 1)


def _any_operation(name: str, chance: random.Random) -> dict[str, object]:
    kind = chance.choice(("Maintenance", "Reboot", "GpuReset", "Replace", "MigChange"))
    if kind == "MigChange":
        return cut(name, release=chance.random() < 0.3, drain=chance.choice(("gpu", "node", "none")))
    gpus = ["GPU-1"] if kind == "GpuReset" or (kind == "Maintenance" and chance.random() < 0.3) else []
    return {"type": kind, "gpus": gpus, "durationSeconds": chance.choice((3, 10, 60))}


BLOCK = count(40, 1_000)
"""How many random orders one test plays: a long run can be divided among processes, and resumed."""
BLOCKS = count(1, 10)


@pytest.mark.timeout(count(600, 3600))
@pytest.mark.parametrize("block", range(BLOCKS))
async def test_the_budget_holds_in_any_order(block: int) -> None:
    """Operations of all types, people, weather and kills: the budget is never exceeded, no act is done twice, and
    nothing is left behind.
    """
    kills = [await _any_order(seed) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    assert sum(kills) >= BLOCK / 5


def _some_cluster(chance: random.Random) -> Watched:
    cluster = Watched()
    cluster.names = tuple(f"n{number}" for number in range(1, chance.choice((1, 3, 4, 6)) + 1))
    for name in cluster.names:
        cluster.node(name)
        cluster.pod(f"web-{name}", name)
    cluster.operations = tuple(f"m{number}" for number in range(len(cluster.names) + 2))
    for number, name in enumerate(cluster.operations):
        node, spec = cluster.names[number % len(cluster.names)], _any_operation(name, chance)
        if spec["type"] == "MigChange":  # of several of a node it asks for the last
            ask(cluster, node, name)
        cluster.operation(name, node, **spec)
    return cluster


async def _any_order(seed: int) -> int:
    """Play one; return how often the process was killed."""
    chance = random.Random(seed)
    cluster = _some_cluster(chance)
    share = chance.choice((Share(1), Share(2), Share(percent=25), Share(percent=50)))
    budget = OperationBudget(max_parallel=chance.choice((1, 2, 5)), max_unavailable=share)
    processes = Processes(cluster, budget)
    await processes.engine.start()
    for _ in range(30):
        await processes.go_on(1)
        if chance.random() < 0.4:
            _act(cluster, chance)
    kills = processes.kills
    for name in cluster.operations:
        cluster.say(name, cancel=True)
    for name in cluster.names:
        ask(cluster, name, "")
    cluster.die_at = 0
    await processes.go_on(5)
    await processes.go_on(10)
    for _ in range(100):  # what can't be cancelled any more ends by its limit: a boot, a reset, a reading
        if all(cluster.status(name)["phase"] in {"Complete", "Failed"} for name in cluster.every_operation()):
            break
        await processes.go_on(20, step=20)
    await processes.engine.stop()
    assert cluster.most <= budget.max_parallel, seed
    assert max(cluster.most, cluster.most_held) <= share.of(len(cluster.names)), seed
    assert not [name for name in cluster.names if cluster.unschedulable(name)], seed
    left = [name for name in cluster.names if cluster.owners(name) or cluster.order(name) or cluster.marked(name)]
    assert not left, seed
    assert {cluster.status(name)["phase"] for name in cluster.every_operation()} <= {"Complete", "Failed"}, seed
    words = [told(cluster, name) for name in cluster.names]
    assert {word.phase for word in words if word is not None} <= {"Complete", "Failed"}, seed
    for machine in cluster.machines.values():
        assert len(machine.asked) == len(set(machine.asked)), seed
        assert len(machine.reset_ids) == len(set(machine.reset_ids)), seed
        assert len(machine.agent.mig.cut) == len(set(machine.agent.mig.cut)), seed
        assert not machine.agent.mig.between, seed
    return kills
