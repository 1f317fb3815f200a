"""Query options of each verb, checked as the real server checks them, in the form that ``ApiCore`` takes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.formats.duration import UNITS, parse_duration
from kgpu.lab.embedded import protobuf
from kgpu.lab.embedded.core.model import ApiUser, Call, DeleteOptions
from kgpu.lab.embedded.http import body
from kgpu.lab.embedded.http.request import ApiRequest
from kgpu.lab.embedded.status import (
    FieldError,
    Object,
    bad_request,
    bad_value,
    forbidden_field,
    invalid,
    required,
    shown,
    unsupported,
)

META: Final = "meta.k8s.io"
APPLY: Final = "application/apply-patch+yaml"
_MATCHES: Final = ("Exact", "NotOlderThan", "")
_PROPAGATION: Final = ("Foreground", "Background", "Orphan")
_VALIDATION: Final = ("", "Ignore", "Strict", "Warn")
_MANAGER_BYTES: Final = 128


# Requests without an end of their own.
_LONG_VERBS: Final = frozenset({"watch", "proxy"})
_LONG: Final = frozenset({"attach", "exec", "proxy", "log", "portforward"})
_DURATION_PART: Final = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?P<unit>[^0-9.]*)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """The options of list, watch and deletecollection. ``seconds`` is timeoutSeconds, 0 if it is not given."""

    labels: str = ""
    fields: str = ""
    limit: int = 0
    token: str = ""
    version: str = ""
    match: str = ""
    bookmarks: bool = False
    initial_events: bool = False
    seconds: int = 0


def check_timeout(request: ApiRequest) -> None:
    """Check ``?timeout=`` of every request that does end. Raises ApiError 400, also before authentication."""
    text = request.query.text("timeout")
    if not text or (request.resource and request.verb in _LONG_VERBS) or request.subresource in _LONG:
        return
    try:
        if text == "infinite":  # kgpu's own word
            raise ConfigError("invalid duration", "", "")
        parse_duration(text)
    except ConfigError:
        raise bad_request(f"invalid timeout specified in the request URL - time: {_go_problem(text)}") from None


def _go_problem(text: str) -> str:
    """Go's message for a ``text`` that is no duration."""
    quoted, rest = shown(text), text[1:] if text[:1] in {"+", "-"} else text
    while part := _DURATION_PART.match(rest):
        unit = part["unit"]
        if unit not in UNITS:
            return f"unknown unit {shown(unit)} in duration {quoted}" if unit else f"missing unit in duration {quoted}"
        rest = rest[part.end() :]
    return f"invalid duration {quoted}"


def of_list(request: ApiRequest, *, watch: bool) -> ListOptions:
    """The options of a list or a watch. Raises ApiError 400 and 422."""
    query = request.query
    options = ListOptions(
        labels=query.text("labelSelector"),
        fields=query.text("fieldSelector"),
        limit=max(0, query.number("limit") or 0),
        token=query.text("continue"),
        version=query.text("resourceVersion"),
        match=query.text("resourceVersionMatch"),
        bookmarks=query.flag("allowWatchBookmarks"),
        initial_events=query.flag("sendInitialEvents"),
        seconds=max(0, query.number("timeoutSeconds") or 0),
    )
    errors = _watch_errors(request, options) if watch else _list_errors(request, options)
    if errors:
        raise invalid(META, "ListOptions", "", errors)
    return options


def _watch_errors(request: ApiRequest, options: ListOptions) -> list[FieldError]:
    sent = "sendInitialEvents" in request.query
    if sent and options.match != "NotOlderThan":
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        return [forbidden_field("resourceVersionMatch", why)]
    if sent or not options.match:
        return []
    why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
    errors = [forbidden_field("resourceVersionMatch", why)]
    if options.match != "NotOlderThan":
        errors.append(unsupported("resourceVersionMatch", options.match, ("NotOlderThan",)))
    return errors


