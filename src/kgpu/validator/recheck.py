"""When CUDA is run again on a device that was good, and when a failure then counts. Pure: readings and time are given.

A GPU can stop working without the driver telling: its compute mode becomes Prohibited, its memory goes bad. So an idle
device is tried again from time to time, and one that an earlier run of this program found good, once by this one.
Promises: a device that its reading calls busy is never tried again; one good result is only taken back by two failures
in a row, or by a process that the driver never gives back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kgpu.validator.checks.cuda import EXCLUSIVE, CudaTarget
from kgpu.validator.cuda import CudaOutcome
from kgpu.validator.model import DeviceResult, Status

CONFIRM_SECONDS: Final = 10.0
"""How long after a first failure the second try comes."""
IDLE_MEMORY_MIB: Final = 256.0
"""A CUDA context alone takes more than this on any GPU that computes in a data centre."""
BUSY_KEYS: Final = ("utilization_percent", "memory_utilization_percent")
IDLE_KEYS: Final = (*BUSY_KEYS, "memory_used_mib")

Readings = Mapping[str, Mapping[str, float]]
"""Telemetry by the uuid of the physical GPU, keys as ``kgpu.hw.port.Reading``."""


def idle(values: Mapping[str, float]) -> bool | None:
    """Whether nothing runs on the GPU; None when its telemetry does not tell, as in MIG mode."""
    used = values.get("memory_used_mib")
    load = [values[key] for key in BUSY_KEYS if key in values]
    if any(load) or (used is not None and used > IDLE_MEMORY_MIB):
        return False
    return True if used is not None and load else None


class Rechecks:
    """``seconds`` is the pace for one device, 0 for never; each wait is up to a fifth longer or shorter."""

    def __init__(self, seconds: float, uniform: Callable[[], float] = random.random) -> None:
        self._seconds = seconds
        self._uniform = uniform
        self._next: dict[str, float] = {}
        self._doubted: set[str] = set()
        self._exclusive: set[str] = set()

    def asking(self, targets: Iterable[CudaTarget], now: float) -> list[CudaTarget]:
        """Those whose turn it is, if they are idle."""
        return [target for target in targets if now >= self._next.get(target.uuid, float("inf"))]

    def allowed(self, target: CudaTarget, readings: Readings) -> bool:
        """Whether the device may be tried again now."""
        is_idle = idle(readings.get(target.gpu, {}))
        return is_idle is not False if target.uuid in self._doubted else is_idle is True

    def pause(self, now: float) -> float:
        """Seconds until a failure may be confirmed or not. A device that is busy by then is asked about again later."""
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
            # What has been proven stays proven where it only could not be tried; the same again is no news.
            kept = before if before.status is Status.PASSED else new
        self._doubted.discard(uuid)
        self._plan(kept, now)
        return kept

    def forget(self, known: Iterable[str]) -> None:
        """Keep only what is about these devices."""
        present = set(known)
        self._next = {uuid: when for uuid, when in self._next.items() if uuid in present}
        self._doubted &= present

    def _plan(self, result: DeviceResult, now: float) -> None:
        # A program that is about to start would find the GPU taken if it is in exclusive mode.
        if self._seconds <= 0 or result.status is not Status.PASSED or result.uuid in self._exclusive:
            self._next.pop(result.uuid, None)
            return
        self._next[result.uuid] = now + self._seconds * (0.8 + 0.4 * self._uniform())
