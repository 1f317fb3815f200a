"""The volumes of pods that a change moves or makes: claims made with them, and free volumes taken. Pure.

A claim that waits for its first consumer takes a free volume where its pod lands, and others can't have that one. From
which nodes a volume that is made can be used its provisioner decides: every node that the class allows counts, which
is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from kgpu.base.plain import items, mapping, text
from kgpu.base.printable import one_line
from kgpu.fit import ClusterSnapshot, PodView, free_volumes
from kgpu.fit.model import VolumeClaimView, VolumeView
from kgpu.fit.snapshot import NodeState
from kgpu.formats.names import DEFAULT_STORAGE_CLASS

Object = Mapping[str, Any]


class VolumeBook:
    """What claims have taken. Its methods follow the pods of one ``PlacementState``."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._before: dict[str, list[VolumeClaimView | VolumeView]] = {}
        self.made_by: set[str] = set()
        """The classes that make volumes whose places are not known."""

    def made(self, claim: VolumeClaimView) -> None:
        """A claim comes. Where its class does not let it wait for a pod it has a volume at once: a free one, or one
        that the class makes; where there is neither it stays without.
        """
        shelf = self._snapshot.shelf
        if claim.volume or free_volumes.waits(claim, self._snapshot):
            return
        volume = free_volumes.anywhere(claim, self._snapshot)
        storage = shelf.storage_classes.get(claim.storage_class)
        if volume is None and storage is not None and storage.provisioner != free_volumes.BY_HAND:
            volume = VolumeView(name=f"made-for-{claim.namespace}-{claim.name}")
            self.made_by.add(claim.storage_class)
        if volume is not None:
            self._snapshot.put(replace(volume, claimed=claim.key))
            self._snapshot.put(replace(claim, volume=volume.name, bound=True))

    def reserved(self, pod: PodView, node: NodeState) -> None:
        """The pod's claims get volumes on the node."""
        claims = free_volumes.waiting(pod, self._snapshot)
        found = free_volumes.taken(claims, node, self._snapshot) or {}
        for claim in claims:
            volume = found.get(claim.name)
            if volume is None:
                self.made_by.add(claim.storage_class)
                continue
            self._before.setdefault(pod.id, []).extend((claim, volume))
            self._snapshot.put(replace(claim, volume=volume.name, bound=True))
            self._snapshot.put(replace(volume, claimed=claim.key))

    def given_back(self, pod: PodView) -> None:
        """Take back what ``reserved`` did."""
        for view in self._before.pop(pod.id, ()):
            self._snapshot.put(view)

    def released(self, pod: PodView) -> None:
        """The pod ends, and with it the claims of its ephemeral volumes: the volumes they had are not free again, as
        their reclaim policy deletes or keeps them.
        """
        self._before.pop(pod.id, None)
        for name, ephemeral in pod.volume_claims:
            claim = self._snapshot.shelf.volume_claims.get((pod.namespace, name)) if ephemeral else None
            if claim is None:
                continue
            self._snapshot.drop(claim)
            volume = self._snapshot.shelf.volumes.get(claim.volume)
            if volume is not None:
                self._snapshot.put(replace(volume, available=False))

    def notes(self) -> Iterable[str]:
        """What is not known."""
        for name in sorted(self.made_by):
            yield (
                f"volumes that StorageClass {one_line(name, 80)} makes are taken to be usable from every node that it "
                "allows: its provisioner decides, also whether there is capacity"
            )


def claims_of(spec: Object, templates: Iterable[Object], pod: str) -> tuple[list[Object], list[Object]]:
    """The claims that controllers make with a pod, without their namespace, and the pod's volumes then: of a
    StatefulSet's ``templates``, and of ephemeral volumes.
    """
    made: list[Object] = []
    volumes = [dict(mapping(volume)) for volume in items(spec.get("volumes"))]
    for template in templates:
        name = text(mapping(template.get("metadata")).get("name"))
        made.append(_claim(f"{name}-{pod}", template))
        own = {"name": name, "persistentVolumeClaim": {"claimName": f"{name}-{pod}"}}
        volumes = [*(volume for volume in volumes if volume.get("name") != name), own]
    return made + ephemeral_claims({"volumes": volumes}, pod), list(volumes)


def ephemeral_claims(spec: Object, pod: str) -> list[Object]:
    """Those of a pod's ephemeral volumes, without their namespace."""
    found: list[Object] = []
    for volume in map(mapping, items(spec.get("volumes"))):
        template = mapping(mapping(volume.get("ephemeral")).get("volumeClaimTemplate"))
        if template:
            found.append(_claim(f"{pod}-{text(volume.get('name'))}", template))
    return found


def _claim(name: str, template: Object) -> Object:
    return {"kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": mapping(template.get("spec"))}


def with_class(claim: Object, classes: Iterable[Object]) -> Object:
    """The claim with the cluster's default class, where it names none: the newest of several, as admission takes it."""
    spec = mapping(claim.get("spec"))
    if spec.get("storageClassName") is not None or text(spec.get("volumeName")):
        return claim
    found = [one for one in classes if _annotations(one).get(DEFAULT_STORAGE_CLASS) == "true"]
    newest = max(found, key=lambda one: text(mapping(one.get("metadata")).get("creationTimestamp")), default=None)
    if newest is None:
        return claim
    return {**claim, "spec": {**spec, "storageClassName": text(mapping(newest.get("metadata")).get("name"))}}


def _annotations(obj: Object) -> Object:
    return mapping(mapping(obj.get("metadata")).get("annotations"))
