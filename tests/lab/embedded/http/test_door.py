"""Who may be connected: the bounds, who has to go for whom, and that the books always add up."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kgpu.lab.embedded.http.door import PATIENCE_S, ClientConnection, ConnectionLimiter


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _enter(door: ConnectionLimiter, dropped: list[str], name: str) -> ClientConnection:
    guest = door.enter(lambda: dropped.append(name))
    assert guest is not None
    return guest


def test_the_stranger_who_came_first_goes_first() -> None:
    door, dropped = ConnectionLimiter(10, 2), list[str]()
    for name in "abc":
        _enter(door, dropped, name)
    assert dropped == ["a"]
    assert (len(door), door.dropped, door.refused) == (2, 1, 0)


def test_known_ones_stay_while_there_are_strangers_then_the_longest_at_rest_goes() -> None:
    door, dropped = ConnectionLimiter(3, 3), list[str]()
    for name in "ab":
        guest = _enter(door, dropped, name)
        door.works(guest)
        door.known(guest)
        door.rests(guest)
        if name == "a":
            first = guest
    door.works(first)  # a asks again, so b has rested longest
    door.rests(first)
    for name in "cd":
        _enter(door, dropped, name)
    assert dropped == ["c"]
    asking = _enter(door, dropped, "e")
    assert dropped == ["c", "d"]
    door.works(asking)
    door.known(asking)
    _enter(door, dropped, "f")
    assert dropped == ["c", "d", "b"]


def test_nobody_is_dropped_in_the_middle_of_an_answer() -> None:
    door, dropped = ConnectionLimiter(2, 2), list[str]()
    for name in "ab":
        guest = _enter(door, dropped, name)
        door.works(guest)
        door.known(guest)
    assert door.enter(lambda: dropped.append("c")) is None
    assert (dropped, door.refused) == ([], 1)


def test_a_stranger_is_not_waited_for_without_end_but_is_answered() -> None:
    clock = _Clock()
    door, dropped = ConnectionLimiter(9, 9, clock=clock), list[str]()
    _enter(door, dropped, "quiet")
    door.works(_enter(door, dropped, "asks"))
    clock.now += PATIENCE_S - 1
    door.sweep()
    assert dropped == []
    clock.now += 1
    door.sweep()
    assert dropped == ["quiet"]


class DoorMachine(RuleBasedStateMachine):
    """Against a plain list of who is connected."""

    @initialize(most=st.integers(1, 6), strangers=st.integers(1, 6))
    def begin(self, most: int, strangers: int) -> None:
        self.clock = _Clock()
        self.most, self.strangers = most, strangers
        self.door = ConnectionLimiter(most, strangers, clock=self.clock)
        self.open: list[ClientConnection] = []
        self.answering: set[ClientConnection] = set()
        self.credible: set[ClientConnection] = set()

    @rule()
    def enter(self) -> None:
        mine: list[ClientConnection] = []

        def drop() -> None:
            assert not (mine[0] in self.credible and mine[0] in self.answering)
            self.open.remove(mine[0])

        guest = self.door.enter(drop)
        if guest is None:
            assert all(one in self.credible and one in self.answering for one in self.open)
            return
        mine.append(guest)
        self.open.append(guest)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), credible=st.booleans())
    def ask(self, data: st.DataObject, credible: bool) -> None:
        guest = data.draw(st.sampled_from(self.open))
        self.door.works(guest)
        self.answering.add(guest)
        if credible:
            self.door.known(guest)
            self.credible.add(guest)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        guest = data.draw(st.sampled_from(self.open))
        self.door.rests(guest)
        self.answering.discard(guest)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        guest = data.draw(st.sampled_from(self.open))
        self.open.remove(guest)
        self.door.leave(guest)
        self.door.leave(guest)

    @rule()
    def close(self) -> None:
        self.door.close()
        assert set(self.open) <= self.answering

    @rule(seconds=st.sampled_from([1.0, PATIENCE_S]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.door.sweep()

    @invariant()
    def adds_up(self) -> None:
        assert len(self.door) == len(self.open) <= self.most
        assert sum(one not in self.credible for one in self.open) <= self.strangers


TestDoorMachine = DoorMachine.TestCase
