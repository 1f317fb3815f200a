"""A type as a tree of schemas, for patches, server-side apply, defaulting and strict decoding.

Built from OpenAPI schemas, the real API's (``data/schemas.json``) or a CRD's own. Nodes are made on demand and shared,
so that recursive types are fine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Raw = Mapping[str, Any]
_MISSING: Final[Any] = object()


class SchemaNode:
    """One schema. ``raw`` is the resolved OpenAPI schema; ``name`` the type's name, "" for anonymous ones."""

    __slots__ = ("_children", "_table", "name", "raw", "shape")

    def __init__(self, raw: Raw, table: Mapping[str, Raw], name: str = "") -> None:
        self._table = table
        reference = raw.get("$ref")
        if reference is not None:
            name = str(reference)
            raw = {**table.get(name, {}), **{key: value for key, value in raw.items() if key != "$ref"}}
        self.raw = raw
        self.name = name
        self._children: dict[str, SchemaNode | None] = {}
        self.shape: Any = None  # kept here by ``patch.shape``, which derives it

    def _child(self, slot: str, raw: Any) -> SchemaNode | None:
        child = self._children.get(slot, _MISSING)
        if child is _MISSING:
            child = SchemaNode(raw, self._table) if isinstance(raw, Mapping) else None
            self._children[slot] = child
        return child  # type: ignore[no-any-return]

    def field(self, name: str) -> SchemaNode | None:
        """The schema of an object's field: a property, else what ``additionalProperties`` says, else None."""
        raw = self.raw.get("properties", {}).get(name)
        return self._child(f".{name}", raw) if raw is not None else self.values

    @property
    def values(self) -> SchemaNode | None:
        """The schema of a map's values."""
        return self._child("{}", self.raw.get("additionalProperties"))

    @property
    def items(self) -> SchemaNode | None:
        """The schema of a list's items."""
        return self._child("[]", self.raw.get("items"))

    @property
    def properties(self) -> Mapping[str, Raw]:
        properties: Mapping[str, Raw] = self.raw.get("properties", {})
        return properties

    @property
    def type(self) -> str:
        """``object``, ``array``, ``string``, ``integer``, ``number``, ``boolean``, or "" for any type."""
        return str(self.raw.get("type", ""))

    @property
    def int_or_string(self) -> bool:
        return bool(self.raw.get("x-kubernetes-int-or-string")) or self.raw.get("format") == "int-or-string"

    @property
    def preserves_unknown(self) -> bool:
        """Whether unknown fields are kept."""
        return bool(self.raw.get("x-kubernetes-preserve-unknown-fields"))

    @property
    def embedded(self) -> bool:
        """Whether it is a whole object with apiVersion, kind and metadata."""
        return bool(self.raw.get("x-kubernetes-embedded-resource"))

    @property
    def list_type(self) -> str:
        """``atomic`` (the default), ``set`` or ``map``."""
        return str(self.raw.get("x-kubernetes-list-type", "atomic"))

    @property
    def map_keys(self) -> tuple[str, ...]:
        """The fields that identify an item of a ``map`` list."""
        return tuple(self.raw.get("x-kubernetes-list-map-keys", ()))

    @property
    def map_type(self) -> str:
        """``granular`` or ``atomic``."""
        return str(self.raw.get("x-kubernetes-map-type", "granular"))

    @property
    def patch_strategy(self) -> tuple[str, ...]:
        """The strategies of a strategic merge: any of ``merge``, ``replace``, ``retainKeys``."""
        return tuple(filter(None, str(self.raw.get("x-kubernetes-patch-strategy", "")).split(",")))

    @property
    def patch_merge_key(self) -> str:
        return str(self.raw.get("x-kubernetes-patch-merge-key", ""))


ANYTHING: Final = SchemaNode({"x-kubernetes-preserve-unknown-fields": True}, {})
