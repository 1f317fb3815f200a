"""The parameter objects of a binding, in the kind that the policy wants.

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
    """A policy or a binding with wrong parameters; the message is the real server's."""


def kind_of(kinds: Kinds, wanted: Object | None) -> ApiKind | None:
    """The kind of a paramKind, None if there is none. Raises ParamError for one that isn't served."""
    if not wanted:
        return None
    kind = kinds.of(wanted["apiVersion"], wanted["kind"])
    if kind is None or not kind.stored:
        group, _, version = wanted["apiVersion"].rpartition("/")
        raise ParamError(f"failed to find resource referenced by paramKind: '{group}/{version}, Kind={wanted['kind']}'")
    return kind


def collect(
    kind: ApiKind | None, reference: Object | None, namespace: str, reads: ObjectLookup, convert: Convert
) -> list[Any]:
    """The values of ``params`` to evaluate with; [None] if policy or binding has no parameters. Raises ParamError."""
    if kind is None or reference is None:
        return [None]
    param_namespace = str(reference.get("namespace") or "")
    if kind.namespaced:
        param_namespace = param_namespace or namespace
        if not param_namespace:
            raise ParamError("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
    elif param_namespace:
        raise ParamError("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
    group, plural = storage_key(kind)
    if reference.get("name"):
        param = reads.get(group, plural, param_namespace, reference["name"])
        params = [] if param is None else [param]
    else:
        wanted = selectors.of_label_selector(reference.get("selector") or {}) or ()
        params = sorted(
            (
                param
                for param in reads.list(group, plural, param_namespace)
                if selectors.matches(wanted, _labels(param))
            ),
            key=lambda param: (param["metadata"].get("namespace", ""), param["metadata"]["name"]),
        )
    if not params and reference.get("parameterNotFoundAction") == "Deny":
        raise ParamError("no params found for policy binding with `Deny` parameterNotFoundAction")
    return [convert(kind, param) for param in params]


def _labels(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}
