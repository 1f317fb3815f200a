"""One request as the API sees it: verb, group, resource and name from method and path, and the query.

Pure. Authorization looks at ``attributes``; the rules are those of the real server's RequestInfo.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote

from kgpu.lab.embedded.status import ApiError, Object, bad_request

_VERBS: Final = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_OF_COLLECTIONS: Final = {"get": "list", "delete": "deletecollection"}
_NAMESPACE_PARTS: Final = frozenset({"status", "finalize"})
_FALSE: Final = frozenset({"false", "0"})


class Query:
    """Decoded query parameters; the first value of a name counts. ``raw`` is the query as it came."""

    __slots__ = ("_pairs", "raw")

    def __init__(self, text: str) -> None:
        pairs: dict[str, list[str]] = {}
        for name, value in parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=1000):
            pairs.setdefault(name, []).append(value)
        self._pairs = pairs
        self.raw = text

    def __contains__(self, name: str) -> bool:
        return name in self._pairs

    def text(self, name: str) -> str:
        """The value, "" if there is none."""
        values = self._pairs.get(name)
        return values[0] if values else ""

    def all(self, name: str) -> list[str]:
        """Every value that is not empty."""
        return [value for value in self._pairs.get(name, ()) if value]

    def flag(self, name: str) -> bool:
        """True unless it is absent, empty, ``false`` or ``0`` (the API's conversion of booleans)."""
        values = self._pairs.get(name)
        if not values:
            return False
        return values[0].lower() not in _FALSE

    def number(self, name: str) -> int | None:
        """An integer of 64 bits; ApiError 400 for anything else."""
        text = self.text(name)
        if not text:
            return None
        try:
            if not text.lstrip("+-").isascii() or not text.lstrip("+-").isdigit():
                raise ValueError(text)
            number = int(text) if len(text) <= 20 else 1 << 64
        except ValueError:
            raise bad_request(f'strconv.ParseInt: parsing "{text[:100]}": invalid syntax') from None
        if not -(1 << 63) <= number < 1 << 63:
            raise bad_request(f'strconv.ParseInt: parsing "{text[:100]}": value out of range')
        return number


@dataclass(slots=True, kw_only=True)
class ApiRequest:
    """``path`` is decoded and begins with a slash. ``resource`` False means a path such as ``/version``.

    ``headers`` have lower-case names. ``verb`` is the API's word (``list``), "" for methods that the API does not know.
    """

    method: str
    path: str
    query: Query
    headers: dict[str, str] = field(default_factory=dict)
    resource: bool = False
    verb: str = ""
    group: str = ""
    version: str = ""
    namespace: str = ""
    plural: str = ""
    name: str = ""
    subresource: str = ""
    rest: tuple[str, ...] = ()
    selected: str = ""  # the name that the field selector of a list names

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    @property
    def agent(self) -> str:
        """The client program's name, which is the field manager unless the client names one."""
        return self.header("user-agent").split("/")[0][:128]

    def attributes(self) -> Object:
        """As in a SubjectAccessReview's resourceAttributes or nonResourceAttributes."""
        if not self.resource:
            return {"verb": self.method.lower(), "path": self.path}
        attributes = {
            "verb": self.verb or self.method.lower(), "group": self.group, "version": self.version,
            "resource": self.plural, "subresource": self.subresource, "namespace": self.namespace,
            "name": self.name or self.selected,
        }  # fmt: skip
        return {name: value for name, value in attributes.items() if value}


def _joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The values by name; several of one name are joined by commas."""
    found: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def parse(method: str, raw_path: str, query: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> ApiRequest:
    """The request of a method, an undecoded path and an undecoded query."""
    try:
        parsed_query = Query(query)
    except ValueError:
        raise bad_request("too many query parameters") from None
    # Decoded as a whole, as the real server does: an escaped slash is a slash.
    path = unquote(raw_path, errors="replace") or "/"
    request = ApiRequest(
        method=method,
        path=path,
        query=parsed_query,
        headers=_joined(headers),
    )
    parts = path[1:].split("/")
    if len(parts) > 1 and not parts[-1]:
        parts.pop()  # a trailing slash changes nothing
    if parts[0] == "api" and len(parts) >= 3:
        request.version, parts = parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        request.group, request.version, parts = parts[1], parts[2], parts[3:]
    else:
        return request
    _resource(request, parts)
    return request


def _resource(request: ApiRequest, parts: list[str]) -> None:
    request.resource = True
    request.verb = _VERBS.get(request.method, "")
    if parts[0] == "namespaces" and len(parts) > 1:
        request.namespace = parts[1]
        if len(parts) > 2 and parts[2] not in _NAMESPACE_PARTS:
            parts = parts[2:]
    request.plural = parts[0]
    request.name = parts[1] if len(parts) > 1 else ""
    request.subresource = parts[2] if len(parts) > 2 else ""
    request.rest = tuple(parts[3:])
    if request.name:
        return
    request.verb = _OF_COLLECTIONS.get(request.verb, request.verb)
    if request.verb == "list" and request.query.flag("watch"):
        request.verb = "watch"
    # A selector by name asks for one object: authorization sees its name.
    if request.verb in ("list", "watch", "deletecollection"):
        for part in request.query.text("fieldSelector").split(","):
            key, equals, value = part.partition("=")
            if equals and key == "metadata.name":
                request.selected = value.lstrip("=")


def not_there() -> ApiError:
    """404 for paths below a group that name nothing."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def not_allowed() -> ApiError:
    """405."""
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message, {})
