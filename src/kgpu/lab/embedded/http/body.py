"""Request bodies: read within limits and decoded as Go's decoders would, with repeated fields reported.

Whatever bytes come in, the outcome is plain JSON data that can be encoded again, or an ApiError.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.formats import yaml
from kgpu.lab.embedded import protobuf
from kgpu.lab.embedded.core.model import in_order
from kgpu.lab.embedded.duplicate_fields import Repeated, yaml_lines
from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.status import ApiError, Object, bad_request, bad_value, invalid
from kgpu.lab.embedded.strict import Members

MAX_BYTES: Final = 3 * 1024 * 1024
# Functions that walk objects take two frames of Python's stack for each level.
MAX_DEPTH: Final = 250
SLOW: Final = 64 * 1024  # bytes whose decoding is left to another thread
_UNUSUAL: Final = re.compile(rb"\\u[dD][89a-fA-F]|[0-9]{18}|[0-9][eE]")
HEAD: Final = 'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
_GO_KINDS: Final = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
JSON_TYPES: Final = frozenset({"application/json", ""})
YAML_TYPES: Final = frozenset({"application/yaml", "text/yaml", "text/x-yaml"})
KNOWN_TYPES: Final = JSON_TYPES | YAML_TYPES | {protobuf.MEDIA}

Receive = Callable[[], Awaitable[Any]]


class NotJson(Exception):  # noqa: N818 - an outcome that callers put into their own words, never an error shown as it is
    """The text is not JSON; the message is Go's."""


async def read(receive: Receive, length: str) -> bytes:
    """The whole body. Raises ApiError 413 when it is too large."""
    if length.isdigit() and (len(length) > 12 or int(length) > MAX_BYTES):
        raise _too_large()
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise bad_request("the client went away before its request was complete")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BYTES:
            raise _too_large()
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)


def _too_large() -> ApiError:
    return ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BYTES}")


async def decode(data: bytes, media: str) -> tuple[Any, Repeated | None]:
    """(value, the body as it was written if a field is repeated, else None). Raises NotJson."""
    if len(data) > SLOW:
        return await asyncio.to_thread(decode_now, data, media)
    return decode_now(data, media)


def decode_now(data: bytes, media: str) -> tuple[Any, Repeated | None]:
    """As ``decode``, but in the calling thread."""
    if media not in YAML_TYPES:
        return from_json(data)
    value, repeated = _of_json_in_yaml(data) if data.lstrip()[:1] in (b"{", b"[") else _of_yaml(data)
    # The real server converts YAML to JSON with sorted keys before it decodes it: errors come in that order.
    return in_order(value), repeated


def _of_json_in_yaml(data: bytes) -> tuple[Any, Repeated | None]:
    """Try the JSON parser first, which is faster; almost-JSON, as with a comma before a bracket, may still be YAML."""
    try:
        value, repeated = from_json(data)
    except NotJson:
        return _of_yaml(data)
    return value, _of_yaml(data)[1] if repeated else None


def _of_yaml(data: bytes) -> tuple[Any, Repeated | None]:
    try:
        document = yaml.load_document(data.decode("utf-8", "replace"), source="body", repeated=True)
    except ConfigError as error:
        raise NotJson(f"yaml: {' '.join(_yaml_complaint(error).split())}") from None
    return document.value, Repeated(lines=yaml_lines(document.repeated)) if document.repeated else None


def _yaml_complaint(error: ConfigError) -> str:
    """``line 3: did not find ...``, as from Go's parser."""
    if isinstance(error, yaml.YamlSyntaxError) and error.line is not None:
        return f"line {error.line}: {error.complaint}"
    return error.what


def from_json(data: bytes) -> tuple[Any, Repeated | None]:
    """As ``decode``. Numbers and texts that JSON can't carry are decoded as Go does."""
    again = False

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal again
        decoded = dict(items)
        again = again or len(decoded) != len(items)
        return decoded

    unusual = _UNUSUAL.search(data) is not None
    text = data.decode("utf-8", "replace")
    value = _parsed(text, pairs, unusual=unusual)
    _limit_depth(value, data)
    if not again:
        return _without_surrogates(value) if unusual else value, None
    members = _parsed(text, Members, unusual=unusual)
    _limit_depth(members, data)
    if unusual:
        value, members = _without_surrogates(value), _without_surrogates(members)
    return value, Repeated(members)


