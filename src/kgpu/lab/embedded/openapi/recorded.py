"""What the real server publishes, as ``tools/api_openapi.py`` recorded it in ``data/openapi.json.xz``.

The file is opened at the first request for a document. Pieces stay encoded: a document is assembled from them, never
decoded and encoded again. The texts are those of the Kubernetes API (Apache License 2.0).
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Final

import msgspec

from kgpu.base.typed import decode

Pieces = Mapping[str, msgspec.Raw]
"""Encoded values by name."""

_REFERENCE: Final = re.compile(rb'"#/components/schemas/([^"]+)"')


class Parts(msgspec.Struct):
    """A document: its ``schemas`` are names of ``Recording.schemas``, ``components`` its other components."""

    openapi: str
    info: msgspec.Raw
    paths: dict[str, msgspec.Raw]
    schemas: list[str]
    components: dict[str, msgspec.Raw]


class Templates(msgspec.Struct):
    """The document of a custom kind, with placeholders such as ``@GROUP@`` for its names.

    ``namespaced`` and ``cluster`` are paths with every subresource; ``schemas`` those that differ from the built-in
    groups' (with the object's and the list's own).
    """

    openapi: str
    info: msgspec.Raw
    namespaced: dict[str, msgspec.Raw]
    cluster: dict[str, msgspec.Raw]
    schemas: dict[str, msgspec.Raw]


class Recording(msgspec.Struct):
    """The whole file."""

    documents: dict[str, Parts]
    schemas: dict[str, msgspec.Raw]
    custom: Templates


@functools.cache
def recording() -> Recording:
    """The decompressed recording, a few megabytes that stay. Call it from a thread: it takes tens of milliseconds."""
    import lzma

    return decode(lzma.decompress(_file()), Recording)


@functools.cache
def digest() -> str:
    """A hash of the file."""
    return hashlib.sha512(_file()).hexdigest()


def _file() -> bytes:
    package = __package__.rpartition(".")[0]
    return resources.files(package).joinpath("data", "openapi.json.xz").read_bytes()


def parts(path: str) -> Parts:
    """The parts of a recorded document. Raises KeyError when there is none."""
    return recording().documents[path]


def document(path: str) -> bytes:
    """A recorded document. Raises KeyError when there is none."""
    document_parts = parts(path)
    schemas = {name: recording().schemas[name] for name in document_parts.schemas}
    return joined(document_parts.openapi, document_parts.info, document_parts.paths, schemas, document_parts.components)


def joined(openapi: str, info: msgspec.Raw, paths: Pieces, schemas: Pieces, components: Pieces) -> bytes:
    """A document of encoded pieces."""
    inner = {**({"schemas": members(schemas)} if schemas else {}), **components}
    outer = {"openapi": msgspec.Raw(msgspec.json.encode(openapi)), "info": info, "paths": members(paths)}
    return bytes(members({**outer, **({"components": members(inner)} if inner else {})}))


def members(pieces: Pieces) -> msgspec.Raw:
    """A JSON object of encoded values."""
    return msgspec.Raw(
        b"{%b}" % b",".join(b"%b:%b" % (msgspec.json.encode(name), value) for name, value in pieces.items())
    )


def closure(pieces: Iterable[bytes], table: Pieces) -> dict[str, msgspec.Raw]:
    """The schemas of ``table`` that the pieces need, and those that these need, by name."""
    needed: dict[str, msgspec.Raw] = {}
    queue = [bytes(piece) for piece in pieces]
    while queue:
        for name in {match.decode() for match in _REFERENCE.findall(queue.pop())}:
            if name in table and name not in needed:
                needed[name] = table[name]
                queue.append(bytes(table[name]))
    return dict(sorted(needed.items()))
