"""Extended resources that device classes offer (KEP-5004): which class, and the claim that a pod needs on a node.

Where a node has none of such a resource by a device plugin, the scheduler makes a claim for it. Counts only: so many
pieces for a container are a request for so many devices of the class. Source: extendeddynamicresources.go of 1.35.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.fit.model import ClaimView, ContainerAsk, DeviceClassView, PodView
from kgpu.fit.snapshot import ClusterSnapshot, NodeState
from kgpu.formats.names import DEVICE_CLASS_PREFIX

UNMADE: Final = "<extended-resources>"
"""The name of the claim until it is made."""
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExtendedClaim:
    """The claim for one node. ``mappings`` says which container's resource is which request, for the pod's status."""

    view: ClaimView
    requests: tuple[Json, ...]
    mappings: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class ExtendedAsk:
    """``classes`` has the class of each resource that the pod asks for and that a class offers."""

    pod: PodView
    classes: Mapping[str, str]

    def on(self, node: NodeState) -> ExtendedClaim | None:
        """What is to be claimed there; None where the node's plugins offer it all."""
        wanted = {name: of for name, of in self.classes.items() if not node.view.allocatable.get(name)}
        if not wanted:
            return None
        requests, mappings = _requests(self.pod.containers, wanted)
        pod = self.pod
        view = ClaimView(
            namespace=pod.namespace, name=UNMADE, uid=f"{UNMADE}/{pod.id}", spec={"requests": list(requests)}
        )
        return ExtendedClaim(view, requests, mappings)


def extended_ask(pod: PodView, snapshot: ClusterSnapshot) -> ExtendedAsk | None:
    """None for a pod that asks for nothing that a class offers."""
    if not snapshot.classes_offer or not pod.containers:
        return None
    classes = {
        name: found.name
        for name, amount in pod.requests.items()
        if amount > 0 and (found := class_of(name, snapshot)) is not None
    }
    return ExtendedAsk(pod, classes) if classes else None


def class_of(resource: str, snapshot: ClusterSnapshot) -> DeviceClassView | None:
    """The class that offers the resource: by its own name, or by the one that it gives; of several the newest."""
    if not snapshot.classes_offer or "/" not in resource:
        return None
    known = snapshot.shelf.device_classes
    if resource.startswith(DEVICE_CLASS_PREFIX):
        return known.get(resource.removeprefix(DEVICE_CLASS_PREFIX))
    named = sorted((found for found in known.values() if found.resource == resource), key=lambda found: found.name)
    return max(named, key=lambda found: found.created, default=None)


def made_before(pod: PodView, snapshot: ClusterSnapshot) -> ClaimView | None:
    """A claim that was made for the pod's extended resources in an earlier attempt."""
    mine = (claim for claim in snapshot.shelf.claims.values() if claim.extended_for == pod.uid != "")
    return next(mine, None)


def _requests(
    containers: Sequence[ContainerAsk], classes: Mapping[str, str]
) -> tuple[tuple[Json, ...], tuple[Json, ...]]:
    """The claim's requests and the mappings. Init containers that end may have the devices of those that come after."""
    requests: list[Json] = []
    mappings: list[Json] = []
    for resource in sorted(classes):
        lasting: list[Json | None] = []
        for position, container in enumerate(containers):
            made, mapped = (None, []) if container.ends else _request(position, container, resource, classes, ())
            lasting.append(made)
            mappings += mapped
        largest, mapped = _of_ending(containers, resource, classes, lasting)
        requests += [one for one in (largest, *lasting) if one is not None]
        mappings += mapped
    return tuple(sorted(requests, key=lambda one: str(one["name"]))), tuple(mappings)


def _of_ending(
    containers: Sequence[ContainerAsk], resource: str, classes: Mapping[str, str], lasting: Sequence[Json | None]
) -> tuple[Json | None, list[Json]]:
    """One request for all containers that end, as they run one after another: the largest of theirs."""
    made: list[Json] = []
    mappings: list[Json] = []
    for position, container in enumerate(containers):
        if container.ends:
            one, mapped = _request(position, container, resource, classes, lasting[position:])
            made += [one] if one is not None else []
            mappings += mapped
    largest = max(made, key=lambda one: int(one["exactly"]["count"]), default=None)
    names = {one["name"] for one in made}
    for row in mappings:
        if largest is not None and row["requestName"] in names:
            row["requestName"] = largest["name"]
    return largest, mappings


def _request(
    position: int, container: ContainerAsk, resource: str, classes: Mapping[str, str], reusable: Sequence[Json | None]
) -> tuple[Json | None, list[Json]]:
    """What the container needs beside requests that it may use, None for nothing; and all that it uses."""
    amounts = dict(container.requests)
    wanted = amounts.get(resource, 0)
    mappings: list[Json] = []

    def map_to(name: str) -> None:
        mappings.append({"containerName": container.name, "resourceName": resource, "requestName": name})

    if not wanted:
        return None, mappings
    had = 0
    for other in filter(None, reusable):
        had += int(other["exactly"]["count"])
        map_to(other["name"])
        if had >= wanted:
            return None, mappings
    name = f"container-{position}-request-{sorted(amounts).index(resource)}"
    map_to(name)
    ask = {"deviceClassName": classes[resource], "allocationMode": "ExactCount", "count": wanted - had}
    return {"name": name, "exactly": ask}, mappings
