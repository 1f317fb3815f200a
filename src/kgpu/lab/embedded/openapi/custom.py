"""How a custom kind is published: its schema as the real server rewrites it, and its paths from recorded templates."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from kgpu.lab.embedded.crd.version import Version
from kgpu.lab.embedded.openapi import recorded, reduced
from kgpu.lab.embedded.openapi.recorded import Parts, Templates

Schema = dict[str, Any]

_OBJECT: Final = "@MODEL@@KIND@"
_LIST: Final = "@MODEL@@LIST@"
# The members of a published schema; others (examples, external documents) are left out.
_VALUE: Final = (
    "format", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength", "minLength", "pattern",
    "maxItems", "minItems", "uniqueItems", "multipleOf", "enum", "maxProperties", "minProperties", "required",
)  # fmt: skip
_GENERIC: Final = ("type", "nullable", "description", "title", "default")
_EXTENSIONS: Final = (
    "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-map-type", "x-kubernetes-validations",
)  # fmt: skip
_KEPT: Final = (*_GENERIC, *_VALUE, *_EXTENSIONS)
# Left out when they are empty or zero; for the others zero has a meaning.
_SILENT: Final = frozenset(_KEPT) - {
    "default", "maximum", "minimum", "maxLength", "minLength", "maxItems", "minItems", "multipleOf", "maxProperties",
    "minProperties",
}  # fmt: skip
_EITHER: Final[list[Schema]] = [{"type": "integer"}, {"type": "string"}]
_NOT_IN_ID: Final = re.compile(r"[^A-Za-z0-9_]+(.?)", re.DOTALL)


def document(versions: Iterable[Version], builtin: Parts | None) -> bytes:
    """The document of a group's version; ``builtin`` is the recorded document of the built-in kinds in it."""
    templates, table = recorded.recording().custom, dict(recorded.recording().schemas)
    shared = {**table, **{name: schema for name, schema in templates.schemas.items() if not name.startswith("@")}}
    paths: dict[str, msgspec.Raw] = {}
    own: dict[str, msgspec.Raw] = {}
    for version in versions:
        paths |= _paths(version, templates)
        own |= schemas(version)
    definitions = {**recorded.closure([*paths.values(), *own.values()], shared), **own}
    if builtin is None:
        return recorded.joined(templates.openapi, templates.info, _sorted(paths), _sorted(definitions), {})
    definitions |= {name: table[name] for name in builtin.schemas}
    paths |= builtin.paths
    return recorded.joined(builtin.openapi, builtin.info, _sorted(paths), _sorted(definitions), builtin.components)


