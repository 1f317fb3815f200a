"""Which connections are kept: the bounds, which one is dropped for a new one, and that the counts always add up."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kgpu.lab.embedded.http.connections import PATIENCE_S, ClientConnection, ConnectionLimiter


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _enter(limiter: ConnectionLimiter, dropped: list[str], name: str) -> ClientConnection:
    connection = limiter.enter(lambda: dropped.append(name))
    assert connection is not None
    return connection


def test_the_stranger_who_came_first_goes_first() -> None:
    limiter, dropped = ConnectionLimiter(10, 2), list[str]()
    for name in "abc":
        _enter(limiter, dropped, name)
    assert dropped == ["a"]
    assert (len(limiter), limiter.dropped, limiter.refused) == (2, 1, 0)


def test_known_ones_stay_while_there_are_strangers_then_the_longest_at_rest_goes() -> None:
    limiter, dropped = ConnectionLimiter(3, 3), list[str]()
    for name in "ab":
        connection = _enter(limiter, dropped, name)
        limiter.mark_busy(connection)
        limiter.mark_known(connection)
        limiter.mark_resting(connection)
        if name == "a":
            first = connection
    limiter.mark_busy(first)  # a asks again, so b has rested longest
    limiter.mark_resting(first)
    for name in "cd":
        _enter(limiter, dropped, name)
    assert dropped == ["c"]
    asking = _enter(limiter, dropped, "e")
    assert dropped == ["c", "d"]
    limiter.mark_busy(asking)
    limiter.mark_known(asking)
    _enter(limiter, dropped, "f")
    assert dropped == ["c", "d", "b"]


def test_nobody_is_dropped_in_the_middle_of_an_answer() -> None:
    limiter, dropped = ConnectionLimiter(2, 2), list[str]()
    for name in "ab":
        connection = _enter(limiter, dropped, name)
        limiter.mark_busy(connection)
        limiter.mark_known(connection)
    assert limiter.enter(lambda: dropped.append("c")) is None
    assert (dropped, limiter.refused) == ([], 1)


def test_a_stranger_is_not_waited_for_without_end_but_is_answered() -> None:
    clock = _Clock()
    limiter, dropped = ConnectionLimiter(9, 9, clock=clock), list[str]()
    _enter(limiter, dropped, "quiet")
    limiter.mark_busy(_enter(limiter, dropped, "asks"))
    clock.now += PATIENCE_S - 1
    limiter.sweep()
    assert dropped == []
    clock.now += 1
    limiter.sweep()
    assert dropped == ["quiet"]


class LimiterMachine(RuleBasedStateMachine):
    """Against a plain list of who is connected."""

    @initialize(most=st.integers(1, 6), strangers=st.integers(1, 6))
    def begin(self, most: int, strangers: int) -> None:
        self.clock = _Clock()
        self.most, self.strangers = most, strangers
        self.limiter = ConnectionLimiter(most, strangers, clock=self.clock)
        self.open: list[ClientConnection] = []
        self.answering: set[ClientConnection] = set()
        self.credible: set[ClientConnection] = set()

    @rule()
    def enter(self) -> None:
        mine: list[ClientConnection] = []

        def drop() -> None:
            assert not (mine[0] in self.credible and mine[0] in self.answering)
            self.open.remove(mine[0])

        connection = self.limiter.enter(drop)
        if connection is None:
            assert all(one in self.credible and one in self.answering for one in self.open)
            return
        mine.append(connection)
        self.open.append(connection)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), credible=st.booleans())
    def ask(self, data: st.DataObject, credible: bool) -> None:
        connection = data.draw(st.sampled_from(self.open))
        self.limiter.mark_busy(connection)
        self.answering.add(connection)
        if credible:
            self.limiter.mark_known(connection)
            self.credible.add(connection)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        connection = data.draw(st.sampled_from(self.open))
        self.limiter.mark_resting(connection)
        self.answering.discard(connection)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        connection = data.draw(st.sampled_from(self.open))
        self.open.remove(connection)
        self.limiter.leave(connection)
        self.limiter.leave(connection)

    @rule()
    def close(self) -> None:
        self.limiter.close()
        assert set(self.open) <= self.answering

    @rule(seconds=st.sampled_from([1.0, PATIENCE_S]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.limiter.sweep()

    @invariant()
    def adds_up(self) -> None:
        assert len(self.limiter) == len(self.open) <= self.most
        assert sum(one not in self.credible for one in self.open) <= self.strangers


TestLimiterMachine = LimiterMachine.TestCase
