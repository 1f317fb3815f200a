"""The store against a simple model: what is there, what a watch has told, and every snapshot of the past."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from kgpu.lab.embedded.core.model import StoredObject
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.store import ExpiredError, ObjectStore, order_of
from kgpu.lab.embedded.watching import EVERYTHING, ObjectWatch
from tests.budget import tries

PODS = ("", "pods")
PLACES = st.tuples(st.sampled_from(["a", "a-b", "b"]), st.sampled_from(["x", "y", "z"]))


def pod(namespace: str, name: str, node: str = "", colour: str = "") -> Object:
    return {"metadata": {"namespace": namespace, "name": name, "labels": {"c": colour}}, "spec": {"nodeName": node}}


class Model(RuleBasedStateMachine):
    revisions = Bundle("revisions")

    @initialize()
    def begin(self) -> None:
        self.store = ObjectStore()
        self.now: dict[tuple[str, str], Object] = {}
        self.past: dict[int, dict[tuple[str, str], Object]] = {self.store.revision: {}}
        self.told: dict[tuple[str, str], Object] = {}
        self.red_told: dict[tuple[str, str], Object] = {}
        table = self.store.table(PODS)
        self.all = ObjectWatch(("v1", "Pod"), "", None, lambda: self.store.revision)
        table.watching.add(self.all, EVERYTHING)
        self.red = ObjectWatch(("v1", "Pod"), "", lambda obj: obj["metadata"]["labels"]["c"] == "red", lambda: 0)
        table.watching.add(self.red, EVERYTHING)
        self.on_n = ObjectWatch(("v1", "Pod"), "", lambda obj: obj["spec"]["nodeName"] == "n", lambda: 0)
        table.watching.add(self.on_n, ("index", "n"))
        self.n_told: dict[tuple[str, str], Object] = {}

    @rule(target=revisions, place=PLACES, node=st.sampled_from(["", "n", "m"]), colour=st.sampled_from(["red", "blue"]))
    def put(self, place: tuple[str, str], node: str, colour: str) -> int:
        before = self.store.revision
        made = self.store.put(PODS, pod(*place, node, colour))
        assert made.revision == before + 1 == int(made.obj["metadata"]["resourceVersion"])
        self.now[place] = made.obj
        self.past[made.revision] = dict(self.now)
        return made.revision

    @rule(target=revisions, place=PLACES)
    def remove(self, place: tuple[str, str]) -> int:
        old = self.store.get(PODS, *place)
        assert (old is None) == (place not in self.now)
        if old is not None:
            last = self.store.remove(PODS, old)
            assert last.revision == self.store.revision
            del self.now[place]
            self.past[last.revision] = dict(self.now)
        return self.store.revision

    @rule(revision=revisions, namespace=st.sampled_from(["", "a", "a-b"]), start=st.sampled_from(["", "a/y", "a-b/"]))
    def snapshot(self, revision: int, namespace: str, start: str) -> None:
        wanted = [
            obj for place, obj in self.past[revision].items() if namespace in ("", place[0]) and "/".join(place) >= start
        ]  # fmt: skip
        found = [stored.obj for stored in self.store.table(PODS).snapshot(namespace, start, revision)]
        assert found == sorted(wanted, key=lambda obj: f"{obj['metadata']['namespace']}/{obj['metadata']['name']}")

    @rule(revision=revisions)
    def replay(self, revision: int) -> None:
        state = dict(self.past[revision])
        for event in self.store.table(PODS).since(revision):
            place = event.stored.namespace, event.stored.name
            if event.type == "DELETED":
                del state[place]
            else:
                assert (event.type == "ADDED") == (place not in state)
                state[place] = event.stored.obj
        assert state == self.now

    @invariant()
    def lists_and_indexes_agree(self) -> None:
        table = self.store.table(PODS)
        listed = list(table.scan(""))
        assert [order_of(one) for one in listed] == sorted(order_of(one) for one in listed)
        assert {(one.namespace, one.name): one.obj for one in listed} == self.now
        assert table.count("") == len(self.now)
        by_node: dict[str, set[tuple[str, str]]] = {}
        for place, obj in self.now.items():
            by_node.setdefault(obj["spec"]["nodeName"], set()).add(place)
        assert {node: set(held) for node, held in table.index.items()} == by_node

    @invariant()
    def watches_tell_it_all(self) -> None:
        for watch, told in ((self.all, self.told), (self.red, self.red_told), (self.on_n, self.n_told)):
            while (item := watch.pop()) is not None:
                place = item.stored.namespace, item.stored.name
                assert (item.type == "ADDED") == (place not in told)
                if item.type == "DELETED":
                    del told[place]
                else:
                    told[place] = item.stored.obj
        assert self.told == self.now
        assert self.red_told == {p: o for p, o in self.now.items() if o["metadata"]["labels"]["c"] == "red"}
        assert self.n_told == {p: o for p, o in self.now.items() if o["spec"]["nodeName"] == "n"}


TestModel = Model.TestCase
TestModel.settings = tries(40, stateful_step_count=25)


def test_history_is_bounded_and_says_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgpu.lab.embedded.store.HISTORY_EVENTS", 3)
    store = ObjectStore()
    first = store.revision
    for number in range(5):
        store.put(PODS, pod("a", str(number)))
    table = store.table(PODS)
    assert len(table.events) == 3
    with pytest.raises(ExpiredError) as caught:
        table.since(first)
    assert [event.stored.name for event in table.since(caught.value.oldest)] == ["2", "3", "4"]


def test_history_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgpu.lab.embedded.store.HISTORY_BYTES", 5000)
    store = ObjectStore()
    for number in range(50):
        store.put(PODS, pod("a", "x", colour=f"{number}" * 200))
    assert 0 < sum(event.size for event in store.table(PODS).events) <= 5000


async def test_a_reader_that_is_too_slow_is_ended() -> None:
    store = ObjectStore()
    watch = ObjectWatch(("v1", "Pod"), "", None, lambda: store.revision, backlog=2)
    store.table(PODS).watching.add(watch, EVERYTHING)
    for number in range(4):
        store.put(PODS, pod("a", str(number)))
    assert watch.slow
    assert [item async for item in watch] == []
    assert len(store.table(PODS).watching) == 0


async def test_what_was_told_before_the_end_is_still_read() -> None:
    store = ObjectStore()
    watch = ObjectWatch(("v1", "Pod"), "", None, lambda: store.revision)
    store.table(PODS).watching.add(watch, EVERYTHING)
    store.put(PODS, pod("a", "x"))
    watch.bookmark()
    store.close()
    assert [item.type async for item in watch] == ["ADDED", "BOOKMARK"]


def test_lines_and_objects_are_encoded_once() -> None:
    stored = StoredObject(pod("a", "x"), 1)
    assert stored.encoded() is stored.encoded()
