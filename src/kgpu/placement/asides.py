"""What has to be said beside where pods go: a namespace that is not there, pods that ask for no accelerator, pods that
get a slice of a GPU by the name that a whole one has. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kgpu.base.plain import mapping, text
from kgpu.base.printable import counted, one_line
from kgpu.base.suggest import did_you_mean
from kgpu.fit.model import PodView
from kgpu.formats import names
from kgpu.formats.accelerators import is_accelerator
from kgpu.formats.product_label import gpu_product
from kgpu.placement.model import Origin, PodOutcome
from kgpu.placement.state import PlacementState

_SHOWN: Final = 5
_WHOLE: Final = (names.GPU_RESOURCE, names.GPU_RESOURCE + names.SHARED_SUFFIX)


def missing_namespaces(state: PlacementState, outcomes: Iterable[PodOutcome]) -> Iterator[str]:
    """What the API server says of submitted pods' namespaces, where namespaces were read at all."""
    known = {name for _, name in state.objects.get("Namespace", {})}
    wanted = {one.pod.namespace for one in outcomes if one.origin is Origin.SUBMITTED}
    for name in sorted(wanted - known) if known else ():
        near = did_you_mean(name, known)
        yield f'namespaces "{one_line(name, 80)}" not found' + (f"; {near}" if near else "")


def missing_classes(state: PlacementState) -> Iterator[str]:
    """What the API server says of priority classes that new pods want, where classes were read at all."""
    known = {name for _, name in state.objects.get("PriorityClass", {})}
    for name in sorted(state.unknown_classes) if known else ():
        near = did_you_mean(name, known)
        yield f"no PriorityClass with name {one_line(name, 80)} was found" + (f"; {near}" if near else "")


def unread_classes(state: PlacementState) -> Iterator[str]:
    """Priority classes that new pods want, where none was read: they count as 0."""
    if state.unknown_classes and not state.objects.get("PriorityClass"):
        names_of = ", ".join(sorted(one_line(name, 80) for name in state.unknown_classes))
        yield f"no PriorityClass was read, so what {names_of} is worth is not known: these pods count with priority 0"


def without_accelerators(outcomes: Iterable[PodOutcome]) -> Iterator[str]:
    """That none of the submitted pods asks for an accelerator, with what they do ask for."""
    pods = [one.pod for one in outcomes if one.origin is Origin.SUBMITTED]
    if not pods or any(_asks(pod) for pod in pods):
        return
    asked = sorted({name for pod in pods for name, many in pod.requests.items() if many})
    who, whose = ("this pod asks", "its") if len(pods) == 1 else ("these pods ask", "their")
    yield (
        f"{who} for no accelerator: {whose} containers request {one_line(', '.join(asked), 200) or 'nothing'}; an "
        f"accelerator is asked for in resources.limits ({names.GPU_RESOURCE}: 1, say) or by a claim"
    )


def _asks(pod: PodView) -> bool:
    return bool(pod.claims) or any(is_accelerator(name) for name, many in pod.requests.items() if many)


def slices_for_whole(state: PlacementState, outcomes: Iterable[PodOutcome]) -> Iterator[str]:
    """Pods that ask for a GPU and land where MIG strategy single offers slices by its name; not those that had such a
    slice before.
    """
    by_place: dict[tuple[str, str], list[str]] = {}
    for one in outcomes:
        if one.node and any(one.pod.requests.get(name) for name in _WHOLE):
            profile = gpu_product(state.snapshot.nodes[one.node].view.labels.get(names.LABEL_GPU_PRODUCT, "")).profile
            if profile and profile != _profile_before(state, one.came_from):
                by_place.setdefault((one.node, profile), []).append(str(one.pod))
    for (node, profile), pods in sorted(by_place.items()):
        yield (
            f"{counted(len(pods), 'pod')} with {names.GPU_RESOURCE} would get {profile} slices on node {node}, no "
            f"whole GPUs, as MIG strategy single offers slices by that name: {_listed(pods)}"
        )


def _profile_before(state: PlacementState, node: str) -> str:
    """Of which slices the node offered before the changes, "" for whole GPUs."""
    labels = mapping(mapping(mapping(state.get("Node", node)).get("metadata")).get("labels"))
    return gpu_product(text(labels.get(names.LABEL_GPU_PRODUCT))).profile


def _listed(pods: list[str]) -> str:
    more = f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else ""
    return ", ".join(pods[:_SHOWN]) + more
