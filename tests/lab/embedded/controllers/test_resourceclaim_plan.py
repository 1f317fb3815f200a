"""The decisions about pods' claims, without an API."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.formats.names import CLAIM_FINALIZER, POD_CLAIM_ANNOTATION
from kgpu.kube.port import Object
from kgpu.lab.embedded.controllers.resourceclaim_plan import (
    ClaimStep,
    ClaimUse,
    claim_from_template,
    claim_names,
    claim_uses,
    name_base,
    needs_work,
    orphan_of,
    plan_claim,
    with_claims,
)

ALLOCATION: Object = {"devices": {"results": []}}
POD_USER = {"resource": "pods", "name": "p", "uid": "u1"}
OTHER_USER = {"resource": "pods", "name": "q", "uid": "u2"}


def pod(made: str = "", *, node: str = "", deleted: bool = False, phase: str = "Pending", **status: Any) -> Object:
    """With one claim from a template, recorded as ``made``, and one of the user."""
    metadata: Object = {"name": "p", "namespace": "n", "uid": "u1"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    uses = [{"name": "gpu", "resourceClaimTemplateName": "t"}, {"name": "own", "resourceClaimName": "mine"}]
    recorded = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": made}]} if made else {}
    spec = {"resourceClaims": uses, **({"nodeName": node} if node else {})}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, **recorded, **status}}


def claim(
    *users: Object, allocated: bool = True, protected: bool = True, deleted: bool = False, owner: str = ""
) -> Object:
    metadata: Object = {"name": "c", "namespace": "n", "uid": "c1"}
    if protected:
        metadata["finalizers"] = ["a.b/c", CLAIM_FINALIZER]
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if owner:
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": True}
        ]
    status: Object = {"reservedFor": list(users)} if users else {}
    return {"metadata": metadata, "status": {**status, **({"allocation": ALLOCATION} if allocated else {})}}


def test_uses_of_a_pod():
    assert claim_uses(pod()) == [ClaimUse("gpu", "", "t"), ClaimUse("own", "mine")]
    assert claim_uses(pod("p-gpu-x")) == [ClaimUse("gpu", "p-gpu-x", "t"), ClaimUse("own", "mine")]
    needless = pod(resourceClaimStatuses=[{"name": "gpu"}])
    assert claim_uses(needless)[0] == ClaimUse("gpu", "", "t", needless=True)
    extended = pod("a", extendedResourceClaimStatus={"resourceClaimName": "e"})
    assert claim_names(extended) == ["a", "mine", "e"]


OURS, MINE = claim(owner="u1"), claim()
IDLE = claim(allocated=False)


@pytest.mark.parametrize(
    ("about", "subject", "claims", "expected"),
    [
        ("not made yet", pod(), {"mine": MINE}, True),
        ("made, and gone since", pod("g"), {"mine": MINE}, True),
        ("all there", pod("g"), {"g": OURS, "mine": MINE}, False),
        ("another's", pod("g", node="n1"), {"g": claim(owner="u2"), "mine": MINE}, False),
        ("the user's is missing", pod("g", node="n1"), {"g": claim(POD_USER, owner="u1")}, False),
        ("bound by hand", pod("g", node="n1"), {"g": OURS, "mine": MINE}, True),
        ("bound, not allocated", pod("g", node="n1"), {"g": claim(owner="u1", allocated=False), "mine": IDLE}, False),
        ("bound, reserved", pod("g", node="n1"), {"g": claim(POD_USER, owner="u1"), "mine": claim(POD_USER)}, False),
        ("bound, one not reserved", pod("g", node="n1"), {"g": claim(POD_USER, owner="u1"), "mine": MINE}, True),
        ("being deleted", pod(deleted=True), {}, False),
        ("over", pod("g", phase="Succeeded"), {}, False),
        ("needless", pod(resourceClaimStatuses=[{"name": "gpu"}]), {}, False),
    ],
)
def test_when_a_pod_needs_work(about: str, subject: Object, claims: dict[str, Object], expected: bool):
    assert needs_work(subject, claims.get) is expected, about


@pytest.mark.parametrize(
    ("pod_name", "use", "expected"),
    [
        ("web", "gpu", "web-gpu-"),
        ("p" * 40, "c" * 15, f"{'p' * 40}-{'c' * 15}-"),
        ("p" * 60, "c" * 30, f"{'p' * 37}-{'c' * 18}"),
        ("p" * 253, "c", f"{'p' * 56}-"),
    ],
)
def test_names_of_claims(pod_name: str, use: str, expected: str):
    assert name_base(pod_name, use) == expected


def test_a_claim_from_a_template():
    template = {"spec": {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": {"devices": {}}}}
    assert claim_from_template(template, pod(), ClaimUse("gpu", "", "t")) == {
        "metadata": {
            "generateName": "p-gpu-",
            "namespace": "n",
            "annotations": {"c": "d", POD_CLAIM_ANNOTATION: "gpu"},
            "labels": {"a": "b"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1", "controller": True}],
        },
        "spec": {"devices": {}},
    }
    assert template["spec"]["metadata"]["annotations"] == {"c": "d"}


def test_a_claim_that_was_made_and_not_recorded_is_found():
    known = {"metadata": {"name": "x", "annotations": {POD_CLAIM_ANNOTATION: "gpu"}}}
    assert orphan_of([{"metadata": {"name": "y"}}, known], ClaimUse("gpu", "", "t")) is known
    assert orphan_of([known], ClaimUse("other", "", "t")) is None


def test_names_are_recorded_in_the_order_of_the_pod():
    assert with_claims(pod(), {"gpu": "x"}) == [{"name": "gpu", "resourceClaimName": "x"}]
    assert with_claims(pod("old"), {"gpu": "new"}) == [{"name": "gpu", "resourceClaimName": "new"}]
    assert with_claims(pod("old"), {}) == [{"name": "gpu", "resourceClaimName": "old"}]


RUNS, ENDED, REPLACED = pod(phase="Running"), pod(phase="Failed"), {**pod(), "metadata": {"name": "p", "uid": "u9"}}
RELEASED: Object = {"reservedFor": None, "allocation": None}


@pytest.mark.parametrize(
    ("about", "subject", "valid", "owner", "expected"),
    [
        ("in use", claim(POD_USER), [POD_USER], None, ClaimStep()),
        ("one of two left", claim(POD_USER, OTHER_USER), [OTHER_USER], None, ClaimStep({"reservedFor": [OTHER_USER]})),
        ("the last one left", claim(POD_USER), [], None, ClaimStep(RELEASED, unprotect=True)),
        ("left, not protected", claim(POD_USER, protected=False), [], None, ClaimStep({"reservedFor": None})),
        ("allocated, never used", claim(), [], None, ClaimStep()),
        ("deleted in use", claim(POD_USER, deleted=True), [POD_USER], None, ClaimStep()),
        ("deleted, allocated", claim(deleted=True), [], None, ClaimStep({"allocation": None}, unprotect=True)),
        ("deleted, free", claim(deleted=True, allocated=False), [], None, ClaimStep(unprotect=True)),
        ("deleted, not protected", claim(deleted=True, protected=False), [], None, ClaimStep()),
        ("its pod is over", claim(POD_USER, owner="u1"), [], ENDED, ClaimStep(RELEASED, unprotect=True, delete=True)),
        ("its pod runs", claim(allocated=False, owner="u1"), [], RUNS, ClaimStep()),
        ("its pod was replaced", claim(allocated=False, owner="u1"), [], REPLACED, ClaimStep(delete=True)),
        ("its pod is not known", claim(allocated=False, owner="u1"), [], None, ClaimStep()),
        ("its pod is over, another uses it", claim(OTHER_USER, owner="u1"), [OTHER_USER], ENDED, ClaimStep()),
        ("its pod went unscheduled", claim(owner="u1"), [], pod(deleted=True), ClaimStep(delete=True)),
        ("its pod ends on a node", claim(owner="u1"), [], pod(deleted=True, node="n1"), ClaimStep()),
    ],
)
def test_what_a_claim_needs(
    about: str, subject: Object, valid: list[Object], owner: Object | None, expected: ClaimStep
):  # fmt: skip
    assert plan_claim(subject, valid, owner) == expected, about
