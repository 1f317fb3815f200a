"""Which nodes belong to NodeFeatureGroups, in their status.

A node is evaluated anew only when its NodeFeatures or the group's spec have changed. Of a node of which nothing was
read, the status stays as it is. A group is written at most once a second, because its status grows with the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.clock import Clock
from kgpu.base.threads import beside
from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.master.model import StoredFeature, StoredGroup
from kgpu.discovery.master.plan import by_weight, features_of
from kgpu.discovery.rules.model import GroupOutcome, RuleFailure
from kgpu.discovery.rules.plan import belongs
from kgpu.kube.kinds import NODE_FEATURE_GROUPS
from kgpu.kube.port import KubeApi, KubeRefusedError

PACE: Final = 1.0
"""Seconds between writes of one group."""
MISSING: Final = 404


@dataclass(slots=True)
class _Evaluated:
    """What is known of one group: an outcome by node, with the versions that it is of."""

    outcomes: dict[str, tuple[object, GroupOutcome]] = field(default_factory=dict)
    written: float = float("-inf")


class GroupKeeper:
    """Keeps the status of all groups. ``wrote`` is called with every request to the API server."""

    def __init__(self, namespace: str, clock: Clock, wrote: Callable[[], None] = lambda: None) -> None:
        self._namespace = namespace
        self._clock = clock
        self._wrote = wrote
        self._known: dict[str, _Evaluated] = {}
        self.put_off = False
        """Whether a group waits for its next write."""

    async def keep(
        self, api: KubeApi, groups: Iterable[StoredGroup], nodes: Collection[str],
        found: Mapping[str, list[StoredFeature]], seen: Callable[[str], bool],
    ) -> None:  # fmt: skip
        """Evaluate what has changed, and write what differs. Raises KubeRefusedError for a group that was refused,
        after all others, and any other KubeError at once.
        """
        used = [group for group in groups if group.used]
        self._known = {group.uid: self._known.get(group.uid, _Evaluated()) for group in used}
        await self._evaluate(used, nodes, found)
        self.put_off = False
        refused: KubeRefusedError | None = None
        for group in used:
            known = self._known[group.uid]
            wanted = members(group, nodes, {name: one.matched for name, (_, one) in known.outcomes.items()}, seen)
            if wanted == group.members:
                continue
            if self._clock.monotonic() - known.written < PACE:
                self.put_off = True
                continue
            known.written = self._clock.monotonic()
            try:
                await self._write(api, group, wanted)
            except KubeRefusedError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def failures(self, group: StoredGroup) -> Iterable[tuple[str, RuleFailure]]:
        """Rules of the group that could not be carried out, each with a node."""
        known = self._known.get(group.uid, _Evaluated())
        return [(name, failure) for name, (_, one) in sorted(known.outcomes.items()) for failure in one.failures]

    async def _evaluate(
        self, groups: list[StoredGroup], nodes: Collection[str], found: Mapping[str, list[StoredFeature]]
    ) -> None:
        for group in groups:
            known = self._known[group.uid].outcomes
            for gone in [name for name in known if name not in nodes]:
                del known[gone]
        for name in nodes if groups else ():
            ordered = by_weight(found.get(name, ()), self._namespace)
            version = tuple((one.namespace, one.name, one.uid, one.version) for one in ordered)
            stale = [one for one in groups if not self._is_known(one, name, version)]
            if not stale:
                continue
            # In a thread: rules may take seconds of a node, and the loop has other work.
            outcomes = await beside(_belonging, stale, features_of(ordered))
            for group, outcome in zip(stale, outcomes, strict=True):
                self._known[group.uid].outcomes[name] = (group.generation, version), outcome

    def _is_known(self, group: StoredGroup, node: str, version: object) -> bool:
        known = self._known[group.uid].outcomes.get(node)
        return known is not None and known[0] == (group.generation, version)

    async def _write(self, api: KubeApi, group: StoredGroup, wanted: tuple[str, ...]) -> None:
        self._wrote()
        status = {"metadata": {"uid": group.uid}, "status": {"nodes": [{"name": name} for name in wanted]}}
        try:
            await api.patch(
                NODE_FEATURE_GROUPS, group.source.name, status, namespace=group.namespace, subresource="status"
            )
        except KubeRefusedError as refused:
            if refused.code != MISSING and not refused.conflict:  # it is gone, or is another one
                raise


def _belonging(groups: Sequence[StoredGroup], features: FeatureSet) -> list[GroupOutcome]:
    return [belongs(group.source, features) for group in groups]


def members(
    group: StoredGroup, nodes: Collection[str], matched: Mapping[str, bool], seen: Callable[[str], bool]
) -> tuple[str, ...]:
    """The names of the group's nodes, sorted."""
    before = frozenset(group.members)
    return tuple(sorted(name for name in nodes if (matched[name] if seen(name) else name in before)))
