"""Writes the node's own feature labels to the Node, under a separate field manager.

Promises: a key that another owner has set is left alone, whatever its value; only labels that kgpu has applied are
ever removed; a Node that is deleted meanwhile is not recreated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from kgpu.base.errors import KubeError
from kgpu.formats import names
from kgpu.kube.nodes import get_node, label_owners
from kgpu.kube.port import NODES, KubeApi, Object

# Labels that a node feature discovery writes on every node, and how many kinds of them prove one, as a person may have
# set a single label by hand.
TELLTALES: Final = tuple(names.NFD_PREFIX + part for part in ("kernel-version.", "system-os_release.", "cpu-model."))

ENOUGH: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenFeatures:
    """The Node's feature labels. ``mine`` are those that kgpu has applied, ``others`` the keys of other owners.
    ``discovery`` is the owner of another discovery that works or has worked here ("" for none), and ``discovered`` are
    the keys of ``others`` that it has written.
    """

    mine: Mapping[str, str] = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    discovery: str = ""
    discovered: frozenset[str] = frozenset()


class FeaturesPublisher(Protocol):
    """One Node's feature labels. Methods raise KubeError."""

    async def look(self) -> SeenFeatures:
        """The Node's present feature labels."""
        ...

    async def publish(self, labels: Mapping[str, str]) -> None:
        """Make kgpu's labels exactly these."""
        ...


class MemoryFeatures:
    """The fake, which is also used without an API server; ``refuse`` makes it fail."""

    def __init__(self) -> None:
        self.seen = SeenFeatures()
        self.history: list[dict[str, str]] = []
        self.refuse: KubeError | None = None

    async def look(self) -> SeenFeatures:
        if self.refuse is not None:
            raise self.refuse
        return self.seen

    async def publish(self, labels: Mapping[str, str]) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.history.append(dict(labels))
        self.seen = replace(self.seen, mine=dict(labels))


class NodeFeatureLabels:
    """The real publisher."""

    def __init__(self, api: KubeApi, *, node: str, manager: str = names.FEATURES_FIELD_MANAGER) -> None:
        self._api = api
        self._node = node
        self._manager = manager
        self._uid = ""

    async def look(self) -> SeenFeatures:
        node = await get_node(self._api, self._node)
        self._uid = str(node["metadata"].get("uid") or "")
        return seen_on(node, manager=self._manager)

    async def publish(self, labels: Mapping[str, str]) -> None:
        if not self._uid:
            await self.look()
        metadata: Object = {"name": self._node, "uid": self._uid}
        if labels:  # the API server forgets a manager without any field
            metadata["labels"] = dict(labels)
        await self._api.apply(NODES, {"metadata": metadata}, manager=self._manager)


def seen_on(node: Object, *, manager: str) -> SeenFeatures:
    """Read the feature labels and their owners from a Node object."""
    metadata = node["metadata"]
    labels = {str(key): str(value) for key, value in (metadata.get("labels") or {}).items()}
    mine: set[str] = set()
    others: dict[str, str] = {}
    for owner, applied, keys in label_owners(node):
        if owner == manager and applied:
            mine.update(keys)
        else:
            others |= {key: owner for key in keys if key.startswith(names.NFD_PREFIX)}
    telling = {key: owner for key, owner in sorted(others.items()) if key.startswith(TELLTALES) and key in labels}
    kinds = sum(any(key.startswith(prefix) for key in telling) for prefix in TELLTALES)
    telltale = next(iter(telling.values())) if kinds >= ENOUGH else ""
    if any(key.endswith(names.NFD_TRACKING_ANNOTATION) for key in metadata.get("annotations") or {}):
        telltale = telltale or "node feature discovery"
    return SeenFeatures(
        mine={key: labels[key] for key in sorted(mine) if key in labels},
        others=frozenset(others) & labels.keys(),
        discovery=telltale,
        discovered=frozenset(key for key, owner in others.items() if owner == telltale) & labels.keys(),
    )
