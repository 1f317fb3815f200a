"""Whose a token is: asked once for all who wait, remembered shortly, and not sure while nobody answers."""

from __future__ import annotations

import asyncio

import pytest

from kgpu.base.errors import KubeError
from kgpu.overview.reviews import FakeReviews, Person
from kgpu.overview.tokens import (
    ASK_AGAIN,
    AT_ONCE,
    HOLDS,
    MOST,
    MOST_QUESTIONS,
    MOST_REFUSED,
    REFUSED_HOLDS,
    TokenChecks,
)

ANN = Person(name="ann")
DOWN = KubeError("it is down", "an answer", "wait")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def checks(**people: Person) -> tuple[FakeReviews, Clock, TokenChecks]:
    reviews, clock = FakeReviews(people=dict(people)), Clock()
    return reviews, clock, TokenChecks(reviews, clock)


async def test_an_answer_holds_for_half_a_minute() -> None:
    reviews, clock, found = checks(good=ANN)
    assert await found.who("good") == (ANN, True)
    reviews.people.clear()
    clock.now += HOLDS - 1
    assert await found.who("good") == (ANN, True)
    clock.now += 1
    assert await found.who("good") is None
    assert len(reviews.asked) == 2


async def test_a_token_that_is_none_is_asked_about_less_often() -> None:
    reviews, clock, found = checks()
    assert [await found.who("bad") for _ in range(3)] == [None] * 3
    assert len(reviews.asked) == 1
    reviews.people["bad"] = ANN
    clock.now += REFUSED_HOLDS
    assert await found.who("bad") == (ANN, True)


@pytest.mark.parametrize("token", ["", "a b", "a,b", "é", "a\nb", "=", "a" * 17_000, "a\x00"])
async def test_what_can_be_no_token_is_not_asked_about(token) -> None:
    reviews, _, found = checks()
    assert await found.who(token) is None
    assert reviews.asked == []


async def test_who_is_known_stays_known_and_is_not_sure_while_nobody_answers() -> None:
    reviews, clock, found = checks(good=ANN)
    await found.who("good")
    reviews.trouble = DOWN
    clock.now += HOLDS
    assert await found.who("good") == (ANN, False)
    assert await found.who("good") == (ANN, False)
    assert len(reviews.asked) == 2, "not asked again at once"
    with pytest.raises(KubeError):
        await found.who("other")
    reviews.trouble = None
    clock.now += ASK_AGAIN
    assert await found.who("good") == (ANN, True)


async def test_all_who_wait_for_one_token_wait_for_one_answer() -> None:
    reviews, _, found = checks(good=ANN)
    reviews.slow = asyncio.Event()
    waiting = [asyncio.create_task(found.who("good")) for _ in range(10)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    reviews.slow.set()
    assert await asyncio.gather(*waiting[1:]) == [(ANN, True)] * 9
    assert reviews.asked == ["who"]


async def test_there_is_room_for_some_questions() -> None:
    reviews, clock, found = checks(good=ANN)
    await found.who("good")
    reviews.slow = asyncio.Event()
    waiting = [asyncio.create_task(found.who(f"t{number}")) for number in range(MOST_QUESTIONS)]
    await asyncio.sleep(0)
    with pytest.raises(KubeError, match="too many tokens"):
        await found.who("another")
    assert await found.who("good") == (ANN, True), "who is known does not wait"
    clock.now += HOLDS
    again = asyncio.create_task(found.who("good"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert reviews.asked.count("who") == 2 + AT_ONCE, "and is not behind them when asked about again"
    reviews.slow.set()
    assert await again == (ANN, True)
    assert await asyncio.gather(*waiting) == [None] * MOST_QUESTIONS


async def test_a_flood_of_tokens_pushes_out_no_good_one() -> None:
    reviews, _, found = checks(good=ANN)
    await found.who("good")
    for number in range(MOST_REFUSED + MOST):
        await found.who(f"bad{number}")
    reviews.asked.clear()
    assert await found.who("good") == (ANN, True)
    assert reviews.asked == []


async def test_no_token_is_kept() -> None:
    reviews, _, found = checks(**{"very-secret": ANN})
    await found.who("very-secret")
    await found.who("other-secret")
    assert "secret" not in repr({name: one for name, one in vars(found).items() if one is not reviews})
