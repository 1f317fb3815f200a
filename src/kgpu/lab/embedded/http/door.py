"""Who may be connected: the book of connections, of a bounded number, without a socket in it.

A connection is a *stranger* until a request on it brings valid credentials, and *known* from then on. Strangers have a
bound of their own. Who comes when a bound is reached takes the place of the stranger that came first, else of the
known one that has rested longest; a known one in the middle of an answer (a watch) is never dropped. So nobody can keep
others out without credentials. Every operation but ``sweep`` and ``close`` takes constant time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 30.0
"""Seconds for which a stranger may be connected without being answered."""


class ClientConnection:
    """One connection. ``drop`` ends it at once; it is replaced as the connection grows up."""

    __slots__ = ("drop", "quiet_since")

    def __init__(self, drop: Callable[[], object], now: float) -> None:
        self.drop = drop
        self.quiet_since: float | None = now


class ConnectionLimiter:
    """At most ``most`` connections, of them at most ``strangers`` without credentials.

    ``dropped`` and ``refused`` count since the beginning.
    """

    def __init__(self, most: int, strangers: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._most_strangers = strangers
        self._clock = clock
        self._strangers: dict[ClientConnection, None] = {}  # in the order in which they came
        self._busy: set[ClientConnection] = set()
        self._resting: dict[ClientConnection, None] = {}  # known; in the order in which they began to rest
        self.dropped = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._strangers) + len(self._busy) + len(self._resting)

    def enter(self, drop: Callable[[], object]) -> ClientConnection | None:
        """A new connection, in the place of another where there is none left; None when it can't be let in."""
        full = len(self) >= self._most or len(self._strangers) >= self._most_strangers
        if full and not self.make_room():
            self.refused += 1
            return None
        guest = ClientConnection(drop, self._clock())
        self._strangers[guest] = None
        return guest

    def make_room(self) -> bool:
        """Drop the one that is missed least; False when there is none that may be dropped."""
        for book in (self._strangers, self._resting):
            if book:
                self._drop(next(iter(book)))
                return True
        return False

    def leave(self, guest: ClientConnection) -> None:
        """The connection is over. May be said again."""
        self._strangers.pop(guest, None)
        self._resting.pop(guest, None)
        self._busy.discard(guest)

    def known(self, guest: ClientConnection) -> None:
        """A request on it, which is being answered, came with valid credentials."""
        if guest in self._strangers:
            del self._strangers[guest]
            self._busy.add(guest)

    def works(self, guest: ClientConnection) -> None:
        """A request on it has come."""
        guest.quiet_since = None
        if guest in self._resting:
            del self._resting[guest]
            self._busy.add(guest)

    def rests(self, guest: ClientConnection) -> None:
        """Every request on it is answered."""
        guest.quiet_since = self._clock()
        if guest in self._busy:
            self._busy.discard(guest)
            self._resting[guest] = None

    def sweep(self) -> None:
        """Drop strangers who have been quiet for ``PATIENCE_S``. Known ones are left to the keep-alive."""
        before = self._clock() - PATIENCE_S
        for guest in [one for one in self._strangers if one.quiet_since is not None and one.quiet_since <= before]:
            self._drop(guest)

    def close(self) -> None:
        """Drop everybody who is not being answered."""
        for guest in [one for one in self._strangers if one.quiet_since is not None] + list(self._resting):
            self._drop(guest)

    def _drop(self, guest: ClientConnection) -> None:
        self.leave(guest)
        self.dropped += 1
        guest.drop()
