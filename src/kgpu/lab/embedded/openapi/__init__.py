"""OpenAPI v3 of the built-in kinds and the CRDs: what kubectl's apply, explain and validation read.

Built-in groups are published as the real server publishes them, descriptions and all (``recorded``); custom kinds as it
would publish them (``custom``). Addresses carry a hash of what the document is made from, so that clients may keep it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.lab.embedded.crd.custom import CustomKinds
from kgpu.lab.embedded.crd.version import Version
from kgpu.lab.embedded.kinds import Kinds, discovery_data
from kgpu.lab.embedded.openapi import custom, recorded, swagger
from kgpu.lab.embedded.status import Object

_OTHERS: Final = ("api", "apis", "version")


@dataclass(frozen=True, slots=True)
class _PublishedDocument:
    """One document: whether there is a recorded one, the custom kinds in it, and the hash of both."""

    builtin: bool
    versions: tuple[Version, ...]
    hash: str


class OpenApi:
    """The documents. ``index`` and the hashes are for the loop, the documents may be made in any thread."""

    def __init__(self, kinds: Kinds, custom_kinds: CustomKinds | None = None) -> None:
        self._kinds = kinds
        self._custom = custom_kinds
        self._entries: Mapping[str, _PublishedDocument] | None = None
        self._made: tuple[str, str, bytes] = ("", "", b"")
        kinds.on_change(self._changed)

    def index(self) -> Object:
        """``GET /openapi/v3``: path -> serverRelativeURL with the content's hash."""
        entries = sorted(self._table().items())
        return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={one.hash}"} for path, one in entries}}

    def hash_of(self, path: str) -> str:
        """The hash that the index names, for ETag and ``?hash=``; "" when there is none."""
        found = self._table().get(path)
        return found.hash if found is not None else ""

    def document(self, path: str) -> bytes | None:
        """``GET /openapi/v3/PATH`` with PATH ``api/v1`` or ``apis/GROUP/VERSION``, encoded; None when there is none.

        Only the document of custom kinds that was asked for last is kept: the others are read from what is recorded
        in the time that sending them takes.
        """
        entry = self._table().get(path)
        if entry is None:
            return None
        if not entry.versions:
            return recorded.document(path)
        name, digest, data = self._made
        if (name, digest) != (path, entry.hash):
            data = custom.document(entry.versions, recorded.parts(path) if entry.builtin else None)
            self._made = (path, entry.hash, data)
        return data

    def older_hash(self) -> str:
        """For the ETag of ``older``: clients ask for it again and again, and it is big."""
        entries = sorted(self._table().items())
        return hashlib.sha512("".join(one.hash for _, one in entries).encode()).hexdigest().upper()

    def older(self, *, protobuf: bool) -> bytes:
        """``GET /openapi/v2``: the definitions of all kinds, as JSON or as a protobuf message."""
        versions = [version for entry in self._table().values() for version in entry.versions]
        return (swagger.as_protobuf if protobuf else swagger.as_json)(versions)

    def _changed(self) -> None:
        self._entries = None

    def _table(self) -> Mapping[str, _PublishedDocument]:
        found = self._entries
        if found is None:
            found = self._entries = self._collect()
        return found

    def _collect(self) -> dict[str, _PublishedDocument]:
        builtin = set(_paths())
        versions: dict[str, list[Version]] = {}
        for kind in tuple(self._kinds):
            if kind.custom and self._custom is not None:
                versions.setdefault(f"apis/{kind.api_version}", []).append(self._custom.version(kind))
        found = {}
        for path in builtin | versions.keys():
            own = tuple(versions.get(path, ()))
            digest = hashlib.sha512(f"{recorded.digest()} {path}".encode())
            for one in own:
                digest.update(one.identity.encode())
            found[path] = _PublishedDocument(path in builtin, own, digest.hexdigest().upper())
        return found


def _paths() -> list[str]:
    """Of the recorded documents: the groups and versions that discovery has."""
    groups = discovery_data()["groups"]
    versions = (f"apis/{one['groupVersion']}" for group in groups for one in group["versions"])
    return [*_OTHERS, "api/v1", *(f"apis/{group['name']}" for group in groups), *versions]
