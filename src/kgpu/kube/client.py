"""The real API server: lightkube finds and authenticates the connection, objects pass as plain dictionaries.

lightkube's typed resources are not loaded: they would drop unknown fields, and its watch has no bookmarks. What is used
of it is the part that is hard to get right: kubeconfig, in-cluster token with reload, exec credentials, client
certificates, and TLS with the cluster's CA alone. Imports of it are inside functions, so that a process that never
talks to an API server does not pay for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import msgspec

from kgpu.base.errors import KubeError
from kgpu.kube import guard, protobuf_answer
from kgpu.kube.port import (
    EVERYTHING,
    PODS,
    Change,
    KubeRefusedError,
    KubeUnreachableError,
    Listing,
    Object,
    Patch,
    Project,
    Resource,
    Selector,
    ServedResources,
    WatchEvent,
)
from kgpu.kube.refusal import causes_of
from kgpu.kube.wire import HttpAnswer, Wire, WireError

if TYPE_CHECKING:
    import httpx2
    from lightkube.config.kubeconfig import SingleConfig

DEADLINE: Final = 10.0  # seconds for one request
WATCH_SECONDS: Final = 290  # after which the server is asked to end a watch, so that a dead connection is noticed
_LIMIT: Final = 64 << 20
_LIMIT_OF_LISTS: Final = 1 << 30
"""Bytes of an answer: a page has hundreds of objects, and each may have as much as etcd takes, 1.5 MiB."""
_APPLY: Final = "application/apply-patch+yaml"
_BRIEF: Final = f"{protobuf_answer.CONTENT_TYPE},application/json"
_METADATA: Final = "application/json;as={};g=meta.k8s.io;v=v1,application/json"
_AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"

_TODO_BY_CODE: Final = {
    401: "check the credentials: the kubeconfig's user, or the pod's service account token",
    403: "give the service account the permission that the message names (RBAC)",
    404: "check that the kind is installed (its CRD) and the name is right",
    409: "another writer was faster or owns the field; it is tried again",
    410: "it is read anew",
    422: "report this together with the message: the object that kgpu wrote is not valid",
    429: "the API server is overloaded; it is tried again",
}


class Client:
    """A ``KubeApi`` over one connection pool of the library, and ``wire`` for all but watches where it can be had.

    ``namespace`` is that of the kubeconfig's context, for those who name none.
    """

    def __init__(self, http: httpx2.AsyncClient, wire: Wire | None = None, namespace: str = "default") -> None:
        self.namespace = namespace
        self._http = http
        self._wire = wire
        self._credentials: dict[str, str] | None = None

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Object | None:
        try:
            return await self._call("GET", _path(resource, namespace, name))
        except KubeRefusedError as refused:
            if refused.code == 404:
                return None
            raise

    async def list(
        self, resource: Resource, *, namespace: str = "", selector: Selector = EVERYTHING,
        project: Project | None = None,
    ) -> Listing:  # fmt: skip
        query = {"limit": str(resource.page), **_query(selector)}
        accept = _METADATA.format("PartialObjectMetadataList") if resource.metadata_only else "application/json"
        items: list[Object] = []
        # Items of a list come without the fields that say what they are, or say that they are metadata.
        what = {"apiVersion": resource.api_version, "kind": resource.kind}
        while True:
            page = await self._call("GET", _path(resource, namespace), query, accept=accept, small=False)
            if "items" not in page:  # it must not be taken for an empty list
                raise _nonsense("GET", _path(resource, namespace), str(page))
            metadata = page.get("metadata") or {}
            objects = ({**item, **what} for item in page.get("items") or ())
            items.extend(map(project, objects) if project else objects)
            query["continue"] = metadata.get("continue") or ""
            if not query["continue"]:
                return Listing(tuple(items), str(metadata.get("resourceVersion") or ""))

    async def watch(
        self, resource: Resource, resource_version: str, *, namespace: str = "", selector: Selector = EVERYTHING
    ) -> AsyncIterator[WatchEvent]:
        import httpx2

        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
            "resourceVersion": resource_version,
            **_query(selector),
        }
        path = _path(resource, namespace)
        timeout = httpx2.Timeout(DEADLINE, read=WATCH_SECONDS + DEADLINE)
        accept = _METADATA.format("PartialObjectMetadata") if resource.metadata_only else "application/json"
        try:
            async with self._http.stream(
                "GET", path, params=query, timeout=timeout, headers={"Accept": accept}
            ) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise _refusal("GET", path, answer)
                yield WatchEvent(Change.BOOKMARK, {"metadata": {"resourceVersion": resource_version}})
                async for line in answer.aiter_lines():
                    if line.strip():
                        yield _watch_event(path, line)
        except httpx2.HTTPError as error:
            raise _unreachable("GET", path, self._http, error) from error

    async def apply(
        self, resource: Resource, obj: Object, *, manager: str, subresource: str = "", force: bool = True
    ) -> Object:
        metadata = obj.get("metadata") or {}
        path = _path(resource, str(metadata.get("namespace") or ""), str(metadata["name"]), subresource)
        body = {**obj, "apiVersion": resource.api_version, "kind": resource.kind}
        query = {"fieldManager": manager, "force": str(force).lower()}
        accept = _BRIEF if resource.metadata_only else "application/json"
        return await self._call("PATCH", path, query, body, _APPLY, accept=accept)

    async def patch(
        self, resource: Resource, name: str, change: Object, *, namespace: str = "", subresource: str = "",
        kind: Patch = Patch.MERGE,
    ) -> Object:  # fmt: skip
        return await self._call("PATCH", _path(resource, namespace, name, subresource), {}, change, kind)

    async def replace(self, resource: Resource, obj: Object) -> Object:
        """Write the whole object as it was read, its version included, with what has changed; 409 when there is another
        one by now. For rights that have ``update`` and not ``patch``; what can apply applies.
        """
        metadata = obj.get("metadata") or {}
        path = _path(resource, str(metadata.get("namespace") or ""), str(metadata["name"]))
        body = {**obj, "apiVersion": resource.api_version, "kind": resource.kind}
        return await self._call("PUT", path, {}, body, "application/json")

    async def create(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        metadata = obj.get("metadata") or {}
        name = str(metadata["name"]) if subresource else ""
        what = {} if subresource else {"apiVersion": resource.api_version, "kind": resource.kind}
        path = _path(resource, str(metadata.get("namespace") or ""), name, subresource)
        return await self._call("POST", path, {}, {**obj, **what}, "application/json")

    async def try_create(self, resource: Resource, obj: Object) -> Object:
        path = _path(resource, str((obj.get("metadata") or {}).get("namespace") or ""))
        body = {**obj, "apiVersion": resource.api_version, "kind": resource.kind}
        return await self._call("POST", path, {"dryRun": "All", "fieldValidation": "Strict"}, body, "application/json")

    async def delete(
        self, resource: Resource, name: str, *, namespace: str = "", grace: int | None = None, uid: str = "",
        propagation: str = "",
    ) -> bool:  # fmt: skip
        options: Object = {} if grace is None else {"gracePeriodSeconds": grace}
        if uid:
            options["preconditions"] = {"uid": uid}
        if propagation:
            options["propagationPolicy"] = propagation
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options} if options else None
        try:
            await self._call("DELETE", _path(resource, namespace, name), {}, body, "application/json")
        except KubeRefusedError as refused:
            if refused.code == 404:
                return False
            raise
        return True

    async def discover(self) -> ServedResources:
        version = await self._call("GET", "/version")
        resources: tuple[Resource, ...] = ()
        for path in ("/api", "/apis"):
            answer = await self._call("GET", path, accept=_AGGREGATED, small=False)
            resources += aggregated(answer) if "items" in answer else await self._discover_each(path, answer)
        return ServedResources(version_numbers(str(version.get("gitVersion"))), resources)

    async def _discover_each(self, path: str, answer: Object) -> tuple[Resource, ...]:
        """A server without aggregated discovery: one call per group."""
        core: Object = {"name": "", "preferredVersion": {"version": "v1"}}
        groups = [core] if path == "/api" else answer.get("groups")
        resources: tuple[Resource, ...] = ()
        for group in groups or ():
            name, version = str(group["name"]), str(group["preferredVersion"]["version"])
            with contextlib.suppress(KubeRefusedError):  # a group whose own server is away hides only itself
                listed = await self._call("GET", "/".join(part for part in (path, name, version) if part))
                rows = [row for row in listed.get("resources") or () if "/" not in row["name"]]
                resources += tuple(Resource(name, version, row["name"], row["kind"], row["namespaced"]) for row in rows)
        return resources

    async def pod_page(
        self, namespace: str, pod: str, port: int, path: str, *, scheme: str = "http", limit: int = 8 << 20,
        query: dict[str, str] | None = None,
    ) -> str:  # fmt: skip
        target = f"{_path(PODS, namespace, f'{scheme}:{pod}:{port}', 'proxy')}{path}"
        return (await self._read(target, query or {}, accept="text/plain", limit=limit)).text

    async def pod_log(self, namespace: str, pod: str, query: dict[str, str], *, limit: int = 8 << 20) -> bytes:
        """What ``pods/log`` answers to that query, of at most ``limit`` bytes; the right is ``get`` of it.

        Raises KubeRefusedError or KubeUnreachableError.
        """
        return (await self._read(_path(PODS, namespace, pod, "log"), query, accept="*/*", limit=limit)).content

    async def follow_pod_log(self, namespace: str, pod: str, query: dict[str, str]) -> AsyncIterator[bytes]:
        """What ``pods/log`` answers, in pieces as it is written, until the container or the server ends it.

        Raises KubeRefusedError or KubeUnreachableError.
        """
        import httpx2

        path = _path(PODS, namespace, pod, "log")
        timeout = httpx2.Timeout(DEADLINE, read=None)  # a container may say nothing for days
        query = {**query, "follow": "true"}
        try:
            async with self._http.stream("GET", path, params=query, timeout=timeout) as answer:
                if answer.status_code >= 300:
                    await answer.aread()
                    raise _refusal("GET", path, answer)
                async for piece in answer.aiter_bytes():
                    yield piece
        except httpx2.HTTPError as error:
            raise _unreachable("GET", path, self._http, error) from error

    async def close(self) -> None:
        await self._http.aclose()
        if self._wire is not None:
            await self._wire.close()

    async def _read(self, path: str, query: dict[str, str], *, accept: str, limit: int) -> HttpAnswer | httpx2.Response:
        """A raw answer, not an API object."""
        import httpx2

        try:
            async with asyncio.timeout(DEADLINE):
                answer = await self._send("GET", path, query, None, {"Accept": accept}, small=True, limit=limit)
        except (httpx2.HTTPError, WireError, TimeoutError) as error:
            raise _unreachable("GET", path, self._http, error) from error
        if answer.status_code >= 300:
            raise _refusal("GET", path, answer)
        return answer

    async def _call(
        self, method: str, path: str, query: dict[str, str] | None = None, body: Any = None, content_type: str = "",
        *, accept: str = "application/json", small: bool = True,
    ) -> Object:  # fmt: skip
        """``small``: the answer is an object or less, which needs no compression."""
        import httpx2

        content = None if body is None else msgspec.json.encode(body)
        headers = {"Accept": accept} | ({"Content-Type": content_type} if content is not None else {})
        try:
            # The library's own timeouts are per read: a server that drips bytes would never end the call.
            async with asyncio.timeout(DEADLINE):
                answer = await self._send(method, path, query or {}, content, headers, small=small)
        except (httpx2.HTTPError, WireError, TimeoutError) as error:
            raise _unreachable(method, path, self._http, error) from error
        if answer.status_code >= 400:
            raise _refusal(method, path, answer)
        try:
            short = answer.content.startswith(protobuf_answer.MAGIC)
            decoded = protobuf_answer.read(answer.content) if short else msgspec.json.decode(answer.content)
        except (ValueError, RecursionError) as error:  # a DecodeError is a ValueError
            raise _nonsense(method, path, answer.text) from error
        if not isinstance(decoded, dict):
            raise _nonsense(method, path, answer.text)
        return decoded

    async def _send(
        self, method: str, path: str, query: dict[str, str], content: bytes | None, headers: dict[str, str], *,
        small: bool, limit: int = 0,
    ) -> HttpAnswer | httpx2.Response:  # fmt: skip
        if self._wire is not None:
            if self._credentials is None:
                self._credentials = await _credentials(self._http)
            target = f"{path}?{urlencode(query)}" if query else path
            packed = {} if small else {"Accept-Encoding": "gzip"}
            answer = await self._wire.request(
                method, target, {**headers, **packed, **self._credentials}, content or b"",
                limit=limit or (_LIMIT if small else _LIMIT_OF_LISTS),
            )  # fmt: skip
            if answer.status_code != 401 and not 300 <= answer.status_code < 400:
                return answer
            self._credentials = None  # the library renews them, and follows where it is sent
        if method != "GET":
            guard.check()
        return await self._http.request(method, path, params=query, content=content, headers=headers)


async def _credentials(http: httpx2.AsyncClient) -> dict[str, str]:
    """The headers that the library's way of authentication puts on a request."""
    auth = http.auth
    if auth is None:
        return {}
    request = http.build_request("GET", "/")
    before = set(request.headers)
    flow = auth.async_auth_flow(request)
    try:
        signed = await anext(flow)
    finally:
        await flow.aclose()
    return {name: value for name, value in signed.headers.items() if name not in before}