def _list_errors(request: ApiRequest, options: ListOptions) -> list[FieldError]:
    errors: list[FieldError] = []
    name = "resourceVersionMatch"
    if options.match:
        if not options.version:
            errors.append(forbidden_field(name, "resourceVersionMatch is forbidden unless resourceVersion is provided"))
        if options.token:
            errors.append(forbidden_field(name, "resourceVersionMatch is forbidden when continue is provided"))
        if options.match not in _MATCHES:
            known = ", ".join(shown(match) for match in _MATCHES)
            errors.append(FieldError("FieldValueNotSupported", name, options.match, f"supported values: {known}"))
        if options.match == "Exact" and options.version == "0":
            why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            errors.append(forbidden_field(name, why))
    if "sendInitialEvents" in request.query:
        errors.append(forbidden_field("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    return errors


def of_write(request: ApiRequest, user: ApiUser, options: str, *, media: str = "") -> Call:
    """The call of a write. ``options``: CreateOptions, UpdateOptions or PatchOptions. Raises ApiError 422."""
    query = request.query
    manager = query.text("fieldManager")
    dry_run, validation = query.all("dryRun"), query.text("fieldValidation")
    errors: list[FieldError] = []
    if options == "PatchOptions":
        if media != APPLY and "force" in query:
            errors.append(forbidden_field("force", "may not be specified for non-apply patch"))
        if media == APPLY and not manager:
            errors.append(required("fieldManager", "is required for apply patch"))
    errors += _manager_errors(manager)
    errors += _dry_run_errors(dry_run)
    if validation not in _VALIDATION:
        errors.append(unsupported("fieldValidation", validation, _VALIDATION))
    if errors:
        raise invalid(META, options, "", errors)
    return Call(
        user=user,
        dry_run=bool(dry_run),
        manager=manager or request.agent,
        validation=validation or "Warn",
        force=query.flag("force"),
        options={name: query.text(name) for name in ("fieldManager", "fieldValidation") if query.text(name)},
    )


def _manager_errors(manager: str) -> list[FieldError]:
    if len(manager.encode("utf-8", "replace")) > _MANAGER_BYTES:
        return [FieldError("FieldValueTooLong", "fieldManager", None, f"may not be more than {_MANAGER_BYTES} bytes")]
    for position, character in enumerate(manager):
        if not character.isprintable():
            why = f"invalid character U+{ord(character):04X} (at position {position})"
            return [bad_value("fieldManager", manager, why)]
    return []


def _dry_run_errors(dry_run: list[str]) -> list[FieldError]:
    bad = [word for word in dry_run if word != "All"]
    return [unsupported("dryRun", dry_run, ("All",))] if bad else []


async def of_delete(request: ApiRequest, data: bytes) -> DeleteOptions:
    """The options of a delete, from the body if there is one, else from the query. Raises ApiError 400, 415 and 422."""
    options: Object = await _delete_body(data, request) if data else _delete_query(request)
    grace = options.get("gracePeriodSeconds")
    propagation = str(options.get("propagationPolicy") or "")
    orphan = options.get("orphanDependents")
    preconditions = options.get("preconditions") or {}
    dry_run = options.get("dryRun") or []
    problem = next(((name, go) for name, go, ok in (
        ("gracePeriodSeconds", "int64", grace is None or (isinstance(grace, int) and not isinstance(grace, bool))),
        ("preconditions", "v1.Preconditions", isinstance(preconditions, dict)),
        ("orphanDependents", "bool", orphan is None or isinstance(orphan, bool)),
        ("dryRun", "[]string", isinstance(dry_run, list) and all(isinstance(element, str) for element in dry_run)),
    ) if not ok), None)  # fmt: skip
    if problem:
        have = body.go_kind(options[problem[0]])
        raise bad_request(
            f"json: cannot unmarshal {have} into Go struct field DeleteOptions.{problem[0]} of type {problem[1]}"
        )
    errors: list[FieldError] = []
    if propagation and orphan is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        errors.append(bad_value("propagationPolicy", propagation, why))
    if propagation and propagation not in _PROPAGATION:
        known = ", ".join(shown(policy) for policy in (*_PROPAGATION, "nil"))
        errors.append(
            FieldError("FieldValueNotSupported", "propagationPolicy", propagation, f"supported values: {known}")
        )
    errors += _dry_run_errors(dry_run)
    if errors:
        raise invalid(META, "DeleteOptions", "", errors)
    if orphan is not None:
        propagation = "Orphan" if orphan else "Background"
    return DeleteOptions(
        grace=max(0, grace) if grace is not None else None,
        uid=str(preconditions.get("uid") or ""),
        version=str(preconditions.get("resourceVersion") or ""),
        propagation=propagation,
        dry_run=bool(dry_run),
    )


async def _delete_body(data: bytes, request: ApiRequest) -> Object:
    media = body.media_of(request.header("content-type"))
    if media not in body.KNOWN_TYPES:
        raise body.unsupported()
    if media == protobuf.MEDIA:
        try:
            sent = await body.of_protobuf(data, ("v1", "DeleteOptions"))
        except protobuf.BadMessageError as error:
            raise bad_request(str(error)) from None
        if sent["kind"] != "DeleteOptions":
            raise bad_request(body.not_registered(sent["kind"], sent["apiVersion"]))
        return sent
    try:
        value, _ = await body.decode(data, media)
    except body.NotJson as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request(
            f"couldn't get version/kind; json parse error: json: cannot unmarshal {body.go_kind(value)} into Go "
            f"value of type {body.HEAD}"
        )
    if value.get("kind") not in (None, "", "DeleteOptions"):
        raise bad_request(
            f"no kind {shown(value.get('kind'))} is registered for version {shown(value.get('apiVersion') or '')} in "
            'scheme "pkg/runtime/scheme.go:111"'
        )
    options: dict[str, Any] = value
    return options


def _delete_query(request: ApiRequest) -> Object:
    query = request.query
    options: Object = {
        "gracePeriodSeconds": query.number("gracePeriodSeconds"),
        "propagationPolicy": query.text("propagationPolicy"),
        "dryRun": query.all("dryRun"),
    }
    if "orphanDependents" in query:
        options["orphanDependents"] = query.flag("orphanDependents")
    return options
