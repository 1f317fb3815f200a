"""Every verb on resources: a checked request becomes a call of ``ApiCore``, its outcome an answer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from kgpu.lab.embedded.core.model import ApiUser, Call, ListPage, StoredObject, TypeRules
from kgpu.lab.embedded.core.serviceaccount import await_default_account
from kgpu.lab.embedded.duplicate_fields import Repeated, warnings, words
from kgpu.lab.embedded.http import answers, body, kubelets, logs, negotiate, options, proxy, streams, usage, watch
from kgpu.lab.embedded.http.answers import ApiAnswer, Columns
from kgpu.lab.embedded.http.metrics import Metrics
from kgpu.lab.embedded.http.request import ApiRequest, not_allowed, not_there
from kgpu.lab.embedded.kinds import METRICS_GROUP, ApiKind, Kinds
from kgpu.lab.embedded.patch import unsupported
from kgpu.lab.embedded.status import ApiError, Object, bad_request

if TYPE_CHECKING:
    from kgpu.lab.embedded.core import ApiCore
    from kgpu.lab.embedded.usage import UsageApi

_TOGETHER: Final = 10  # objects of a collection that are deleted before others get their turn
_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_PATCHES: Final = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    options.APPLY,
)
_OWN_RULES: Final = frozenset({"apiextensions.k8s.io"})  # groups whose rules only the event loop's thread may use
STREAMED: Final = frozenset({"exec", "attach", "portforward"})
_LEFT_OUT: Final = {"attach": "attach to", "proxy": "proxy to"}
_ANSWERED: Final = frozenset({"binding", "eviction", "token"})  # subresources whose answer is no object of the kind
_DEPRECATED: Final = {
    ("", "v1", "endpoints"): "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    ("", "v1", "componentstatuses"): "v1 ComponentStatus is deprecated in v1.19+",
}
Read = Callable[[], Awaitable[bytes]]


class Custom(Protocol):
    """What the handlers need of the CRDs."""

    def printer_columns(self, kind: ApiKind) -> list[Object]:
        """``additionalPrinterColumns`` of the version."""
        ...

    def deprecation(self, kind: ApiKind) -> str:
        """The warning in every answer of a deprecated version, else ""."""
        ...


@dataclass(slots=True, kw_only=True)
class HandlerContext:
    """What the handlers of all requests share."""

    core: ApiCore
    kinds: Kinds
    metrics: Metrics
    kubelets: kubelets.Kubelets
    programs: proxy.PodPrograms
    rules: Callable[[ApiKind], TypeRules]
    custom: Custom | None = None
    usage: UsageApi | None = None

    def columns(self, kind: ApiKind) -> Columns:
        printer = self.custom.printer_columns(kind) if kind.custom and self.custom is not None else ()
        return Columns(kind, printer)


@dataclass(slots=True, kw_only=True)
class ResourceRequest:
    """One request on a resource. ``read`` gives the body; ``warnings`` become headers; ``client`` is its address."""

    request: ApiRequest
    kind: ApiKind
    user: ApiUser
    read: Read
    warnings: list[str] = field(default_factory=list)
    client: str = ""

    @property
    def namespace(self) -> str:
        """The object's namespace; "" for cluster-scoped kinds, also for namespaces, whose path has one."""
        return self.request.namespace if self.kind.namespaced else ""

    @property
    def row(self) -> Object:
        """The discovery row of the subresource, {} without one."""
        return self.kind.subresources.get(self.request.subresource, {}) if self.request.subresource else {}


def kind_of(kinds: Kinds, request: ApiRequest) -> ApiKind:
    """The kind, when the path and the verb fit it. Raises ApiError 404 and 405."""
    kind = kinds.find(request.group, request.version, request.plural)
    if kind is None or (request.rest and not _goes_on(kind, request)):
        raise not_there()
    for part in (request.namespace, request.name):
        if part in (".", ".."):
            raise bad_request(
                f"{'Name' if part is request.name else 'Namespace'} parameter invalid: \"{part}\": may not be '{part}'"
            )
    whole = request.plural == "namespaces" and request.namespace == request.name
    # Without a namespace objects can be listed and watched, but their names mean nothing.
    wrong = request.name and not request.namespace if kind.namespaced else request.namespace and not whole
    if wrong:
        raise not_there()
    if request.subresource:
        if proxy.is_proxy_request(kind, request):
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
    """Whether a path may go on behind the subresource. For ``nodes/proxy`` it may: the refusal comes later."""
    return proxy.is_proxy_request(kind, request) or (kind.key == ("", "nodes") and request.subresource == "proxy")