def _wire(config: SingleConfig) -> Wire | None:
    """The direct connection; None behind a proxy, which only the library can use."""
    from lightkube.config.client_adapter import verify_cluster

    proxies = {name.lower() for name, value in os.environ.items() if value} & {"http_proxy", "https_proxy", "all_proxy"}
    if proxies or config.user is None or getattr(config.cluster, "proxy_url", None):
        return None
    return Wire(config.cluster.server, verify_cluster(config.cluster, config.user, config.abs_file))


def connect(kubeconfig: str = "", *, context: str = "") -> Client:
    """A client for the cluster that ``kubeconfig`` names; "" means in-cluster, else $KUBECONFIG, else ~/.kube/config.

    Nothing is sent yet. Raises KubeError when no configuration can be found or read.
    """
    try:
        from lightkube.config.client_adapter import AsyncClient, ConnectionParams
        from lightkube.config.kubeconfig import KubeConfig

        if kubeconfig:
            config = KubeConfig.from_file(kubeconfig)
        elif os.environ.get("KUBERNETES_SERVICE_HOST") and os.path.exists(f"{_SERVICE_ACCOUNT}/token"):
            config = KubeConfig.from_service_account(_SERVICE_ACCOUNT)
        else:
            config = KubeConfig.from_file(os.environ.get("KUBECONFIG") or "~/.kube/config")
        single = config.get(context or None)
        if single is None:
            raise ValueError("it has no current context")
        if single.user is None:
            raise ValueError(f'its context "{single.context_name}" names no user')
        return Client(AsyncClient(single, ConnectionParams()), _wire(single), single.namespace)
    # The library reports a bad file as whatever it stumbled over: OSError, KeyError, yaml and msgspec errors.
    except Exception as error:
        where = kubeconfig or os.environ.get("KUBECONFIG") or "the pod's service account or ~/.kube/config"
        raise KubeError(
            f"can't read the connection to the API server from {where}: {type(error).__name__}: {error}",
            "a kubeconfig with a current context, or a pod with a service account",
            "name one with --kubeconfig or KUBECONFIG",
        ) from error


