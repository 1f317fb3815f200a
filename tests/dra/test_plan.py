"""Whatever is there, the writes end in what is wanted, are few, and never show a consumer half of a change."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.dra.api import DraApi
from kgpu.dra.devices import node_devices
from kgpu.dra.model import PublishRules
from kgpu.dra.plan import PoolWrites, dropped, plan
from kgpu.dra.slices import PoolOwner, pool_slices
from kgpu.hw.verdicts import GpuVerdict
from kgpu.kube.port import Object, name_of
from tests.budget import tries
from tests.dra.samples import NODE, OWNER, h100

DRIVER = "gpu.nvidia.com"
V35 = DraApi(kubernetes=(1, 35))
SINCE = "2026-11-29T21:00:00Z"


def wanted_of(
    count: int, *, dynamic: bool = False, sick: Iterable[int] = (), owner: PoolOwner = OWNER
) -> tuple[Object, ...]:
    inventory = h100(count)
    verdicts = {
        inventory.accelerators[at].uuid: GpuVerdict(
            uuid=inventory.accelerators[at].uuid, withdraws=True, causes=("xid:79",)
        )
        for at in sick
        if at < count
    }
    return pool_slices(node_devices(inventory, PublishRules(dynamic=dynamic), verdicts), owner, V35)


class Server:
    """What an API server has, and what a consumer sees of it."""

    def __init__(self, slices: Iterable[Object] = ()) -> None:
        self.slices = {name_of(one): copy.deepcopy(one) for one in slices}

    def plan(self, wanted: Sequence[Object]) -> PoolWrites:
        return plan(wanted, self.slices.values(), driver=DRIVER, node=NODE)

    def steps(self, writes: PoolWrites) -> list[Any]:
        puts = [(name_of(one), one) for one in (*writes.updates, *writes.creates)]
        return [*puts, *((name_of(one), None) for one in writes.deletes)]

    def do(self, name: str, one: Object | None) -> None:
        if one is None:
            del self.slices[name]
        else:
            self.slices[name] = copy.deepcopy(one)
            for device in self.slices[name]["spec"].get("devices") or ():
                for taint in device.get("taints") or ():
                    taint.setdefault("timeAdded", SINCE)

    def apply(self, wanted: Sequence[Object]) -> int:
        writes = self.plan(wanted)
        for name, one in self.steps(writes):
            self.do(name, one)
        return writes.count

    @property
    def own(self) -> list[Object]:
        return [
            one for one in self.slices.values() if one["spec"]["driver"] == DRIVER and one["spec"]["nodeName"] == NODE
        ]

    @property
    def generation(self) -> int:
        return max((one["spec"]["pool"]["generation"] for one in self.own), default=0)

    def seen(self) -> object:
        """The devices that a scheduler would take now; None while the pool is incomplete."""
        newest = [one for one in self.own if one["spec"]["pool"]["generation"] == self.generation]
        if any(one["spec"]["pool"]["resourceSliceCount"] != len(newest) for one in newest):
            return None
        return content(newest)


def content(slices: Iterable[Object]) -> object:
    return sorted(
        (device["name"], [(taint["key"], taint.get("value")) for taint in device.get("taints") or ()])
        for one in slices
        for device in one["spec"].get("devices") or ()
    )


def generations(server: Server) -> set[int]:
    return {one["spec"]["pool"]["generation"] for one in server.own}


def test_the_first_time_everything_is_made_and_the_second_time_nothing() -> None:
    server = Server()
    writes = server.plan(wanted_of(4, dynamic=True))
    assert (len(writes.updates), len(writes.creates), len(writes.deletes)) == (0, 5, 0)
    assert server.apply(wanted_of(4, dynamic=True)) == 5
    assert generations(server) == {1}
    assert server.apply(wanted_of(4, dynamic=True)) == 0


def test_a_change_of_one_slice_among_several_is_one_write() -> None:
    server = Server()
    server.apply(wanted_of(4, dynamic=True))
    assert server.apply(wanted_of(4, dynamic=True, sick=[2])) == 1
    assert generations(server) == {1}


def test_a_change_of_the_only_slice_has_a_new_generation() -> None:
    server = Server()
    server.apply(wanted_of(4))
    assert server.apply(wanted_of(4, sick=[2])) == 1
    assert generations(server) == {2}


def test_a_change_of_several_is_one_new_generation_of_all() -> None:
    server = Server()
    server.apply(wanted_of(4, dynamic=True))
    assert server.apply(wanted_of(4, dynamic=True, sick=[1, 2])) == 5
    assert generations(server) == {2}
    assert server.apply(wanted_of(2, dynamic=True)) == 3 + 2
    assert generations(server) == {3}


def test_no_devices_are_no_slices() -> None:
    server = Server(wanted_of(2, dynamic=True))
    assert server.apply(()) == 3
    assert server.slices == {}


def test_slices_of_others_are_not_touched() -> None:
    (one,) = wanted_of(1)
    other_node = copy.deepcopy(one)
    other_node["metadata"]["name"], other_node["spec"]["nodeName"] = "a", "gpu-2"
    other_driver = copy.deepcopy(one)
    other_driver["metadata"]["name"], other_driver["spec"]["driver"] = "b", "nic.example.com"
    selected = copy.deepcopy(one)
    selected["metadata"]["name"] = "c"
    del selected["spec"]["nodeName"]
    selected["spec"]["allNodes"] = True
    others = [other_node, other_driver, selected]
    writes = plan((), others, driver=DRIVER, node=NODE)
    assert writes.count == 0
    assert plan([one], others, driver=DRIVER, node=NODE).creates == (one,)


def test_a_replaced_drivers_slices_go_once_the_new_ones_are_there() -> None:
    (old,) = wanted_of(2)
    old["metadata"]["name"] = "0-gpu.nvidia.com-gpu-1-x7k2p"
    old["spec"]["pool"]["generation"] = 7
    server = Server([old])
    writes = server.plan(wanted_of(2))
    assert [one["spec"]["pool"]["generation"] for one in writes.creates] == [8]
    assert [name_of(one) for one in writes.deletes] == ["0-gpu.nvidia.com-gpu-1-x7k2p"]


def test_an_intruder_of_the_same_generation_is_removed() -> None:
    server = Server()
    server.apply(wanted_of(2, dynamic=True))
    intruder = copy.deepcopy(wanted_of(2, dynamic=True)[2])
    intruder["metadata"]["name"] = "intruder"
    server.slices["intruder"] = intruder
    assert server.seen() is None
    assert server.apply(wanted_of(2, dynamic=True)) == 1
    assert server.seen() == content(wanted_of(2, dynamic=True))


def test_a_node_that_was_made_anew_gets_slices_of_its_own() -> None:
    server = Server()
    server.apply(wanted_of(2))
    later = wanted_of(2, owner=replace(OWNER, uid="another"))
    assert server.apply(later) == 2
    assert [one["metadata"]["ownerReferences"][0]["uid"] for one in server.own] == ["another"]


def test_amounts_that_are_spelt_otherwise_are_the_same() -> None:
    (one,) = wanted_of(1)
    found = copy.deepcopy(one)
    found["spec"]["devices"][0]["capacity"]["memory"]["value"] = str(81559 << 20)
    found["metadata"]["ownerReferences"].append({"kind": "Other", "uid": "x"})
    found["spec"]["futureField"] = "a default"
    assert plan([one], [found], driver=DRIVER, node=NODE).count == 0
    found["spec"]["devices"][0]["capacity"]["memory"]["value"] = "1Gi"
    assert plan([one], [found], driver=DRIVER, node=NODE).count == 1
    found["metadata"]["ownerReferences"] = []
    assert plan([one], [found], driver=DRIVER, node=NODE).count == 1


def test_a_taint_keeps_the_time_at_which_it_came() -> None:
    server = Server()
    server.apply(wanted_of(3, sick=[0]))
    assert server.apply(wanted_of(3, sick=[0])) == 0
    (update,) = server.plan(wanted_of(3, sick=[0, 1])).updates
    first, second, _ = update["spec"]["devices"]
    assert first["taints"][0]["timeAdded"] == SINCE
    assert "timeAdded" not in second["taints"][0]


@pytest.mark.parametrize("done", range(6))
def test_a_half_written_pool_is_finished_under_its_generation(done: int) -> None:
    server = Server()
    server.apply(wanted_of(4, dynamic=True))
    new = wanted_of(4, dynamic=True, sick=[0, 1, 2, 3])
    for name, one in server.steps(server.plan(new))[:done]:
        server.do(name, one)
    assert server.apply(new) == (5 - done if done else 5)
    assert generations(server) == {2}
    assert server.seen() == content(new)


def test_a_half_written_pool_that_is_not_wanted_any_more_is_written_anew() -> None:
    server = Server()
    server.apply(wanted_of(4, dynamic=True))
    for name, one in server.steps(server.plan(wanted_of(4, dynamic=True, sick=[0, 1, 2, 3])))[:3]:
        server.do(name, one)
    assert server.apply(wanted_of(4, dynamic=True)) == 5
    assert generations(server) == {3}


def test_what_a_server_drops_is_told() -> None:
    one = wanted_of(1, dynamic=True, sick=[0])[1]
    answer = copy.deepcopy(one)
    assert dropped(one, answer) == frozenset()
    for device in answer["spec"]["devices"]:
        device.pop("taints")
    assert dropped(one, answer) == {"taints"}
    for device in answer["spec"]["devices"]:
        device.pop("consumesCounters")
    assert dropped(one, answer) == {"taints", "counters"}
    counters = wanted_of(1, dynamic=True)[0]
    answer = copy.deepcopy(counters)
    del answer["spec"]["sharedCounters"]
    assert dropped(counters, answer) == {"counters"}


STATES = st.builds(
    lambda count, dynamic, sick: (count, dynamic, frozenset(sick)), st.integers(0, 4), st.booleans(),
    st.sets(st.integers(0, 3), max_size=2),
)  # fmt: skip
CRASHES = st.one_of(st.none(), st.integers(0, 6))
# What somebody else does between two changes; the last three leave a copy of a slice under another name.
MEDDLING = st.sampled_from(["none", "delete", "taint", "newer", "rival", "older"])


@tries(300)
@given(st.lists(st.tuples(STATES, CRASHES, MEDDLING), min_size=1, max_size=8))
def test_any_sequence_of_changes_ends_in_what_is_wanted_and_shows_no_half(
    changes: list[tuple[tuple[int, bool, frozenset[int]], int | None, str]],
) -> None:
    server = Server()
    for (count, dynamic, sick), crash, meddling in changes:
        meddle(server, meddling)
        wanted = wanted_of(count, dynamic=dynamic, sick=sick)
        before, generation = server.seen(), server.generation
        steps = server.steps(server.plan(wanted))
        assert len(steps) <= len(wanted) + len(server.own)
        for name, one in steps[:crash]:
            server.do(name, one)
            assert not wanted or server.seen() in (None, before, content(wanted))
        if crash is not None and crash < len(steps):
            before = server.seen()
            for name, one in server.steps(server.plan(wanted)):
                server.do(name, one)
                assert not wanted or server.seen() in (None, before, content(wanted))
        assert server.seen() == content(wanted)
        assert server.plan(wanted).count == 0
        assert {name_of(one) for one in server.own} == {name_of(one) for one in wanted}
        assert server.generation >= generation or not wanted


def meddle(server: Server, how: str) -> None:
    own = sorted(server.own, key=name_of)
    if not own or how == "none":
        return
    last = own[-1]
    if how == "delete":
        del server.slices[name_of(last)]
    elif how == "taint":
        for device in last["spec"].get("devices") or ():
            device["taints"] = [{"key": "example.com/x", "effect": "NoSchedule"}]
    else:
        other = copy.deepcopy(last)
        other["metadata"]["name"] = f"{how}-{len(own)}"
        other["spec"]["pool"]["generation"] += {"newer": 1, "rival": 0, "older": -1}[how]
        server.slices[name_of(other)] = other
