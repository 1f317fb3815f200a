"""The types shared by the parts of the embedded API server: users, calls, stored objects, pages of lists and events of
watches; and the ports to the rules of a type, to admission, to patches and to the authority over users.

Objects (``StoredObject.obj``, ``WatchItem.stored.obj``, what ``ObjectLookup`` gives) are shared: change a copy
(``copied``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from kgpu.lab.embedded.duplicate_fields import Repeated
from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.status import ApiError, FieldError, Object

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder()
API_AUDIENCE: Final = "https://kubernetes.default.svc.cluster.local"
"""The audience of tokens that name none: the API server, which is their issuer, too."""


def encode(obj: Any) -> bytes:
    """JSON as the API sends it, without line breaks."""
    return _encoder.encode(obj)


def decode(data: bytes | str) -> Any:
    """The value of a JSON text. Raises msgspec.DecodeError."""
    return _decoder.decode(data)


def copied(obj: Object) -> Object:
    """A deep copy of JSON data, faster than ``copy.deepcopy``."""
    copy: Object = _decoder.decode(_encoder.encode(obj))
    return copy


def in_order(value: Any) -> Any:
    """A deep copy of JSON data with sorted keys, as Go encodes maps."""
    return _decoder.decode(msgspec.json.encode(value, order="deterministic"))


@dataclass(frozen=True, slots=True)
class ApiUser:
    """The user of a request. ``extra`` is further data from the authenticator, such as a token's pod and node."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    def info(self) -> Object:
        """The UserInfo of reviews and policies."""
        info: Object = {"username": self.name} if self.name else {}
        if self.uid:
            info["uid"] = self.uid
        if self.groups:
            info["groups"] = list(self.groups)
        if self.extra:
            info["extra"] = {key: list(values) for key, values in self.extra.items()}
        return info


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The parameters of one request. ``warnings`` collects texts for the response's Warning headers.

    ``validation`` is the query's fieldValidation: Ignore, Warn or Strict. ``repeated`` is the body when it has a field
    twice. ``prepared``: the object has been through ``ApiCore.prepared``. ``options`` is the request's CreateOptions,
    UpdateOptions or PatchOptions, as far as given.
    """

    user: ApiUser
    dry_run: bool = False
    manager: str = ""
    validation: str = "Warn"
    force: bool = False
    prepared: bool = False
    repeated: Repeated | None = None
    options: Object = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """``grace`` in seconds, None for the object's own; ``propagation`` Background, Foreground, Orphan or ""."""

    grace: int | None = None
    uid: str = ""
    version: str = ""
    propagation: str = ""
    dry_run: bool = False

    def shown(self) -> Object:
        """As the API shows them."""
        preconditions = {"uid": self.uid, "resourceVersion": self.version}
        options: Object = {"preconditions": {name: value for name, value in preconditions.items() if value}}
        options |= {"propagationPolicy": self.propagation, "gracePeriodSeconds": self.grace}
        return {name: value for name, value in options.items() if value or value == 0}


class StoredObject:
    """An object as of one revision. Immutable: a write makes a new one."""

    __slots__ = ("_encoded", "_others", "_under", "obj", "revision")

    def __init__(self, obj: Object, revision: int) -> None:
        self.obj = obj
        self.revision = revision
        self._encoded: bytes | None = None
        self._others: dict[str, StoredObject] | None = None
        self._under: object = None

    def encoded(self) -> bytes:
        """The object as JSON; made once."""
        if self._encoded is None:
            self._encoded = _encoder.encode(self.obj)
        return self._encoded

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.obj["metadata"].get("namespace", ""))

    def at(self, kind: ApiKind, convert: Callable[[ApiKind, Object], Object]) -> StoredObject:
        """The same object in the version (or group) of ``kind``; made once. ``ApiCore`` returns it in that already."""
        if self.obj.get("apiVersion") == kind.api_version:
            return self
        if self._others is None:
            self._others = {}
        converted = self._others.get(kind.api_version)
        if converted is None:
            converted = self._others[kind.api_version] = StoredObject(convert(kind, self.obj), self.revision)
        return converted

    def under(self, schema: object, kind: ApiKind, convert: Callable[[ApiKind, Object], Object]) -> StoredObject:
        """The same object as a custom kind shows it under its current schema; made once per schema.

        ``schema`` identifies it. An object written under an older schema may lack a default or have unknown fields.
        """
        if self._under is schema:
            return self
        shown = self._others.get(kind.api_version) if self._others else None
        if shown is not None and shown._under is schema:
            return shown
        obj = convert(kind, self.obj)
        if obj == self.obj:
            self._under = schema
            return self
        if self._others is None:
            self._others = {}
        shown = self._others[kind.api_version] = StoredObject(obj, self.revision)
        shown._under = schema
        return shown

    def written_under(self, schema: object) -> StoredObject:
        """Mark it as just written under that schema; returns itself."""
        self._under = schema
        return self

    def __repr__(self) -> str:
        return f"Stored({self.obj.get('kind')} {self.namespace}/{self.name} @{self.revision})"


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a list. ``version`` is the collection's; ``token`` is "" on the last page; ``remaining`` is how many
    objects come after this page, where it is known (None on the last page and with selectors).
    """

    items: list[StoredObject]
    version: str
    token: str = ""
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class WatchItem:
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK, and the object (a bookmark's has little in it)."""

    type: str
    stored: StoredObject

    def encoded(self) -> bytes:
        """The line, with its end."""
        return b'{"type":"%s","object":%s}\n' % (self.type.encode(), self.stored.encoded())


