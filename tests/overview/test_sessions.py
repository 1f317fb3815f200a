"""Sessions of browsers: they end by themselves, and there are never more than there is room for."""

from __future__ import annotations

from kgpu.overview.sessions import IDLE, LONGEST, MOST, MOST_OF_ONE, BrowserSessions


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_ends_when_nobody_looks() -> None:
    clock = Clock()
    found = BrowserSessions(clock)
    cookie = found.begin("token", "ann")
    clock.now += IDLE - 1
    assert found.token_of(cookie) == "token"
    clock.now += IDLE - 1
    assert found.token_of(cookie) == "token"
    clock.now += IDLE
    assert (found.token_of(cookie), len(found)) == ("", 0)


def test_a_session_ends_after_a_day_of_work_however_much_is_looked() -> None:
    clock = Clock()
    found = BrowserSessions(clock)
    cookie = found.begin("token", "ann")
    while clock.now < LONGEST - IDLE:
        clock.now += IDLE - 1
        assert found.token_of(cookie) == "token"
    clock.now = LONGEST
    assert found.token_of(cookie) == ""


def test_who_signs_out_is_out() -> None:
    found = BrowserSessions()
    cookie, other = found.begin("token", "ann"), found.begin("token", "ann")
    found.end(cookie)
    found.end("never")
    assert (found.token_of(cookie), found.token_of(other)) == ("", "token")


def test_somebody_has_a_few_and_all_together_some() -> None:
    clock = Clock()
    found = BrowserSessions(clock)
    kept = found.begin("b", "bob")
    own = []
    for _ in range(MOST_OF_ONE + 1):
        clock.now += 1
        own.append(found.begin("a", "ann"))
    assert [bool(found.token_of(cookie)) for cookie in own] == [False, *[True] * MOST_OF_ONE]
    assert found.token_of(kept) == "b"
    for number in range(MOST):
        clock.now += 0.1
        found.begin("x", f"user-{number}")
    assert len(found) == MOST
    assert found.token_of(kept) == "", "the one that was used last longest ago"


def test_a_cookie_that_was_guessed_opens_nothing() -> None:
    found = BrowserSessions()
    cookie = found.begin("token", "ann")
    assert [found.token_of(wrong) for wrong in ("", cookie[:-1], cookie + "x", "é\udc80")] == [""] * 4
    assert cookie not in repr(vars(found))
