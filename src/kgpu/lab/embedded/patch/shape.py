"""A type as server-side apply sees it: which parts are one value, which are merged by field, and which by key.

Derived from a ``SchemaNode`` as the API server derives it from its OpenAPI document, and kept with the node.
"""

from __future__ import annotations

import enum
from typing import Any, Final

from kgpu.lab.embedded.kinds import schema_data
from kgpu.lab.embedded.patch.fieldset import key_element, value_element
from kgpu.lab.embedded.schema import ANYTHING, SchemaNode

_QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_RAW: Final = "io.k8s.apimachinery.pkg.runtime.RawExtension"
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_SCALARS: Final = {"integer": "numeric", "number": "numeric", "boolean": "boolean", "string": "string"}


class ShapeError(Exception):
    """A value that its type does not allow."""


class MergeRule(enum.Enum):
    """How a list or a map of a type is merged; NO if the type can't be one."""

    NO = enum.auto()
    ATOMIC = enum.auto()
    EACH = enum.auto()  # a map by field, a list by item


class MergeShape:
    """One type. ``map`` and ``list``: how such a value is merged; ``scalar``: which scalars are allowed ("" none)."""

    __slots__ = ("_fields", "_item", "_loose", "_node", "_open", "_values", "keys", "list", "map", "scalar")

    def __init__(self, node: SchemaNode, *, loose: bool = False) -> None:
        self._node = node
        self._loose = loose or node.preserves_unknown
        self._fields: dict[str, MergeShape] | None = None
        self._values: MergeShape | None = None
        self._item: MergeShape | None = None
        self._open: bool | None = None
        self.keys: tuple[tuple[str, Any], ...] = ()
        self.map = self.list = MergeRule.NO
        kind = node.type
        self.scalar = _SCALARS.get(kind, "" if kind else "untyped")
        if kind == "string" and node.raw.get("format", "byte") != "byte":
            self.scalar = "untyped"
        if node.name == _QUANTITY:
            return
        if node.name == _RAW:
            self.scalar, self.map, self.list = "untyped", MergeRule.ATOMIC, MergeRule.ATOMIC
            return
        if kind in ("", "object"):
            self.map = MergeRule.ATOMIC if node.map_type == "atomic" else MergeRule.EACH
        if kind in ("", "array"):
            self.list = MergeRule.ATOMIC if self._list_type() == "atomic" else MergeRule.EACH
            items = node.items
            if self.list is MergeRule.EACH and items is not None:
                self.keys = tuple((key, items.properties.get(key, {}).get("default")) for key in node.map_keys)

    def _list_type(self) -> str:
        return self._node.list_type

    @property
    def fields(self) -> dict[str, MergeShape]:
        """The fields that the type names."""
        if self._fields is None:
            nodes = {name: self._node.field(name) for name in self._node.properties}
            self._fields = {name: self._child(node) for name, node in nodes.items() if node is not None}
            if self._node.embedded:
                self._fields |= _envelope()
        return self._fields

    @property
    def values(self) -> MergeShape | None:
        """The shape of fields that the type does not name; None if there must not be any."""
        if self._values is None and self.map is not MergeRule.NO:
            node, additional = self._node.values, self._node.raw.get("additionalProperties")
            if node is not None:
                self._values = self._child(node)
            elif additional or (additional is None and (self._loose or not self.fields)):
                self._values = DEDUCED
        return self._values

    @property
    def item(self) -> MergeShape:
        if self._item is None:
            node = self._node.items
            self._item = UNTYPED if node is None else self._child(node)
        return self._item

    @property
    def open(self) -> bool:
        """Whether a custom type allows any value somewhere in it."""
        if self._open is None:
            below = [*self.fields.values(), self.values, self.item if self.list is MergeRule.EACH else None]
            self._open = not self._node.name and (
                self.scalar == "untyped" or self._loose or any(shape is not None and shape.open for shape in below)
            )
        return self._open

    def _child(self, node: SchemaNode) -> MergeShape:
        # A named type is the same for all types that use it.
        return shape_of(node, loose=self._loose and not node.name)

    def child(self, name: str) -> MergeShape:
        """The shape of a field; fields that the type does not know may have any value."""
        return self.fields.get(name) or self.values or DEDUCED

    def element(self, item: Any) -> str:
        """The path element of an item of a list that is merged by item."""
        if not self.keys:
            if isinstance(item, dict):
                raise ShapeError("associative list without keys has an element that's a map type")
            if isinstance(item, list):
                raise ShapeError("not supported: associative list with lists as elements")
            if item is None:
                raise ShapeError("associative list without keys has an element that's an explicit null")
            return value_element(item)
        if not isinstance(item, dict):
            what = "a null element" if item is None else "non-map elements"
            raise ShapeError(f"associative list with keys may not have {what}")
        keys = {name: item.get(name, default) for name, default in self.keys}
        if None in keys.values():
            keys = {name: value for name, value in keys.items() if value is not None or name in item}
        if not keys:
            names = " ".join(f'"{name}"' for name, _ in self.keys)
            raise ShapeError(
                f"associative list with keys has an element that omits all key fields [{names}] "
                "(and doesn't have default values for any key fields)"
            )
        return key_element(keys)


class _Untyped(MergeShape):
    """Any value, as a whole."""

    __slots__ = ()

    @property
    def values(self) -> MergeShape | None:
        return self

    @property
    def open(self) -> bool:
        return True


class _Deduced(_Untyped):
    """Any value; maps are merged by field."""

    __slots__ = ()


UNTYPED: Final[MergeShape] = _Untyped(ANYTHING)
UNTYPED.scalar, UNTYPED.map, UNTYPED.list = "untyped", MergeRule.ATOMIC, MergeRule.ATOMIC
DEDUCED: Final[MergeShape] = _Deduced(ANYTHING)
DEDUCED.scalar, DEDUCED.map, DEDUCED.list = "untyped", MergeRule.EACH, MergeRule.ATOMIC


def shape_of(node: SchemaNode, *, loose: bool = False) -> MergeShape:
    """The shape of a type; ``loose`` when something above it keeps unknown fields."""
    shape: MergeShape | None = node.shape
    if shape is None:
        shape = node.shape = MergeShape(node, loose=loose)
    return shape


def root_shape(node: SchemaNode) -> MergeShape:
    """The shape of a whole object, with apiVersion, kind and metadata, which a custom resource's schema leaves out."""
    shape = shape_of(node)
    if (not node.name and "apiVersion" not in shape.fields) or (
        not node.name and shape.fields["metadata"]._node.name != _META
    ):
        shape.fields.update(_envelope())
    return shape


def _envelope() -> dict[str, MergeShape]:
    text = SchemaNode({"type": "string"}, {})
    meta = SchemaNode({"$ref": _META}, schema_data())
    return {"apiVersion": shape_of(text), "kind": shape_of(text), "metadata": shape_of(meta)}


def zero(node: SchemaNode) -> dict[str, Any]:
    """An empty object of a built-in type: Go's zero value, which a new object is compared with."""
    # Imported here as the types' rules stand above the patches.
    from kgpu.lab.embedded.types.shape import shape

    empty: dict[str, Any] = {}
    shape(node.name).settle(empty)
    return empty