@dataclass(slots=True, kw_only=True)
class Review:
    """A request as admission sees it. ``operation`` is CREATE, UPDATE, DELETE or CONNECT. Mutating admission may change
    ``obj`` in place or replace it, but not ``old``. ``obj`` is {} for DELETE; ``name`` is "" where it is not known yet,
    and for each object of a collection that is deleted.
    """

    operation: str
    kind: ApiKind
    namespace: str
    name: str
    obj: Object
    old: Object | None
    subresource: str
    call: Call


class ObjectLookup(Protocol):
    """The objects that rules and admission may look up. They are shared and must not be changed."""

    def get(self, group: str, plural: str, namespace: str, name: str) -> Object | None:
        """The object as it is now, None when there is none."""
        ...

    def list(self, group: str, plural: str, namespace: str = "") -> Iterable[Object]:
        """Every object, of one namespace or ("") of all."""
        ...


class TypeRules(Protocol):
    """The strategy of a kind. One instance may serve many kinds."""

    def schema(self, kind: ApiKind) -> SchemaNode:
        """The kind's type."""
        ...

    def decode(self, kind: ApiKind, obj: Object, call: Call) -> Object:
        """The object as the type has it, a copy of its own; raises ApiError 400.

        ``call.validation`` says what becomes of unknown fields.
        """
        ...

    def default(self, kind: ApiKind, obj: Object) -> None:
        """Fill in defaults, in place."""
        ...

    def prepare(self, kind: ApiKind, obj: Object, old: Object | None, subresource: str) -> None:
        """Set, keep and clear fields before a create (``old`` None) or an update, in place."""
        ...

    def validate(self, kind: ApiKind, obj: Object, old: Object | None, subresource: str) -> list[FieldError]:
        """Every validation error."""
        ...


class Admission(Protocol):
    """One admission plugin. ``mutating`` ones (attribute, False when absent) run before ``prepare`` and validation."""

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        """Let it pass, change ``review.obj``, or raise ApiError."""
        ...


class Patching(Protocol):
    """Patches and managed fields; ``kgpu.lab.embedded.patch`` is the real one."""

    def apply_patch(self, content_type: str, live: Object, body: Any, schema: SchemaNode) -> Object:
        """JSON, merge and strategic merge patches; a new object. Raises ApiError."""
        ...

    def server_side_apply(
        self, live: Object | None, config: Object, schema: SchemaNode, *, manager: str, force: bool, subresource: str,
        kind: ApiKind, now: str,
    ) -> Object:  # fmt: skip
        """The merged object with its managedFields. Raises ApiError, conflicts as the real one words them."""
        ...

    def after_write(
        self,
        old: Object | None,
        new: Object,
        schema: SchemaNode,
        *,
        manager: str,
        subresource: str,
        kind: ApiKind,
        now: str,
    ) -> list[Object]:
        """The managedFields of ``new``."""
        ...


class Authority(Protocol):
    """Authenticates tokens and authorizes users. ``AllowAll`` is the default."""

    def allowed(self, user: ApiUser, attributes: Object) -> tuple[bool, str]:
        """Whether ``user`` may, and why. ``attributes``: a review's resourceAttributes or nonResourceAttributes."""
        ...

    def rules(self, user: ApiUser, namespace: str) -> tuple[list[Object], list[Object]]:
        """The resourceRules and nonResourceRules of a SelfSubjectRulesReview."""
        ...

    def review(self, token: str) -> ApiUser | None:
        """The user of a token, None when it is invalid."""
        ...

    def issue(self, account: Object, spec: Object) -> tuple[str, str]:
        """A service account's token for a TokenRequest's spec, and its expirationTimestamp."""
        ...


class AllowAll:
    """An ``Authority`` that lets everybody do everything and knows no tokens."""

    def allowed(self, user: ApiUser, attributes: Object) -> tuple[bool, str]:
        del user, attributes
        return True, ""

    def rules(self, user: ApiUser, namespace: str) -> tuple[list[Object], list[Object]]:
        del user, namespace
        every = ["*"]
        return [{"verbs": every, "apiGroups": every, "resources": every}], [{"verbs": every, "nonResourceURLs": every}]

    def review(self, token: str) -> ApiUser | None:
        del token
        return None

    def issue(self, account: Object, spec: Object) -> tuple[str, str]:
        del account, spec
        raise ApiError(501, "NotImplemented", "no token issuer is configured")
