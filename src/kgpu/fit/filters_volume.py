"""Volumes in their simple form: claims that are missing or not bound, and the places that bound volumes can be used at.

Claims that wait for their first consumer are ``free_volumes``'. Left out: CSI limits, storage capacity, the old in-tree
disks.
"""

from __future__ import annotations

from typing import Final

from kgpu.fit import free_volumes
from kgpu.fit.checks import PASS, Checker, Filter, Miss, Misses, Rejection, StaticChecker
from kgpu.fit.model import PodView, Reason, VolumeClaimView, VolumeView
from kgpu.fit.snapshot import ClusterSnapshot, NodeState
from kgpu.formats import names

RESTRICTIONS: Final = "VolumeRestrictions"
BINDING: Final = "VolumeBinding"
ZONE: Final = "VolumeZone"

_IN_USE: Final = Miss(
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
    True,
)
_ELSEWHERE: Final = Miss("node(s) didn't match PersistentVolume's node affinity", False)
_OTHER_ZONE: Final = Miss("node(s) had no available volume zone", False)
_BETA: Final = {
    "failure-domain.beta.kubernetes.io/zone": names.LABEL_ZONE,
    "failure-domain.beta.kubernetes.io/region": names.LABEL_REGION,
}
_PLACES: Final = (*_BETA, *_BETA.values())


def _rejection(name: str, phrase: str, claim: str, sentence: str = "") -> Rejection:
    return Rejection(filter=name, phrase=phrase, sentence=sentence or phrase, subject=claim)


def _claims(pod: PodView, snapshot: ClusterSnapshot) -> list[VolumeClaimView]:
    known = snapshot.shelf.volume_claims
    claims = (known.get((pod.namespace, name)) for name, _ in pod.volume_claims)
    return [claim for claim in claims if claim is not None]


class OnePod:
    """A ReadWriteOncePod claim is taken by another pod, wherever that is."""

    moves: bool = True

    def __init__(self, pod: PodView, names: frozenset[str], holders: list[PodView]) -> None:
        self._pod, self._names, self._holders = pod, names, holders

    def check(self, node: NodeState) -> Misses:  # noqa: ARG002 - the same for every node
        return (_IN_USE,) if self._holders else PASS

    def moved(self, pod: PodView, node: NodeState, sign: int) -> None:  # noqa: ARG002
        if pod.namespace == self._pod.namespace and any(name in self._names for name, _ in pod.volume_claims):
            self._holders = (
                [*self._holders, pod] if sign > 0 else [holder for holder in self._holders if holder.id != pod.id]
            )

    def fork(self) -> OnePod:
        return OnePod(self._pod, self._names, self._holders)

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        return tuple(
            Reason(
                RESTRICTIONS,
                _IN_USE.phrase,
                f"only one pod may use the claim {', '.join(sorted(self._names))}, and {holder} on {holder.node} does",
                resolvable=True,
                node=node.name,
                holders=(str(holder),),
            )
            for holder in self._holders
        )


def _restrictions(pod: PodView, snapshot: ClusterSnapshot) -> Checker | Rejection | None:
    for name, generated in pod.volume_claims:
        if not generated and (pod.namespace, name) not in snapshot.shelf.volume_claims:
            return _rejection(RESTRICTIONS, f'persistentvolumeclaim "{name}" not found', name)
    names = frozenset(claim.name for claim in _claims(pod, snapshot) if claim.single_pod)
    if not names:
        return None
    holders = [
        neighbour
        for neighbour in snapshot.placed_in((pod.namespace,))
        if neighbour.id != pod.id and any(name in names for name, _ in neighbour.volume_claims)
    ]
    return OnePod(pod, names, holders)


