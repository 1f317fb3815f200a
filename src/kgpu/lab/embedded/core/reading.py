"""Get, list and watch: resourceVersion's meanings, pages that stay consistent, and where a watch begins.

Sources: apiserver's storage/etcd3 (list, continue tokens) and storage/cacher (watch).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from kgpu.lab.embedded.core.context import VerbContext, plain
from kgpu.lab.embedded.core.convert import storage_key
from kgpu.lab.embedded.core.model import ListPage, StoredObject
from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.selectors import FieldTerm, Match, field_match, fields_of, labels_of, named
from kgpu.lab.embedded.status import ApiError, bad_request, expired, shown
from kgpu.lab.embedded.store import INDEXED, ExpiredError, Key, Table
from kgpu.lab.embedded.watching import EVERYTHING, Bucket, ObjectWatch

_TOKEN_VERSION: Final = "meta.k8s.io/v1"  # noqa: S105 - of list pages
_BASE64: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_CONTINUE_ANYWAY: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True, slots=True)
class CollectionScope:
    """The objects that a list or a watch selects."""

    key: Key
    namespace: str
    match: Match | None
    name: str | None
    indexed: str | None

    @property
    def bucket(self) -> Bucket:
        """The narrowest bucket of watches that gets every commit it needs."""
        if self.name is not None:
            return "name", self.name
        if self.indexed is not None:
            return "index", self.indexed
        return ("namespace", self.namespace) if self.namespace else EVERYTHING


class ReadVerbs:
    """Works on one ``VerbContext``."""

    def __init__(self, context: VerbContext) -> None:
        self._context = context

    def scope(self, kind: ApiKind, namespace: str, labels: str, fields: str) -> CollectionScope:
        """The scope of a query. Raises ApiError 400 for invalid selectors."""
        custom = self._context.custom
        selectable = custom.selectable_fields(kind) if kind.custom and custom and fields else ()
        by_label, terms = labels_of(labels), fields_of(kind, fields, selectable)
        key = storage_key(kind)
        within = named(terms, "metadata.namespace")
        if within and not namespace and kind.namespaced:
            namespace = within
        index = INDEXED.get(key)
        indexed = named(terms, ".".join(index)) if index else None
        left = tuple(term for term in terms if not _covered(term, namespace if kind.namespaced else ""))
        return CollectionScope(
            key, namespace, _both(by_label, field_match(kind, left)), named(terms, "metadata.name"), indexed
        )

    def get(self, kind: ApiKind, namespace: str, name: str) -> StoredObject:
        """Return the object. Raises ApiError 404 when there is none."""
        return self._context.at(self._context.need(kind, namespace, name), kind)

    def list(
        self,
        kind: ApiKind,
        namespace: str,
        *,
        labels: str,
        fields: str,
        limit: int,
        token: str,
        version: str,
        match: str,
    ) -> ListPage:
        scope = self.scope(kind, namespace, labels, fields)
        table, latest = self._context.store.table(scope.key), self._context.store.revision
        start, revision, at = "", latest, False
        if token:
            if version not in ("", "0"):
                raise bad_request("specifying resource version is not allowed when using continue")
            start, token_revision = _decoded(token)
            if token_revision > 0:
                revision, at = token_revision, True
        elif version:
            wanted = _revision(version)
            if wanted > latest:
                raise _too_large(wanted, latest)
            if match == "Exact" or (limit and wanted and not match):
                revision, at = wanted, True
        try:
            if at and revision < self._context.store.compacted:
                raise ExpiredError(self._context.store.compacted)
            candidates = self._candidates(table, scope, start, revision, at=at)
        except ExpiredError:
            raise _too_old(token, start) from None
        matches = scope.match
        if not limit:
            chosen = candidates if matches is None else (stored for stored in candidates if matches(stored.obj))
            version_of_kind, at_kind = "" if kind.custom else kind.api_version, self._context.at
            # Nearly always the stored version is the requested one; skipping thousands of calls is measurable.
            return ListPage(
                [
                    stored if stored.obj.get("apiVersion") == version_of_kind else at_kind(stored, kind)
                    for stored in chosen
                ],
                str(revision),
            )
        items: list[StoredObject] = []
        last, more = "", False
        for stored in candidates:
            if len(items) >= limit:
                more = True
                break
            if matches is None or matches(stored.obj):
                items.append(self._context.at(stored, kind))
            last = f"{stored.namespace}/{stored.name}"
        if not more:
            return ListPage(items, str(revision))
        following = _encoded(f"{last}\0", revision)
        if labels or fields:
            return ListPage(items, str(revision), following)
        return ListPage(items, str(revision), following, 1 + sum(1 for _ in candidates))

    @staticmethod
    def _candidates(
        table: Table, scope: CollectionScope, start: str, revision: int, *, at: bool
    ) -> Iterator[StoredObject]:
        if at and table.changed > revision:
            past = table.snapshot(scope.namespace, start, revision)
            return (stored for stored in past if stored.name == scope.name) if scope.name is not None else past
        if scope.name is not None:
            spaces = [scope.namespace] if scope.namespace else sorted(table.spaces, key=lambda space: f"{space}/")
            named_so = (table.find(space, scope.name) for space in spaces)
            return (stored for stored in named_so if stored and f"{stored.namespace}/{stored.name}" >= start)
        if scope.indexed is not None:
            held = table.index.get(scope.indexed, {})
            keys = [key for key in held if scope.namespace in ("", key[0])]
            keys.sort(key="/".join)
            return (held[key] for key in keys if f"{key[0]}/{key[1]}" >= start)
        return table.scan(scope.namespace, start)

    def watch(
        self, kind: ApiKind, namespace: str, *, labels: str, fields: str, version: str, bookmarks: bool,
        initial_events: bool,
    ) -> ObjectWatch:  # fmt: skip
        scope = self.scope(kind, namespace, labels, fields)
        store = self._context.store
        table = store.table(scope.key)
        wanted = _watch_revision(version)
        if wanted > store.revision:
            # A version from before this server was restarted: the client must list again.
            raise expired(f"too old resource version: {wanted} ({store.revision})")
        context = self._context
        watch = ObjectWatch(
            (kind.api_version, kind.kind), scope.namespace, scope.match, lambda: store.revision,
            bookmarks=bookmarks, convert=lambda stored: context.at(stored, kind),
        )  # fmt: skip
        if initial_events or not wanted:
            candidates = self._candidates(table, scope, "", store.revision, at=False)
            held = [stored for stored in candidates if scope.match is None or scope.match(stored.obj)]
            watch.begin(held, mark_end=initial_events and bookmarks, revision=store.revision)
        else:
            try:
                missed = table.since(wanted)
            except ExpiredError as error:
                raise expired(f"too old resource version: {wanted} ({error.oldest})") from None
            watch.replay(missed)
        table.watching.add(watch, scope.bucket)
        return watch


def _covered(term: FieldTerm, namespace: str) -> bool:
    return term.equal and term.field == "metadata.namespace" and term.value == namespace


def _both(first: Match | None, second: Match | None) -> Match | None:
    if first is None or second is None:
        return first or second
    return lambda obj: first(obj) and second(obj)


_DIGITS: Final = re.compile(r"[0-9]+")


def _parsed(version: str) -> int | str:
    """A resourceVersion as a number, or the error text."""
    quoted = shown(version)
    if not _DIGITS.fullmatch(version):
        return f"strconv.ParseUint: parsing {quoted}: invalid syntax"
    if int(version) >= 1 << 64:
        return f"strconv.ParseUint: parsing {quoted}: value out of range"
    return int(version)


def _revision(version: str) -> int:
    parsed = _parsed(version)
    if isinstance(parsed, str):
        raise bad_request(f"invalid resource version: resourceVersion: Invalid value: {shown(version)}: {parsed}")
    return parsed


def _watch_revision(version: str) -> int:
    if not version:
        return 0
    parsed = _parsed(version)
    if isinstance(parsed, str):
        raise plain(500, f"resourceVersion: Invalid value: {shown(version)}: {parsed}")
    return parsed


def _too_large(wanted: int, latest: int) -> ApiError:
    cause = "Too large resource version"
    details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": cause}], "retryAfterSeconds": 1}
    return ApiError(504, "Timeout", f"Timeout: {cause}: {wanted}, current: {latest}", details)


def _too_old(token: str, start: str) -> ApiError:
    if not token:
        return expired("The resourceVersion for the provided list is too old.")
    error = expired(_CONTINUE_ANYWAY)
    error.token = _encoded(start, -1)
    return error


def _encoded(start: str, revision: int) -> str:
    body = {"v": _TOKEN_VERSION, "rv": revision, "start": start}
    return base64.urlsafe_b64encode(msgspec.json.encode(body)).decode().rstrip("=")


def _decoded(token: str) -> tuple[str, int]:
    why = "continue key is not valid"
    wrong = next((at for at, character in enumerate(token) if character not in _BASE64), None)
    if wrong is not None:
        raise bad_request(f"invalid continue token: {why}: illegal base64 data at input byte {wrong}")
    raw = b"?"
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_")
        body = msgspec.json.decode(raw)
        version, revision, start = body["v"], body["rv"], body["start"]
        if not isinstance(revision, int) or not isinstance(start, str):
            raise TypeError(token)
    except (binascii.Error, UnicodeEncodeError, ValueError, KeyError, TypeError) as error:
        first = "'" + chr(raw[0] if raw else 63) + "'"
        words = f"invalid character {first} looking for beginning of value" if raw[:1] != b"{" else "invalid JSON"
        raise bad_request(f"invalid continue token: {why}: {words}") from error
    if version != _TOKEN_VERSION:
        raise bad_request(f"invalid continue token: {why}: server does not recognize this encoded version {version}")
    if not revision:
        raise bad_request(
            f"invalid continue token: {why}: incorrect encoded start resourceVersion (version meta.k8s.io/v1)"
        )
    if not start:
        raise bad_request(f"invalid continue token: {why}: encoded start key empty (version meta.k8s.io/v1)")
    return start, revision
