"""Paths that are no resources: discovery, version, health, metrics and OpenAPI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol
from urllib.parse import quote

from kgpu.formats.names import METRICS_TYPE
from kgpu.lab.embedded.auth import ISSUER
from kgpu.lab.embedded.core.model import encode
from kgpu.lab.embedded.http import answers, discovery, metrics, negotiate
from kgpu.lab.embedded.http.answers import ApiAnswer
from kgpu.lab.embedded.http.request import ApiRequest, not_there
from kgpu.lab.embedded.kinds import discovery_data
from kgpu.lab.embedded.status import ApiError, Object

ISSUER_PATH: Final = "/.well-known/openid-configuration"
KEYS_PATH: Final = "/openid/v1/jwks"
KNOWN: Final = frozenset({
    "/api", "/apis", "/version", "/healthz", "/livez", "/readyz", "/metrics", "/openapi", "/", "/.well-known",
    "/openid",
})  # fmt: skip
_KEYS_MEDIA: Final = "application/jwk-set+json"
_FOR_AN_HOUR: Final = [("Cache-Control", "public, max-age=3600")]
_HEALTH: Final = ("/healthz", "/livez", "/readyz")
_OPENAPI: Final = "/openapi/v3"
_OPENAPI_2: Final = "/openapi/v2"
# Clients ask with an @, which no media type can have; the answer has the valid name.
_OPENAPI_2_MEDIA: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

Check = Callable[[], str]
""""" when all is well, else what is wrong."""


class Documents(Protocol):
    """The OpenAPI documents; ``openapi.OpenApi``."""

    def index(self) -> Object:
        """Path -> serverRelativeURL."""
        ...

    def document(self, path: str) -> bytes | None:
        """``api/v1`` or ``apis/GROUP/VERSION``, encoded; None when there is none."""
        ...

    def hash_of(self, path: str) -> str:
        """A hash of the document; "" when there is none."""
        ...

    def v2_hash(self) -> str:
        """A hash of the OpenAPI v2 document."""
        ...

    def v2_document(self, *, protobuf: bool) -> bytes:
        """The OpenAPI v2 document."""
        ...


class Issuer(Protocol):
    """The signer of service accounts' tokens; ``auth.Auth``."""

    def public_keys(self) -> list[Object]:
        """JSON web keys."""
        ...


