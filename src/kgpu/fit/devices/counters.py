"""Counters that devices of a pool share: what is left of each, and what the devices of one attempt take.

Partitions of one GPU are devices of their own; that not all can be had at once is told by counters.

kube-scheduler keeps its books by the name of the pool, without the driver. This does the same, so that two drivers with
pools of one name are judged as they are there: by the counters of whichever is looked at first.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import TypeAlias

from kgpu.fit.devices.model import CounterUse, DeviceKey, SliceDevice
from kgpu.fit.devices.pools import GatheredPool

Books: TypeAlias = dict[str, dict[str, int]]
"""Nanos by counter by set."""


class CounterBooks:
    """For one attempt. ``taken`` are the devices that claims hold."""

    def __init__(self, taken: Collection[DeviceKey]) -> None:
        self._taken = taken
        self._left: dict[str, Books] = {}
        self._taking: dict[str, Books] = {}

    def take(self, device: SliceDevice, pool: GatheredPool) -> bool:
        """Whether all that the device takes is left; if so it is taken."""
        left = self._left.get(pool.key.pool)
        if left is None:
            left = self._left[pool.key.pool] = left_of(pool, self._taken)
        taking = self._taking.setdefault(pool.key.pool, {})
        for use in device.consumes:
            book(taking, use, 1)
        for name, counters in left.items():
            own = taking.get(name, {})
            if any(amount < own.get(counter, 0) for counter, amount in counters.items()):
                self.give_back(device, pool)
                return False
        return True

    def give_back(self, device: SliceDevice, pool: GatheredPool) -> None:
        for use in device.consumes:
            book(self._taking.setdefault(pool.key.pool, {}), use, -1)

    def state(self) -> Hashable:
        """All that further answers depend on."""
        return frozenset(self._left), _frozen(self._taking)


def left_of(pool: GatheredPool, taken: Collection[DeviceKey]) -> Books:
    """What the devices that claims hold leave of a pool's counters; below zero where they take more than there is."""
    left = {
        name: {counter: amount.nanos for counter, amount in counters.items()}
        for name, counters in pool.counter_sets.items()
    }
    for piece in (*pool.slices, *pool.others):
        for device in piece.devices:
            if device.consumes and piece.device_key(device) in taken:
                for use in device.consumes:
                    if use.counter_set in left:
                        book(left, use, -1, known=True)
    return left


def book(books: Books, use: CounterUse, sign: int, *, known: bool = False) -> None:
    """Add what is used to the books, or take it off; with ``known`` only of counters that are there."""
    own = books.setdefault(use.counter_set, {})
    for counter, amount in use.counters.items():
        if counter in own or not known:
            own[counter] = own.get(counter, 0) + sign * amount.nanos


def _frozen(books: dict[str, Books]) -> Hashable:
    return frozenset(
        (pool, name, counter, amount)
        for pool, sets in books.items()
        for name, counters in sets.items()
        for counter, amount in counters.items()
        if amount
    )
