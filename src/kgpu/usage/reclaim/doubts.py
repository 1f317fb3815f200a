"""Pure: whether so many GPUs turn idle at once that a counter is more likely broken than all work over.

What was at work is remembered over silence, and on record over restarts: a process that begins in the middle of such a
thing sees it, too. Where nobody looked for a while, what turned idle meanwhile counts as at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kgpu.formats.usage import UsageState
from kgpu.usage.states import DOUBTFUL, NOT_IDLE, WASTED, MassIdle, mass_idle

DeviceKey: TypeAlias = tuple[str, str]
"""Node and device."""
SPREAD: Final = 420.0
"""Seconds that count as at once: agents judge stretches of five minutes, which end at different times on each node."""
REMEMBERED: Final = 86_400.0
"""Seconds for which a device that nobody hears of is remembered."""


def fingerprint(key: DeviceKey) -> str:
    """A device in 8 characters: thousands of them have to fit on record."""
    return hashlib.blake2b("\0".join(key).encode(), digest_size=4).hexdigest()


@dataclass(slots=True)
class SeenAtWork:
    """Devices by when they were last at work, or not known to have stopped. Moments are of a clock that never jumps."""

    looked: float
    last: dict[str, float] = field(default_factory=dict)
    absent: dict[str, float] = field(default_factory=dict)

    @classmethod
    def restored(cls, prints: Collection[str], now: float) -> SeenAtWork:
        """What a former process has seen, by its ``prints``."""
        return cls(looked=now, last=dict.fromkeys(prints, now))

    @property
    def prints(self) -> tuple[str, ...]:
        """What has to be on record."""
        return tuple(sorted(self.last))

    def look(self, states: Mapping[DeviceKey, UsageState], now: float) -> tuple[MassIdle | None, frozenset[DeviceKey]]:
        """What is in doubt, and the devices that turned idle there; these are told once."""
        prints = {key: fingerprint(key) for key in states}
        worked = {key for key, one in prints.items() if self.last.get(one) == self.looked}
        lately = {key for key, one in prints.items() if one in self.last and now - self.last[one] <= SPREAD} | worked
        doubt = mass_idle(worked, lately, states)
        turned = frozenset(
            key for key in lately if doubt is not None and states[key] in DOUBTFUL and doubt.concerns(key[0])
        )
        for key, state in states.items():
            one = prints[key]
            if state in NOT_IDLE or (state is UsageState.UNKNOWN and one in self.last):
                self.last[one] = now
            elif state not in WASTED or key in turned or now - self.last.get(one, 0.0) > SPREAD:
                self.last.pop(one, None)
        self._remember_absent({*prints.values()}, now)
        self.looked = now
        return doubt, turned

    def _remember_absent(self, present: Collection[str], now: float) -> None:
        self.absent = {one: self.absent.get(one, now) for one in self.last if one not in present}
        for one, since in self.absent.items():
            if now - since > REMEMBERED:
                del self.last[one]
            else:
                self.last[one] = now
