"""What the real server publishes, as ``tools/api_openapi.py`` recorded it in ``data/openapi.json.xz``.

The file is opened when a document is first asked for. Pieces stay encoded: a document is put together from them, never
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
    """A document: its ``schemas`` are names of ``Recording.schemas``, ``components`` what else there is."""

    openapi: str
    info: msgspec.Raw
    paths: dict[str, msgspec.Raw]
    schemas: list[str]
    components: dict[str, msgspec.Raw]


class Templates(msgspec.Struct):
    """How custom kinds are published; names that differ from kind to kind are placeholders such as ``@GROUP@``.

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
    """Decompressed; a few megabytes that stay. Call it from a thread: it takes some tens of milliseconds."""
    import lzma

    return decode(lzma.decompress(_file()), Recording)


@functools.cache
def digest() -> str:
    """Of the file: what is recorded has changed when this has."""
    return hashlib.sha512(_file()).hexdigest()


def _file() -> bytes:
    package = __package__.rpartition(".")[0]
    return resources.files(package).joinpath("data", "openapi.json.xz").read_bytes()


def parts(path: str) -> Parts:
    """Of a recorded document. KeyError when there is none."""
    return recording().documents[path]


def document(path: str) -> bytes:
    """A recorded document. KeyError when there is none."""
    found = parts(path)
    schemas = {name: recording().schemas[name] for name in found.schemas}
    return joined(found.openapi, found.info, found.paths, schemas, found.components)


def joined(openapi: str, info: msgspec.Raw, paths: Pieces, schemas: Pieces, components: Pieces) -> bytes:
    """A document of encoded pieces."""
    inner = {**({"schemas": members(schemas)} if schemas else {}), **components}
    outer = {"openapi": msgspec.Raw(msgspec.json.encode(openapi)), "info": info, "paths": members(paths)}
    return bytes(members({**outer, **({"components": members(inner)} if inner else {})}))


def members(pieces: Pieces) -> msgspec.Raw:
    """A JSON object of encoded values."""
    return msgspec.Raw(b"{%b}" % b",".join(b"%b:%b" % (msgspec.json.encode(name), one) for name, one in pieces.items()))


def closure(pieces: Iterable[bytes], table: Pieces) -> dict[str, msgspec.Raw]:
    """The schemas of ``table`` that the pieces need, and those that these need, by name."""
    found: dict[str, msgspec.Raw] = {}
    queue = [bytes(piece) for piece in pieces]
    while queue:
        for name in {match.decode() for match in _REFERENCE.findall(queue.pop())}:
            if name in table and name not in found:
                found[name] = table[name]
                queue.append(bytes(table[name]))
    return dict(sorted(found.items()))