def _fits(kind: ApiKind, request: ApiRequest) -> bool:
    """Whether the verb can be used on an object, or on a collection."""
    if request.name:
        return request.verb != "create"
    if request.verb in ("create", "deletecollection"):
        return bool(request.namespace) or not kind.namespaced
    return request.verb not in ("update", "patch")


async def answer(context: HandlerContext, resource_request: ResourceRequest) -> ApiAnswer:
    """Handle the request. Raises ApiError."""
    request = resource_request.request
    proxied = proxy.is_proxy_request(resource_request.kind, request)
    streamed = request.subresource in STREAMED | _LEFT_OUT.keys()
    if proxied or streamed:
        _connect(context, resource_request)
    if proxied:
        return await proxy.answer(
            request, resource_request.client, partial(_of_core, context), resource_request.read, context.programs
        )
    if streamed:
        obj = context.core.get(resource_request.kind, resource_request.namespace, request.name).obj
        if request.subresource in _LEFT_OUT:
            raise _no_streams(request, obj)
        return await streams.answer(request, obj, partial(_node, context), context.kubelets)
    if request.group == METRICS_GROUP and context.usage is not None:
        return await usage.answer(context.usage, request)
    deprecated = _DEPRECATED.get((request.group, request.version, request.plural))
    if resource_request.kind.custom and context.custom is not None:
        deprecated = context.custom.deprecation(resource_request.kind)
    if deprecated:
        resource_request.warnings.append(deprecated)
    reply = await _VERBS[request.verb](context, resource_request)
    if request.verb in _WRITES:
        await context.core.kept()
    return reply


def _connect(context: HandlerContext, resource_request: ResourceRequest) -> None:
    """Let admission review a connection. Raises ApiError if it refuses."""
    request, row = resource_request.request, resource_request.row
    group = f"{row['group']}/" if row.get("group") else ""
    obj: Object = {
        "kind": row.get("kind", ""),
        "apiVersion": f"{group}{row.get('version') or resource_request.kind.version}",
    }
    if request.subresource == "proxy" and request.rest:
        obj["path"] = "/" + "/".join(request.rest)
    query = request.query
    stream_options: Object = {name: query.flag(name) for name in ("stdin", "stdout", "stderr", "tty")}
    stream_options |= {"container": query.text("container"), "command": query.all("command")}
    obj |= {name: value for name, value in stream_options.items() if value}
    call = Call(user=resource_request.user, manager=request.agent)
    with _warned(resource_request, call):
        context.core.connect(
            resource_request.kind, resource_request.namespace, request.name, obj, call, subresource=request.subresource
        )


def _no_streams(request: ApiRequest, obj: Object) -> ApiError:
    """The refusal of a stream; for pods that the real server could not reach either, in its words."""
    if request.plural == "pods":
        streams.check_host(request, obj)
    what = _LEFT_OUT[request.subresource]
    message = f"the embedded lab can't {what} {request.plural}; use the real lab for that (kgpu lab up --real)"
    return ApiError(501, "NotImplemented", message, {"name": request.name, "kind": request.plural})


async def _get(context: HandlerContext, resource_request: ResourceRequest) -> ApiAnswer:
    request, kind = resource_request.request, resource_request.kind
    if request.subresource == "log":
        pod = context.core.get(kind, resource_request.namespace, request.name).obj
        return await logs.answer(request, pod, lambda name: _node(context, name), context.kubelets)
    wanted = negotiate.choose(request)
    stored = context.core.get(kind, resource_request.namespace, request.name, subresource=request.subresource)
    return await answers.of_stored(stored, context.columns(kind), request, wanted)


def _of_core(context: HandlerContext, plural: str, namespace: str, name: str) -> Object:
    return context.core.get(context.kinds.need("", plural), namespace, name).obj


def _node(context: HandlerContext, name: str) -> Object | None:
    try:
        return context.core.get(context.kinds.need("", "nodes"), "", name).obj
    except ApiError as error:
        if error.code == 404:
            return None
        raise


