"""Asks registries whether images are there: one HEAD of each manifest, as anybody, within a deadline for all of them.

Promises: nothing is downloaded; no credentials are sent; redirects are not followed; it never raises but for
cancellation. Where a registry wants a login, refuses or does not answer, nothing is known, and that is said. So it is
where something else answers in its place, such as a proxy's page: that has the code of an answer, and not its form. The
protocol is OCI's distribution specification, with the token of anonymous users (``WWW-Authenticate: Bearer``).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from kgpu.base.printable import one_line
from kgpu.base.threads import beside
from kgpu.doctor.preflight.model import RegistryAnswer

if TYPE_CHECKING:
    import httpx2

DEADLINE: Final = 15.0
"""Seconds for all images."""
AT_ONCE: Final = 4
MAX_IMAGES: Final = 64
MAX_TOKEN: Final = 64 * 1024
"""Bytes of a token's answer."""
DEFAULT: Final = "registry-1.docker.io"
_MANIFESTS: Final = (
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
)
_MANIFEST: Final = "application/vnd."
_DIGEST: Final = "docker-content-digest"
"""The header by which registries name what they have."""
_PAGES: Final = frozenset({"text/html", "application/xhtml+xml"})
_MAX_FORM: Final = 60
_FIELD: Final = re.compile(r'(\w+)="([^"]*)"')
_LOCAL: Final = re.compile(r"(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])(?::\d+)?$")
"""Registries that container runtimes ask without TLS."""


@dataclass(frozen=True, slots=True)
class ImageName:
    """A reference taken apart. ``version`` is a tag or a digest."""

    host: str
    path: str
    version: str

    @property
    def url(self) -> str:
        scheme = "http" if _LOCAL.match(self.host) else "https"
        return f"{scheme}://{self.host}/v2/{self.path}/manifests/{self.version}"


def parsed(image: str) -> ImageName:
    """As container runtimes read it: a reference without a registry is Docker Hub's, one without a tag ``latest``."""
    name, at, digest = image.partition("@")
    head, slash, rest = name.partition("/")
    hosted = bool(slash) and ("." in head or ":" in head or head == "localhost")
    host, path = (head, rest) if hosted else (DEFAULT, name)
    path, colon, tag = path.partition(":")
    if not hosted and "/" not in path:
        path = f"library/{path}"
    return ImageName(host, path, digest if at else tag if colon else "latest")


async def ask(images: Iterable[str], *, deadline: float = DEADLINE) -> dict[str, RegistryAnswer]:
    """The answers by image; what is not answered in time is unknown."""
    asked = list(dict.fromkeys(images))
    late = RegistryAnswer(exists=None, why=f"the registry has not answered within {deadline:g} seconds")
    answers = dict.fromkeys(asked, late)
    for image in asked[MAX_IMAGES:]:
        answers[image] = RegistryAnswer(exists=None, why=f"no more than {MAX_IMAGES} images are asked for")
    if not asked:
        return answers
    http = await beside(lambda: _client(deadline))
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(image: str) -> None:
        async with gate:
            try:
                answers[image] = await _ask(http, parsed(image))
            except Exception as error:  # whatever a client library, a proxy or a registry does: nothing is known then
                answers[image] = RegistryAnswer(exists=None, why=_why(error, parsed(image).host))

    try:
        async with asyncio.timeout(deadline):
            await asyncio.gather(*(one(image) for image in asked[:MAX_IMAGES]))
    except TimeoutError:
        pass
    finally:
        await http.aclose()
    return answers


def _client(deadline: float) -> httpx2.AsyncClient:
    """Reading the system's certificates takes a while: this runs in a thread."""
    import httpx2

    return httpx2.AsyncClient(
        verify=ssl.create_default_context(), follow_redirects=False, timeout=deadline,
        headers={"User-Agent": "kgpu", "Accept": _MANIFESTS},
    )  # fmt: skip


async def _ask(http: httpx2.AsyncClient, name: ImageName) -> RegistryAnswer:
    answer = await http.head(name.url)
    if answer.status_code == 401:
        token = await _token(http, name, answer.headers.get("www-authenticate", ""))
        if token is None:
            return RegistryAnswer(exists=None, why=f"{name.host} wants a login")
        answer = await http.head(name.url, headers={"Authorization": f"Bearer {token}"})
    return _answer(answer.status_code, answer.headers, name.host)


def _answer(code: int, headers: Mapping[str, str], host: str) -> RegistryAnswer:
    form = headers.get("content-type", "").partition(";")[0].strip().lower()
    if code == 200 and (form.startswith(_MANIFEST) or _DIGEST in headers):
        return RegistryAnswer(exists=True)
    if code == 200 or (code == 404 and form in _PAGES):
        said = f"answers {code} with {one_line(form, _MAX_FORM) or 'nothing'}"
        return RegistryAnswer(exists=None, why=f"{host} {said}: no registry does, so that something else has answered")
    if code == 404:
        return RegistryAnswer(exists=False, why=f"{host} has no such image")
    if code in (401, 403):
        return RegistryAnswer(exists=None, why=f"{host} wants a login")
    return RegistryAnswer(exists=None, why=f"{host} answers {code}")


async def _token(http: httpx2.AsyncClient, name: ImageName, challenge: str) -> str | None:
    """The token that anybody gets; None where there is none for anybody."""
    scheme, _, rest = challenge.partition(" ")
    fields = dict(_FIELD.findall(rest))
    realm = urlsplit(fields.get("realm", ""))
    safe = realm.scheme == "https" or (
        realm.scheme == "http" and _LOCAL.match(name.host) and _LOCAL.match(realm.netloc)
    )
    if scheme.lower() != "bearer" or not safe:
        return None
    query = {"scope": fields.get("scope") or f"repository:{name.path}:pull"}
    if "service" in fields:
        query["service"] = fields["service"]
    async with http.stream("GET", fields["realm"], params=query, headers={"Accept": "application/json"}) as answer:
        if answer.status_code != 200:
            return None
        body = b""
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > MAX_TOKEN:
                return None
    return _token_in(body)


def _token_in(body: bytes) -> str | None:
    import msgspec

    try:
        found = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return None
    token = (found.get("token") or found.get("access_token")) if isinstance(found, dict) else None
    return token if isinstance(token, str) and token.isascii() and token.isprintable() else None


def _why(error: BaseException, host: str) -> str:
    """What failed, in words of our own."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate of {host} is not accepted: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    return f"{host} can't be reached"
