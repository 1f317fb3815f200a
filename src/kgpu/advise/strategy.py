"""Which way to share is right for one workload, from what it has used: rows in order, the first that holds. Pure.

Isolation comes first, then what the hardware can, then how it is used (checklist row C24). Nothing follows from
utilisation alone: it says that something ran, not how much of a GPU; where multiprocessors are not known, only that
hardly anything ran counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

from kgpu.advise.model import SharingWay
from kgpu.formats import names
from kgpu.formats.mig_geometry import InstanceProfile, geometry_of, memory_mib
from kgpu.formats.mig_profile import parse_mig_profile

ENOUGH_HOURS: Final = 72
NEARLY_ALL_MEMORY: Final = 0.8
MUCH_OF_SM: Final = 0.6
BUSY: Final = 0.8
SPARE_MEMORY: Final = 1.15
CONTEXT_MIB: Final = 300
SPARE_SM: Final = 1.2
USABLE: Final = 0.9
STEADY: Final = 0.5
MOST_CLIENTS: Final = 48
MOST_SHARES: Final = 10
LITTLE: Final = 0.2
MOSTLY_IDLE: Final = 0.5
_BEFORE_VOLTA: Final = re.compile(r"\b(?:Tesla-)?(?:K\d{2}|M\d{1,2}|P4|P6|P40|P100)\b")
_SMALL_CARDS: Final = (("Tesla-T4", 15_360), ("NVIDIA-L4", 23_034))
"""Models to go down to, with their memory in MiB."""


class WorkloadFigures(Protocol):
    """What a workload has used; parts are 0 to 1, None is what was not known."""

    @property
    def hours(self) -> float: ...
    @property
    def watched_hours(self) -> float: ...
    @property
    def recorded_hours(self) -> float: ...
    @property
    def product(self) -> str: ...
    @property
    def card_mib(self) -> int: ...
    @property
    def gpus_per_pod(self) -> int: ...
    @property
    def memory_mib(self) -> int | None: ...
    @property
    def activity(self) -> float | None: ...
    @property
    def mean_activity(self) -> float | None: ...
    @property
    def multiprocessors(self) -> float | None: ...
    @property
    def idle(self) -> float | None: ...
    @property
    def profile(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadCase:
    """A workload and whom it would share with: ``trusted`` are neighbours of the same owner and promise."""

    use: WorkloadFigures
    trusted: bool = False

    @property
    def memory_part(self) -> float | None:
        use = self.use
        return use.memory_mib / use.card_mib if use.memory_mib is not None and use.card_mib else None

    @property
    def sm(self) -> float | None:
        """Of the multiprocessors; at most so many where only activity is known."""
        return self.use.multiprocessors if self.use.multiprocessors is not None else self.use.activity


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadStrategy:
    """One answer. ``share`` is the part of a GPU that the workload then has; ``resource`` what its containers ask for.

    ``setting`` is what the node has to be told for it, "" for nothing.
    """

    row: int
    way: SharingWay
    what: str
    why: str
    share: float = 1.0
    resource: str = names.GPU_RESOURCE
    setting: str = ""
    risks: tuple[str, ...] = ()


Rule = Callable[[WorkloadCase], WorkloadStrategy | None]


def choose(case: WorkloadCase) -> WorkloadStrategy | None:
    """The first row that holds; None where too little is known for any."""
    return next((found for rule in ROWS if (found := rule(case)) is not None), None)


def _whole(row: int, why: str, *risks: str) -> WorkloadStrategy:
    return WorkloadStrategy(row=row, way=SharingWay.WHOLE, what="a whole GPU", why=why, risks=risks)


def _several(case: WorkloadCase) -> WorkloadStrategy | None:
    if case.use.gpus_per_pod > 1:
        many = case.use.gpus_per_pod
        return replace(_whole(1, f"its pods hold {many} GPUs: slices have no NVLink, shares break NCCL"),
                       what=f"{many} whole GPUs")  # fmt: skip
    part = case.memory_part
    return _whole(1, f"it needs {part:.0%} of the memory") if part is not None and part > NEARLY_ALL_MEMORY else None


def _much(case: WorkloadCase) -> WorkloadStrategy | None:
    use = case.use
    if use.multiprocessors is not None:
        return _whole(2, f"{use.multiprocessors:.0%} of the multiprocessors are active") if (
            use.multiprocessors >= MUCH_OF_SM
        ) else None  # fmt: skip
    if use.activity is not None and use.activity >= BUSY:
        return _whole(2, "something runs nearly always, and how much of the GPU that needs is not known")
    return None


def _slices(case: WorkloadCase) -> WorkloadStrategy | None:
    if case.trusted or case.use.memory_mib is None or case.sm is None:
        return None
    row = smallest_profile(case.use.product, case.use.card_mib, case.use.memory_mib, case.sm)
    if row is None:
        return None
    profile, share = row
    resource = names.MIG_RESOURCE_PREFIX + parse_mig_profile(profile.name).resource_form
    return WorkloadStrategy(
        row=3, way=SharingWay.MIG, what=f"a MIG slice {profile.name}", share=share, resource=resource,
        why="its neighbours are not trusted, and slices isolate memory, faults and time",
        setting=f"label the node {names.MIG_CONFIG_LABEL}=all-{parse_mig_profile(profile.name).resource_form}",
        risks=("a change of the layout drains the node's GPU pods", "a slice does not grow"),
    )  # fmt: skip


def smallest_profile(product: str, card_mib: int, memory: int, sm: float) -> tuple[InstanceProfile, float] | None:
    """The smallest slice with room for it, and its part of the GPU; None without MIG, or where only all of it has."""
    geometry = geometry_of(product)
    if geometry is None:
        return None
    for row in sorted(geometry.rows, key=lambda one: (one.slices, one.units)):
        plain = not any(sign in row.name for sign in "+-")
        roomy = memory_mib(row, geometry, card_mib) >= SPARE_MEMORY * memory + CONTEXT_MIB
        if plain and roomy and row.slices / geometry.slices >= SPARE_SM * sm and row is not geometry.whole:
            return row, max(row.slices / geometry.slices, row.units / geometry.units)
    return None


def _alone(case: WorkloadCase) -> WorkloadStrategy | None:
    use = case.use
    if case.trusted:
        return None
    if use.memory_mib is None or case.sm is None or not use.product:
        return _whole(4, "its neighbours are not trusted, and whether a slice has room for it is not known")
    return _whole(4, "its neighbours are not trusted, and no slice of this model has room for it")


def _served(case: WorkloadCase) -> WorkloadStrategy | None:
    use = case.use
    steady = use.mean_activity is not None and use.activity and use.mean_activity >= STEADY * use.activity
    if not steady or use.memory_mib is None or not case.sm or _BEFORE_VOLTA.search(use.product) or use.profile:
        return None
    by_memory = int(USABLE * use.card_mib / (SPARE_MEMORY * max(1, use.memory_mib)))
    clients = min(MOST_CLIENTS, by_memory, int(USABLE / case.sm))
    if clients < 2:
        return None
    return WorkloadStrategy(
        row=5, way=SharingWay.MPS, what=f"MPS, {clients} clients on a GPU", share=1 / clients,
        why="it runs steadily beside trusted neighbours, and kernels of MPS clients run at the same time",
        setting=f"sharing.mps with replicas: {clients} in the device plugin's configuration",
        risks=("one client's crash may take the others along", "not beside time-slicing, not on MIG slices"),
    )  # fmt: skip


def _bursty(case: WorkloadCase) -> WorkloadStrategy | None:
    use = case.use
    if use.memory_mib is None or use.activity is None:
        return None
    shares = min(MOST_SHARES, int(USABLE * use.card_mib / max(1, use.memory_mib)))
    if shares < 2:
        return None
    return WorkloadStrategy(
        row=6, way=SharingWay.TIME_SLICING, what=f"time-slicing, {shares} shares of a GPU", share=1 / shares,
        resource=names.GPU_RESOURCE + names.SHARED_SUFFIX,
        why="it runs in bursts beside trusted neighbours",
        setting=f"sharing.timeSlicing with replicas: {shares}, renameByDefault and failRequestsGreaterThanOne",
        risks=("nothing bounds memory: one that takes too much fails its neighbours", "bursts at once are slower"),
    )  # fmt: skip


def _crowded(case: WorkloadCase) -> WorkloadStrategy | None:
    use = case.use
    if use.memory_mib is None or use.activity is None or not use.card_mib:
        return None
    return _whole(6, "no two of it have room on one GPU")


ROWS: Final[tuple[Rule, ...]] = (_several, _much, _slices, _alone, _served, _bursty, _crowded)


def besides(case: WorkloadCase) -> Iterator[str]:
    """What else its figures say, whichever way is taken."""
    use = case.use
    if use.profile and case.sm is not None and case.sm < LITTLE:
        yield f"its slice {use.profile} is used by less than {LITTLE:.0%}: time-slicing on slices (7 x 4 = 28 of a GPU)"
    need = None if use.memory_mib is None else SPARE_MEMORY * use.memory_mib + CONTEXT_MIB
    small = next((name for name, memory in _SMALL_CARDS if need is not None and need <= memory), "")
    if small and use.card_mib >= 2 * dict(_SMALL_CARDS)[small] and case.sm is not None and case.sm < LITTLE:
        yield f"it would fit a {small}: nodeSelector {names.LABEL_GPU_PRODUCT}={small}, where there are such nodes"
    if use.idle is not None and use.idle > MOSTLY_IDLE:
        yield f"nothing ran for {use.idle:.0%} of the time that it held GPUs: scale to zero, or a Job for a notebook"
    if use.multiprocessors is None:
        yield "active multiprocessors were not recorded (GPUs before Hopper have none): less is certain of all this"


def changing(case: WorkloadCase, chosen: WorkloadStrategy) -> Iterator[str]:
    """What would change the answer."""
    other = choose(replace(case, trusted=not case.trusted))
    if other is not None and other.way is not chosen.way:
        whom = "not trusted" if case.trusted else "trusted (--neighbours trusted)"
        yield f"with neighbours that are {whom}: {other.what}"
    if chosen.row > 1:
        yield f"with more than {NEARLY_ALL_MEMORY:.0%} of the memory in use, or several GPUs in a pod: whole GPUs"
    if chosen.row > 2:
        yield f"with {MUCH_OF_SM:.0%} of the multiprocessors active: a whole GPU"
