"""Too much that turns idle at once stops everything, also where no process looked at that moment, or agents were silent."""

from __future__ import annotations

import pytest

from kgpu.base.errors import KubeError
from kgpu.formats.usage import UsageState
from kgpu.kube.port import NODES
from kgpu.usage.reclaim.doubts import REMEMBERED, SPREAD, SeenAtWork, fingerprint
from kgpu.usage.reclaim.model import ReclaimPolicy, workloads
from kgpu.usage.reclaim.reading import ClusterLook
from kgpu.usage.reclaim.record import MAX_BYTES, MOST_WORKED, ReclaimRecord, decode, encode
from kgpu.usage.reclaim.record_store import RecordStore
from kgpu.usage.reclaim.rounds import frozen_by
from kgpu.usage.states import USUAL_RULES, MassIdle
from tests.usage.reclaim.scene import HOUR, OWN, Scene

LETTERS = {"b": UsageState.BUSY, "i": UsageState.HELD_IDLE, "f": UsageState.FREE, "u": UsageState.UNKNOWN}


def states(**rows: str) -> dict[tuple[str, str], UsageState]:
    return {
        (node, str(at)): LETTERS[char] for node, text in rows.items() for at, char in enumerate(text) if char != "-"
    }


def looks(*rows: dict[tuple[str, str], UsageState], every: float = 60.0) -> list[str]:
    seen = SeenAtWork.restored((), 0.0)
    found = [seen.look(row, every * at)[0] for at, row in enumerate(rows, start=1)]
    return [one.why if one else "" for one in found]


BUSY = states(n1="bb", n2="b" * 8)
ALL_OF_A_NODE = "all GPUs of node n1 turned idle at once"


def test_a_node_is_told_once_and_again_only_when_it_has_worked_since() -> None:
    idle = states(n1="ii", n2="b" * 8)
    assert looks(BUSY, idle, idle, idle) == ["", ALL_OF_A_NODE, "", ""]
    assert looks(BUSY, idle, BUSY, idle) == ["", ALL_OF_A_NODE, "", ALL_OF_A_NODE]


def test_agents_that_close_their_stretches_at_different_times_turn_idle_at_once() -> None:
    """Ten nodes with one GPU each, whose counters break at one moment: each is called idle up to five minutes later."""
    rows = [states(**{f"n{at}": "i" if at < 2 * minute else "b" for at in range(10)}) for minute in range(6)]
    assert looks(*rows)[:3] == ["", "", "4 of 10 GPUs turned idle at once"]
    assert looks(*rows, every=SPREAD + 1) == [""] * 6, "one after the other is the end of work"


@pytest.mark.parametrize("between", ["uu", "--"], ids=["unknown", "not heard"])
def test_silence_between_work_and_idleness_hides_nothing(between: str) -> None:
    """As after a driver's update: agents begin anew, readings have to cover the window, and counters say 0."""
    rows = [BUSY, *[states(n1=between, n2="b" * 8)] * 90, states(n1="ii", n2="b" * 8)]
    assert looks(*rows)[-1] == ALL_OF_A_NODE


def test_what_was_given_back_is_not_remembered_nor_who_is_gone_for_a_day() -> None:
    assert looks(BUSY, states(n1="ff", n2="b" * 8), states(n1="ii", n2="b" * 8)) == ["", "", ""]
    seen = SeenAtWork.restored((), 0.0)
    seen.look(BUSY, 60.0)
    seen.look({}, 120.0)
    assert len(seen.prints) == len(BUSY)
    seen.look({}, 121.0 + REMEMBERED)
    assert seen.prints == ()


def test_a_new_process_goes_on_from_the_record() -> None:
    seen = SeenAtWork.restored((), 0.0)
    seen.look(BUSY, 60.0)
    again = SeenAtWork.restored(seen.prints, 5.0)
    doubt, turned = again.look(states(n1="ii", n2="b" * 8), 5.0)
    assert doubt is not None
    assert (doubt.why, doubt.nodes, turned) == (ALL_OF_A_NODE, {"n1"}, {("n1", "0"), ("n1", "1")})
    assert fingerprint(("n1", "0")) not in again.prints, "a person's word that it is so holds"


def test_of_a_large_cluster_the_record_stays_small_enough() -> None:
    prints = tuple(fingerprint(("node", str(at))) for at in range(2 * MOST_WORKED))
    text = encode(ReclaimRecord(worked=prints))
    kept = decode(text)
    assert kept is not None
    assert len(kept.worked) == MOST_WORKED
    assert len(text) < MAX_BYTES


