"""Compiled expressions as trees, to check and change them.

The trees are read from the serialized form (``cel.expr.CheckedExpr``, ``ParsedExpr``), of which only the fields that
are used are declared here; the others are kept as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "int64": _FIELD.TYPE_INT64, "int32": _FIELD.TYPE_INT32, "string": _FIELD.TYPE_STRING, "bool": _FIELD.TYPE_BOOL,
}  # fmt: skip
_PACKAGE: Final = "kgpu.cel"
# Message -> its fields: number, type, name; a trailing * for repeated ones.
_MESSAGES: Final[dict[str, tuple[tuple[int, str, str], ...]]] = {
    "Checked": ((3, "TypeOf*", "types"), (4, "Expr", "expr"), (5, "Source", "source")),
    "Parsed": ((2, "Expr", "expr"), (3, "Source", "source")),
    "TypeOf": ((1, "int64", "id"), (2, "Type", "type")),
    "Type": ((1, "Empty", "dyn"), (3, "int32", "primitive"), (5, "int32", "well_known"), (9, "string", "message"),
             (14, "Abstract", "abstract")),
    "Abstract": ((1, "string", "name"),),
    "Empty": (),
    "Source": ((4, "Position*", "positions"),),
    "Position": ((1, "int64", "id"), (2, "int32", "offset")),
    "Expr": (
        (2, "int64", "id"), (3, "Constant", "constant"), (4, "Name", "name"), (5, "Select", "select"),
        (6, "Call", "call"), (7, "Items", "items"), (8, "Struct", "struct"), (9, "Fold", "fold"),
    ),
    "Constant": ((2, "bool", "truth"), (6, "string", "text")),
    "Name": ((1, "string", "name"),),
    "Select": ((1, "Expr", "operand"), (2, "string", "field"), (3, "bool", "tested")),
    "Call": ((1, "Expr", "target"), (2, "string", "function"), (3, "Expr*", "args")),
    "Items": ((1, "Expr*", "elements"), (2, "int32*", "optional")),
    "Struct": ((2, "Entry*", "entries"),),
    "Entry": ((3, "Expr", "key"), (4, "Expr", "value"), (5, "bool", "optional")),
    "Fold": (
        (1, "string", "item"), (2, "Expr", "range"), (3, "string", "result_name"), (4, "Expr", "start"),
        (5, "Expr", "condition"), (6, "Expr", "step"), (7, "Expr", "result"), (8, "string", "second_item"),
    ),
}  # fmt: skip
_PRIMITIVES: Final = ("", "bool", "int", "uint", "double", "string", "bytes")
_WELL_KNOWN: Final = ("", "any", "timestamp", "duration")


@functools.cache
def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@functools.cache
def _pool() -> Any:
    # proto2, which tells an explicit false from an absent field; a tree that is serialized again needs that.
    file = descriptor_pb2.FileDescriptorProto(name="kgpu_cel.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, kind, field_name in fields:
            label = _FIELD.LABEL_REPEATED if kind.endswith("*") else _FIELD.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=number, label=label)
            if kind.rstrip("*") in _SCALARS:
                field.type = _SCALARS[kind.rstrip("*")]
            else:
                field.type = _FIELD.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind.rstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


class ExpressionTree:
    """A compiled expression's nodes, with the offset and, where it was checked, the type of each."""

    def __init__(self, serialized: bytes) -> None:
        wrapped = any_pb2.Any.FromString(serialized)
        checked = wrapped.type_url.endswith("CheckedExpr")
        message = _class("Checked" if checked else "Parsed").FromString(wrapped.value)
        self._whole = message
        self._type_url = wrapped.type_url
        self.root: Any = message.expr
        self._types = {row.id: row.type for row in message.types} if checked else {}
        self._offsets = {row.id: row.offset for row in message.source.positions}

    def offset(self, node: Any) -> int:
        """Its position in the text, in characters."""
        return int(self._offsets.get(node.id, 0))

    def type_of(self, node: Any) -> str:
        """``int``, ``string`` ... or a message's name; "" when it is unknown or a list or map."""
        kind = self._types.get(node.id)
        if kind is None:
            return ""
        simple = _PRIMITIVES[kind.primitive] if kind.primitive < len(_PRIMITIVES) else ""
        known = _WELL_KNOWN[kind.well_known] if kind.well_known < len(_WELL_KNOWN) else ""
        return simple or known or str(kind.message)

    def is_optional(self, node: Any) -> bool:
        """Whether an expression that was checked has an optional value there, by its type."""
        kind = self._types.get(node.id)
        return kind is not None and kind.abstract.name == "optional_type"

    def rename(self, names: Mapping[tuple[str, str], str]) -> None:
        """Replace every selection of ``(variable, field)`` by its name in ``names``, in place.

        ``has(variable.field)`` becomes true, ``variable.?field`` an optional value. Variables of comprehensions with
        such a name are left alone.
        """
        _rename(self.root, names, frozenset())

    def names(self) -> set[str]:
        """All names in the expression."""
        return {node.name.name for node in self.nodes() if node.HasField("name")}

    def bind(self, name: str, source: ExpressionTree) -> None:
        """As ``cel.bind(name, source, ...)`` around the whole."""
        free = max(node.id for node in self.nodes()) + 1
        whole = type(self.root)(id=free)
        fold = whole.fold
        fold.item, fold.result_name = "#unused", name
        for number, part in enumerate((fold.range, fold.condition, fold.step), start=free + 1):
            part.id = number
        fold.range.items.SetInParent()
        fold.condition.constant.truth = False
        fold.step.name.name = name
        fold.start.CopyFrom(source.root)
        for node in _all(fold.start):
            node.id += free + 3
        fold.result.CopyFrom(self.root)
        self.root.CopyFrom(whole)

    def part(self, node: Any) -> bytes:
        """One of the nodes as an expression of its own."""
        whole = type(self._whole)()
        whole.CopyFrom(self._whole)
        whole.expr.CopyFrom(node)
        return any_pb2.Any(type_url=self._type_url, value=whole.SerializeToString()).SerializeToString()

    def operands(self) -> Iterator[tuple[Any, str, Any]]:
        """The operands of selections, outside of loops: (the operand's node, what is selected, the key's node).

        What is selected is a field's name, ``[]`` (by the key), or ``for`` (all items, by a loop).
        """
        yield from _operands(self.root)

    def serialized(self) -> bytes:
        """The serialized form, with the changes."""
        return any_pb2.Any(type_url=self._type_url, value=self._whole.SerializeToString()).SerializeToString()

    def nodes(self) -> Iterator[Any]:
        """All of them, each before those below it."""
        return _all(self.root)


