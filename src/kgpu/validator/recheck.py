"""Decides when CUDA runs again on a good device, and when a failure then counts. Pure: readings and time are given.

A GPU can stop working without a sign from the driver: its compute mode becomes Prohibited, or its memory fails. So an
idle device is tested again from time to time, and one that an earlier run found good is tested once. Promises: a device
that its readings show as busy is never tested again; a good result is withdrawn only after two failures in a row, or
for a process that the driver never releases.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kgpu.validator.checks.cuda import EXCLUSIVE, CudaTarget
from kgpu.validator.cuda import CudaOutcome
from kgpu.validator.model import DeviceResult, Status

CONFIRM_SECONDS: Final = 10.0
"""How long after a first failure the second test comes."""
IDLE_MEMORY_MIB: Final = 256.0
"""A CUDA context alone takes more than this on any data centre GPU."""
BUSY_KEYS: Final = ("utilization_percent", "memory_utilization_percent")
IDLE_KEYS: Final = (*BUSY_KEYS, "memory_used_mib")

Readings = Mapping[str, Mapping[str, float]]
"""Telemetry by the physical GPU's uuid; the keys are those of ``kgpu.hw.port.Reading``."""


def idle(values: Mapping[str, float]) -> bool | None:
    """Whether nothing runs on the GPU; None if its telemetry does not tell, as in MIG mode."""
    used = values.get("memory_used_mib")
    load = [values[key] for key in BUSY_KEYS if key in values]
    if any(load) or (used is not None and used > IDLE_MEMORY_MIB):
        return False
    return True if used is not None and load else None


class Rechecks:
    """``seconds`` is the interval for one device, 0 for never; each wait varies by up to a fifth."""

    def __init__(self, seconds: float, uniform: Callable[[], float] = random.random) -> None:
        self._seconds = seconds
        self._uniform = uniform
        self._next: dict[str, float] = {}
        self._doubted: set[str] = set()
        self._exclusive: set[str] = set()

    def asking(self, targets: Iterable[CudaTarget], now: float) -> list[CudaTarget]:
        """The devices that are due, provided that they are idle."""
        return [target for target in targets if now >= self._next.get(target.uuid, float("inf"))]

    def allowed(self, target: CudaTarget, readings: Readings) -> bool:
        """Whether the device may be tested now."""
        is_idle = idle(readings.get(target.gpu, {}))
        return is_idle is not False if target.uuid in self._doubted else is_idle is True

    def pause(self, now: float) -> float:
        """Seconds until the second test after a failure. If the device is busy then, it is tested later."""
        left = [self._next[uuid] - now for uuid in self._doubted]
        return min((seconds if seconds > 0 else CONFIRM_SECONDS for seconds in left), default=float("inf"))

    def judge(self, before: DeviceResult | None, new: DeviceResult, outcome: CudaOutcome, now: float) -> DeviceResult:
        """The result that counts after a run, given the one that counted before."""
        uuid = new.uuid
        if outcome.compute_mode in EXCLUSIVE:
            self._exclusive.add(uuid)
        elif outcome.compute_mode or outcome.passed:
            self._exclusive.discard(uuid)
        if before is None or not before.good:
            kept = new
        elif new.status is Status.FAILED:
            if uuid not in self._doubted and not outcome.held:
                self._doubted.add(uuid)
                self._next[uuid] = now + CONFIRM_SECONDS
                return before
            kept = new
        else:
            # A pass stays a pass if the device only could not be tested; a second pass is not news.
            kept = before if before.status is Status.PASSED else new
        self._doubted.discard(uuid)
        self._plan(kept, now)
        return kept

    def forget(self, known: Iterable[str]) -> None:
        """Forget all but these devices."""
        present = set(known)
        self._next = {uuid: when for uuid, when in self._next.items() if uuid in present}
        self._doubted &= present

    def _plan(self, result: DeviceResult, now: float) -> None:
        # In exclusive mode, a test could make a program that is about to start find the GPU taken.
        if self._seconds <= 0 or result.status is not Status.PASSED or result.uuid in self._exclusive:
            self._next.pop(result.uuid, None)
            return
        self._next[result.uuid] = now + self._seconds * (0.8 + 0.4 * self._uniform())
