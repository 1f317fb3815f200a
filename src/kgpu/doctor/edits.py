"""Changes to the spec of a pod or a pod's template, as kubectl can make them: an edit in place, and its patch.

A patch is a strategic merge patch: maps are merged, null takes a key away, containers are found by their name, every
other list is replaced whole. It is worked out from the spec before and after, so that several edits make one patch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from kgpu.fit.read import node_term
from kgpu.fit.selectors import Requirement
from kgpu.formats import names

Spec: TypeAlias = dict[str, Any]
Edit: TypeAlias = Callable[[Spec], None]
"""Changes a spec in place; one that does not find what it is about leaves it as it is."""

_BY_NAME: Final = frozenset({"containers", "initContainers"})
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_GIVEN: Final = frozenset({names.TAINT_NOT_READY, names.TAINT_UNREACHABLE})


def patch_of(spec: Spec, edits: Iterable[Edit]) -> Spec:
    """What the edits change, {} for nothing."""
    after = copy.deepcopy(spec)
    for edit in edits:
        edit(after)
    return _difference(spec, after)


def without_defaults(spec: Spec) -> Spec:
    """A pod's spec without the tolerations that the API server gives to every pod."""
    rows = spec.get("tolerations")
    if not isinstance(rows, list):
        return spec
    kept = [row for row in rows if not (isinstance(row, dict) and row.get("key") in _GIVEN)]
    return {
        **{key: value for key, value in spec.items() if key != "tolerations"},
        **({"tolerations": kept} if kept else {}),
    }


def tolerate(key: str, effect: str) -> Edit:
    """One more toleration, for any value."""

    def edit(spec: Spec) -> None:
        rows = spec.get("tolerations")
        row = {**({"key": key} if key else {}), "operator": "Exists", **({"effect": effect} if effect else {})}
        spec["tolerations"] = [*(rows if isinstance(rows, list) else ()), row]

    return edit


def select(key: str, value: str) -> Edit:
    """Another value of the node selector; "" takes the key out."""

    def edit(spec: Spec) -> None:
        selector = spec.get("nodeSelector")
        if isinstance(selector, dict) and key in selector:
            if value:
                selector[key] = value
            else:
                del selector[key]

    return edit


def rekey(old: str, new: str) -> Edit:
    """The same value of another label, in the node selector."""

    def edit(spec: Spec) -> None:
        selector = spec.get("nodeSelector")
        if isinstance(selector, dict) and old in selector:
            selector[new] = selector.pop(old)

    return edit


def relabel(key: str, old: str, new: str) -> Edit:
    """The value of a label that is asked for, in the node selector and in terms of the required node affinity."""

    def edit(spec: Spec) -> None:
        selector = spec.get("nodeSelector")
        if isinstance(selector, dict) and selector.get(key) == old:
            selector[key] = new
        for term in _terms(spec):
            for row in _rows(term):
                values = row.get("values")
                if row.get("key") == key and row.get("operator") == "In" and isinstance(values, list) and old in values:
                    row["values"] = [new if value == old else value for value in values]

    return edit


def reword(term: int, row: int, wanted: Requirement, instead: Requirement | None) -> Edit:
    """Another expression in a term of the required node affinity; None takes it out, and a term that is empty then."""

    def edit(spec: Spec) -> None:
        terms = _terms(spec)
        known = [candidate for candidate in terms if node_term(candidate) is not None]  # as ``fit`` counts them
        rows = known[term].get("matchExpressions") if term < len(known) else None
        if not isinstance(rows, list) or row >= len(rows) or not isinstance(rows[row], dict):
            return
        if (rows[row].get("key"), rows[row].get("operator")) != (wanted.key, wanted.operator):
            return
        expressions = (
            [{"key": instead.key, "operator": instead.operator, "values": list(instead.values)}] if instead else []
        )
        rows[row : row + 1] = expressions
        if not rows and not known[term].get("matchFields"):
            terms[:] = [candidate for candidate in terms if candidate is not known[term]]
        if not terms:
            del spec["affinity"]["nodeAffinity"][_REQUIRED]

    return edit


def rename(old: str, new: str) -> Edit:
    """Every container that asks for a resource asks for as much of another."""

    def edit(spec: Spec) -> None:
        for amounts in _amounts(spec, old):
            amounts[new] = amounts.pop(old)

    return edit


def ask(name: str, amount: str) -> Edit:
    """Another amount, if exactly one container requests the resource; else it is not clear whose to change.

    Of an extended resource request and limit must be the same; of processors and memory the request alone counts.
    """

    def edit(spec: Spec) -> None:
        asking = [container for container in _containers(spec) if list(_asked(container, name))]
        if len(asking) != 1:
            return
        if "/" in name:
            for amounts in _asked(asking[0], name):
                amounts[name] = amount
        else:
            resources = asking[0]["resources"]
            requests = resources.get("requests")
            resources["requests"] = {**(requests if isinstance(requests, dict) else {}), name: amount}

    return edit


def _terms(spec: Spec) -> list[Any]:
    at: Any = spec
    for step in ("affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms"):
        at = at.get(step) if isinstance(at, dict) else None
    return at if isinstance(at, list) else []


def _rows(term: Any) -> Iterator[dict[str, Any]]:
    rows = term.get("matchExpressions") if isinstance(term, dict) else None
    yield from (row for row in rows or () if isinstance(row, dict)) if isinstance(rows, list) else ()


def _containers(spec: Spec) -> Iterator[dict[str, Any]]:
    for field in sorted(_BY_NAME):
        rows = spec.get(field)
        yield from (row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()


def _asked(container: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    resources: Any = container.get("resources")
    for field in ("limits", "requests") if isinstance(resources, dict) else ():
        amounts = resources.get(field)
        if isinstance(amounts, dict) and name in amounts:
            yield amounts


def _amounts(spec: Spec, name: str) -> list[dict[str, Any]]:
    return [amounts for container in _containers(spec) for amounts in _asked(container, name)]


def _difference(before: Any, after: Any) -> Spec:
    patch: Spec = {}
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            patch[key] = _difference(old, new)
        elif key in _BY_NAME and isinstance(old, list) and isinstance(new, list):
            changed = [(a, b) for a, b in zip(old, new, strict=False) if a != b]
            patch[key] = [{"name": b.get("name"), **_difference(a, b)} for a, b in changed]
        else:
            patch[key] = new
    return patch