def _operands(node: Any) -> Iterator[tuple[Any, str, Any]]:
    """The innermost first."""
    if node.HasField("fold"):
        yield from _operands(node.fold.range)
        yield node.fold.range, "for", None
        return
    for below in _below(node):
        yield from _operands(below)
    if node.HasField("select"):
        yield node.select.operand, node.select.field, None
    elif node.HasField("call") and node.call.function == "_[_]" and len(node.call.args) == 2:
        yield node.call.args[0], "[]", node.call.args[1]


def _all(root: Any) -> Iterator[Any]:
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(list(_below(node)))


def _below(node: Any) -> Iterator[Any]:
    if node.HasField("select"):
        yield node.select.operand
    elif node.HasField("call"):
        if node.call.HasField("target"):
            yield node.call.target
        yield from node.call.args
    elif node.HasField("items"):
        yield from node.items.elements
    elif node.HasField("struct"):
        for entry in node.struct.entries:
            yield from (entry.key, entry.value)
    elif node.HasField("fold"):
        fold = node.fold
        yield from (fold.range, fold.start, fold.condition, fold.step, fold.result)


def _rename(node: Any, names: Mapping[tuple[str, str], str], hidden: frozenset[str]) -> None:
    new_name = _selected(node, names, hidden)
    if new_name:
        tested = node.HasField("select") and node.select.tested
        optional = node.HasField("call")
        for part in ("select", "call"):
            node.ClearField(part)
        if tested:
            node.constant.truth = True
        elif optional:
            node.call.function = "optional.of"
            node.call.args.add(id=node.id).name.name = new_name
        else:
            node.name.name = new_name
    elif node.HasField("fold"):
        fold = node.fold
        inner = hidden | {fold.item, fold.second_item, fold.result_name}
        for part in (fold.range, fold.start):
            _rename(part, names, hidden)
        for part in (fold.condition, fold.step, fold.result):
            _rename(part, names, inner)
    else:
        for part in _below(node):
            _rename(part, names, hidden)


def _selected(node: Any, names: Mapping[tuple[str, str], str], hidden: frozenset[str]) -> str:
    """The new name of a selection, "" for other nodes."""
    if node.HasField("select"):
        operand, field = node.select.operand, node.select.field
    elif node.HasField("call") and node.call.function == "_?._" and len(node.call.args) == 2:
        operand, field = node.call.args[0], node.call.args[1].constant.text
    else:
        return ""
    name = operand.name.name
    return "" if name in hidden else names.get((name, field), "")
