"""Why a container of a GPU pod can't be started, where the kubelet's message says it all."""

from __future__ import annotations

import difflib
from typing import Final

from kgpu.base.plain import text
from kgpu.doctor import matching
from kgpu.doctor.kinds import UNSTARTED, Pod
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, Evidence, Place
from kgpu.doctor.objects import at
from kgpu.doctor.signs import EVENT, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot

_INJECTED: Final = frozenset({"nvidia-smi", "rocm-smi", "amd-smi", "hl-smi", "gpu-feature-discovery"})
"""Programs that no image needs to have: other rules tell why they are not there."""
_KINDS: Final = {"secret": "Secret", "configmap": "ConfigMap", "config": "ConfigMap"}


def _work(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """() for accelerator workloads where the kubelet says it; None for a stack's parts: they have other rules."""
    pod = hit.pod
    if pod is None or not matching.uses_accelerators(pod) or matching.is_part(snapshot, pod):
        return None
    return () if hit.evidence.object.startswith("Event ") or _by_kubelet(pod, hit.match.string) else None


def _by_kubelet(pod: Pod, message: str) -> bool:
    """Whether a message is the kubelet's, and not one that the container's program left when it ended."""
    places = (("state.waiting", None), ("state.terminated", UNSTARTED), ("lastState.terminated", UNSTARTED))
    return any(
        text(at(container.status, f"{place}.message")) == message
        and (reasons is None or text(at(container.status, f"{place}.reason")) in reasons)
        for container in pod.containers
        for place, reasons in places
    )


def _program(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """The fields of the containers that name the program."""
    if hit.pod is None or hit.match["program"].rpartition("/")[2] in _INJECTED or _work(snapshot, hit) is None:
        return None
    return tuple(
        container.cite(field)
        for container in hit.pod.containers
        for field in ("command", "args")
        if hit.match["program"] in str(container.spec.get(field))
    )[:2]


def _similar_names(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Objects of that kind in the namespace with almost that name."""
    if hit.pod is None or _work(snapshot, hit) is None:
        return None
    kind = _KINDS[hit.match["kind"].lower()]
    existing = [other for other in snapshot.all(kind) if other.namespace == hit.pod.namespace]
    near = difflib.get_close_matches(hit.match["wanted"], [other.name for other in existing], n=1)
    return tuple(other.cite("metadata.name") for other in existing if other.name in near)


RULES: Final = rules_of(
    Sign(
        id="POD-01",
        title="The image does not have the program that the pod starts",
        place=Place.CLUSTER,
        pattern=(
            r"exec: \\?\"(?P<program>[^\"\\]{1,200})\\?\": "
            r"(?:executable file not found|stat [^:]{1,200}: no such file or directory|permission denied)"
        ),
        words="exec: ",
        where=(EVENT, STATUS),
        cause="{who} does not start: its image has no program {program}, or it may not be executed",
        remedy=(
            (
                "correct command or args in the manifest: the first word is the program, "
                "and every further word an entry of its own"
            ),
            "what is in the image:",
            (
                "kubectl -n {namespace} debug {name} -it --image=IMAGE -- sh  # IMAGE: the container's own; "
                "it takes no GPU"
            ),
        ),
        explain=(
            "The runtime looks the program up in the image's PATH, or under the path that is given. A misspelt name, "
            "a whole shell line as one word, another image than was meant, "
            "or a script without the right to be executed."
        ),
        confidence=CERTAIN,
        proof=_program,
    ),
    Sign(
        id="POD-02",
        title="A Secret or ConfigMap that the pod names is not there",
        place=Place.CLUSTER,
        pattern=r"(?P<kind>secret|configmap) \\?\"(?P<wanted>[a-z0-9.-]{1,253})\\?\" not found",
        words="not found",
        where=(EVENT, STATUS),
        cause="{who} does not start: it names the {kind} {wanted}, and namespace {namespace} has none of that name",
        remedy=(
            (
                "kubectl -n {namespace} get {kind} # is it there under another name, "
                "or in another namespace? A pod sees those of its own alone"
            ),
            "make it, or correct its name in the manifest; the kubelet tries again by itself",
        ),
        explain=(
            "A container is made only when every Secret and ConfigMap is there that its env, envFrom or volumes name, "
            "unless they say optional: true."
        ),
        confidence=CERTAIN,
        proof=_similar_names,
    ),
    Sign(
        id="POD-03",
        title="A Secret or ConfigMap lacks the key that the pod names",
        place=Place.CLUSTER,
        pattern=(
            r"couldn't find key (?P<key>[\w.-]{1,253}) in (?P<kind>Secret|ConfigMap) (?:[a-z0-9-]{1,63}/)?"
            r"(?P<wanted>[a-z0-9.-]{1,253})"
        ),
        words="couldn't find key",
        where=(EVENT, STATUS),
        cause="{who} does not start: it reads the key {key} of {kind} {wanted}, which has no such key",
        remedy=(
            "kubectl -n {namespace} describe {kind} {wanted} # its keys, without their values",
            "add the key, or correct it in the manifest; the kubelet tries again by itself",
        ),
        explain="A variable that is read from a key needs that key, unless it says optional: true.",
        confidence=CERTAIN,
        proof=_similar_names,
    ),
)
