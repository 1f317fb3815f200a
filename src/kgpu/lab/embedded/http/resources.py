"""Every verb on resources: from a checked request to what ``ApiCore`` does, and back to an answer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from kgpu.lab.embedded.core.account import default_account
from kgpu.lab.embedded.core.model import ApiUser, Call, ListPage, StoredObject, TypeRules
from kgpu.lab.embedded.http import answers, body, logs, negotiate, options, proxy, watch
from kgpu.lab.embedded.http.answers import ApiAnswer, Columns
from kgpu.lab.embedded.http.metrics import Metrics
from kgpu.lab.embedded.http.request import ApiRequest, not_allowed, not_there
from kgpu.lab.embedded.kinds import ApiKind, Kinds
from kgpu.lab.embedded.patch import unsupported
from kgpu.lab.embedded.repeated import Repeated, warnings, words
from kgpu.lab.embedded.status import ApiError, Object, bad_request

if TYPE_CHECKING:
    from kgpu.lab.embedded.core import ApiCore

_TOGETHER: Final = 10  # objects of a collection that are deleted before others get their turn
_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_PATCHES: Final = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    options.APPLY,
)
_OWN_RULES: Final = frozenset({"apiextensions.k8s.io"})  # groups whose rules belong to the loop alone
_STREAMS: Final = {
    "exec": "run commands in", "attach": "attach to", "portforward": "forward ports to", "proxy": "proxy to",
}  # fmt: skip
_ANSWERED: Final = frozenset({"binding", "eviction", "token"})  # subresources that are asked for something
_DEPRECATED: Final = {
    ("", "v1", "endpoints"): "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    ("", "v1", "componentstatuses"): "v1 ComponentStatus is deprecated in v1.19+",
}
Read = Callable[[], Awaitable[bytes]]


class Custom(Protocol):
    """What is asked of the CRDs."""

    def printer_columns(self, kind: ApiKind) -> list[Object]:
        """``additionalPrinterColumns`` of the version."""
        ...

    def deprecation(self, kind: ApiKind) -> str:
        """What every answer of a deprecated version warns of, else ""."""
        ...


@dataclass(slots=True, kw_only=True)
class HandlerContext:
    """What the handlers work on."""

    core: ApiCore
    kinds: Kinds
    metrics: Metrics
    kubelets: logs.Kubelets
    programs: proxy.PodPrograms
    rules: Callable[[ApiKind], TypeRules]
    custom: Custom | None = None

    def columns(self, kind: ApiKind) -> Columns:
        printer = self.custom.printer_columns(kind) if kind.custom and self.custom is not None else ()
        return Columns(kind, printer)


@dataclass(slots=True, kw_only=True)
class ResourceRequest:
    """One request on a resource. ``read`` gives the body; ``warnings`` become headers; ``client``: its address."""

    request: ApiRequest
    kind: ApiKind
    user: ApiUser
    read: Read
    warnings: list[str] = field(default_factory=list)
    client: str = ""

    @property
    def namespace(self) -> str:
        """Where the object is; "" for kinds without, also for namespaces, whose path has one."""
        return self.request.namespace if self.kind.namespaced else ""

    @property
    def row(self) -> Object:
        """The discovery row of the subresource, {} without one."""
        return self.kind.subresources.get(self.request.subresource, {}) if self.request.subresource else {}


def find(kinds: Kinds, request: ApiRequest) -> ApiKind:
    """The kind, when the path and the verb fit it. Raises ApiError 404 and 405."""
    kind = kinds.find(request.group, request.version, request.plural)
    if kind is None or (request.rest and not _goes_on(kind, request)):
        raise not_there()
    for one in (request.namespace, request.name):
        if one in (".", ".."):
            raise bad_request(
                f"{'Name' if one is request.name else 'Namespace'} parameter invalid: \"{one}\": may not be '{one}'"
            )
    whole = request.plural == "namespaces" and request.namespace == request.name
    # Without a namespace objects can be listed and watched, but their names mean nothing.
    wrong = request.name and not request.namespace if kind.namespaced else request.namespace and not whole
    if wrong:
        raise not_there()
    if request.subresource:
        if proxy.fits(kind, request):
            return kind
        row = kind.subresources.get(request.subresource)
        if row is None:
            raise not_there()
        if request.method == "HEAD" or request.verb not in (row.get("verbs") or ("get", "patch", "update")):
            raise not_allowed()
        return kind
    if request.method == "HEAD" or request.verb not in kind.verbs or not _fits(kind, request):
        raise not_allowed()
    return kind


def _goes_on(kind: ApiKind, request: ApiRequest) -> bool:
    """Whether a path may go on behind the subresource; what is asked of a node's kubelet is refused later, in words."""
    return proxy.fits(kind, request) or (kind.key == ("", "nodes") and request.subresource == "proxy")


