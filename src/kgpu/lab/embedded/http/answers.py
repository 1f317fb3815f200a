"""Answers: objects, lists, tables and Status in the requested representation.

Objects are encoded once per revision (``StoredObject.encoded``); a list is put together from those bytes.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import gzip
import json
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from kgpu.formats import yaml
from kgpu.lab.embedded.core.model import ListPage, StoredObject, decode, encode
from kgpu.lab.embedded.http.negotiate import JSON, YAML, Representation, choose, pretty
from kgpu.lab.embedded.http.request import ApiRequest
from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.status import ApiError, Object, bad_request
from kgpu.lab.embedded.tables import render

TEXT: Final = "text/plain; charset=utf-8"
GZIP_BYTES: Final = 128 * 1024  # answers from this size on are compressed for clients that accept it
_SLOW: Final = 64 * 1024
_TOGETHER: Final = 50  # items of a list that are encoded between two turns of the loop
_ROWS: Final = 50  # rows of a table that are made between two turns of the loop
_INCLUDES: Final = frozenset({"", "None", "Metadata", "Object"})


class ConnectionTunnel(Protocol):
    """What a connection is for once it is no HTTP any more."""

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use the client's connection until the end, and close it."""
        ...

    def close(self) -> None:
        """It is not wanted any more."""
        ...


@dataclass(slots=True)
class ApiAnswer:
    """What is sent: ``body``, or the chunks of ``stream`` for as long as the client listens, or what ``tunnel`` says.

    ``over`` is set once the stream gets nothing new: a client that does not read the rest in time is cut off.
    """

    status: int = 200
    body: bytes = b""
    media: str = JSON
    headers: list[tuple[str, str]] = field(default_factory=list)
    stream: AsyncIterable[bytes] | None = None
    tunnel: ConnectionTunnel | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)


def text(content: str, status: int = 200) -> ApiAnswer:
    """An answer of plain text, as from Go's http.Error."""
    return ApiAnswer(status, content.encode(), TEXT, [("X-Content-Type-Options", "nosniff")])


def of_error(error: ApiError, request: ApiRequest | None) -> ApiAnswer:
    """The error as a Status."""
    status = error.to_status()
    headers = []
    after = (error.details or {}).get("retryAfterSeconds")
    if after:
        headers.append(("Retry-After", str(after)))
    if request is not None and _wants_yaml(request):
        return ApiAnswer(error.code, _as_yaml(encode(status)), YAML, headers)
    for_person = request is not None and pretty(request)
    return ApiAnswer(error.code, dumped(status) if for_person else encode(status) + b"\n", JSON, headers)


def _wants_yaml(request: ApiRequest) -> bool:
    try:
        return choose(request).media == YAML
    except ApiError:
        return False


def dumped(value: Any) -> bytes:
    """Indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False).encode()


async def of_value(value: Any, request: ApiRequest, wanted: Representation, status: int = 200) -> ApiAnswer:
    """An answer of plain JSON data."""
    return await of_encoded(encode(value), request, wanted, status)


async def of_encoded(data: bytes, request: ApiRequest, wanted: Representation, status: int = 200) -> ApiAnswer:
    """An answer of JSON that is encoded already."""
    if wanted.media == YAML:
        return ApiAnswer(status, (await _maybe_later(len(data), _as_yaml, data)), YAML)
    if pretty(request):
        return ApiAnswer(status, await _maybe_later(len(data), _as_pretty, data))
    return ApiAnswer(status, data + b"\n")


async def _maybe_later(size: int, work: Any, data: bytes) -> bytes:
    encoded: bytes = await asyncio.to_thread(work, data) if size > _SLOW else work(data)
    return encoded


def _as_yaml(data: bytes) -> bytes:
    # With sorted keys, as from the real server.
    return yaml.dump(decode(msgspec.json.encode(decode(data), order="sorted"))).encode()


def _as_pretty(data: bytes) -> bytes:
    return dumped(decode(data))


def metadata_only(obj: Object, version: str) -> Object:
    """The object's metadata as a PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": obj["metadata"]}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one kind's tables: ``printer`` are a CRD's own, () for a built-in kind."""

    kind: ApiKind
    printer: Sequence[Object] = ()