class Bound(StaticChecker):
    """Volumes that are bound want nodes that match their own affinity."""

    def __init__(self, volumes: list[VolumeView]) -> None:
        self._volumes = volumes

    def _wrong(self, node: NodeState) -> list[VolumeView]:
        return [
            volume
            for volume in self._volumes
            if volume.node_terms is not None and not any(t.matches(node.labels, node.name) for t in volume.node_terms)
        ]

    def check(self, node: NodeState) -> Misses:
        return (_ELSEWHERE,) if self._wrong(node) else PASS

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        reasons = []
        for volume in self._wrong(node):
            terms = volume.node_terms or ()
            read = [term for term in terms if not term.error]
            misses = [miss for term in read if (miss := term.first_miss(node.labels, node.name))]
            if misses:
                wants = f"volume {volume.name} can be used where {misses[0]}"
                has = f"node {node.name} has {node.labels.get(misses[0].key, 'no such label')}"
            else:
                wants = f"volume {volume.name} can be used nowhere"
                has = next((f"its node affinity can't be parsed: {term.error}" for term in terms if term.error), "")
                has = has or "its node affinity has no term"
            reasons.append(Reason(BINDING, _ELSEWHERE.phrase, f"{wants}; {has}", node=node.name, subject=volume.name))
        return tuple(reasons)


def _binding(pod: PodView, snapshot: ClusterSnapshot) -> Checker | Rejection | None:
    shelf = snapshot.shelf
    if not pod.volume_claims:
        return None
    for name, generated in pod.volume_claims:
        claim = shelf.volume_claims.get((pod.namespace, name))
        if claim is None:
            waiting = f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
            return _rejection(BINDING, waiting if generated else f'persistentvolumeclaim "{name}" not found', name)
        if claim.lost:
            gone = f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.volume}"'
            return _rejection(BINDING, gone, name)
        if claim.deleting:
            return _rejection(BINDING, f'persistentvolumeclaim "{name}" is being deleted', name)
    claims = _claims(pod, snapshot)
    stuck = [claim.name for claim in claims if not claim.bound and not free_volumes.waits(claim, snapshot)]
    if stuck:
        sentence = f"not bound to a volume yet: {', '.join(stuck)}; look at the claim's events and its storage class"
        return _rejection(BINDING, "pod has unbound immediate PersistentVolumeClaims", stuck[0], sentence)
    volumes = [shelf.volumes[claim.volume] for claim in claims if claim.bound and claim.volume in shelf.volumes]
    parts: list[Bound | free_volumes.FirstConsumer] = []
    if any(volume.node_terms is not None for volume in volumes):
        parts.append(Bound(volumes))
    if first := free_volumes.waiting(pod, snapshot):
        parts.append(free_volumes.FirstConsumer(first, snapshot))
    return Together(parts) if parts else None


class Together(StaticChecker):
    """What several have against a node, in their order."""

    def __init__(self, parts: list[Bound | free_volumes.FirstConsumer]) -> None:
        self._parts = parts

    def check(self, node: NodeState) -> Misses:
        return tuple(miss for part in self._parts for miss in part.check(node)) or PASS

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        return tuple(reason for part in self._parts for reason in part.reasons(node))


class Zones(StaticChecker):
    """Volumes that carry zone labels want nodes of these zones; nodes without any zone label are let pass."""

    def __init__(self, places: list[tuple[str, str, frozenset[str]]]) -> None:
        self._places = places

    def _wrong(self, node: NodeState) -> tuple[str, str, frozenset[str]] | None:
        labels = node.labels
        if not any(key in labels for key in _PLACES):
            return None
        for place in self._places:
            _, key, values = place
            if labels.get(key, labels.get(_BETA.get(key, key))) not in values:
                return place
        return None

    def check(self, node: NodeState) -> Misses:
        return (_OTHER_ZONE,) if self._wrong(node) else PASS

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        wrong = self._wrong(node)
        if wrong is None:
            return ()
        volume, key, values = wrong
        sentence = f"volume {volume} is in {key} {', '.join(sorted(values))}; node {node.name} is not"
        return (Reason(ZONE, _OTHER_ZONE.phrase, sentence, node=node.name, subject=volume),)


def _zone(pod: PodView, snapshot: ClusterSnapshot) -> Checker | Rejection | None:
    places: list[tuple[str, str, frozenset[str]]] = []
    for claim in _claims(pod, snapshot):
        if not claim.volume:
            continue
        volume = snapshot.shelf.volumes.get(claim.volume)
        if volume is None:
            return _rejection(ZONE, f'persistentvolume "{claim.volume}" not found', claim.name)
        places += [
            (volume.name, key, frozenset(volume.labels[key].split("__"))) for key in _PLACES if key in volume.labels
        ]
    return Zones(places) if places else None


FILTERS: Final = (Filter(RESTRICTIONS, _restrictions), Filter(BINDING, _binding), Filter(ZONE, _zone))
