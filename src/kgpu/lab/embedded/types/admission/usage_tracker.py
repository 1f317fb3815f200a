"""What a quota's namespace uses, kept up with every commit, so that a create costs nothing for what is there already.

Promises: the same amounts as ``quota.quota_usage`` over all objects at that moment; a quota is counted once, when it is
first asked for, and again when its spec has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kgpu.base.quantity import ZERO, Quantity
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types import quota as rules

Lister = Callable[[str, str, str], Iterable[Object]]
"""(group, plural, namespace) -> objects."""


class _Count:
    """One quota's objects of one kind."""

    def __init__(self, quota: Object, key: rules.Key) -> None:
        self._quota = quota
        self._key = key
        self._hard = frozenset(quota["spec"].get("hard") or ())
        self._held: dict[str, rules.Usage] = {}
        self._ending: dict[str, Object] = {}
        self._total: rules.Usage = {}

    def put(self, name: str, obj: Object | None) -> None:
        """The object is so now; None when it is gone."""
        used: rules.Usage = {}
        group, plural = self._key
        if obj is not None and rules.matches(self._quota, group, plural, obj):
            found = rules.object_usage(group, plural, obj)
            used = {one: amount for one, amount in found.items() if one in self._hard}
        before = self._held.pop(name, {})
        if used:
            self._held[name] = used
        for one in used.keys() | before.keys():
            self._total[one] = self._total.get(one, ZERO) - before.get(one, ZERO) + used.get(one, ZERO)
        # A pod that ends counts no more once its time is up, which no commit tells of.
        if obj is not None and used and obj["metadata"].get("deletionTimestamp"):
            self._ending[name] = obj
        else:
            self._ending.pop(name, None)

    def total(self) -> rules.Usage:
        for name, obj in list(self._ending.items()):
            self.put(name, obj)
        return self._total


class Used:
    """``of(quota, key)`` is what the quota's objects of a kind use; ``note`` follows the commits."""

    def __init__(self, lister: Lister) -> None:
        self._lister = lister
        self._counts: dict[str, dict[tuple[str, rules.Key], tuple[Object, _Count]]] = {}

    def note(self, key: rules.Key, namespace: str, name: str, obj: Object | None) -> None:
        """An object was written, or is gone (None)."""
        held = self._counts.get(namespace)
        if not held:
            return
        if key == ("", "resourcequotas") and obj is None:
            for one in [one for one in held if one[0] == name]:
                del held[one]
        for (_, kind), (_, count) in held.items():
            if kind == key:
                count.put(name, obj)

    def of(self, quota: Object, key: rules.Key) -> dict[str, Quantity]:
        """One entry for each key of ``spec.hard``."""
        namespace, name = quota["metadata"]["namespace"], quota["metadata"]["name"]
        held = self._counts.setdefault(namespace, {})
        spec, count = held.get((name, key), ({}, None))
        if count is None or spec != quota["spec"]:
            count = _Count(quota, key)
            for obj in self._lister(*key, namespace):
                count.put(obj["metadata"]["name"], obj)
            held[name, key] = (quota["spec"], count)
        total = count.total()
        return {one: zero + total.get(one, ZERO) for one, zero in rules.quota_usage(quota, {}).items()}