def _path(resource: Resource, namespace: str, name: str = "", subresource: str = "") -> str:
    parts = ["apis", resource.group, resource.version] if resource.group else ["api", resource.version]
    if resource.namespaced and namespace:
        parts += ["namespaces", namespace]
    parts.append(resource.plural)
    parts += [part for part in (name, subresource) if part]
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _query(selector: Selector) -> dict[str, str]:
    pairs = {"fieldSelector": (selector.fields, ()), "labelSelector": (selector.labels, selector.has)}
    texts = {key: [*(f"{name}={value}" for name, value in exact), *has] for key, (exact, has) in pairs.items()}
    return {key: ",".join(selectors) for key, selectors in texts.items() if selectors}


def aggregated(answer: Object) -> tuple[Resource, ...]:
    """The kinds of an APIGroupDiscoveryList, each in the first version of its group that has it."""
    resources: dict[tuple[str, str], Resource] = {}
    for group in answer.get("items") or ():
        name = str((group.get("metadata") or {}).get("name") or "")
        for version in group.get("versions") or ():
            for row in version.get("resources") or ():
                resource = Resource(
                    name, str(version["version"]), str(row["resource"]), str(row["responseKind"]["kind"]),
                    row.get("scope") == "Namespaced",
                )  # fmt: skip
                resources.setdefault((name, resource.plural), resource)
    return tuple(resources.values())


