"""OpenAPI v3 of the built-in kinds and the CRDs: what kubectl's apply, explain and validation read.

Built-in groups are published as the real server publishes them, descriptions and all (``recorded``); custom kinds as it
would publish them (``custom``). URLs have a hash of the document's sources, so that clients may cache it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.lab.embedded.crd.custom_kinds import CustomKinds
from kgpu.lab.embedded.crd.version import Version
from kgpu.lab.embedded.kinds import Kinds, discovery_data
from kgpu.lab.embedded.openapi import custom, recorded, swagger
from kgpu.lab.embedded.status import Object

_OTHERS: Final = ("api", "apis", "version")


@dataclass(frozen=True, slots=True)
class _PublishedDocument:
    """One document: whether it has a recorded part, its custom kinds, and the hash of both."""

    builtin: bool
    versions: tuple[Version, ...]
    hash: str


class OpenApi:
    """The documents. ``index`` and the hashes are for the event loop, documents may be made in any thread."""

    def __init__(self, kinds: Kinds, custom_kinds: CustomKinds | None = None) -> None:
        self._kinds = kinds
        self._custom = custom_kinds
        self._entries: Mapping[str, _PublishedDocument] | None = None
        self._cached: tuple[str, str, bytes] = ("", "", b"")
        kinds.on_change(self._changed)

    def index(self) -> Object:
        """``GET /openapi/v3``: path -> serverRelativeURL with the content's hash."""
        entries = sorted(self._table().items())
        return {
            "paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={entry.hash}"} for path, entry in entries}
        }

    def hash_of(self, path: str) -> str:
        """The hash that the index names, for ETag and ``?hash=``; "" when there is none."""
        entry = self._table().get(path)
        return entry.hash if entry is not None else ""

    def document(self, path: str) -> bytes | None:
        """``GET /openapi/v3/PATH`` with PATH ``api/v1`` or ``apis/GROUP/VERSION``, encoded; None when there is none.

        Of documents with custom kinds only the last one is kept; a recorded one is read about as fast as it is sent.
        """
        entry = self._table().get(path)
        if entry is None:
            return None
        if not entry.versions:
            return recorded.document(path)
        name, digest, data = self._cached
        if (name, digest) != (path, entry.hash):
            data = custom.document(entry.versions, recorded.parts(path) if entry.builtin else None)
            self._cached = (path, entry.hash, data)
        return data

    def v2_hash(self) -> str:
        """The hash for the ETag of ``v2_document``, which is big and often requested."""
        entries = sorted(self._table().items())
        return hashlib.sha512("".join(entry.hash for _, entry in entries).encode()).hexdigest().upper()

    def v2_document(self, *, protobuf: bool) -> bytes:
        """``GET /openapi/v2``: the definitions of all kinds, as JSON or as a protobuf message."""
        versions = [version for entry in self._table().values() for version in entry.versions]
        return (swagger.as_protobuf if protobuf else swagger.as_json)(versions)

    def _changed(self) -> None:
        self._entries = None

    def _table(self) -> Mapping[str, _PublishedDocument]:
        entries = self._entries
        if entries is None:
            entries = self._entries = self._collect()
        return entries

    def _collect(self) -> dict[str, _PublishedDocument]:
        builtin = set(_paths())
        versions: dict[str, list[Version]] = {}
        for kind in tuple(self._kinds):
            if kind.custom and self._custom is not None:
                versions.setdefault(f"apis/{kind.api_version}", []).append(self._custom.version(kind))
        table = {}
        for path in builtin | versions.keys():
            own = tuple(versions.get(path, ()))
            digest = hashlib.sha512(f"{recorded.digest()} {path}".encode())
            for version in own:
                digest.update(version.identity.encode())
            table[path] = _PublishedDocument(path in builtin, own, digest.hexdigest().upper())
        return table


def _paths() -> list[str]:
    """The paths of the recorded documents: the groups and versions that discovery has."""
    groups = discovery_data()["groups"]
    versions = (f"apis/{version['groupVersion']}" for group in groups for version in group["versions"])
    return [*_OTHERS, "api/v1", *(f"apis/{group['name']}" for group in groups), *versions]