@pytest.mark.parametrize("away", [0.0, 1.0, 10.0], ids=["at once", "an hour away", "ten hours away"])
async def test_a_restart_in_the_middle_does_not_unfreeze(away: float) -> None:
    scene = await Scene().begin()
    await scene.policy(notify=[await scene.secret("http://hooks.example.com/a")])
    for number in range(4):
        await scene.api.create(NODES, {"metadata": {"name": f"gpu-{number}"}})
        await scene.deployment(f"job-{number}", node=f"gpu-{number}", gpus=2)
    await scene.round()
    for device in scene.source.all:
        device.idle_since = scene.now  # and no process runs at the time at which they are called idle
    scene.again()
    await scene.round(away * HOUR + HOUR)
    assert (await scene.condition("Frozen"))["reason"] == "MassIdle"
    scene.again()
    await scene.rounds(4 * HOUR)
    assert [await scene.replicas(f"job-{number}") for number in range(4)] == [1, 1, 1, 1]
    assert sum(b"is paused" in body for body in scene.webhook.taken) == 1


async def test_what_could_not_be_written_down_is_seen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = await Scene().begin()
    await scene.policy()
    await scene.api.create(NODES, {"metadata": {"name": "gpu-1"}})
    await scene.deployment(gpus=2)
    await scene.round()
    for device in scene.source.all:
        device.idle_since = scene.now - 5 * HOUR

    async def refused(*_: object) -> None:
        raise KubeError("the record can't be written", "a write", "try again")

    with monkeypatch.context() as patched:
        patched.setattr(RecordStore, "save", refused)
        with pytest.raises(KubeError):
            await scene.round()
    await scene.rounds(4 * HOUR)
    assert await scene.replicas() == 1
    assert (await scene.condition("Frozen"))["reason"] == "MassIdle"


def test_doubts_add_up() -> None:
    first = frozen_by(MassIdle("a", frozenset({"n1"})), frozenset({("n1", "0")}), None, 1.0)
    assert (first.why, first.nodes) == (ALL_OF_A_NODE, ("n1",))
    both = frozen_by(MassIdle("b", frozenset({"n2"})), frozenset({("n2", "0")}), first, 2.0)
    assert (both.why, both.nodes) == ("all GPUs of node n1, n2 turned idle at once", ("n1", "n2"))
    everything = frozen_by(MassIdle("many"), frozenset({("n3", "0")}), both, 3.0)
    assert (everything.why, everything.nodes, len(everything.devices)) == ("many", (), 3)
    still = frozen_by(MassIdle("c", frozenset({"n4"})), frozenset({("n4", "0")}), everything, 4.0)
    assert (still.why, still.everywhere) == ("many", True)


async def test_a_node_that_is_in_doubt_holds_up_no_other() -> None:
    """Else whoever holds all GPUs of one node could keep everybody's from being reclaimed."""
    scene = await Scene().begin()
    await scene.policy(reclaim={"grace": "5m"}, budget={"maxSharePercent": 100})
    await scene.deployment("hoards", node="gpu-1", gpus=2)
    await scene.deployment("idle", node="gpu-2", idle_since=scene.now - 3 * HOUR)
    for number in range(12):
        await scene.deployment(f"works-{number}", node=f"gpu-{3 + number}")
    for name in ("gpu-1", "gpu-2"):
        await scene.api.create(NODES, {"metadata": {"name": name}})
    await scene.round()
    for device in scene.source.all[:2]:
        device.idle_since = scene.now - 5 * HOUR
    await scene.rounds(5 * HOUR)
    assert [await scene.replicas(name) for name in ("hoards", "idle")] == [1, 0]
    frozen = await scene.condition("Frozen")
    assert (frozen["reason"], frozen["message"]) == ("MassIdle", "all GPUs of node gpu-1 turned idle at once")
    assert (await scene.condition("Acting"))["status"] == "True", "elsewhere"
    look, policy = ClusterLook(scene.api, OWN), ReclaimPolicy(name="all")
    held = {ref.name: one for ref, one in workloads(scene.source.devices(USUAL_RULES, scene.now)).items()}
    assert await look.doubt(policy, held["hoards"]) == frozen["message"]
    assert await look.doubt(policy, held["works-0"]) == ""
