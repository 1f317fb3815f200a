"""Claims that wait for their first consumer: free volumes that a node can use, or places where one can be made.

The binder of kube-scheduler 1.35 (pkg/scheduler/framework/plugins/volumebinding): a claim takes the smallest free
volume that does, before one is made; each of a pod's claims takes its own. Left out: the storage capacity that drivers
publish, and which nodes a volume that is made will be usable from, which its provisioner decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kgpu.fit.checks import PASS, Miss, Misses, StaticChecker
from kgpu.fit.model import PodView, Reason, VolumeClaimView, VolumeView
from kgpu.fit.snapshot import ClusterSnapshot, NodeState

NAME: Final = "VolumeBinding"
NONE_FREE: Final = Miss("node(s) didn't find available persistent volumes to bind", False)
BY_HAND: Final = "kubernetes.io/no-provisioner"
"""The provisioner of classes whose volumes people make."""


def waiting(pod: PodView, snapshot: ClusterSnapshot) -> list[VolumeClaimView]:
    """The pod's claims that get a volume with their first consumer, the smallest first."""
    known = (snapshot.shelf.volume_claims.get((pod.namespace, name)) for name, _ in pod.volume_claims)
    found = [claim for claim in known if claim is not None and waits(claim, snapshot)]
    return sorted(found, key=lambda claim: (claim.request, claim.name))


def waits(claim: VolumeClaimView, snapshot: ClusterSnapshot) -> bool:
    """Whether its class makes it wait, and it has no volume yet."""
    storage = snapshot.shelf.storage_classes.get(claim.storage_class)
    return not claim.volume and storage is not None and storage.waits


def taken(
    claims: Iterable[VolumeClaimView], node: NodeState, snapshot: ClusterSnapshot
) -> dict[str, VolumeView | None] | None:
    """By claim the free volume that it takes on the node, None where one is made; None where a claim gets neither."""
    found: dict[str, VolumeView | None] = {}
    for claim in claims:
        chosen = {volume.name for volume in found.values() if volume is not None}
        volume = None if claim.selected else _free(claim, node, snapshot, chosen)
        if volume is None and not _made(claim, node, snapshot):
            return None
        found[claim.name] = volume
    return found


def anywhere(claim: VolumeClaimView, snapshot: ClusterSnapshot) -> VolumeView | None:
    """The free volume that a claim gets which does not wait for its first consumer: the controller asks for no node."""
    return _best([volume for volume in snapshot.shelf.volumes.values() if _suits(volume, claim)], claim)


def _free(claim: VolumeClaimView, node: NodeState, snapshot: ClusterSnapshot, chosen: set[str]) -> VolumeView | None:
    usable = [
        volume for volume in snapshot.shelf.volumes.values()
        if volume.name not in chosen and _suits(volume, claim) and _reaches(volume, node)
    ]  # fmt: skip
    return _best(usable, claim)


def _best(usable: Sequence[VolumeView], claim: VolumeClaimView) -> VolumeView | None:
    """The smallest; one that was meant for the claim goes before all."""
    meant = [volume for volume in usable if volume.claimed == claim.key]
    return min(meant or usable, key=lambda volume: (volume.capacity, volume.name), default=None)


def _suits(volume: VolumeView, claim: VolumeClaimView) -> bool:
    return (
        volume.claimed in (None, claim.key)
        and not volume.deleting
        and volume.available
        and volume.storage_class == claim.storage_class
        and volume.mode == claim.mode
        and claim.access <= volume.access
        and volume.capacity >= claim.request
        and claim.selector.matches(volume.labels)
    )


def _reaches(volume: VolumeView, node: NodeState) -> bool:
    terms = volume.node_terms
    return terms is None or any(term.matches(node.labels, node.name) for term in terms)


def _made(claim: VolumeClaimView, node: NodeState, snapshot: ClusterSnapshot) -> bool:
    """Whether the class's provisioner makes one that can be used there, by the places that the class allows."""
    if claim.selected and claim.selected != node.name:
        return False
    storage = snapshot.shelf.storage_classes.get(claim.storage_class)
    if storage is None or storage.provisioner == BY_HAND:
        return False
    return not storage.places or any(term.matches(node.labels, node.name) for term in storage.places)


class FirstConsumer(StaticChecker):
    """Each of the claims has to get a volume on the node."""

    def __init__(self, claims: Sequence[VolumeClaimView], snapshot: ClusterSnapshot) -> None:
        self._claims, self._snapshot = claims, snapshot

    def check(self, node: NodeState) -> Misses:
        return PASS if taken(self._claims, node, self._snapshot) is not None else (NONE_FREE,)

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        if not self.check(node):
            return ()
        alone = [claim for claim in self._claims if taken((claim,), node, self._snapshot) is None]
        names = ", ".join(claim.name for claim in alone or self._claims)
        sentence = f"node {node.name} has no free volume for {names}, and none can be made there"
        return (Reason(NAME, NONE_FREE.phrase, sentence, node=node.name, subject=(alone or self._claims)[0].name),)
