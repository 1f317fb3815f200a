"""Reviews of access and of tokens: kinds that are never stored. The answer is the object with its status filled in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kgpu.lab.embedded.core.context import VerbContext
from kgpu.lab.embedded.core.model import ApiUser, Call, StoredObject
from kgpu.lab.embedded.core.writing import metadata_of
from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.status import FieldError, Object, bad_value, invalid

_EITHER: Final = "cannot be specified in combination with resourceAttributes"
_ONE_OF: Final = "exactly one of nonResourceAttributes or resourceAttributes must be specified"


def answer_review(context: VerbContext, kind: ApiKind, namespace: str, obj: Object, call: Call) -> StoredObject:
    """Return the review with its status. Raises ApiError 400 and 422."""
    rules = context.rules(kind)
    new = rules.decode(kind, obj, call)
    rules.default(kind, new)
    metadata = metadata_of(new)
    if kind.namespaced:
        metadata["namespace"] = namespace
    errors = rules.validate(kind, new, None, "")
    if errors:
        raise invalid(kind.group, kind.kind, "", errors)
    spec = new.setdefault("spec", {})
    new["status"] = _ANSWERS[kind.plural](context, kind, spec, call)
    return StoredObject(new, 0)


def _access(context: VerbContext, kind: ApiKind, spec: Object, call: Call) -> Object:
    attributes, non_resource_attributes = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    errors: list[FieldError] = []
    if attributes is not None and non_resource_attributes is not None:
        errors.append(bad_value("spec.nonResourceAttributes", non_resource_attributes, _EITHER))
    if attributes is None and non_resource_attributes is None:
        errors.append(bad_value("spec.resourceAttributes", None, _ONE_OF))
    user = call.user
    if kind.plural != "selfsubjectaccessreviews":
        user = ApiUser(spec.get("user") or "", tuple(spec.get("groups") or ()), spec.get("uid") or "")
        if not user.name and not user.groups:
            errors.append(bad_value("spec.user", "", "at least one of user or group must be specified"))
    if errors:
        raise invalid(kind.group, kind.kind, "", errors)
    allowed, reason = context.authority.allowed(user, attributes or non_resource_attributes or {})
    return {"allowed": allowed, **({"reason": reason} if reason else {})}


def _rules(context: VerbContext, kind: ApiKind, spec: Object, call: Call) -> Object:
    del kind
    resources, others = context.authority.rules(call.user, spec.get("namespace") or "")
    return {"resourceRules": resources, "nonResourceRules": others, "incomplete": False}


def _self(context: VerbContext, kind: ApiKind, spec: Object, call: Call) -> Object:
    del context, kind, spec
    return {"userInfo": call.user.info()}


def _token(context: VerbContext, kind: ApiKind, spec: Object, call: Call) -> Object:
    del kind, call
    user = context.authority.review(spec.get("token") or "")
    if user is None:
        return {"user": {}, "error": "invalid bearer token"}
    audiences = spec.get("audiences")
    return {"authenticated": True, "user": user.info(), **({"audiences": audiences} if audiences else {})}


_ANSWERS: Final[dict[str, Callable[[VerbContext, ApiKind, Any, Call], Object]]] = {
    "selfsubjectaccessreviews": _access,
    "subjectaccessreviews": _access,
    "localsubjectaccessreviews": _access,
    "selfsubjectrulesreviews": _rules,
    "selfsubjectreviews": _self,
    "tokenreviews": _token,
}
