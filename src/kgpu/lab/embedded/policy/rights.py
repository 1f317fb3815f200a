"""The writer of a policy must be allowed to read its params; else the policy could reveal them.

Sources: pkg/registry/admissionregistration/validatingadmissionpolicy{,binding}/authz.go of Kubernetes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgpu.lab.embedded.core.model import ApiUser, ObjectLookup, Review
from kgpu.lab.embedded.status import FieldError, Object, forbidden_field, invalid

if TYPE_CHECKING:
    from kgpu.lab.embedded.core.verbs import ApiCore

_POLICIES: Final = ("admissionregistration.k8s.io", "validatingadmissionpolicies")
_MASTERS: Final = "system:masters"


def check(review: Review, reads: ObjectLookup, core: ApiCore) -> None:
    """Raise ApiError 422 if the writer of a policy or a binding may not read its params."""
    if review.subresource or review.operation not in ("CREATE", "UPDATE") or _MASTERS in review.call.user.groups:
        return
    about_policy = review.kind.key == _POLICIES
    wrong = (_of_policy if about_policy else _of_binding)(review, reads, core)
    if wrong is not None:
        raise invalid(review.kind.group, review.kind.kind, review.name, [wrong])


def _of_policy(review: Review, reads: ObjectLookup, core: ApiCore) -> FieldError | None:
    del reads
    wanted = review.obj["spec"].get("paramKind")
    if not wanted or (review.old is not None and review.old["spec"].get("paramKind") == wanted):
        return None
    user, attributes = review.call.user, {"verb": "get", "name": "*", "namespace": "*", **_resource(core, wanted)}
    if core.authority.allowed(user, attributes)[0]:
        return None
    why = (
        f'user {_shown(user)} must have "get" permission on all objects of the referenced paramKind '
        f"(kind={wanted['kind']}, apiVersion={wanted['apiVersion']})"
    )
    return forbidden_field("spec.paramKind", why)


def _of_binding(review: Review, reads: ObjectLookup, core: ApiCore) -> FieldError | None:
    spec = review.obj["spec"]
    reference, old = spec.get("paramRef"), (review.old or {}).get("spec") or {}
    if not reference or (old.get("paramRef") == reference and old.get("policyName") == spec["policyName"]):
        return None
    policy = reads.get(*_POLICIES, "", spec["policyName"])
    wanted = ((policy or {}).get("spec") or {}).get("paramKind")
    verb, user = "get" if reference.get("name") else "list", review.call.user
    attributes = {
        "verb": verb, "name": reference.get("name", ""), "namespace": reference.get("namespace", ""),
        **_resource(core, wanted),
    }  # fmt: skip
    if core.authority.allowed(user, attributes)[0]:
        return None
    everything = f'user {_shown(user)} does not have "{verb}" permission for all groups, versions and resources'
    if policy is None:
        why = f"unable to get policy {spec['policyName']} to determine minimum required permissions and {everything}"
    elif wanted and core.kinds.of(wanted["apiVersion"], wanted["kind"]) is None:
        shown = f"&{{{wanted['apiVersion']} {wanted['kind']}}}"
        why = f"unable to resolve paramKind {shown} to determine minimum required permissions and {everything}"
    else:
        why = f'user {_shown(user)} does not have "{verb}" permission on the object referenced by paramRef'
    return forbidden_field("spec.paramRef", why)


def _resource(core: ApiCore, wanted: Object | None) -> dict[str, Any]:
    if not wanted:
        return {"group": "*", "resource": "*", "version": "*"}
    group, _, version = wanted["apiVersion"].rpartition("/")
    kind = core.kinds.of(wanted["apiVersion"], wanted["kind"])
    return {"group": group, "version": version, "resource": kind.plural if kind is not None else "*"}


def _shown(user: ApiUser) -> str:
    """The user as Go prints it."""
    extra = " ".join(f"{key}:[{' '.join(values)}]" for key, values in sorted(user.extra.items()))
    return f"&{{{user.name} {user.uid} [{' '.join(user.groups)}] map[{extra}]}}"