def table_of(
    columns: Columns, objects: Sequence[Object], request: ApiRequest, wanted: Representation, *,
    meta: Object | None = None, headers: bool = True,
) -> Object:  # fmt: skip
    """The objects as a Table. Raises ApiError 400 for an unknown includeObject."""
    include = request.query.text("includeObject")
    if include not in _INCLUDES:
        problem = f"includeObject: Invalid value: \"{include}\": must be 'Metadata', 'Object', 'None', or empty"
        raise bad_request(f"Unable to convert to Table as requested: {problem}")
    table = render(
        columns.kind, objects, now=dt.datetime.now(dt.UTC), printer_columns=columns.printer,
        include_object=include or "Metadata", list_meta=meta, headers=headers,
    )  # fmt: skip
    return table if wanted.version == "v1" else _beta(table, wanted.version)


def _beta(table: Object, version: str) -> Object:
    api_version = f"meta.k8s.io/{version}"
    rows = [
        {**row, "object": {**row["object"], "apiVersion": api_version}}
        if (row.get("object") or {}).get("kind") == "PartialObjectMetadata"
        else row
        for row in table.get("rows") or ()
    ]
    return {**table, "apiVersion": api_version, "rows": rows}


async def of_stored(
    stored: StoredObject, columns: Columns, request: ApiRequest, wanted: Representation, status: int = 200
) -> ApiAnswer:
    """An answer of one object: itself, a table or its metadata."""
    if not wanted.kind or stored.obj.get("kind") == "Status":
        return await of_encoded(stored.encoded(), request, wanted, status)
    if wanted.kind == "Table":
        return await of_value(table_of(columns, [stored.obj], request, wanted), request, wanted, status)
    if wanted.kind == "PartialObjectMetadata":
        return await of_value(metadata_only(stored.obj, wanted.version), request, wanted, status)
    raise _not_acceptable()


def _not_acceptable() -> ApiError:
    message = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml"
    return ApiError(406, "NotAcceptable", message, {})


def list_meta(page: ListPage) -> Object:
    """The metadata of the list."""
    meta: Object = {"resourceVersion": page.version}
    if page.token:
        meta["continue"] = page.token
        if page.remaining is not None:
            meta["remainingItemCount"] = page.remaining
    return meta


async def of_page(page: ListPage, columns: Columns, request: ApiRequest, wanted: Representation) -> ApiAnswer:
    """An answer of a list: itself, a table or a list of metadata."""
    meta = list_meta(page)
    if wanted.kind == "Table":
        table: Object = {}
        for start in range(0, max(1, len(page.items)), _ROWS):
            objects = [stored.obj for stored in page.items[start : start + _ROWS]]
            part = table_of(columns, objects, request, wanted, meta=meta)
            if table:
                table["rows"].extend(part["rows"])
                await asyncio.sleep(0)
            else:
                table = {**part, "rows": list(part.get("rows") or ())}
        return await of_value(table, request, wanted)
    if wanted.kind == "PartialObjectMetadataList":
        head = {"kind": wanted.kind, "apiVersion": f"meta.k8s.io/{wanted.version}", "metadata": meta}
        version = wanted.version
        data = await _joined(head, page.items, lambda stored: encode(metadata_only(stored.obj, version)))
        return await of_encoded(data, request, wanted)
    if wanted.kind:
        raise _not_acceptable()
    kind = columns.kind
    head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": meta}
    # Items of built-in kinds come without apiVersion and kind, as the real server sends them.
    form = StoredObject.encoded if kind.custom else functools.partial(_bare, kind)
    return await of_encoded(await _joined(head, page.items, form), request, wanted)


async def _joined(head: Object, items: Sequence[StoredObject], form: Callable[[StoredObject], bytes]) -> bytes:
    """The encoded list."""
    parts: list[bytes] = []
    for number, stored in enumerate(items):
        parts.append(form(stored))
        if number % _TOGETHER == _TOGETHER - 1:
            await asyncio.sleep(0)
    return b'%s,"items":[%s]}' % (encode(head)[:-1], b",".join(parts))


def _bare(kind: ApiKind, stored: StoredObject) -> bytes:
    data = stored.encoded()
    names = (kind.kind.encode(), kind.api_version.encode())
    begun = b'{"kind":"%s","apiVersion":"%s",' % names
    if data.startswith(begun):
        return b"{" + data[len(begun) :]
    return encode({name: value for name, value in stored.obj.items() if name not in ("kind", "apiVersion")})


async def compressed(answer: ApiAnswer, request: ApiRequest) -> ApiAnswer:
    """Gzip the answer if it is big and the client accepts that."""
    if len(answer.body) < GZIP_BYTES or answer.stream is not None:
        return answer
    if not any(part.split(";")[0].strip() == "gzip" for part in request.header("accept-encoding").split(",")):
        return answer
    answer.body = await asyncio.to_thread(gzip.compress, answer.body, 1)
    answer.headers += [("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")]
    return answer
