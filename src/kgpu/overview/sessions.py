"""Browsers that have shown a token: each has a cookie, and the token stays here, in memory alone.

A session ends when nobody has looked for half an hour, twelve hours after it began, when somebody signs out, and when
its token is nobody's any more, which is found out by asking again. There is room for some, and for a few of one person:
the one that was used last longest ago makes room.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

IDLE: Final = 1800.0  # seconds
LONGEST: Final = 12 * 3600.0
MOST: Final = 1000
MOST_OF_ONE: Final = 10


@dataclass(slots=True)
class _BrowserSession:
    token: str
    name: str
    began: float
    used: float


class BrowserSessions:
    """All of them, by the digest of their cookie: what is compared says nothing by how long it takes."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._found: dict[bytes, _BrowserSession] = {}

    def begin(self, token: str, name: str) -> str:
        """Begin one for a token of the person with this name; returns its cookie."""
        now = self._now()
        self._forget_old(now)
        own = [key for key, one in self._found.items() if one.name == name]
        self._make_room(own, MOST_OF_ONE)
        self._make_room(list(self._found), MOST)
        cookie = secrets.token_urlsafe(32)
        self._found[_key(cookie)] = _BrowserSession(token, name, now, now)
        return cookie

    def token_of(self, cookie: str) -> str:
        """The token behind a cookie that is used now; "" where there is none any more."""
        key, now = _key(cookie), self._now()
        found = self._found.get(key)
        if found is None:
            return ""
        if _over(found, now):
            del self._found[key]
            return ""
        found.used = now
        return found.token

    def end(self, cookie: str) -> None:
        """End one."""
        self._found.pop(_key(cookie), None)

    def __len__(self) -> int:
        self._forget_old(self._now())
        return len(self._found)

    def _forget_old(self, now: float) -> None:
        self._found = {key: one for key, one in self._found.items() if not _over(one, now)}

    def _make_room(self, keys: list[bytes], most: int) -> None:
        oldest = sorted(keys, key=lambda key: self._found[key].used)
        for key in oldest[: max(0, len(keys) - most + 1)]:
            del self._found[key]


def _over(found: _BrowserSession, now: float) -> bool:
    return now - found.used >= IDLE or now - found.began >= LONGEST


def _key(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode(errors="replace")).digest()