def _fits(kind: ApiKind, request: ApiRequest) -> bool:
    """Whether the verb can be used on an object, or on a collection."""
    if request.name:
        return request.verb != "create"
    if request.verb in ("create", "deletecollection"):
        return bool(request.namespace) or not kind.namespaced
    return request.verb not in ("update", "patch")


async def answer(served: HandlerContext, asked: ResourceRequest) -> ApiAnswer:
    """What the request comes to. Raises ApiError."""
    request = asked.request
    proxied = proxy.fits(asked.kind, request)
    if proxied or request.subresource in _STREAMS:
        _connect(served, asked)
    if proxied:
        return await proxy.answer(request, asked.client, partial(_of_core, served), asked.read, served.programs)
    if request.subresource in _STREAMS:
        raise _no_streams(request, served.core.get(asked.kind, asked.namespace, request.name).obj)
    deprecated = _DEPRECATED.get((request.group, request.version, request.plural))
    if asked.kind.custom and served.custom is not None:
        deprecated = served.custom.deprecation(asked.kind)
    if deprecated:
        asked.warnings.append(deprecated)
    found = await _VERBS[request.verb](served, asked)
    if request.verb in _WRITES:
        await served.core.kept()
    return found


def _connect(served: HandlerContext, asked: ResourceRequest) -> None:
    """Admission's word on a connection."""
    request, row = asked.request, asked.row
    group = f"{row['group']}/" if row.get("group") else ""
    obj: Object = {"kind": row.get("kind", ""), "apiVersion": f"{group}{row.get('version') or asked.kind.version}"}
    if request.subresource == "proxy" and request.rest:
        obj["path"] = "/" + "/".join(request.rest)
    query = request.query
    given: Object = {name: query.flag(name) for name in ("stdin", "stdout", "stderr", "tty")}
    given |= {"container": query.text("container"), "command": query.all("command")}
    obj |= {name: value for name, value in given.items() if value}
    call = Call(user=asked.user, manager=request.agent)
    with _warned(asked, call):
        served.core.connect(asked.kind, asked.namespace, request.name, obj, call, subresource=request.subresource)


def _no_streams(request: ApiRequest, obj: Object) -> ApiError:
    """Pods that the real server could not reach either are refused in its words."""
    if request.plural == "pods":
        if request.subresource in ("exec", "attach"):
            logs.container_of(obj, request.query.text("container"))
        if not (obj.get("spec") or {}).get("nodeName"):
            return bad_request(f"pod {request.name} does not have a host assigned")
    what = _STREAMS[request.subresource]
    message = f"the embedded lab can't {what} {request.plural}; use the real lab for that (kgpu lab up --real)"
    return ApiError(501, "NotImplemented", message, {"name": request.name, "kind": request.plural})


async def _get(served: HandlerContext, asked: ResourceRequest) -> ApiAnswer:
    request, kind = asked.request, asked.kind
    if request.subresource == "log":
        pod = served.core.get(kind, asked.namespace, request.name).obj
        return await logs.answer(request, pod, lambda name: _node(served, name), served.kubelets)
    wanted = negotiate.choose(request)
    stored = served.core.get(kind, asked.namespace, request.name, subresource=request.subresource)
    return await answers.of_stored(stored, served.columns(kind), request, wanted)


def _of_core(served: HandlerContext, plural: str, namespace: str, name: str) -> Object:
    return served.core.get(served.kinds.need("", plural), namespace, name).obj


