"""The claims of pods that a change moves or makes: devices given back when a pod ends, and taken where it lands.

By the scheduler's own allocator. Without CEL (the extra ``cel``), or without slices and classes in what was read, no
claim can be judged, and a pod with one that has no devices yet fits nowhere, which its reasons say.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from kgpu.base.plain import items, mapping, text
from kgpu.fit import ClusterSnapshot, PodView, read
from kgpu.fit.devices.reservations import SchedulerDevices, cel
from kgpu.fit.model import ClaimView, PodClaim
from kgpu.fit.snapshot import NodeState
from kgpu.kube.port import Change

Object = Mapping[str, Any]
_KINDS: Final = ("ResourceSlice", "DeviceClass", "DeviceTaintRule", "ResourceClaim")
_CEL: Final = "cel_expr_python"


class ClaimBook:
    """What claims hold. Its methods follow the pods of one ``PlacementState``."""

    def __init__(self, snapshot: ClusterSnapshot, objects: Mapping[str, Mapping[tuple[str, str], Object]]) -> None:
        self._snapshot = snapshot
        self._objects = objects
        self._devices = SchedulerDevices(snapshot, cel)
        self._given: dict[str, list[ClaimView]] = {}
        for kind in _KINDS:
            for obj in objects.get(kind, {}).values():
                self._devices.follow(Change.ADDED, dict(obj))
        if objects.get("DeviceClass") and objects.get("ResourceSlice") and importlib.util.find_spec(_CEL):
            snapshot.fitter = self._devices

    def made_for(self, pod: PodView, obj: Object) -> tuple[PodClaim, ...]:
        """The pod's claims, with those made that come from templates; one whose template is not known stays unmade."""
        rows = {
            text(row.get("name")): text(row.get("resourceClaimTemplateName"))
            for row in map(mapping, items(mapping(obj.get("spec")).get("resourceClaims")))
        }
        return tuple(self._made(pod, entry, rows.get(entry.name, "")) for entry in pod.claims)

    def _made(self, pod: PodView, entry: PodClaim, template: str) -> PodClaim:
        if not entry.generated:
            return entry
        known = self._objects.get("ResourceClaimTemplate", {}).get((pod.namespace, template))
        if known is None:
            return replace(entry, claim=None)
        name = f"{pod.name}-{entry.name}"
        metadata = {
            "name": name, "namespace": pod.namespace, "uid": f"{pod.uid}/{entry.name}",
            "ownerReferences": [{"kind": "Pod", "name": pod.name, "controller": True}],
        }  # fmt: skip
        view = read.claim({"metadata": metadata, "spec": mapping(mapping(known.get("spec")).get("spec"))})
        self._snapshot.put(view)
        return replace(entry, claim=name)

    def released(self, pod: PodView) -> None:
        """The pod ends: a claim of its own goes, another one loses its devices if nobody else uses it."""
        self.given_back(pod)
        for claim in self._of(pod):
            if claim.owner == f"Pod/{pod.name}":
                self._forget(claim)
                self._snapshot.drop(claim)
            elif set(claim.reserved_for) <= {pod.uid}:
                self._forget(claim)
                self._snapshot.put(replace(claim, allocated=False, node_terms=None, reserved_for=()))

    def reserved(self, pod: PodView, node: NodeState) -> None:
        """The claims that have no devices yet get them on the node."""
        if self._snapshot.fitter is None:
            return
        given: list[ClaimView] = []
        for grant in self._devices.reserve(pod, node) or ():
            given.append(grant.claim)
            self._snapshot.in_flight.discard(grant.claim.uid)
            if grant.allocation is not None and grant.extended is None:
                where = read.node_terms(grant.allocation.node_selector)
                users = (*grant.claim.reserved_for, pod.uid)
                self._snapshot.put(replace(grant.claim, allocated=True, node_terms=where, reserved_for=users))
        if given:
            self._given[pod.id] = given

    def given_back(self, pod: PodView) -> None:
        """Take back what ``reserved`` did."""
        for claim in self._given.pop(pod.id, ()):
            if not claim.allocated:
                self._devices.release(claim.uid)
            if claim.key in self._snapshot.shelf.claims:
                self._snapshot.put(claim)

    def _of(self, pod: PodView) -> list[ClaimView]:
        known = self._snapshot.shelf.claims
        named = (known.get((pod.namespace, entry.claim)) for entry in pod.claims if entry.claim)
        made = (claim for claim in known.values() if pod.uid and claim.extended_for == pod.uid)
        return [claim for claim in (*named, *made) if claim is not None]

    def _forget(self, claim: ClaimView) -> None:
        obj = self._objects.get("ResourceClaim", {}).get(claim.key)
        if obj is not None:
            self._devices.follow(Change.DELETED, dict(obj))
