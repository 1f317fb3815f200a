"""The objects that a binding gives a policy to go by, as the kind that the policy wants.

Source: CollectParams and policySource of pkg/admission/plugin/policy/generic of the API server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kgpu.lab.embedded import selectors
from kgpu.lab.embedded.core.convert import storage_key
from kgpu.lab.embedded.core.model import ObjectLookup
from kgpu.lab.embedded.kinds import ApiKind, Kinds
from kgpu.lab.embedded.status import Object

Convert = Callable[[ApiKind, Object], Object]


class ParamError(Exception):
    """A policy or a binding that can't be used as it is; in the real server's words."""


def kind_of(kinds: Kinds, wanted: Object | None) -> ApiKind | None:
    """The kind of a paramKind, None where there is none. Raises ParamError for one that isn't served."""
    if not wanted:
        return None
    found = kinds.of(wanted["apiVersion"], wanted["kind"])
    if found is None or not found.stored:
        group, _, version = wanted["apiVersion"].rpartition("/")
        raise ParamError(f"failed to find resource referenced by paramKind: '{group}/{version}, Kind={wanted['kind']}'")
    return found


def collect(
    kind: ApiKind | None, reference: Object | None, namespace: str, reads: ObjectLookup, convert: Convert
) -> list[Any]:
    """What ``params`` is, one after the other; [None] where the policy or the binding wants none. Raises ParamError."""
    if kind is None or reference is None:
        return [None]
    space = str(reference.get("namespace") or "")
    if kind.namespaced:
        space = space or namespace
        if not space:
            raise ParamError("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
    elif space:
        raise ParamError("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
    group, plural = storage_key(kind)
    if reference.get("name"):
        one = reads.get(group, plural, space, reference["name"])
        found = [] if one is None else [one]
    else:
        wanted = selectors.of_label_selector(reference.get("selector") or {}) or ()
        found = sorted(
            (one for one in reads.list(group, plural, space) if selectors.matches(wanted, _labels(one))),
            key=lambda one: (one["metadata"].get("namespace", ""), one["metadata"]["name"]),
        )
    if not found and reference.get("parameterNotFoundAction") == "Deny":
        raise ParamError("no params found for policy binding with `Deny` parameterNotFoundAction")
    return [convert(kind, one) for one in found]


def _labels(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}