def _node(served: HandlerContext, name: str) -> Object | None:
    try:
        return served.core.get(served.kinds.need("", "nodes"), "", name).obj
    except ApiError as error:
        if error.code == 404:
            return None
        raise


async def _list(served: HandlerContext, asked: ResourceRequest) -> ApiAnswer:
    request, kind = asked.request, asked.kind
    wanted = negotiate.choose(request)
    given = options.of_list(request, watch=False)
    page = served.core.list(
        kind, asked.namespace, labels=given.labels, fields=given.fields, limit=given.limit, token=given.token,
        version=given.version, match=given.match,
    )  # fmt: skip
    return await answers.of_page(page, served.columns(kind), request, wanted)


async def _watch(served: HandlerContext, asked: ResourceRequest) -> ApiAnswer:
    request, columns = asked.request, served.columns(asked.kind)
    wanted = negotiate.choose(request, watch=True)
    given = options.of_list(request, watch=True)
    return watch.answer(served.core, columns, asked.namespace, given, watch.form_of(columns, request, wanted))


def _has_table(asked: ResourceRequest) -> bool:
    """Whether there is a table of it: what is only asked, and never listed, has none."""
    return "list" in asked.kind.verbs and asked.request.subresource not in _ANSWERED


async def _create(served: HandlerContext, asked: ResourceRequest) -> ApiAnswer:
    request, kind = asked.request, asked.kind
    wanted = negotiate.choose(request, tables=_has_table(asked))
    obj, call = await _object(served, asked, "CreateOptions")
    await default_account(served.core, kind, asked.namespace, obj, request.subresource)
    with _warned(asked, call):
        found = served.core.create(
            kind, asked.namespace, obj, call, name=request.name, subresource=request.subresource
        )  # fmt: skip
    return await answers.of_stored(found, served.columns(kind), request, wanted, 201)


async def _update(served: HandlerContext, asked: ResourceRequest) -> ApiAnswer:
    request, kind = asked.request, asked.kind
    wanted = negotiate.choose(request)
    obj, call = await _object(served, asked, "UpdateOptions")
    status = 200 if served.core.has(kind, asked.namespace, request.name) else 201
    with _warned(asked, call):
        stored = served.core.update(kind, asked.namespace, request.name, obj, call, subresource=request.subresource)
    return await answers.of_stored(stored, served.columns(kind), request, wanted, status)


@contextlib.contextmanager
def _warned(asked: ResourceRequest, call: Call) -> Iterator[None]:
    """The call's warnings reach the client, also when it is refused."""
    try:
        yield
    finally:
        asked.warnings.extend(call.warnings)


async def _object(served: HandlerContext, asked: ResourceRequest, name: str) -> tuple[Object, Call]:
    """The body's object and the call."""
    request, kind = asked.request, asked.kind
    data = await asked.read()
    call = options.of_write(request, asked.user, name)
    want = body.wanted(kind, asked.row)
    obj, repeated = await body.object_of(data, request.header("content-type"), want)
    if kind.custom and want == (kind.api_version, kind.kind):
        obj = body.of_custom(obj, data, want)
    else:
        obj = body.of_kind(obj, want)
    if repeated is not None:
        obj = obj if kind.custom else body.of_kind(repeated.merged(obj), want)
        call = _repeated(asked, call, repeated, want[1])
    if len(data) > body.SLOW and kind.stored and kind.group not in _OWN_RULES and not (asked.row or kind.custom):
        new = request.verb == "create"
        try:
            obj = await asyncio.to_thread(served.core.prepared, kind, obj, call, new=new)
        except ApiError:
            asked.warnings.extend(call.warnings)
            raise
        call = dataclasses.replace(call, prepared=True)
    return obj, call


def _repeated(asked: ResourceRequest, call: Call, repeated: Repeated, name: str = "") -> Call:
    """The call with what its body has twice; bindings, which are read without their type, are looked at here.

    ``name`` is the kind of a whole object, "" for a patch.
    """
    if asked.request.subresource != "binding" and asked.kind.key != ("", "bindings"):
        return dataclasses.replace(call, repeated=repeated)
    complaints = repeated.untyped()
    if call.validation == "Strict":
        begun = f'{name} in version "{asked.kind.version}" cannot be handled as a {name}: ' if name else ""
        raise bad_request(f"{begun}{words(complaints)}")
    if call.validation == "Warn":
        call.warnings.extend(warnings(complaints))
    return call


