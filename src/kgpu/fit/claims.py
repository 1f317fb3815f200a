"""Dynamic resource claims: which exist, whose class is missing, and what devices a node has for them.

What is known without evaluating CEL is decided here. Whether a device satisfies a class or a claim is asked of a
``DeviceFitter`` that the host process injects (``snapshot.fitter``); without one a pod with a claim that is
not allocated fits no node, and the reason says so: nothing is guessed.
"""

from __future__ import annotations

from typing import Final

from kgpu.fit.checks import PASS, Checker, Filter, FilterFaultError, Miss, Misses, Rejection, StaticChecker
from kgpu.fit.model import ClaimView, PodView, Reason
from kgpu.fit.snapshot import ClusterSnapshot, DeviceFitter, NodeState

NAME: Final = "DynamicResources"
NOTHING_TO_FREE: Final = "no new claims to deallocate"
STUCK: Final = "still not schedulable"

_ELSEWHERE: Final = Miss("resourceclaim not available on the node", False)
_NO_DEVICES: Final = Miss("cannot allocate all claims", False)


def gate(pod: PodView, snapshot: ClusterSnapshot) -> str:
    """Why a pod is not tried at all: a claim that does not exist (yet), or is not its own."""
    if not pod.claims:
        return ""
    claims = snapshot.shelf.claims
    for entry in pod.claims:
        if entry.claim is None:
            return f'pod "{pod}": pod has no claim for {entry.name} yet: the template has not been followed'
        if not entry.claim:
            continue
        claim = claims.get((pod.namespace, entry.claim))
        if claim is None:
            return f'resourceclaim.resource.k8s.io "{entry.claim}" not found'
        if claim.deleting:
            return f'resourceclaim "{claim.name}" is being deleted'
        if entry.generated and claim.owner != f"Pod/{pod.name}":
            return f"ResourceClaim {pod.namespace}/{claim.name} was not created for pod {pod} (pod is not owner)"
    return ""


def after_failure(pod: PodView, rejection: Rejection | None) -> str:
    """What kube-scheduler says of freeing claims for a pod that fits nowhere."""
    return STUCK if any(entry.claim for entry in pod.claims) and rejection is None else NOTHING_TO_FREE


class ClaimChecker(StaticChecker):
    def __init__(self, claims: tuple[ClaimView, ...], fitter: DeviceFitter | None) -> None:
        self._placed = [claim for claim in claims if claim.allocated and claim.node_terms is not None]
        self._open = tuple(claim for claim in claims if not claim.allocated)
        self._fitter = fitter

    def check(self, node: NodeState) -> Misses:
        # The scheduler allocates first and looks at what is allocated already afterwards.
        if self._open and self._fitter is None:
            return (_NO_DEVICES,)
        refusal = self._fitter.refusal(self._open, node) if self._open and self._fitter is not None else None
        if refusal is None:
            return (_ELSEWHERE,) if self._away(node) else PASS
        if refusal.everywhere:
            raise FilterFaultError(NAME, refusal.phrase)
        return (Miss(refusal.phrase, False),)

    def _away(self, node: NodeState) -> list[ClaimView]:
        return [
            claim
            for claim in self._placed
            if not any(term.matches(node.labels, node.name) for term in claim.node_terms or ())
        ]

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        names = ", ".join(claim.name for claim in self._open)
        if not self._open:
            missing: tuple[str, ...] = ()
        elif self._fitter is None:
            missing = (f"claims not allocated yet: {names}; without CEL no device can be judged here",)
        else:
            missing = self._fitter.missing(self._open, node)
        reasons = [Reason(NAME, _NO_DEVICES.phrase, sentence, node=node.name, subject=names) for sentence in missing]
        for claim in self._away(node):
            sentence = f"claim {claim.name} is allocated, and its devices can't be used from node {node.name}"
            reasons.append(Reason(NAME, _ELSEWHERE.phrase, sentence, node=node.name, subject=claim.name))
        return tuple(reasons)


def _prepare(pod: PodView, snapshot: ClusterSnapshot) -> Checker | Rejection | None:
    if not pod.claims:
        return None
    if problem := gate(pod, snapshot):
        return Rejection(filter=NAME, phrase=problem, sentence=problem)
    shelf = snapshot.shelf
    claims = tuple(shelf.claims[pod.namespace, entry.claim] for entry in pod.claims if entry.claim)
    for claim in claims:
        if not claim.allocated and claim.uid in snapshot.in_flight:
            phrase = f"resource claim {claim.namespace}/{claim.name} is in the process of being allocated"
            return Rejection(filter=NAME, phrase=phrase, sentence=phrase, subject=claim.name)
        for request, name in claim.classes.items() if not claim.allocated else ():
            if name not in shelf.device_classes:
                phrase = f"request {request}: device class {name} does not exist"
                sentence = f"claim {claim.name}: {phrase}; known: {', '.join(sorted(shelf.device_classes)) or 'none'}"
                return Rejection(filter=NAME, phrase=phrase, sentence=sentence, subject=name)
    return ClaimChecker(claims, snapshot.fitter) if claims else None


FILTERS: Final = (Filter(NAME, _prepare),)
