"""``ApiCore``: the whole surface of the API server below HTTP.

Every method is synchronous and raises ``ApiError``. What it returns is shared: never change it in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from kgpu.lab.embedded.core.context import CustomPort, VerbContext
from kgpu.lab.embedded.core.convert import storage_key
from kgpu.lab.embedded.core.deleting import DeleteVerbs
from kgpu.lab.embedded.core.model import (
    Admission,
    Authority,
    Call,
    DeleteOptions,
    ListPage,
    ObjectLookup,
    Patching,
    Review,
    StoredObject,
    TypeRules,
)
from kgpu.lab.embedded.core.reading import ReadVerbs
from kgpu.lab.embedded.core.reviews import answer_review
from kgpu.lab.embedded.core.subresources import Subresources
from kgpu.lab.embedded.core.writing import WriteVerbs, metadata_of
from kgpu.lab.embedded.kinds import ApiKind, Kinds
from kgpu.lab.embedded.status import ApiError, Object
from kgpu.lab.embedded.store import CommitListener, ObjectStore
from kgpu.lab.embedded.watching import ObjectWatch

__all__ = ["ApiCore", "CommitListener"]

_WRITABLE: Final = frozenset({"", "status", "finalize", "approval"})


class ApiCore:
    """One API server's state and verbs. Use from one event loop."""

    def __init__(
        self, kinds: Kinds, store: ObjectStore, rules: Callable[[ApiKind], TypeRules],
        admission: Sequence[Admission] = (), *, patching: Patching | None = None, authority: Authority | None = None,
    ) -> None:  # fmt: skip
        """``patching`` defaults to ``kgpu.lab.embedded.patch``; ``authority`` answers reviews and issues tokens."""
        self._context = VerbContext(kinds, store, rules, admission, patching=patching, authority=authority)
        self._reading = ReadVerbs(self._context)
        self._writing = WriteVerbs(self._context)
        self._deleting = DeleteVerbs(self._context, self._reading)
        self._subresources = Subresources(self._context, self._writing, self._deleting)
        self.kinds = kinds
        self.store = store

    @property
    def reads(self) -> ObjectLookup:
        """The objects as they are stored."""
        return self._context.reads

    @property
    def authority(self) -> Authority:
        """Answers reviews and issues tokens; may be set."""
        return self._context.authority

    @authority.setter
    def authority(self, authority: Authority) -> None:
        self._context.authority = authority

    @property
    def custom(self) -> CustomPort | None:
        """The port to custom kinds; may be set."""
        return self._context.custom

    @custom.setter
    def custom(self, custom: CustomPort | None) -> None:
        self._context.custom = custom

    def rules(self, kind: ApiKind) -> TypeRules:
        """The rules of a kind."""
        return self._context.rules(kind)

    def get(self, kind: ApiKind, namespace: str, name: str, *, subresource: str = "") -> StoredObject:
        """The object (404 when there is none); ``scale`` gives the Scale of it. ``status`` gives the whole object."""
        if subresource == "scale":
            return self._subresources.scale(kind, namespace, name)
        return self._reading.get(kind, namespace, name)

    def has(self, kind: ApiKind, namespace: str, name: str) -> bool:
        """Whether there is such an object."""
        return self._context.find(kind, namespace, name) is not None

    def list(
        self, kind: ApiKind, namespace: str = "", *, labels: str = "", fields: str = "", limit: int = 0,
        token: str = "", version: str = "", match: str = "",
    ) -> ListPage:  # fmt: skip
        """One page; ``labels`` and ``fields`` are the query's selector texts."""
        return self._reading.list(
            kind, namespace, labels=labels, fields=fields, limit=limit, token=token, version=version, match=match
        )

    def watch(
        self, kind: ApiKind, namespace: str = "", *, labels: str = "", fields: str = "", version: str = "",
        bookmarks: bool = False, initial_events: bool = False,
    ) -> ObjectWatch:  # fmt: skip
        """The events after ``version``; "" or "0" begin with the objects there are. 410 when ``version`` is too old."""
        return self._reading.watch(
            kind, namespace, labels=labels, fields=fields, version=version, bookmarks=bookmarks,
            initial_events=initial_events,
        )  # fmt: skip

    def create(
        self, kind: ApiKind, namespace: str, obj: Object, call: Call, *, name: str = "", subresource: str = ""
    ) -> StoredObject:
        """Create an object. Reviews, binding, eviction and token return a ``StoredObject`` of revision 0.

        ``name`` is the path's, for subresources.
        """
        if subresource:
            action = {
                ("pods", "binding"): self._subresources.bind,
                ("pods", "eviction"): self._subresources.evict,
                ("serviceaccounts", "token"): self._subresources.token,
            }.get((kind.plural, subresource))
            if action is None or kind.group:
                raise _not_allowed()
            return action(kind, namespace, name, {**obj, "metadata": dict(metadata_of(dict(obj)))}, call)
        if kind.key == ("", "bindings"):
            pods = self.kinds.need("", "pods")
            return self._subresources.bind(pods, namespace, str(metadata_of(dict(obj)).get("name") or ""), obj, call)
        if not kind.stored:
            return answer_review(self._context, kind, namespace, obj, call)
        return self._writing.create(kind, namespace, obj, call)

    def prepared(self, kind: ApiKind, obj: Object, call: Call, *, new: bool) -> Object:
        """The part of a create (``new``) or an update of a large built-in object that needs no other object.

        May be called in another thread; the ``create`` or ``update`` that follows must have ``prepared`` in its call.
        Raises ApiError 400, and 500 for an object too large to store.
        """
        return self._writing.prepared(kind, obj, call, new=new)

    def update(
        self, kind: ApiKind, namespace: str, name: str, obj: Object, call: Call, *, subresource: str = ""
    ) -> StoredObject:
        """Replace. An update that changes nothing keeps the resourceVersion."""
        if subresource == "scale":
            return self._subresources.update_scale(kind, namespace, name, obj, call)
        _check_writable(subresource)
        return self._writing.update(kind, namespace, name, obj, call=call, subresource=subresource)

    def patch(  # noqa: PLR0917 - the address of an object, as in every verb, and the patch
        self,
        kind: ApiKind,
        namespace: str,
        name: str,
        content_type: str,
        body: Any,
        call: Call,
        *,
        subresource: str = "",
    ) -> tuple[StoredObject, bool]:
        """The object and whether an apply has made it. ``body`` is decoded already (YAML too)."""
        if subresource == "scale":
            return self._subresources.patch_scale(kind, namespace, name, content_type, body, call=call), False
        _check_writable(subresource)
        return self._writing.patch(kind, namespace, name, content_type, body, call=call, subresource=subresource)

    def delete(
        self, kind: ApiKind, namespace: str, name: str, options: DeleteOptions, call: Call
    ) -> tuple[Object, bool]:
        """(the object, or a Status for kinds that answer so; whether it is gone already)."""
        return self._deleting.delete(kind, namespace, name, options, call)

    def connect(self, kind: ApiKind, namespace: str, name: str, obj: Object, call: Call, *, subresource: str) -> None:
        """Run admission of a connection; ``obj`` is its options, as PodExecOptions. Raises ApiError when refused."""
        review = Review(
            operation="CONNECT", kind=kind, namespace=namespace, name=name, obj=obj, old=None, subresource=subresource,
            call=call,
        )  # fmt: skip
        self._context.admit(review)
        self._context.admitted(review)

    def delete_collection(
        self, kind: ApiKind, namespace: str, options: DeleteOptions, call: Call, *, labels: str = "", fields: str = ""
    ) -> Iterator[StoredObject]:
        """Each step deletes or marks one object and yields it as it was; let the loop run in between."""
        return self._deleting.delete_collection(kind, namespace, options, call, labels=labels, fields=fields)

    def end_watches(self, kind: ApiKind) -> None:
        """Close every watch of the kind: its schema has changed, and clients must list again."""
        self.store.table(storage_key(kind)).watching.end()

    def on_commit(self, listener: CommitListener) -> None:
        """Call ``listener(key, type, stored, old)`` within each commit; type is ADDED, MODIFIED or DELETED."""
        self.store.on_commit(listener)

    async def kept(self) -> None:
        """Return once all writes so far are on disk (at once without a journal). Raises ApiError 500."""
        await self.store.kept()

    def close(self) -> None:
        """End every watch and flush the journal."""
        self.store.close()


def _check_writable(subresource: str) -> None:
    if subresource not in _WRITABLE:
        words = f"the embedded lab can't change {subresource}; use the real lab for that (kgpu lab up --real)"
        raise ApiError(501, "NotImplemented", words, {})


def _not_allowed() -> ApiError:
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message, {})
