"""The structs' fields as plain rows: one reading of the annotations for schema, decoding and documentation."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
from msgspec import inspect

Scalar: TypeAlias = "type[bool | int | str]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """A value's type. Exactly one of ``scalar``, ``struct``, ``items`` and ``values`` is set, or ``int_or_string``.

    ``enum`` are the only texts allowed; ``checks`` are more keys of its schema (``pattern``, ``minimum``, ...).
    """

    scalar: Scalar | None = None
    int_or_string: bool = False
    enum: tuple[str, ...] = ()
    struct: type[msgspec.Struct] | None = None
    items: Type | None = None
    values: Type | None = None
    checks: Mapping[str, Any] = field(default_factory=dict)
    doc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaField:
    """One field. ``default`` is what the API server fills in, None for nothing; ``{}`` for a section that is always
    there.
    """

    attribute: str
    name: str
    type: Type
    required: bool
    default: Any
    ignored: str
    unbuilt: str
    for_good: bool
    usual: tuple[Any, ...]
    deprecated: str
    rules: tuple[tuple[str, str], ...]

    @property
    def doc(self) -> str:
        """What it means, and what to know of a field that should not be used."""
        ignored = f" Without effect: {self.ignored}." if self.ignored else ""
        ignored += f" {'Not provided' if self.for_good else 'Not built yet'}: {self.unbuilt}." if self.unbuilt else ""
        return self.type.doc + ignored + (f" Deprecated: {self.deprecated}." if self.deprecated else "")


@functools.cache
def rows(struct: type[msgspec.Struct]) -> tuple[SchemaField, ...]:
    """The fields in the order in which they are written down."""
    info = inspect.type_info(struct)
    if not isinstance(info, inspect.StructType):  # pragma: no cover - the argument's type says so
        raise TypeError(struct)
    return tuple(_row(item) for item in info.fields)


def _row(item: inspect.Field) -> SchemaField:
    extra = (item.type.extra or {}) if isinstance(item.type, inspect.Metadata) else {}
    default = item.default
    if isinstance(default, msgspec.Struct):
        default = {}
    elif default is msgspec.NODEFAULT or default == ():
        default = None
    elif isinstance(default, tuple):
        default = list(default)
    return SchemaField(
        attribute=item.name,
        name=item.encode_name,
        type=_type(item.type),
        required=item.required,
        default=default,
        ignored=extra.get("ignored", ""),
        unbuilt=extra.get("unbuilt", ""),
        for_good=extra.get("for_good", False),
        usual=extra.get("usual", ()),
        deprecated=extra.get("deprecated", ""),
        rules=extra.get("rules", ()),
    )


def _type(hint: inspect.Type, checks: Mapping[str, Any] | None = None, doc: str = "") -> Type:
    checks = checks or {}
    match hint:
        case inspect.Metadata():
            description = (hint.extra_json_schema or {}).get("description", "")
            return _type(hint.type, (hint.extra or {}).get("schema", {}), description)
        case inspect.UnionType():
            kinds = [kind for kind in hint.types if not isinstance(kind, inspect.NoneType)]
            return _type(kinds[0], checks, doc) if len(kinds) == 1 else Type(int_or_string=True, checks=checks, doc=doc)
        case inspect.LiteralType():
            return Type(scalar=str, enum=tuple(map(str, hint.values)), checks=checks, doc=doc)
        case inspect.StructType():
            return Type(struct=hint.cls, checks=checks, doc=doc)
        case inspect.VarTupleType():
            return Type(items=_type(hint.item_type), checks=checks, doc=doc)
        case inspect.DictType():
            return Type(values=_type(hint.value_type), checks=checks, doc=doc)
        case inspect.BoolType():
            return Type(scalar=bool, checks=checks, doc=doc)
        case inspect.IntType():
            return Type(scalar=int, checks=checks, doc=doc)
        case inspect.StrType():
            return Type(scalar=str, checks=checks, doc=doc)
    raise TypeError(f"no schema for {hint}")