def _parsed(text: str, pairs: Callable[[list[tuple[str, Any]]], Any], *, unusual: bool) -> Any:
    numbers: dict[str, Any] = {"parse_int": _integer, "parse_float": _float} if unusual else {}
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=_constant, **numbers)
    except RecursionError:
        raise NotJson("exceeded max depth") from None
    except json.JSONDecodeError as error:
        raise NotJson(_complaint(text, error)) from None


def _constant(name: str) -> Any:
    raise NotJson(f"invalid character '{name.lstrip('-')[0]}' looking for beginning of value")


def _integer(text: str) -> int | float:
    if len(text) < 19:
        return int(text)
    number = int(text) if len(text) < 25 else 1 << 64
    return number if -(1 << 63) <= number < 1 << 63 else _float(text)


def _float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise NotJson(f"json: cannot unmarshal number {text[:40]} into Go value of type float64")
    return number


def _complaint(text: str, error: json.JSONDecodeError) -> str:
    if error.pos >= len(text.rstrip()) or "Unterminated string" in error.msg:
        return "unexpected end of JSON input"
    where = {
        "Expecting value": "looking for beginning of value",
        "Extra data": "after top-level value",
        "Expecting ',' delimiter": "after object key:value pair",
        "Expecting ':' delimiter": "after object key",
        "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
    }.get(error.msg, "in string literal")
    return f"invalid character {_quoted(text[error.pos])} {where}"


def _quoted(character: str) -> str:
    return "'\\''" if character == "'" else f"'{json.dumps(character)[1:-1]}'"


def _limit_depth(value: Any, data: bytes) -> None:
    if data.count(b"{") + data.count(b"[") <= MAX_DEPTH:
        return
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for container in level:
            inner = _inside(container)
            deeper.extend(item for item in inner if isinstance(item, dict | list))
        if not deeper:
            return
        level = deeper
    raise NotJson("exceeded max depth")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Members):
        return (member for _, member in value)
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, Members):
        return Members((_without_surrogates(key), _without_surrogates(member)) for key, member in value)
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_without_surrogates(element) for element in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(member) for key, member in value.items()}
    return value


def go_kind(value: Any) -> str:
    """The name that Go's error messages have for the type of a JSON value."""
    return _GO_KINDS.get(type(value), "value")


def media_of(content_type: str) -> str:
    """The media type without parameters, in lower case."""
    if not content_type.strip():
        return ""
    return content_type.split(";", 1)[0].strip().lower() or "?"


async def object_of(data: bytes, content_type: str, want: tuple[str, str]) -> tuple[Object, Repeated | None]:
    """The object of a create or an update, and the body as it was written if a field is repeated, else None.

    ``want`` is the expected (apiVersion, kind). Raises ApiError 400 and 415.
    """
    kind = want[1]
    media = media_of(content_type)
    if media not in KNOWN_TYPES:
        raise unsupported()
    unrecognized = f"the object provided is unrecognized (must be of type {kind}): "
    begun = f"{unrecognized}couldn't get version/kind; json parse error: "
    if media == protobuf.MEDIA:
        try:
            return await of_protobuf(data, want), None
        except protobuf.BadMessageError as error:
            if not error.kind:
                raise bad_request(f"{unrecognized}{error} ({_shown(data)})") from None
            version = error.api_version.rpartition("/")[2]
            raise bad_request(f'{error.kind} in version "{version}" cannot be handled as a {kind}: {error}') from None
    try:
        value, repeated = await decode(data, media)
    except NotJson as error:
        begun = begun.partition("couldn't get")[0] if str(error).startswith("yaml: ") else begun
        raise bad_request(f"{begun}{error} ({_shown(data)})") from None
    if not isinstance(value, dict):
        if value is None and data:
            value = {}
        else:
            go_type = go_kind(value)
            raise bad_request(f"{begun}json: cannot unmarshal {go_type} into Go value of type {HEAD} ({_shown(data)})")
    for name in ("apiVersion", "kind"):
        field_value = value.get(name)
        if field_value is not None and not isinstance(field_value, str):
            go_type = go_kind(field_value)
            problem = f"json: cannot unmarshal {go_type} into Go struct field .{name} of type string"
            raise bad_request(f"{begun}{problem} ({_shown(data)})")
    return value, repeated


