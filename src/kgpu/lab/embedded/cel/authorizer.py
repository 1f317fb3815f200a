"""Kubernetes' CEL functions that ask who may do what: ``authorizer.group('').resource('pods').check('get').allowed()``.

An authorizer, and the checks that are built from it, are messages that hold what was said so far as JSON; only
``check`` asks (``scope``). Source: pkg/cel/library/authz.go of the API server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from kgpu.lab.embedded.cel import scope as cel_scope
from kgpu.lab.embedded.cel import values as cel_values

Row = tuple[str, Callable[..., Any]]
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")


def authorizer() -> Any:
    """The value of the variable ``authorizer``: checks for the requesting user."""
    return _made(cel_values.AUTHORIZER, {})


def resource_check(group: str, resource: str, subresource: str, namespace: str, name: str) -> Any:
    """The value of ``authorizer.requestResource``."""
    attributes = {
        "group": group, "resource": resource, "subresource": subresource, "namespace": namespace, "name": name,
    }  # fmt: skip
    return _made(cel_values.RESOURCE_CHECK, attributes)


def _made(kind: str, state: dict[str, Any]) -> Any:
    return cel_values.make(kind, json.dumps(state))


def _with(kind: str, field: str) -> Callable[[Any, str], Any]:
    def add(value: Any, text: str) -> Any:
        return _made(kind, {**json.loads(value.text), field: text})

    return add


def _path(value: Any, path: str) -> Any:
    if not path.strip():
        raise ValueError("path must not be empty")
    return _made(cel_values.PATH_CHECK, {**json.loads(value.text), "path": path})


def _resource(value: Any, resource: str) -> Any:
    if not resource.strip():
        raise ValueError("resource must not be empty")
    return _made(cel_values.RESOURCE_CHECK, {**json.loads(value.text), "resource": resource})


def _service_account(value: Any, namespace: str, name: str) -> Any:
    del value
    if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        raise ValueError("Invalid service account name")
    if len(namespace) > 63 or not _LABEL.fullmatch(namespace):
        raise ValueError("Invalid service account namespace")
    return _made(cel_values.AUTHORIZER, {"account": [namespace, name]})


def _check(value: Any, verb: str) -> Any:
    attributes = json.loads(value.text)
    account = attributes.pop("account", None)
    for selector in ("fieldSelector", "labelSelector"):
        attributes.pop(selector, None)  # RBAC doesn't look at them
    allowed, reason = cel_scope.decide(tuple(account) if account else None, {**attributes, "verb": verb})
    return _made(cel_values.DECISION, {"allowed": allowed, "reason": "" if allowed else reason})


def _of_decision(field: str) -> Callable[[Any], Any]:
    return lambda value: json.loads(value.text)[field]


def rows() -> Iterator[Row]:
    """Signature and implementation of each function."""
    check = cel_values.RESOURCE_CHECK
    yield from (
        ("Authorizer.path(string)->PathCheck", _path),
        ("Authorizer.group(string)->GroupCheck", _with(cel_values.GROUP_CHECK, "group")),
        ("Authorizer.serviceAccount(string,string)->Authorizer", _service_account),
        ("GroupCheck.resource(string)->ResourceCheck", _resource),
        ("PathCheck.check(string)->Decision", _check),
        ("ResourceCheck.check(string)->Decision", _check),
        ("Decision.allowed()->bool", _of_decision("allowed")),
        ("Decision.reason()->string", _of_decision("reason")),
        ("Decision.errored()->bool", lambda _: False),
        ("Decision.error()->string", lambda _: ""),
    )
    for field in ("subresource", "namespace", "name", "fieldSelector", "labelSelector"):
        yield f"ResourceCheck.{field}(string)->ResourceCheck", _with(check, field)
