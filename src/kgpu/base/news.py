"""A number that grows with every change of something, and a way to wait for the next."""

from __future__ import annotations

import asyncio


class News:
    """For one asyncio loop. What has changed is the owner's to say."""

    def __init__(self) -> None:
        self._revision = 0
        self._told = asyncio.Condition()

    @property
    def revision(self) -> int:
        """How often there were news."""
        return self._revision

    async def changed(self, after: int) -> int:
        """Wait until ``revision`` differs from ``after``; returns it."""
        async with self._told:
            await self._told.wait_for(lambda: self._revision != after)
        return self._revision

    async def tell(self) -> None:
        """There are news: whoever waits goes on."""
        self._revision += 1
        async with self._told:
            self._told.notify_all()
