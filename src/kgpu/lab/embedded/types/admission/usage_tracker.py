"""What a quota's namespace uses, updated at every commit, so that a create need not count the existing objects.

Promises: the same amounts as ``quota.quota_usage`` over all objects at that moment; a quota is counted once, at the
first call of ``of``, and again when its spec has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kgpu.base.quantity import ZERO, Quantity
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types import quota as rules

Lister = Callable[[str, str, str], Iterable[Object]]
"""(group, plural, namespace) -> objects."""


class _KindUsage:
    """What the objects of one kind use of one quota."""

    def __init__(self, quota: Object, key: rules.Key) -> None:
        self._quota = quota
        self._key = key
        self._hard = frozenset(quota["spec"].get("hard") or ())
        self._held: dict[str, rules.Usage] = {}
        self._ending: dict[str, Object] = {}
        self._total: rules.Usage = {}

    def put(self, name: str, obj: Object | None) -> None:
        """Record the object as it is now, None when it is deleted."""
        used: rules.Usage = {}
        group, plural = self._key
        if obj is not None and rules.matches(self._quota, group, plural, obj):
            usage = rules.object_usage(group, plural, obj)
            used = {resource: amount for resource, amount in usage.items() if resource in self._hard}
        before = self._held.pop(name, {})
        if used:
            self._held[name] = used
        for resource in used.keys() | before.keys():
            self._total[resource] = (
                self._total.get(resource, ZERO) - before.get(resource, ZERO) + used.get(resource, ZERO)
            )
        # A pod that is being deleted stops counting when its grace period is over, which no commit announces.
        if obj is not None and used and obj["metadata"].get("deletionTimestamp"):
            self._ending[name] = obj
        else:
            self._ending.pop(name, None)

    def total(self) -> rules.Usage:
        for name, obj in list(self._ending.items()):
            self.put(name, obj)
        return self._total


class QuotaUsageTracker:
    """``of(quota, key)`` is what the quota's objects of a kind use; ``record`` follows the commits."""

    def __init__(self, lister: Lister) -> None:
        self._lister = lister
        self._counts: dict[str, dict[tuple[str, rules.Key], tuple[Object, _KindUsage]]] = {}

    def record(self, key: rules.Key, namespace: str, name: str, obj: Object | None) -> None:
        """Record an object that was written, None for one that was deleted."""
        held = self._counts.get(namespace)
        if not held:
            return
        if key == ("", "resourcequotas") and obj is None:
            for counted in [counted for counted in held if counted[0] == name]:
                del held[counted]
        for (_, kind), (_, count) in held.items():
            if kind == key:
                count.put(name, obj)

    def of(self, quota: Object, key: rules.Key) -> dict[str, Quantity]:
        """What the objects of the kind use: one entry for each key of ``spec.hard``."""
        namespace, name = quota["metadata"]["namespace"], quota["metadata"]["name"]
        held = self._counts.setdefault(namespace, {})
        spec, count = held.get((name, key), ({}, None))
        if count is None or spec != quota["spec"]:
            count = _KindUsage(quota, key)
            for obj in self._lister(*key, namespace):
                count.put(obj["metadata"]["name"], obj)
            held[name, key] = (quota["spec"], count)
        total = count.total()
        return {resource: zero + total.get(resource, ZERO) for resource, zero in rules.quota_usage(quota, {}).items()}
