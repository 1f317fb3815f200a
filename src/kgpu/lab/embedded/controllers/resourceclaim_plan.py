"""What pods need of ResourceClaims, and what claims need when pods are over. Pure.

Source: pkg/controller/resourceclaim of Kubernetes 1.35, and k8s.io/dynamic-resource-allocation/resourceclaim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.formats.names import CLAIM_FINALIZER, POD_CLAIM_ANNOTATION
from kgpu.kube.port import PODS, Object, annotations_of, name_of, namespace_of
from kgpu.lab.embedded.controllers.meta import controller_of, deleting, owner_reference, spec_of, status_of, uid_of
from kgpu.lab.embedded.controllers.pods import is_terminal, node_of

_LONGEST_BASE: Final = 57  # characters of a generated name, which may have 63


# Pods


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """One entry of a pod's ``spec.resourceClaims``.

    ``claim`` is the claim's name, "" while none was made; ``template`` is what it is made from, "" for a claim of the
    user. ``needless``: it was decided that no claim is needed.
    """

    name: str
    claim: str
    template: str = ""
    needless: bool = False


def claim_uses(pod: Object) -> list[ClaimUse]:
    rows = spec_of(pod).get("resourceClaims")
    if not rows:
        return []  # as most pods
    made = {row.get("name"): row for row in status_of(pod).get("resourceClaimStatuses") or ()}
    uses = []
    for row in rows:
        name, template = str(row.get("name") or ""), row.get("resourceClaimTemplateName")
        if template is None:
            uses.append(ClaimUse(name, str(row.get("resourceClaimName") or "")))
        else:
            claim = (made.get(name) or {}).get("resourceClaimName")
            uses.append(ClaimUse(name, str(claim or ""), str(template), needless=name in made and claim is None))
    return uses


def extended_claim(pod: Object) -> str:
    """The claim that the scheduler made for the pod's extended resources, "" for none."""
    return str((status_of(pod).get("extendedResourceClaimStatus") or {}).get("resourceClaimName") or "")


def claim_names(pod: Object) -> list[str]:
    """All claims of the pod that exist or should."""
    return [name for name in (*(use.claim for use in claim_uses(pod)), extended_claim(pod)) if name]


def is_over(pod: Object) -> bool:
    """None of the pod's containers runs, and none ever will."""
    return is_terminal(pod) or (deleting(pod) and not node_of(pod))


def is_reserved_for(claim: Object, pod: Object) -> bool:
    return any(row.get("uid") == uid_of(pod) for row in reservations(claim))


def must_reserve(claim: Object, pod: Object) -> bool:
    """The pod has a node already, so that no scheduler reserves the claim for it."""
    return bool(node_of(pod) and status_of(claim).get("allocation")) and not is_reserved_for(claim, pod)


def needs_work(pod: Object, find: Callable[[str], Object | None]) -> bool:
    """Whether a claim is to be made or reserved. ``find`` returns a claim of the pod's namespace by name.

    A pod that is over gets no new claims, or the deletion of the old ones would make new ones.
    """
    if deleting(pod) or is_over(pod):
        return False
    for use in claim_uses(pod):
        if use.needless:
            return False
        claim = find(use.claim) if use.claim else None
        if claim is None:
            return bool(use.template)
        if use.template and not is_made_for(claim, pod):
            return False  # nothing can be done until that claim is deleted
        if must_reserve(claim, pod):
            return True
    return False


# Making claims


def is_made_for(claim: Object, pod: Object) -> bool:
    return uid_of(pod) != "" and (controller_of(claim) or {}).get("uid") == uid_of(pod)


def orphan_of(claims: Iterable[Object], use: ClaimUse) -> Object | None:
    """Of the pod's own claims the one made for that use, whose name is not in the pod's status yet."""
    return next((claim for claim in claims if annotations_of(claim).get(POD_CLAIM_ANNOTATION) == use.name), None)


def name_base(pod: str, use: str) -> str:
    """The generateName of a pod's claim; of names that are too long both parts are cut in proportion."""
    base = f"{pod}-{use}-"
    if len(base) <= _LONGEST_BASE:
        return base
    return f"{pod[: len(pod) * _LONGEST_BASE // len(base)]}-{use[: len(use) * _LONGEST_BASE // len(base)]}"


def claim_from_template(template: Object, pod: Object, use: ClaimUse) -> Object:
    """The claim to create; shares the template's parts, so it is only for sending."""
    made = spec_of(template)
    metadata = made.get("metadata") or {}
    owner = owner_reference(PODS, pod)
    del owner["blockOwnerDeletion"]
    about: Object = {
        "generateName": name_base(name_of(pod), use.name),
        "namespace": namespace_of(pod),
        "annotations": {**(metadata.get("annotations") or {}), POD_CLAIM_ANNOTATION: use.name},
        "labels": metadata.get("labels") or {},
        "ownerReferences": [owner],
    }
    return {"metadata": {key: value for key, value in about.items() if value}, "spec": made.get("spec") or {}}


def with_claims(pod: Object, made: dict[str, str]) -> list[Object]:
    """``status.resourceClaimStatuses`` with claims' names by the names of their uses, in the order of the spec."""
    known = {row.get("name"): row for row in status_of(pod).get("resourceClaimStatuses") or ()}
    known |= {name: {"name": name, "resourceClaimName": claim} for name, claim in made.items()}
    return [known[use.name] for use in claim_uses(pod) if use.name in known]


def reserved_also_for(claim: Object, pod: Object) -> list[Object]:
    """``status.reservedFor`` with the pod."""
    return [*reservations(claim), {"resource": "pods", "name": name_of(pod), "uid": uid_of(pod)}]


# Claims


def reservations(claim: Object) -> Sequence[Object]:
    return status_of(claim).get("reservedFor") or ()


@dataclass(frozen=True, slots=True)
class ClaimStep:
    """What a claim needs, in this order: a change of its status, the end of its protection, its deletion.

    ``status`` is a merge patch of the status, None for no change.
    """

    status: Object | None = None
    unprotect: bool = False
    delete: bool = False


def plan_claim(claim: Object, valid: Sequence[Object], owner: Object | None) -> ClaimStep:
    """Decide by the reservations that are still ``valid``, and the pod that has the name of the claim's owner.

    A claim is deallocated when its last consumer goes, not just because nobody has reserved it: a claim may be
    allocated first.
    """
    protected = CLAIM_FINALIZER in (claim["metadata"].get("finalizers") or ())
    allocated = status_of(claim).get("allocation") is not None
    change: Object | None = None
    unprotect = False
    if len(valid) < len(reservations(claim)):
        change = {"reservedFor": list(valid) or None}
        if protected and not valid:
            change["allocation"] = None
            allocated = False
        unprotect = protected and not allocated
    elif protected and deleting(claim) and not valid:
        change = {"allocation": None} if allocated else None
        unprotect = True
    return ClaimStep(change, unprotect, delete=not valid and _is_unused(claim, owner))


def owning_pod(claim: Object) -> tuple[str, str]:
    """Name and uid of the pod that the claim was made for, both "" for another claim."""
    owner = controller_of(claim) or {}
    if (owner.get("apiVersion"), owner.get("kind")) != ("v1", "Pod"):
        return "", ""
    return str(owner.get("name") or ""), str(owner.get("uid") or "")


def _is_unused(claim: Object, owner: Object | None) -> bool:
    """Of a pod that isn't known nobody can tell: the garbage collector deletes its claims."""
    name, uid = owning_pod(claim)
    return bool(name) and owner is not None and (uid_of(owner) != uid or is_over(owner))
