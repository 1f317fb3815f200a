"""Whose a bearer token is, as the API server says, remembered for some seconds: a revoked one is found out soon.

Tokens are remembered by their digest. One that is none is remembered as well, for less long, and apart, so that a flood
of them pushes out no good one. A token is asked about by one question at a time, and there is room for a few questions
of those that are new: whoever is known does not wait for them. While the API server does not answer, whoever it has
known stays known, but is not sure: nobody takes rights from that.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from kgpu.base.errors import KubeError, UserError
from kgpu.overview.reviews import Person, Reviews

HOLDS: Final = 30.0
REFUSED_HOLDS: Final = 5.0
ASK_AGAIN: Final = 5.0
"""Seconds after a question without an answer in which the same is not asked again."""
MOST: Final = 1024
MOST_REFUSED: Final = 256
AT_ONCE: Final = 4
MOST_QUESTIONS: Final = 32
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{1,16000}=*")
"""RFC 6750's b64token."""


class CheckedPerson(NamedTuple):
    """``sure``: the API server has said so within ``HOLDS`` seconds."""

    person: Person
    sure: bool


@dataclass(frozen=True, slots=True)
class _Known:
    person: Person
    at: float
    failed_at: float = -ASK_AGAIN


class TokenChecks:
    """Asks and remembers."""

    def __init__(self, reviews: Reviews, now: Callable[[], float] = time.monotonic) -> None:
        self._reviews = reviews
        self._now = now
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Person | None]] = {}
        self._strangers = 0
        self._room = {known: asyncio.Semaphore(AT_ONCE) for known in (True, False)}

    async def who(self, token: str) -> CheckedPerson | None:
        """Whose it is, None for nobody's. Raises UserError for one that is not known yet and can't be asked about."""
        if not _TOKEN.fullmatch(token):
            return None
        key = hashlib.sha256(token.encode()).digest()
        refused_at = self._refused.get(key)
        if refused_at is not None and self._now() - refused_at < REFUSED_HOLDS:
            return None
        known = self._known.get(key)
        if known is not None and self._now() - known.at < HOLDS:
            self._known.move_to_end(key)
            return CheckedPerson(known.person, sure=True)
        if known is not None and self._now() - known.failed_at < ASK_AGAIN:
            return CheckedPerson(known.person, sure=False)
        try:
            person = await self._one_question(key, token)
        except UserError:
            known = self._known.get(key)
            if known is None:
                raise
            self._known[key] = replace(known, failed_at=self._now())
            return CheckedPerson(known.person, sure=False)
        return None if person is None else CheckedPerson(person, sure=True)

    async def _one_question(self, key: bytes, token: str) -> Person | None:
        task = self._asking.get(key)
        if task is None:
            known = key in self._known
            if not known and self._strangers >= MOST_QUESTIONS:
                raise KubeError("too many tokens are being checked", "fewer at a time", "try again in a few seconds")
            self._strangers += not known
            task = self._asking[key] = asyncio.create_task(self._ask(key, token, known=known))
            task.add_done_callback(lambda done: self._asked(key, done, known=known))
        return await asyncio.shield(task)  # whoever goes away does not take it from the others

    async def _ask(self, key: bytes, token: str, *, known: bool) -> Person | None:
        async with self._room[known]:
            at = self._now()  # an answer may be as old as its question
            person = await self._reviews.who(token)
        if person is None:
            self._known.pop(key, None)
            self._refused[key] = at
            _cut(self._refused, MOST_REFUSED)
            return None
        self._refused.pop(key, None)
        self._known[key] = _Known(person, at)
        self._known.move_to_end(key)
        _cut(self._known, MOST)
        return person

    def _asked(self, key: bytes, task: asyncio.Task[Person | None], *, known: bool) -> None:
        self._asking.pop(key, None)
        self._strangers -= not known
        if not task.cancelled():
            task.exception()  # whoever waits for it has it; with nobody left it is no defect


def _cut(found: OrderedDict[bytes, Any], most: int) -> None:
    while len(found) > most:
        found.popitem(last=False)