def version_numbers(git_version: str) -> tuple[int, int]:
    """Major and minor of a version as in ``v1.35.4+k3s1``; (0, 0) for what can't be read."""
    match = re.match(r"v?(\d+)\.(\d+)", git_version, re.ASCII)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _watch_event(path: str, line: str) -> WatchEvent:
    try:
        event = msgspec.json.decode(line)
        kind, obj = event["type"], event["object"]
        if kind == "ERROR":
            raise _status_error("GET", path, int(obj.get("code") or 500), obj)
        return WatchEvent(Change(kind), obj)
    except (msgspec.DecodeError, RecursionError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _nonsense("GET", path, line) from error


def _refusal(method: str, path: str, answer: HttpAnswer | httpx2.Response) -> KubeRefusedError:
    try:
        short = answer.content.startswith(protobuf_answer.MAGIC)
        status = protobuf_answer.read_status(answer.content) if short else answer.json()
    except ValueError:
        status = {}
    return _status_error(method, path, answer.status_code, status if isinstance(status, dict) else {})


def _status_error(method: str, path: str, code: int, status: Object) -> KubeRefusedError:
    message = str(status.get("message") or "no reason given")
    remedy = _TODO_BY_CODE.get(code, "see the API server's log")
    if code == 403 and " quota: " in message:  # exceeded, or one of what a container does not ask for
        remedy = "ask for less, or for what the quota wants, or raise it: kubectl describe quota"
    return KubeRefusedError(
        f"the API server refused {method} {path}: {message} ({code})",
        "a request that it accepts",
        remedy,
        code=code,
        reason=str(status.get("reason") or ""),
        message=message,
        causes=causes_of(status.get("details")),
    )


def _unreachable(method: str, path: str, http: httpx2.AsyncClient, error: Exception) -> KubeUnreachableError:
    detail = " ".join(str(error).split())
    return KubeUnreachableError(
        f"no answer from the API server at {http.base_url} to {method} {path}: {detail or type(error).__name__}",
        f"an answer within {DEADLINE:g} seconds",
        "check the address, the network and that the API server runs; it is tried again",
    )


def _nonsense(method: str, path: str, text: str) -> KubeUnreachableError:
    return KubeUnreachableError(
        f"what answered {method} {path} is no API server: {text[:80]!r}",
        "a JSON object",
        "check the address in the kubeconfig; a proxy or login page may stand in front",
    )
