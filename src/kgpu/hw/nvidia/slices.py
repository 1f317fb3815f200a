"""The MIG devices of each GPU, listed seldom: that takes longer than reading all their values.

A list is read again when it may be out of date: after an event about MIG, after ``forget``, or after a time, which is
longer where the driver has such events. Part of the hardware child.
"""

from __future__ import annotations

import time

from kgpu.hw.nvidia.codes import INVALID_ARGUMENT, NEXT_WAY, NOT_FOUND
from kgpu.hw.nvidia.fallbacks import GONE, Calls, Nvml, NvmlError, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Slice = tuple[Any, int, int, int]

KEPT_S = 5.0
KEPT_WITH_EVENTS_S = 30.0
SKIPPED = frozenset({NOT_FOUND, INVALID_ARGUMENT})


class GpuSlices:
    """``clock`` gives seconds.

    The event thread counts ``changes`` up at each event about MIG, and puts the uuids of the GPUs that have such events
    into ``with_events``.
    """

    def __init__(self, nvml: Nvml, calls: Calls, clock: Any = time.monotonic) -> None:
        self.changes = 0
        self.with_events: set[str] = set()
        self._nvml = nvml
        self._calls = calls
        self._clock = clock
        self._kept: dict[str, tuple[float, int, list[Slice]]] = {}

    def of(self, handle: Any, uuid: str) -> list[Slice]:
        """(handle, position, GPU instance, compute instance) of each. Raises NvmlError when the GPU is gone."""
        at, changes, slices = self._kept.get(uuid, (0.0, -1, []))
        if changes == self.changes and self._clock() - at < (
            KEPT_WITH_EVENTS_S if uuid in self.with_events else KEPT_S
        ):
            return slices
        return self.now(handle, uuid)[0]

    def now(self, handle: Any, uuid: str) -> tuple[list[Slice], NvmlError | None]:
        """The same as it is now, and what ended the listing early. Raises as ``of``."""
        # A change that is reported from here on may not be in the list.
        at, changes = self._clock(), self.changes
        slices: list[Slice] = []
        trouble: NvmlError | None = None
        most, gi, ci = self._calls("max_mig"), self._calls("gi_id"), self._calls("ci_id")
        code = ask(most, handle)
        # A list that is short only because a call failed is not kept.
        whole = code == 0 or code in NEXT_WAY
        for position in range(most.value("") if code == 0 else 0):
            try:
                mig = self._nvml.call("mig_handle", handle, position)
            except NvmlError as error:
                if error.code in GONE:
                    raise
                if error.code in SKIPPED:
                    continue
                trouble, whole = error, False
                break
            if ask(gi, mig) == 0 and ask(ci, mig) == 0:
                slices.append((mig, position, gi.value(""), ci.value("")))
            else:
                whole = False
        if whole:
            self._kept[uuid] = (at, changes, slices)
        else:
            self.forget(uuid)
        return slices, trouble

    def forget(self, uuid: str) -> None:
        """Drop the GPU's list: it may have changed."""
        self._kept.pop(uuid, None)