async def _patch(served: HandlerContext, asked: ResourceRequest) -> ApiAnswer:
    request, kind = asked.request, asked.kind
    wanted = negotiate.choose(request)
    media = body.media_of(request.header("content-type"))
    custom = kind.custom and media == _PATCHES[2]
    if media not in _PATCHES or custom:
        raise unsupported(custom=custom)
    data = await asked.read()
    call = options.of_write(request, asked.user, "PatchOptions", media=media)
    try:
        change, repeated = await _change(data, media)
    except ApiError:
        if media != options.APPLY:
            served.core.get(kind, asked.namespace, request.name)  # that there is nothing to patch comes first
        raise
    if repeated is not None:
        call = _repeated(asked, call, repeated)
    if media == options.APPLY and not served.core.has(kind, asked.namespace, request.name):
        await default_account(served.core, kind, asked.namespace, change, request.subresource)
    with _warned(asked, call):
        stored, made = served.core.patch(
            kind, asked.namespace, request.name, media, change, call, subresource=request.subresource
        )  # fmt: skip
    return await answers.of_stored(stored, served.columns(kind), request, wanted, 201 if made else 200)


async def _change(data: bytes, media: str) -> tuple[Any, Repeated | None]:
    """A patch's body, decoded, and as it was written when a field is there twice. Raises ApiError 400."""
    apply = media == options.APPLY
    try:
        change, repeated = await body.decode(data, "application/yaml" if apply else "application/json")
    except body.NotJson as error:
        said = (
            f"error decoding YAML: error converting YAML to JSON: {error}"
            if apply
            else f"error decoding patch: {error}"
        )
        raise bad_request(said) from None
    list_wanted = media == _PATCHES[0]
    if isinstance(change, list if list_wanted else dict):
        return change, repeated
    have = {dict: "object", list: "array", str: "string", bool: "bool", type(None): "null"}.get(type(change), "number")
    target = "[]handlers.jsonPatchOp" if list_wanted else "map[string]interface {}"
    said = "error decoding YAML: error unmarshaling JSON: while decoding JSON" if apply else "error decoding patch"
    raise bad_request(f"{said}: json: cannot unmarshal {have} into Go value of type {target}")


async def _delete(served: HandlerContext, asked: ResourceRequest) -> ApiAnswer:
    request, kind = asked.request, asked.kind
    wanted = negotiate.choose(request)
    given = await options.of_delete(request, await asked.read())
    call = Call(user=asked.user, dry_run=given.dry_run, manager=request.agent, options=given.shown())
    with _warned(asked, call):
        obj, _ = served.core.delete(kind, asked.namespace, request.name, given, call)
    return await answers.of_stored(StoredObject(obj, 0), served.columns(kind), request, wanted)


async def _delete_collection(served: HandlerContext, asked: ResourceRequest) -> ApiAnswer:
    request, kind = asked.request, asked.kind
    wanted = negotiate.choose(request)
    listed = options.of_list(request, watch=False)
    given = await options.of_delete(request, await asked.read())
    call = Call(user=asked.user, dry_run=given.dry_run, manager=request.agent, options=given.shown())
    gone = []
    with _warned(asked, call):
        for one in served.core.delete_collection(
            kind, asked.namespace, given, call, labels=listed.labels, fields=listed.fields
        ):  # fmt: skip
            gone.append(one)
            if len(gone) % _TOGETHER == 0:
                await asyncio.sleep(0)
    version = str(served.core.store.revision)
    return await answers.of_page(ListPage(gone, version), served.columns(kind), request, wanted)


_VERBS: Final[dict[str, Callable[[HandlerContext, ResourceRequest], Awaitable[ApiAnswer]]]] = {
    "get": _get,
    "list": _list,
    "watch": _watch,
    "create": _create,
    "update": _update,
    "patch": _patch,
    "delete": _delete,
    "deletecollection": _delete_collection,
}