async def of_protobuf(data: bytes, default: tuple[str, str]) -> Object:
    """As ``protobuf.decode``. Raises protobuf.BadMessageError."""
    if len(data) > SLOW:
        return await asyncio.to_thread(protobuf.decode, data, default, _json_in_protobuf)
    return protobuf.decode(data, default, _json_in_protobuf)


def _json_in_protobuf(data: bytes) -> Any:
    try:
        return from_json(data)[0]
    except NotJson as error:
        raise protobuf.BadMessageError(str(error)) from None


def expected_type(kind: ApiKind, row: Object) -> tuple[str, str]:
    """The (apiVersion, kind) of a body. ``row``: the discovery row of a subresource, {} for the kind itself."""
    version = row.get("version") or kind.version
    group = row.get("group") or ("" if row.get("version") else kind.group)
    return f"{group}/{version}" if group else version, row.get("kind") or kind.kind


# (apiVersion, kind) of bodies that are accepted as another version's, which has the same fields.
_CONVERTED: Final = frozenset({("policy/v1beta1", "Eviction", "policy/v1", "Eviction")})


def of_kind(obj: Object, want: tuple[str, str]) -> Object:
    """The object with apiVersion and kind filled in. Raises ApiError 400 if it names others than ``want``."""
    api_version, kind = want
    have_kind, have_version = obj.get("kind") or kind, obj.get("apiVersion") or api_version
    if (have_version, have_kind) == want or (have_version, have_kind, *want) in _CONVERTED:
        return {"kind": kind, "apiVersion": api_version} | {
            name: value for name, value in obj.items() if name not in ("kind", "apiVersion")
        }
    short = have_version.rpartition("/")[2]
    reason = not_registered(have_kind, have_version)
    if (have_version, have_kind) in protobuf.types():
        group = api_version.partition(".")[0].partition("/")[0] if "/" in api_version else "core"
        reason = f"converting ({short}.{have_kind}) to ({group}.{kind}): unknown conversion"
    raise bad_request(f'{have_kind} in version "{short}" cannot be handled as a {kind}: {reason}')


def of_custom(obj: Object, data: bytes, want: tuple[str, str]) -> Object:
    """As ``of_kind`` for a custom kind, which the body must name. ``data``: the body. Raises ApiError 400 and 422."""
    api_version, kind = want
    have_version, have_kind = obj.get("apiVersion") or "", obj.get("kind") or ""
    if not have_kind:
        why = f"Object 'Kind' is missing in '{data.decode('utf-8', 'replace')}' ({_shown(data)})"
        raise bad_request(f"the object provided is unrecognized (must be of type {kind}): {why}")
    if have_version != api_version:
        why = f"does not match the expected API version ({api_version})"
        raise bad_request(f"the API version in the data ({have_version}) {why}")
    if have_kind != kind:
        metadata = obj.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else ""
        group = api_version.rpartition("/")[0]
        raise invalid(group, have_kind, str(name or ""), [bad_value("kind", have_kind, f"must be {kind}")])
    return of_kind(obj, want)


def not_registered(kind: str, api_version: str) -> str:
    """Go's message for a kind that the API does not have."""
    return f'no kind "{kind}" is registered for version "{api_version}" in scheme "pkg/runtime/scheme.go:111"'


def unsupported() -> ApiError:
    """415 for bodies in a format that is not known."""
    offered = f"application/json, application/yaml, {protobuf.MEDIA}"
    message = f"the body of the request was in an unknown format - accepted media types include: {offered}"
    return ApiError(415, "UnsupportedMediaType", message)


def _shown(data: bytes) -> str:
    if not data:
        return "<empty>"
    text = data.decode("utf-8", "replace").strip()
    if text.startswith("{"):
        return text if len(text) <= 30 else f"{text[:30]} ..."
    return data.hex() if len(data) <= 30 else f"{data[:30].hex()} ..."