async def _list(context: HandlerContext, resource_request: ResourceRequest) -> ApiAnswer:
    request, kind = resource_request.request, resource_request.kind
    wanted = negotiate.choose(request)
    list_options = options.of_list(request, watch=False)
    page = context.core.list(
        kind, resource_request.namespace, labels=list_options.labels, fields=list_options.fields,
        limit=list_options.limit, token=list_options.token, version=list_options.version, match=list_options.match,
    )  # fmt: skip
    return await answers.of_page(page, context.columns(kind), request, wanted)


async def _watch(context: HandlerContext, resource_request: ResourceRequest) -> ApiAnswer:
    request, columns = resource_request.request, context.columns(resource_request.kind)
    wanted = negotiate.choose(request, watch=True)
    list_options = options.of_list(request, watch=True)
    return watch.answer(
        context.core, columns, resource_request.namespace, list_options, watch.form_of(columns, request, wanted)
    )


def _has_table(resource_request: ResourceRequest) -> bool:
    """Whether the answer can be a table; kinds that are never listed have none."""
    return "list" in resource_request.kind.verbs and resource_request.request.subresource not in _ANSWERED


async def _create(context: HandlerContext, resource_request: ResourceRequest) -> ApiAnswer:
    request, kind = resource_request.request, resource_request.kind
    wanted = negotiate.choose(request, tables=_has_table(resource_request))
    obj, call = await _object(context, resource_request, "CreateOptions")
    await await_default_account(context.core, kind, resource_request.namespace, obj, request.subresource)
    with _warned(resource_request, call):
        stored = context.core.create(
            kind, resource_request.namespace, obj, call, name=request.name, subresource=request.subresource
        )  # fmt: skip
    return await answers.of_stored(stored, context.columns(kind), request, wanted, 201)


async def _update(context: HandlerContext, resource_request: ResourceRequest) -> ApiAnswer:
    request, kind = resource_request.request, resource_request.kind
    wanted = negotiate.choose(request)
    obj, call = await _object(context, resource_request, "UpdateOptions")
    status = 200 if context.core.has(kind, resource_request.namespace, request.name) else 201
    with _warned(resource_request, call):
        stored = context.core.update(
            kind, resource_request.namespace, request.name, obj, call, subresource=request.subresource
        )
    return await answers.of_stored(stored, context.columns(kind), request, wanted, status)


@contextlib.contextmanager
def _warned(resource_request: ResourceRequest, call: Call) -> Iterator[None]:
    """Pass the call's warnings on to the client, even if the call is refused."""
    try:
        yield
    finally:
        resource_request.warnings.extend(call.warnings)


async def _object(context: HandlerContext, resource_request: ResourceRequest, name: str) -> tuple[Object, Call]:
    """The body's object and the call."""
    request, kind = resource_request.request, resource_request.kind
    data = await resource_request.read()
    call = options.of_write(request, resource_request.user, name)
    want = body.expected_type(kind, resource_request.row)
    obj, repeated = await body.object_of(data, request.header("content-type"), want)
    if kind.custom and want == (kind.api_version, kind.kind):
        obj = body.of_custom(obj, data, want)
    else:
        obj = body.of_kind(obj, want)
    if repeated is not None:
        obj = obj if kind.custom else body.of_kind(repeated.merged(obj), want)
        call = _repeated(resource_request, call, repeated, want[1])
    if (
        len(data) > body.SLOW
        and kind.stored
        and kind.group not in _OWN_RULES
        and not (resource_request.row or kind.custom)
    ):
        new = request.verb == "create"
        try:
            obj = await asyncio.to_thread(context.core.prepared, kind, obj, call, new=new)
        except ApiError:
            resource_request.warnings.extend(call.warnings)
            raise
        call = dataclasses.replace(call, prepared=True)
    return obj, call


