"""Dynamic resource claims: which exist, whose class is missing, and what devices a node has for them.

What is known without evaluating CEL is decided here. Whether a device satisfies a class or a claim is asked of a
``DeviceFitter`` that the host process injects (``snapshot.fitter``); without one a pod with a claim that is
not allocated fits no node, and the reason says so: nothing is guessed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Final

from kgpu.fit.checks import PASS, Checker, Filter, FilterFaultError, Miss, Misses, Rejection, StaticChecker
from kgpu.fit.extended import ExtendedAsk, extended_ask, made_before
from kgpu.fit.model import ClaimView, PodView, Reason
from kgpu.fit.snapshot import ClusterSnapshot, DeviceFitter, NodeState

NAME: Final = "DynamicResources"
NOTHING_TO_FREE: Final = "no new claims to deallocate"
STUCK: Final = "still not schedulable"
FREED: Final = "deallocation of ResourceClaim completed"
REMOVED: Final = "deletion of ResourceClaim completed"

ELSEWHERE: Final = Miss("resourceclaim not available on the node", False)
_OUTDATED: Final = Miss("cannot schedule extended resource claim", False)
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


def useless(pod: PodView, checkers: Iterable[Checker], nodes: Iterable[NodeState]) -> ClaimView | None:
    """A claim of a pod that fits nowhere whose devices are out of reach for it, and that no other pod has.

    The scheduler deallocates it; of several it picks one by chance. It deletes a claim that it has made itself in an
    earlier attempt. ``nodes`` are those that the claims have kept the pod off.
    """
    mine = [checker for checker in checkers if isinstance(checker, ClaimChecker)]
    away = (claim for checker in mine for node in nodes for claim in checker.out_of_reach(node))
    freed = next((claim for claim in away if claim.reserved_for in ((), (pod.uid,))), None)
    return freed or next((checker.outdated for checker in mine if checker.outdated is not None), None)


def after_failure(pod: PodView, snapshot: ClusterSnapshot, rejection: Rejection | None, freed: ClaimView | None) -> str:
    """What kube-scheduler says of freeing claims for a pod that fits nowhere."""
    if freed is not None:
        return REMOVED if freed.extended_for else FREED
    has = any(entry.claim for entry in pod.claims) or extended_ask(pod, snapshot) is not None
    return STUCK if has and rejection is None else NOTHING_TO_FREE


class ClaimChecker(StaticChecker):
    def __init__(
        self, claims: tuple[ClaimView, ...], fitter: DeviceFitter | None, extended: ExtendedAsk | None = None,
        outdated: ClaimView | None = None, *, now: dt.datetime,
    ) -> None:  # fmt: skip
        """``outdated`` is a claim that was made for the extended resources in an earlier attempt."""
        self.outdated = outdated
        self._extended = extended
        self._lost = frozenset(claim.key for claim in claims if claim.allocated and _lost(claim, now))
        self._placed = [
            claim for claim in claims if claim.allocated and (claim.node_terms is not None or claim.key in self._lost)
        ]
        self._open = tuple(claim for claim in claims if not claim.allocated)
        self._fitter = fitter

    def check(self, node: NodeState) -> Misses:
        if self.outdated is not None:
            return (_OUTDATED,)
        # The scheduler allocates first and looks at what is allocated already afterwards.
        due = self._due(node)
        if due and self._fitter is None:
            return (_NO_DEVICES,)
        refusal = self._fitter.refusal(due, node) if due and self._fitter is not None else None
        if refusal is None:
            return (ELSEWHERE,) if self.out_of_reach(node) else PASS
        if refusal.everywhere:
            raise FilterFaultError(NAME, refusal.phrase)
        return (Miss(refusal.phrase, False),)

    def _due(self, node: NodeState) -> tuple[ClaimView, ...]:
        extended = self._extended.on(node) if self._extended is not None else None
        return self._open if extended is None else (*self._open, extended.view)

    def out_of_reach(self, node: NodeState) -> list[ClaimView]:
        return [
            claim
            for claim in self._placed
            if claim.key in self._lost
            or not any(term.matches(node.labels, node.name) for term in claim.node_terms or ())
        ]

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        if self.outdated is not None:
            sentence = f"claim {self.outdated.name} is left of an earlier attempt, and has to be deleted first"
            return (Reason(NAME, _OUTDATED.phrase, sentence, node=node.name, subject=self.outdated.name),)
        due = self._due(node)
        names = ", ".join(claim.name for claim in due)
        if not due:
            missing: tuple[str, ...] = ()
        elif self._fitter is None:
            missing = (f"claims not allocated yet: {names}; without CEL no device can be judged here",)
        else:
            missing = self._fitter.missing(due, node)
        reasons = [Reason(NAME, _NO_DEVICES.phrase, sentence, node=node.name, subject=names) for sentence in missing]
        for claim in self.out_of_reach(node):
            sentence = f"claim {claim.name} is allocated, and its devices can't be used from node {node.name}"
            if claim.key in self._lost:
                why = claim.binding.failure if claim.binding is not None and claim.binding.failure else ""
                sentence = why or f"claim {claim.name} has waited too long for its devices to be attached to a node"
            reasons.append(Reason(NAME, ELSEWHERE.phrase, sentence, node=node.name, subject=claim.name))
        return tuple(reasons)


def _lost(claim: ClaimView, now: dt.datetime) -> bool:
    """Whether its devices will not be attached to the node that they were allocated for."""
    return claim.binding is not None and (bool(claim.binding.failure) or claim.binding.late(now))


def _prepare(pod: PodView, snapshot: ClusterSnapshot) -> Checker | Rejection | None:
    extended = extended_ask(pod, snapshot)
    if not pod.claims and extended is None:
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
    if not claims and extended is None:
        return None
    return ClaimChecker(
        claims, snapshot.fitter, extended, made_before(pod, snapshot) if extended is not None else None,
        now=snapshot.now(),
    )  # fmt: skip


FILTERS: Final = (Filter(NAME, _prepare),)
