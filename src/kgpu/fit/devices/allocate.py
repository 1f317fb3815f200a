"""Allocates devices for all claims of a pod on one node, as kube-scheduler 1.35 does: the same devices, not only some.

The scheduler takes the first solution of an exhaustive search. This search (``search``) goes the same way, and leaves
out branches only where they can't change what comes out (``shortcuts``). The scheduler's weak spots are kept:

- its books of counters go by the name of a pool, without the driver;
- counters stay taken when a device is refused for its taint or for a constraint after they were;
- ``distinctAttribute`` remembers one value of each request;
- a choice with mode All goes on, after its first device, with the request's first choice.

Two things differ. The scheduler visits pools in random order, this in the order of their slices. Where it crashes
(mode All for devices that take counters) this goes on.

``max_steps`` bounds the work, where the scheduler has a deadline of 10 s. A pod with more than some 80 claims is not
finished either: the search calls itself for each device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.fit.devices import pools
from kgpu.fit.devices.held import HeldDevices
from kgpu.fit.devices.model import MAX_RESULTS, AllocationGates, ClaimDemand, ClassRules, DeviceKey, DeviceSlice
from kgpu.fit.devices.plan import ClaimFaultError
from kgpu.fit.devices.result import AllocatedClaim, allocated_claim
from kgpu.fit.devices.search import BoundMetError, DeviceSearch, Surroundings, TooManyDevicesError
from kgpu.fit.devices.selector import SelectorEngine
from kgpu.fit.selectors import Labels

MAX_STEPS: Final = 100_000
NO_DEVICES: Final = "cannot allocate all claims"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOutcome:
    """``allocations`` in the order of the claims; None when there are none.

    ``fault`` says what is wrong whatever the node, and ``device`` whose selector failed; with ``on_node`` it holds for
    this node only. ``unfinished``: the bound was met, and nothing is known. ``words`` are the scheduler's where there
    are no allocations.
    """

    allocations: tuple[AllocatedClaim, ...] | None = None
    fault: str = ""
    words: str = ""
    device: DeviceKey | None = None
    on_node: bool = False
    unfinished: bool = False
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAllocator:
    """For the slices, classes and held devices of one moment, and any node."""

    slices: Sequence[DeviceSlice]
    classes: Mapping[str, ClassRules]
    held: HeldDevices
    selectors: SelectorEngine
    gates: AllocationGates = field(default_factory=AllocationGates)
    max_steps: int = MAX_STEPS
    index: pools.SliceIndex = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", pools.SliceIndex(self.slices))

    def search(self, claims: Sequence[ClaimDemand], node: str, labels: Labels, most: int = MAX_STEPS) -> DeviceSearch:
        """A search that has not begun, of ``max_steps`` and no more than ``most``. Raises UnreadableSelectorError."""
        found = pools.gather(self.index, node, labels, self.gates)
        steps = min(self.max_steps, most)
        around = Surroundings(found, self.classes, self.held, self.selectors, self.gates, node, labels, steps)
        return DeviceSearch(around, claims)

    def allocate(
        self, claims: Sequence[ClaimDemand], node: str, labels: Labels, most: int = MAX_STEPS
    ) -> DeviceOutcome:
        """Devices on the node for all claims together, in at most ``most`` steps. Never raises."""
        try:
            search = self.search(claims, node, labels, most)
        except pools.UnreadableSelectorError as fault:
            return DeviceOutcome(fault=str(fault), words=f"gather pool information: {fault}")
        try:
            search.prepare()
            found = search.run()
        except ClaimFaultError as fault:
            return DeviceOutcome(fault=fault.message, words=fault.words, device=fault.device, steps=search.steps)
        except pools.UnreadableSelectorError as fault:
            return DeviceOutcome(fault=str(fault), words=str(fault), steps=search.steps)
        except TooManyDevicesError:
            limit = f"one claim can have {MAX_RESULTS} devices at most"
            return DeviceOutcome(fault=limit, words="allocation max size exceeded", steps=search.steps)
        except (BoundMetError, RecursionError):
            return DeviceOutcome(
                unfinished=True, words="timed out trying to allocate devices", steps=search.steps
            )  # fmt: skip
        if found:
            return DeviceOutcome(allocations=_allocations(search), steps=search.steps)
        invalid = next((pool for pool in search.around.pools if pool.invalid), None)
        if invalid is not None:
            return DeviceOutcome(
                fault=f"pool {invalid.key} is invalid: {invalid.invalid}",
                words="invalid resource pools were encountered",
                on_node=True,
                steps=search.steps,
            )
        return DeviceOutcome(words=NO_DEVICES, steps=search.steps)


def _allocations(search: DeviceSearch) -> tuple[AllocatedClaim, ...]:
    return tuple(
        allocated_claim(
            claim, search.taken_plans(position), search.ledger.picked[position], search.around.node, search.gates
        )
        for position, claim in enumerate(search.claims)
    )
