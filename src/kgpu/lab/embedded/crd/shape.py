"""A CRD's structural schema as a tree, for pruning, defaulting, list uniqueness and embedded metadata.

Made once per version of a CRD. It has what gives an object its structure; validation of values is in ``values``.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]
MISSING: Final[Any] = object()
META: Final = frozenset({"apiVersion", "kind", "metadata"})


class StructuralSchema:
    """One node of a structural schema."""

    __slots__ = (
        "additional",
        "default",
        "defaults",  # True when there is a default here or below
        "embedded",
        "items",
        "list_type",
        "map_keys",
        "map_type",
        "nullable",
        "open",
        "preserve",
        "properties",
        "raw",
        "rules",
    )  # fmt: skip

    def __init__(self, raw: Schema) -> None:
        self.raw = raw
        self.nullable = bool(raw.get("nullable"))
        self.default = raw.get("default", MISSING) if raw.get("default") is not None else MISSING
        self.preserve = bool(raw.get("x-kubernetes-preserve-unknown-fields"))
        self.embedded = bool(raw.get("x-kubernetes-embedded-resource"))
        self.list_type = str(raw.get("x-kubernetes-list-type") or "atomic")
        self.map_keys = tuple(raw.get("x-kubernetes-list-map-keys") or ())
        self.map_type = str(raw.get("x-kubernetes-map-type") or "granular")
        self.properties = {name: StructuralSchema(prop) for name, prop in (raw.get("properties") or {}).items()}
        items, additional = raw.get("items"), raw.get("additionalProperties")
        self.items = StructuralSchema(items) if isinstance(items, dict) else None
        self.additional = StructuralSchema(additional) if isinstance(additional, dict) else None
        # additionalProperties is set: any key is kept.
        self.open = additional is not None
        self.rules = list(raw.get("x-kubernetes-validations") or ())
        below = [*self.properties.values(), self.items, self.additional]
        self.defaults: bool = self.default is not MISSING or any(node is not None and node.defaults for node in below)

    def field(self, name: str) -> StructuralSchema | None:
        """The shape of an object's field: a property's, else what additionalProperties says."""
        return self.properties.get(name) or self.additional


EMPTY: Final = StructuralSchema({})


def root(raw: Schema) -> StructuralSchema:
    """The shape of a whole object: apiVersion, kind and metadata are never pruned."""
    shape = StructuralSchema(raw)
    shape.embedded = True
    return shape
