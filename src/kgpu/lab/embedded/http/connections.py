"""Bounds the number of client connections and picks the one to drop for a new one. Pure bookkeeping: no sockets here.

A connection is a *stranger* until a request on it brings valid credentials, and *known* from then on. Strangers have a
bound of their own. A new connection that would exceed a bound replaces the oldest stranger, else the known connection
that has been idle longest; a known one in the middle of an answer (a watch) is never dropped. So clients without
credentials can't keep others out. Every operation but ``sweep`` and ``close`` takes constant time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 30.0
"""Seconds that a stranger may stay connected without a request being answered."""


class ClientConnection:
    """One connection. ``drop`` ends it at once; it is replaced after the handshake begins and once it is done."""

    __slots__ = ("drop", "quiet_since")

    def __init__(self, drop: Callable[[], object], now: float) -> None:
        self.drop = drop
        self.quiet_since: float | None = now


class ConnectionLimiter:
    """Allows at most ``most`` connections, of them at most ``strangers`` without credentials.

    ``dropped`` and ``refused`` count from the start of the server.
    """

    def __init__(self, most: int, strangers: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._most_strangers = strangers
        self._clock = clock
        self._strangers: dict[ClientConnection, None] = {}  # oldest first
        self._busy: set[ClientConnection] = set()
        self._resting: dict[ClientConnection, None] = {}  # known and idle; the longest idle first
        self.dropped = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._strangers) + len(self._busy) + len(self._resting)

    def enter(self, drop: Callable[[], object]) -> ClientConnection | None:
        """Register a new connection, dropping another one if a bound is reached; None when none may be dropped."""
        full = len(self) >= self._most or len(self._strangers) >= self._most_strangers
        if full and not self.make_room():
            self.refused += 1
            return None
        connection = ClientConnection(drop, self._clock())
        self._strangers[connection] = None
        return connection

    def make_room(self) -> bool:
        """Drop the oldest stranger, else the longest idle known connection; False when there is neither."""
        for droppable in (self._strangers, self._resting):
            if droppable:
                self._drop(next(iter(droppable)))
                return True
        return False

    def leave(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended. Does nothing if it is forgotten already."""
        self._strangers.pop(connection, None)
        self._resting.pop(connection, None)
        self._busy.discard(connection)

    def mark_known(self, connection: ClientConnection) -> None:
        """The request that is being answered came with valid credentials."""
        if connection in self._strangers:
            del self._strangers[connection]
            self._busy.add(connection)

    def mark_busy(self, connection: ClientConnection) -> None:
        """A request has come."""
        connection.quiet_since = None
        if connection in self._resting:
            del self._resting[connection]
            self._busy.add(connection)

    def mark_resting(self, connection: ClientConnection) -> None:
        """Every request is answered."""
        connection.quiet_since = self._clock()
        if connection in self._busy:
            self._busy.discard(connection)
            self._resting[connection] = None

    def sweep(self) -> None:
        """Drop strangers that have been quiet for ``PATIENCE_S``. Known ones are left to the keep-alive timeout."""
        before = self._clock() - PATIENCE_S
        quiet = [
            stranger
            for stranger in self._strangers
            if stranger.quiet_since is not None and stranger.quiet_since <= before
        ]
        for stranger in quiet:
            self._drop(stranger)

    def close(self) -> None:
        """Drop every connection that is not being answered."""
        quiet = [stranger for stranger in self._strangers if stranger.quiet_since is not None]
        for connection in quiet + list(self._resting):
            self._drop(connection)

    def _drop(self, connection: ClientConnection) -> None:
        self.leave(connection)
        self.dropped += 1
        connection.drop()
