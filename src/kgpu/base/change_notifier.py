"""A number that grows with every change of something, and a way to wait for the next."""

from __future__ import annotations

import asyncio


class ChangeNotifier:
    """A revision number for one asyncio loop; the owner calls ``notify`` after each change."""

    def __init__(self) -> None:
        self._revision = 0
        self._next = asyncio.Event()

    @property
    def revision(self) -> int:
        """How many changes there have been."""
        return self._revision

    async def changed(self, after: int) -> int:
        """Wait until ``revision`` differs from ``after``; returns it."""
        while self._revision == after:
            await self._next.wait()
        return self._revision

    def notify(self) -> None:
        """Count a change and wake everyone who waits in ``changed``."""
        self._revision += 1
        self._next.set()
        self._next = asyncio.Event()