class NonResourcePaths:
    """Answers the requests that name no resource."""

    def __init__(
        self, discovery_documents: discovery.Discovery, request_metrics: metrics.Metrics, *,
        documents: Documents | None = None, ready: Mapping[str, Check] | None = None, issuer: Issuer | None = None,
        address: str = "",
    ) -> None:  # fmt: skip
        """``ready``: the checks of /readyz by name; /healthz and /livez only show that the server answers.

        ``address`` is HOST:PORT, under which clients find the ``issuer``'s keys.
        """
        self._issuer, self._address = issuer, address
        self._discovery = discovery_documents
        self._metrics = request_metrics
        self._documents = documents
        self._checks: dict[str, Check] = {"ping": lambda: "", "log": lambda: "", **(ready or {})}

    async def answer(self, request: ApiRequest) -> ApiAnswer:
        """Raises ApiError 404 and 405."""
        path = request.path.rstrip("/") or "/"
        top = path if path == "/" else "/" + path.split("/")[1]
        handler = self._HANDLERS.get(top)
        if handler is None:
            return answers.text("404 page not found\n", 404)
        if request.method not in ("GET", "HEAD") and top not in _HEALTH:
            if top in ("/api", "/apis") and self._discovery.document(path) is None:  # of a group that nobody serves
                return answers.text("404 page not found\n", 404)
            message = "the server does not allow this method on the requested resource"
            raise ApiError(405, "MethodNotAllowed", message, {})
        answer: ApiAnswer = await handler(self, request, path)
        return answer

    async def _root(self, request: ApiRequest, path: str) -> ApiAnswer:
        del path
        health = [check_path for top in _HEALTH for check_path in (top, *(f"{top}/{name}" for name in self._checks))]
        openapi = ["/openapi/v2", "/openapi/v3", "/openapi/v3/"] if self._documents is not None else []
        issuer = [ISSUER_PATH, KEYS_PATH] if self._issuer is not None else []
        paths = sorted([*self._discovery.paths(), *health, *issuer, "/metrics", *openapi, "/version"])
        return await answers.of_value({"paths": paths}, request, negotiate.Representation())

    async def _discovery_document(self, request: ApiRequest, path: str) -> ApiAnswer:
        if path in ("/api", "/apis"):
            version = discovery.wanted_version(request.header("accept"))
            if version:
                data = self._discovery.aggregated(path, version)
                media = discovery.AGGREGATED.format(version)
                return _with_etag(request, data + b"\n", media, discovery.etag(data), public=True)
        document = self._discovery.document(path)
        if document is None:
            group = path.split("/")[2] if path.count("/") >= 2 else ""
            if path.count("/") == 3 and self._discovery.document(f"/apis/{group}") is not None:
                raise not_there()
            return answers.text("404 page not found\n", 404)
        if negotiate.pretty(request) or "yaml" in request.header("accept"):
            return await answers.of_encoded(document, request, negotiate.choose(request))
        return ApiAnswer(200, document + b"\n")

    async def _version(self, request: ApiRequest, path: str) -> ApiAnswer:
        if path != "/version":
            return answers.text("404 page not found\n", 404)
        del request
        return ApiAnswer(200, answers.dumped(version()))

    async def _health(self, request: ApiRequest, path: str) -> ApiAnswer:
        top, _, single = path[1:].partition("/")
        if single and single not in self._checks:
            return answers.text("404 page not found\n", 404)
        if single:
            problem = self._checks[single]()
            return answers.text(f"internal server error: {problem}\n", 500) if problem else answers.text("ok")
        skipped = set(request.query.all("exclude"))
        lines, failed = [], []
        for name, check in self._checks.items():
            problem = "" if name in skipped or top != "readyz" else check()
            if problem:
                failed.append(name)
                lines.append(f"[-]{name} failed: {problem}")
            else:
                lines.append(f"[+]{name} excluded: ok" if name in skipped else f"[+]{name} ok")
        unknown = ",".join(f'"{name}"' for name in sorted(skipped - set(self._checks)))
        if unknown:
            lines.append(f"warn: some health checks cannot be excluded: no matches for {unknown}")
        if failed:
            return answers.text("\n".join([*lines, f"{top} check failed", ""]), 500)
        if "verbose" not in request.query:
            return answers.text("ok")
        return answers.text("\n".join([*lines, f"{top} check passed", ""]))

    async def _issuer_document(self, request: ApiRequest, path: str) -> ApiAnswer:
        """The issuer of service accounts' tokens and its public keys (OpenID Connect discovery)."""
        if self._issuer is None or path not in (ISSUER_PATH, KEYS_PATH):
            return answers.text("404 page not found\n", 404)
        media = _KEYS_MEDIA if path == KEYS_PATH else "application/json"
        accepted = {clause.partition(";")[0].strip() for clause in (request.header("accept") or "*/*").split(",")}
        if not accepted & {media, "*/*"}:
            return answers.text(f"406: Not Acceptable\n\nAvailable representations: {media}", 406)
        if path == KEYS_PATH:
            return ApiAnswer(200, encode({"keys": self._issuer.public_keys()}), media, _FOR_AN_HOUR)
        about = {
            "issuer": ISSUER,
            "jwks_uri": f"https://{self._address}{KEYS_PATH}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": sorted({key["alg"] for key in self._issuer.public_keys()}),
        }
        return ApiAnswer(200, encode(about), media, _FOR_AN_HOUR)

    async def _metrics_text(self, request: ApiRequest, path: str) -> ApiAnswer:
        del request
        if path != "/metrics":
            return answers.text("404 page not found\n", 404)
        return ApiAnswer(200, self._metrics.render(), METRICS_TYPE)

    async def _openapi(self, request: ApiRequest, path: str) -> ApiAnswer:
        if path == _OPENAPI_2 and self._documents is not None:
            protobuf = _OPENAPI_2_MEDIA in request.header("accept").replace("@", ".")
            tag, media = f'"{self._documents.v2_hash()}"', _OPENAPI_2_MEDIA if protobuf else "application/json"
            if _is_known(request, tag):
                return _with_etag(request, b"", media, tag)
            document = await asyncio.to_thread(self._documents.v2_document, protobuf=protobuf)
            return _with_etag(request, document, media, tag)
        if self._documents is None or not (path == _OPENAPI or path.startswith(f"{_OPENAPI}/")):
            return answers.text("404 page not found\n", 404)
        name = path.removeprefix(_OPENAPI).strip("/")
        if not name:
            return ApiAnswer(200, encode(self._documents.index()) + b"\n")
        digest = self._documents.hash_of(name)
        if not digest:
            return answers.text("404 page not found\n", 404)
        wanted_digest = request.query.text("hash")
        if wanted_digest and wanted_digest != digest:
            headers = [("Location", f"{_OPENAPI}/{quote(name)}?hash={digest}"), ("ETag", f'"{digest}"')]
            return ApiAnswer(301, headers=[*headers, ("Vary", "Accept")])
        data = await asyncio.to_thread(self._documents.document, name)
        reply = _with_etag(request, data or b"{}", "application/json", f'"{digest}"')
        if wanted_digest:
            # The URL changes with the content, so clients may cache it.
            reply.headers += [("Cache-Control", "public, immutable"), ("Expires", "Fri, 31 Dec 2100 00:00:00 GMT")]
        return reply

    _HANDLERS: Final[dict[str, Any]] = {
        "/": _root,
        "/api": _discovery_document,
        "/apis": _discovery_document,
        "/version": _version,
        **dict.fromkeys(_HEALTH, _health),
        "/metrics": _metrics_text,
        "/openapi": _openapi,
        "/.well-known": _issuer_document,
        "/openid": _issuer_document,
    }


def version() -> Object:
    """The document of ``/version``: the Kubernetes version whose behaviour this server has."""
    text = discovery_data()["version"]
    major, minor = text.removeprefix("v").split(".")[:2]
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(int(minor) - 1),
        "gitVersion": text,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "kgpu embedded lab",
        "platform": "linux/amd64",
    }


def _is_known(request: ApiRequest, tag: str) -> bool:
    return tag in (etag.strip() for etag in request.header("if-none-match").split(","))


def _with_etag(request: ApiRequest, data: bytes, media: str, tag: str, *, public: bool = False) -> ApiAnswer:
    headers = [("ETag", tag), ("Vary", "Accept")]
    if public:
        headers.append(("Cache-Control", "public"))
    if _is_known(request, tag):
        return ApiAnswer(304, media=media, headers=headers)
    return ApiAnswer(200, data, media, headers)