def _sorted(pieces: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    return dict(sorted(pieces.items()))


def _names(version: Version) -> dict[str, str]:
    """The text for each placeholder."""
    spec = version.definition["spec"]
    group, names, name = spec["group"], spec["names"], version.name
    short = group.removesuffix(".k8s.io")
    return {
        "@MODEL@": ".".join([*reversed(group.split(".")), name, ""]),
        "@GROUP@": group,
        "@VERSION@": name,
        "@TAG@": f"{_identifier(short, capital=False)}_{_identifier(name, capital=False)}",
        "@OPERATION@": _identifier(short) + _identifier(name),
        "@NAME@": _identifier(names["kind"]),
        "@ARTICLE@": _article(names["kind"]),
        "@KIND@": names["kind"],
        "@LIST@": names.get("listKind") or f"{names['kind']}List",
        "@PLURAL@": names["plural"],
    }


def _identifier(text: str, *, capital: bool = True) -> str:
    """The text in camel case without characters that an operation's id can't have."""
    camel = _NOT_IN_ID.sub(lambda match: match[1].upper(), re.sub("^[0-9]", "-", text))
    return camel[:1].upper() + camel[1:] if capital else camel


def _article(noun: str) -> str:
    if noun.endswith("s") and not noun.endswith("ss"):
        return " "
    return " an " if noun[0] in "aeiouAEIOU" else " a "


def _filled(text: str, names: Mapping[str, str]) -> str:
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    return text


def _paths(version: Version, templates: Templates) -> dict[str, msgspec.Raw]:
    names = _names(version)
    scoped = templates.namespaced if version.kind.namespaced else templates.cluster
    absent = [f"/{name}" for name in ("status", "scale") if name not in version.kind.subresources]
    return {
        _filled(path, names): msgspec.Raw(_filled(bytes(item).decode(), names).encode())
        for path, item in scoped.items()
        if not path.endswith(tuple(absent))
    }


def schemas(version: Version, *, for_v2: bool = False) -> dict[str, msgspec.Raw]:
    """The schemas of the object and of its list, by name. ``for_v2``: reduced to what OpenAPI v2 can express."""
    templates, names = recorded.recording().custom, _names(version)
    encoded = {}
    for name in (_OBJECT, _LIST):
        schema: Schema = msgspec.json.decode(_filled(bytes(templates.schemas[name]).decode(), names))
        if name == _OBJECT:
            schema = _whole(version.schema, schema, for_v2=for_v2)
        if version.selectable:
            schema["x-kubernetes-selectable-fields"] = [{"fieldPath": path} for path in version.selectable]
        encoded[_filled(name, names)] = msgspec.Raw(msgspec.json.encode(schema, order="deterministic"))
    return encoded


def _whole(raw: Schema, template: Schema, *, for_v2: bool) -> Schema:
    """The schema of the object, with apiVersion, kind and metadata from the template."""
    own, kinds = template["properties"], "x-kubernetes-group-version-kind"
    if for_v2 and reduced.takes_anything(raw):
        return {"type": "object", kinds: template[kinds]}
    embedded = own["template"]["properties"]
    schema = published(reduced.reduced(raw) if for_v2 else raw, embedded, for_v2=for_v2)
    common = {name: own[name] for name in ("apiVersion", "kind", "metadata")}
    return {**schema, "properties": {**schema.get("properties", {}), **common}, kinds: template[kinds]}


def published(raw: Schema, embedded: Schema, *, nested: bool = False, for_v2: bool = False) -> Schema:
    """One schema as it is published. ``embedded`` are the properties that an embedded object gets.

    ``nested`` schemas are those of ``allOf``, ``anyOf``, ``oneOf`` and ``not``: they describe nothing themselves.
    ``for_v2``: ``reduced`` has been applied.
    """
    below = functools.partial(published, embedded=embedded, for_v2=for_v2)
    schema = {name: raw[name] for name in _KEPT if _speaks(name, raw.get(name))}
    properties = {name: below(child, nested=nested) for name, child in (raw.get("properties") or {}).items()}
    if properties:
        schema["properties"] = properties
    for name in ("items", "additionalProperties", "not"):
        child = raw.get(name)
        if isinstance(child, dict):
            schema[name] = below(child, nested=nested or name == "not")
        elif child is not None:
            schema[name] = child
    for name in ("allOf", "anyOf", "oneOf"):
        if raw.get(name):
            schema[name] = [below(child, nested=True) for child in raw[name]]
    if not nested:
        if not for_v2:
            _unfold(schema)
        if schema.get("x-kubernetes-embedded-resource") and not (for_v2 and reduced.takes_anything(raw)):
            schema["properties"] = {**properties, **embedded}
            required = schema.get("required", [])
            schema["required"] = [*required, *(name for name in ("kind", "apiVersion") if name not in required)]
    return schema


def _speaks(name: str, value: Any) -> bool:
    return value is not None and not (name in _SILENT and not value)


def _unfold(schema: Schema) -> None:
    """Add the two types of an int-or-string, unless the schema has them already. In place."""
    if not schema.get("x-kubernetes-int-or-string"):
        return
    either = schema.get("anyOf")
    first = schema["allOf"][0] if "allOf" in schema else {}
    if _EITHER in (either, first.get("anyOf")):
        return
    if either is None:
        schema["anyOf"] = _EITHER
    else:
        schema["allOf"] = [{"anyOf": _EITHER}, *schema.get("allOf", ())]
