"""Which pools of devices a node can draw from: the newest generation of each, whole or marked as incomplete or invalid.

As kube-scheduler gathers them. It visits pools in random order; here they come in the order of their first slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kgpu.base.quantity import Quantity
from kgpu.fit.devices.model import AllocationGates, CounterSets, DeviceSlice, NodeReach, PoolKey
from kgpu.fit.selectors import Labels


class UnreadableSelectorError(Exception):
    """A slice's node selector that can't be evaluated: the scheduler tries no node then."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GatheredPool:
    """A pool as seen from one node. One that is incomplete or ``invalid`` (with the reason) offers nothing."""

    key: PoolKey
    slices: tuple[DeviceSlice, ...] = ()
    others: tuple[DeviceSlice, ...] = ()
    """Slices whose devices can't be used from this node, but may take counters."""
    counter_sets: CounterSets = field(default_factory=dict)
    incomplete: str = ""
    invalid: str = ""

    @property
    def usable(self) -> bool:
        return not self.incomplete and not self.invalid


class SliceIndex:
    """Slices in their order, found by node and by pool: a cluster has one for each of its nodes and more."""

    def __init__(self, slices: Iterable[DeviceSlice]) -> None:
        self._by_node: dict[str, list[tuple[int, DeviceSlice]]] = {}
        self._everywhere: list[tuple[int, DeviceSlice]] = []
        self._by_pool: dict[PoolKey, list[DeviceSlice]] = {}
        for position, piece in enumerate(slices):
            local = piece.reach.node_name if not piece.counter_sets else None
            known = self._by_node.setdefault(local, []) if local else self._everywhere
            known.append((position, piece))
            self._by_pool.setdefault(piece.key, []).append(piece)

    def near(self, node: str) -> list[DeviceSlice]:
        """All slices but those that are for another node."""
        found = [*self._by_node.get(node, ()), *self._everywhere]
        return [piece for _, piece in sorted(found, key=lambda entry: entry[0])]

    def of_pool(self, key: PoolKey) -> Sequence[DeviceSlice]:
        return self._by_pool.get(key, ())


def gather(index: SliceIndex, name: str, labels: Labels, gates: AllocationGates) -> tuple[GatheredPool, ...]:
    """The pools of a node. Raises UnreadableSelectorError."""
    found: dict[PoolKey, list[DeviceSlice]] = {}
    slices = [piece for piece in index.near(name) if _targets(piece, name, labels, gates)]
    for piece in _in_order(slices, gates):
        known = found.setdefault(piece.key, [])
        if known and piece.generation < known[0].generation:
            continue
        if known and piece.generation > known[0].generation:
            known.clear()
        known.append(piece)
    keys = dict.fromkeys(piece.key for piece in slices)
    pools = [pool for key in keys if (pool := _pool(key, found[key], index.of_pool(key), gates)) is not None]
    return tuple(_binding_last(pools, gates))


def _targets(piece: DeviceSlice, name: str, labels: Labels, gates: AllocationGates) -> bool:
    if not gates.partitionable_devices and (piece.per_device is not None or (piece.counter_sets and not gates.oldest)):
        return False
    if piece.counter_sets and not gates.oldest:
        return True
    if piece.reach.said:
        return matches(piece, piece.reach, name, labels)
    if not piece.per_device:
        return False
    return any(matches(piece, device.reach, name, labels) for device in piece.devices)


def matches(piece: DeviceSlice, reach: NodeReach, name: str, labels: Labels) -> bool:
    if reach.error:
        raise UnreadableSelectorError(f"slice {piece.name}: {reach.error}")
    return reach.matches(name, labels)


def _waits(piece: DeviceSlice) -> bool:
    return any(device.binding_conditions is not None for device in piece.devices)


def _in_order(pieces: list[DeviceSlice], gates: AllocationGates) -> list[DeviceSlice]:
    """Slices whose devices have binding conditions come last."""
    if not gates.newest:
        return pieces
    # Slices with counters keep their place whatever they hold.
    return sorted(pieces, key=lambda piece: _waits(piece) and not piece.counter_sets)


def _binding_last(pools: list[GatheredPool], gates: AllocationGates) -> list[GatheredPool]:
    return sorted(pools, key=lambda pool: any(map(_waits, pool.slices))) if gates.newest else pools


def _pool(
    key: PoolKey, own: Sequence[DeviceSlice], whole: Sequence[DeviceSlice], gates: AllocationGates
) -> GatheredPool | None:
    """None for a pool that is being replaced by a generation with nothing for this node."""
    wanted = own[0].slice_count
    if len(own) == wanted:
        return _checked(key, own, (), gates)
    if any(piece.generation > own[0].generation for piece in whole):
        return None
    whole = [piece for piece in whole if piece.generation == own[0].generation]
    if len(whole) != wanted:
        invalid = _duplicate(own) if gates.oldest else ""
        return GatheredPool(key=key, incomplete=f"{len(whole)} of {wanted} slices are there", invalid=invalid)
    names = {piece.name for piece in own}
    others = () if len(own) == len(whole) else tuple(piece for piece in whole if piece.name not in names)
    return _checked(key, own, others, gates)


def _checked(
    key: PoolKey, own: Sequence[DeviceSlice], others: tuple[DeviceSlice, ...], gates: AllocationGates
) -> GatheredPool:
    offering = tuple(own)
    sets: CounterSets = {}
    problem = ""
    if gates.partitionable_devices:
        offering = tuple(piece for piece in own if not piece.counter_sets)
        sets, problem = _counter_sets(own)
        problem = problem or _unknown_counter(sets, own) or _unknown_counter(sets, others)
    invalid = _duplicate(offering) or problem
    if invalid:
        return GatheredPool(key=key, invalid=invalid)
    return GatheredPool(key=key, slices=offering, others=others, counter_sets=sets)


def _duplicate(slices: Iterable[DeviceSlice]) -> str:
    seen: set[str] = set()
    for piece in slices:
        for device in piece.devices:
            if device.name in seen:
                return f"two devices are named {device.name}"
            seen.add(device.name)
    return ""


def _counter_sets(slices: Iterable[DeviceSlice]) -> tuple[CounterSets, str]:
    sets: dict[str, Mapping[str, Quantity]] = {}
    for piece in slices:
        for name, counters in piece.counter_sets:
            if name in sets:
                return sets, f"two counter sets are named {name}"
            sets[name] = counters
    return sets, ""


def _unknown_counter(sets: CounterSets, slices: Iterable[DeviceSlice]) -> str:
    for piece in slices:
        for device in piece.devices:
            for use in device.consumes:
                if use.counter_set not in sets:
                    return f"device {device.name} takes from counter set {use.counter_set}, which is not there"
                missing = [name for name in use.counters if name not in sets[use.counter_set]]
                if missing:
                    return f"device {device.name} takes {missing[0]}, which counter set {use.counter_set} has not"
    return ""
