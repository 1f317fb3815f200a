"""JSON patch (RFC 6902) as the API server's library does it, which is laxer than the RFC.

Clients may rely on the differences: ``replace`` of a missing key adds it, negative indices count from the end (for
``add`` from past it), ``test`` for null passes for a missing value. Malformed patches are 400; every patch that can't
be applied is the same 422.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kgpu.lab.embedded.patch.gotext import json_name
from kgpu.lab.embedded.patch.values import copied, same
from kgpu.lab.embedded.status import ApiError, Object, bad_request

MAX_OPERATIONS: Final = 10_000
_ABSENT: Final[Any] = object()
_INDEX: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)


class _NotApplicableError(Exception):
    """An operation can't be applied; the real server does not say why."""


class _Target(NamedTuple):
    """A dictionary or list and the last token of a path into it."""

    holder: Any
    key: str


def apply(live: Object, patch: Any) -> Object:
    """``live``, which is changed in place, with the operations of ``patch``."""
    document: Any = live
    for operation in _operations(patch):
        try:
            step = _STEPS.get(operation.get("op") or "")
            if step is None:
                raise _NotApplicableError
            document = step(document, operation)
        except _NotApplicableError:
            message = "the server rejected our request due to an error in our request"
            raise ApiError(422, "Invalid", message, {}) from None
    result: Object = document
    return result


def _operations(patch: Any) -> list[Object]:
    if not isinstance(patch, list):
        raise _malformed(patch, "value of type []handlers.jsonPatchOp")
    for operation in patch:
        if not isinstance(operation, dict):
            raise _malformed(operation, "value of type handlers.jsonPatchOp")
        for field in ("op", "path", "from"):
            value = operation.get(field)
            if value is not None and not isinstance(value, str):
                raise _malformed(value, f"struct field jsonPatchOp.{field} of type string")
    if len(patch) > MAX_OPERATIONS:
        text = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(patch)}"
        raise ApiError(413, "RequestEntityTooLarge", f"Request entity too large: {text}")
    return patch


def _malformed(value: Any, where: str) -> ApiError:
    return bad_request(f"error decoding patch: json: cannot unmarshal {json_name(value)} into Go {where}")


def _index(key: str, end: int) -> int:
    """A list's index below ``end``."""
    if not _INDEX.fullmatch(key):
        raise _NotApplicableError
    index = int(key)
    if not -end <= index < end:
        raise _NotApplicableError
    return index + end if index < 0 else index


def _get(target: _Target) -> Any:
    if isinstance(target.holder, dict):
        return target.holder.get(target.key, _ABSENT)
    return target.holder[_index(target.key, len(target.holder))]


def _add(target: _Target, value: Any) -> None:
    holder, key = target
    value = None if value is _ABSENT else value
    if isinstance(holder, dict):
        holder[key] = value
    elif key == "-":
        holder.append(value)
    else:
        holder.insert(_index(key, len(holder) + 1), value)


def _remove(target: _Target) -> None:
    if isinstance(target.holder, list):
        del target.holder[_index(target.key, len(target.holder))]
    elif target.key in target.holder:
        del target.holder[target.key]
    else:
        raise _NotApplicableError


def _find(live: Any, operation: Object, field: str = "path") -> _Target:
    path = operation.get(field)
    if path is None:
        raise _NotApplicableError
    tokens = [token.replace("~1", "/").replace("~0", "~") for token in path.split("/")]
    if len(tokens) < 2:
        raise _NotApplicableError
    holder = live
    for token in tokens[1:-1]:
        holder = _get(_Target(holder, token))
        if not isinstance(holder, dict | list):
            raise _NotApplicableError
    return _Target(holder, tokens[-1])


def _do_add(live: Any, operation: Object) -> Any:
    _add(_find(live, operation), operation.get("value"))
    return live


def _do_remove(live: Any, operation: Object) -> Any:
    _remove(_find(live, operation))
    return live


def _do_replace(live: Any, operation: Object) -> Any:
    value = operation.get("value")
    if operation.get("path") == "":
        if not isinstance(value, dict | list):
            raise _NotApplicableError
        return value
    holder, key = _find(live, operation)
    holder[key if isinstance(holder, dict) else _index(key, len(holder))] = value
    return live


def _do_move(live: Any, operation: Object) -> Any:
    source = _find(live, operation, "from")
    value = _get(source)
    _remove(source)
    _add(_find(live, operation), value)
    return live


def _do_copy(live: Any, operation: Object) -> Any:
    value = _get(_find(live, operation, "from"))
    _add(_find(live, operation), copied(value))
    return live


def _do_test(live: Any, operation: Object) -> Any:
    actual = live if operation.get("path") == "" else _get(_find(live, operation))
    if not same(None if actual is _ABSENT else actual, operation.get("value")):
        raise _NotApplicableError
    return live


_STEPS: Final[dict[str, Callable[[Any, Object], Any]]] = {
    "add": _do_add,
    "remove": _do_remove,
    "replace": _do_replace,
    "move": _do_move,
    "copy": _do_copy,
    "test": _do_test,
}