def _repeated(resource_request: ResourceRequest, call: Call, repeated: Repeated, name: str = "") -> Call:
    """The call with its body's repeated fields. Bindings, which are decoded without their type, are refused or warned
    of here.

    ``name`` is the kind of a whole object, "" for a patch.
    """
    if resource_request.request.subresource != "binding" and resource_request.kind.key != ("", "bindings"):
        return dataclasses.replace(call, repeated=repeated)
    complaints = repeated.untyped()
    if call.validation == "Strict":
        begun = f'{name} in version "{resource_request.kind.version}" cannot be handled as a {name}: ' if name else ""
        raise bad_request(f"{begun}{words(complaints)}")
    if call.validation == "Warn":
        call.warnings.extend(warnings(complaints))
    return call


async def _patch(context: HandlerContext, resource_request: ResourceRequest) -> ApiAnswer:
    request, kind = resource_request.request, resource_request.kind
    wanted = negotiate.choose(request)
    media = body.media_of(request.header("content-type"))
    custom = kind.custom and media == _PATCHES[2]
    if media not in _PATCHES or custom:
        raise unsupported(custom=custom)
    data = await resource_request.read()
    call = options.of_write(request, resource_request.user, "PatchOptions", media=media)
    try:
        change, repeated = await _change(data, media)
    except ApiError:
        if media != options.APPLY:
            # A missing object is reported before a wrong patch.
            context.core.get(kind, resource_request.namespace, request.name)
        raise
    if repeated is not None:
        call = _repeated(resource_request, call, repeated)
    if media == options.APPLY and not context.core.has(kind, resource_request.namespace, request.name):
        await await_default_account(context.core, kind, resource_request.namespace, change, request.subresource)
    with _warned(resource_request, call):
        stored, created = context.core.patch(
            kind, resource_request.namespace, request.name, media, change, call, subresource=request.subresource
        )  # fmt: skip
    return await answers.of_stored(stored, context.columns(kind), request, wanted, 201 if created else 200)


async def _change(data: bytes, media: str) -> tuple[Any, Repeated | None]:
    """The decoded patch, and its body as it was written if a field is repeated, else None. Raises ApiError 400."""
    apply = media == options.APPLY
    try:
        change, repeated = await body.decode(data, "application/yaml" if apply else "application/json")
    except body.NotJson as error:
        message = (
            f"error decoding YAML: error converting YAML to JSON: {error}"
            if apply
            else f"error decoding patch: {error}"
        )
        raise bad_request(message) from None
    list_wanted = media == _PATCHES[0]
    if isinstance(change, list if list_wanted else dict):
        return change, repeated
    have = {dict: "object", list: "array", str: "string", bool: "bool", type(None): "null"}.get(type(change), "number")
    target = "[]handlers.jsonPatchOp" if list_wanted else "map[string]interface {}"
    prefix = "error decoding YAML: error unmarshaling JSON: while decoding JSON" if apply else "error decoding patch"
    raise bad_request(f"{prefix}: json: cannot unmarshal {have} into Go value of type {target}")


async def _delete(context: HandlerContext, resource_request: ResourceRequest) -> ApiAnswer:
    request, kind = resource_request.request, resource_request.kind
    wanted = negotiate.choose(request)
    delete_options = await options.of_delete(request, await resource_request.read())
    call = Call(
        user=resource_request.user,
        dry_run=delete_options.dry_run,
        manager=request.agent,
        options=delete_options.shown(),
    )
    with _warned(resource_request, call):
        obj, _ = context.core.delete(kind, resource_request.namespace, request.name, delete_options, call)
    return await answers.of_stored(StoredObject(obj, 0), context.columns(kind), request, wanted)


async def _delete_collection(context: HandlerContext, resource_request: ResourceRequest) -> ApiAnswer:
    request, kind = resource_request.request, resource_request.kind
    wanted = negotiate.choose(request)
    list_options = options.of_list(request, watch=False)
    delete_options = await options.of_delete(request, await resource_request.read())
    call = Call(
        user=resource_request.user,
        dry_run=delete_options.dry_run,
        manager=request.agent,
        options=delete_options.shown(),
    )
    deleted = []
    with _warned(resource_request, call):
        for stored in context.core.delete_collection(
            kind, resource_request.namespace, delete_options, call,
            labels=list_options.labels, fields=list_options.fields,
        ):  # fmt: skip
            deleted.append(stored)
            if len(deleted) % _TOGETHER == 0:
                await asyncio.sleep(0)
    version = str(context.core.store.revision)
    return await answers.of_page(ListPage(deleted, version), context.columns(kind), request, wanted)


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
