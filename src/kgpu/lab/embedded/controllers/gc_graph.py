"""Who owns whom, by uid, and what the garbage collector does about one object. Pure.

Rules of kube-controller-manager: an object goes when all its owners are gone; an owner that is being deleted in the
foreground waits for the dependents that block it; an owner in another namespace is no owner.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kgpu.kube.informer import Key
from kgpu.kube.port import Object, Resource
from kgpu.lab.embedded.controllers.meta import deleting, key_of, owners_of, uid_of

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


def _finalizers(obj: Object) -> tuple[str, ...]:
    return tuple(obj["metadata"].get("finalizers") or ())


@dataclass(frozen=True, slots=True)
class OwnerReference:
    """One owner reference."""

    api_version: str
    kind: str
    name: str
    uid: str
    blocks: bool


@dataclass(frozen=True, slots=True)
class GraphObject:
    """An object's node in the graph."""

    resource: Resource
    key: Key
    uid: str
    owners: tuple[OwnerReference, ...]
    deleting: bool
    finalizers: tuple[str, ...]

    @property
    def deletes_dependents(self) -> bool:
        """Whether it is being deleted in the foreground."""
        return self.deleting and FOREGROUND in self.finalizers

    @property
    def orphans_dependents(self) -> bool:
        """Whether it is being deleted and its dependents stay."""
        return self.deleting and ORPHAN in self.finalizers


def node_of(resource: Resource, obj: Object) -> GraphObject:
    owners = tuple(
        OwnerReference(
            str(reference.get("apiVersion")),
            str(reference.get("kind")),
            str(reference.get("name")),
            str(reference.get("uid")),
            bool(reference.get("blockOwnerDeletion")),
        )
        for reference in owners_of(obj)
    )
    return GraphObject(resource, key_of(obj), uid_of(obj), owners, deleting(obj), _finalizers(obj))


def same_edges(old: Object, new: Object) -> bool:
    """Whether nothing that the graph keeps has changed; the usual case, so it is cheap."""
    before, after = old["metadata"], new["metadata"]
    fields = ("uid", "deletionTimestamp", "ownerReferences", "finalizers")
    return all(before.get(field) == after.get(field) for field in fields)


class Graph:
    """All nodes and their dependents."""

    def __init__(self) -> None:
        self._nodes: dict[str, GraphObject] = {}
        self._dependents: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, uid: str) -> GraphObject | None:
        return self._nodes.get(uid)

    def dependents(self, uid: str) -> Iterator[GraphObject]:
        """The nodes that refer to the owner."""
        for dependent in list(self._dependents.get(uid, ())):
            yield self._nodes[dependent]

    def blocking(self, uid: str) -> list[GraphObject]:
        """The dependents that a foreground deletion waits for."""
        return [node for node in self.dependents(uid) if any(o.uid == uid and o.blocks for o in node.owners)]

    def put(self, node: GraphObject) -> set[str]:
        """Add or replace a node; returns the uids to sync."""
        old = self._nodes.get(node.uid)
        self._nodes[node.uid] = node
        before = {owner.uid: owner for owner in old.owners} if old is not None else {}
        after = {owner.uid: owner for owner in node.owners}
        look: set[str] = set()
        for uid in before.keys() - after.keys():
            self._unlink(uid, node.uid)
        for uid in after.keys() - before.keys():
            self._dependents.setdefault(uid, {})[node.uid] = None
            owner = self._nodes.get(uid)
            if owner is None or owner.deletes_dependents or owner.key[0] not in ("", node.key[0]):
                look.add(node.uid)
        # A waiting owner may have lost the last dependent that blocks it.
        for uid in before.keys() | after.keys():
            owner = self._nodes.get(uid)
            if owner is not None and owner.deletes_dependents and before.get(uid) != after.get(uid):
                look.add(uid)
        if node.deletes_dependents or node.orphans_dependents:
            look.add(node.uid)
            if old is None or not old.deletes_dependents:
                look |= {dependent.uid for dependent in self.dependents(node.uid)}
        if old is None:
            # Dependents that arrived before their owner were handled as if it were gone.
            look |= {dependent.uid for dependent in self.dependents(node.uid) if node.deleting}
        return look

    def drop(self, uid: str) -> set[str]:
        """Remove a node; returns the uids to sync."""
        node = self._nodes.pop(uid, None)
        if node is None:
            return set()
        for owner in node.owners:
            self._unlink(owner.uid, uid)
        waiting = {
            owner.uid for owner in node.owners if (known := self._nodes.get(owner.uid)) and known.deletes_dependents
        }
        return waiting | {dependent.uid for dependent in self.dependents(uid)}

    def _unlink(self, owner: str, dependent: str) -> None:
        dependents = self._dependents.get(owner)
        if dependents is not None:
            dependents.pop(dependent, None)
            if not dependents:
                del self._dependents[owner]


class OwnerState(enum.Enum):
    """An owner as a dependent sees it."""

    SOLID = "solid"
    WAITING = "waiting"  # it is deleted in the foreground
    GONE = "gone"


class CollectorAction(enum.Enum):
    """What to do with an object."""

    NOTHING = "nothing"
    UNLINK = "unlink"  # remove the references to owners that are gone or waiting
    DELETE = "delete"
    DELETE_FOREGROUND = "delete-foreground"
    RELEASE = "release"  # remove its foregroundDeletion finalizer
    DELETE_DEPENDENTS = "delete-dependents"
    ORPHAN = "orphan"


def decide(
    node: GraphObject, graph: Graph, state_of: Callable[[OwnerReference], OwnerState]
) -> tuple[CollectorAction, frozenset[str]]:
    """Return the action for the object, and for UNLINK the uids of the owners to remove."""
    if node.orphans_dependents:
        return CollectorAction.ORPHAN, frozenset()
    if node.deletes_dependents:
        return (CollectorAction.DELETE_DEPENDENTS if graph.blocking(node.uid) else CollectorAction.RELEASE), frozenset()
    if node.deleting or not node.owners:
        return CollectorAction.NOTHING, frozenset()
    states = {owner.uid: state_of(owner) for owner in node.owners}
    if OwnerState.SOLID in states.values():
        rest = frozenset(uid for uid, state in states.items() if state is not OwnerState.SOLID)
        return (CollectorAction.UNLINK if rest else CollectorAction.NOTHING), rest
    if OwnerState.WAITING in states.values() and any(True for _ in graph.dependents(node.uid)):
        return CollectorAction.DELETE_FOREGROUND, frozenset()
    return CollectorAction.DELETE, frozenset()


def without_owners(obj: Object, uids: Iterable[str]) -> list[Object]:
    """The owner references that stay."""
    gone = frozenset(uids)
    return [reference for reference in owners_of(obj) if reference.get("uid") not in gone]
