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
# What a schema is published with; all else (examples, external documents) is not taken over.
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
# Left out when they say nothing; bounds and defaults speak also as zero.
_SILENT: Final = frozenset(_KEPT) - {
    "default", "maximum", "minimum", "maxLength", "minLength", "maxItems", "minItems", "multipleOf", "maxProperties",
    "minProperties",
}  # fmt: skip
_EITHER: Final[list[Schema]] = [{"type": "integer"}, {"type": "string"}]
_NOT_IN_ID: Final = re.compile(r"[^A-Za-z0-9_]+(.?)", re.DOTALL)


def document(versions: Iterable[Version], builtin: Parts | None) -> bytes:
    """The document of a group's version; ``builtin`` is what the real server's own kinds have there."""
    templates, table = recorded.recording().custom, dict(recorded.recording().schemas)
    shared = {**table, **{name: one for name, one in templates.schemas.items() if not name.startswith("@")}}
    paths: dict[str, msgspec.Raw] = {}
    own: dict[str, msgspec.Raw] = {}
    for version in versions:
        paths |= _paths(version, templates)
        own |= schemas(version)
    found = {**recorded.closure([*paths.values(), *own.values()], shared), **own}
    if builtin is None:
        return recorded.joined(templates.openapi, templates.info, _sorted(paths), _sorted(found), {})
    found |= {name: table[name] for name in builtin.schemas}
    paths |= builtin.paths
    return recorded.joined(builtin.openapi, builtin.info, _sorted(paths), _sorted(found), builtin.components)


def _sorted(pieces: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    return dict(sorted(pieces.items()))


def _names(version: Version) -> dict[str, str]:
    """What stands for each placeholder."""
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
    """Camel case without what an operation's id can't have."""
    found = _NOT_IN_ID.sub(lambda match: match[1].upper(), re.sub("^[0-9]", "-", text))
    return found[:1].upper() + found[1:] if capital else found


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


def schemas(version: Version, *, older: bool = False) -> dict[str, msgspec.Raw]:
    """Of the object and of its list, by name. ``older``: with what OpenAPI v2 can say, in v3's form."""
    templates, names = recorded.recording().custom, _names(version)
    found = {}
    for name in (_OBJECT, _LIST):
        schema: Schema = msgspec.json.decode(_filled(bytes(templates.schemas[name]).decode(), names))
        if name == _OBJECT:
            schema = _whole(version.schema, schema, older=older)
        if version.selectable:
            schema["x-kubernetes-selectable-fields"] = [{"fieldPath": one} for one in version.selectable]
        found[_filled(name, names)] = msgspec.Raw(msgspec.json.encode(schema, order="deterministic"))
    return found


def _whole(raw: Schema, template: Schema, *, older: bool) -> Schema:
    """The schema of the object: what every object has is taken from the template's."""
    own, kinds = template["properties"], "x-kubernetes-group-version-kind"
    if older and reduced.takes_anything(raw):
        return {"type": "object", kinds: template[kinds]}
    embedded = own["template"]["properties"]
    found = published(reduced.reduced(raw) if older else raw, embedded, older=older)
    common = {name: own[name] for name in ("apiVersion", "kind", "metadata")}
    return {**found, "properties": {**found.get("properties", {}), **common}, kinds: template[kinds]}


def published(raw: Schema, embedded: Schema, *, nested: bool = False, older: bool = False) -> Schema:
    """One schema as it is published. ``embedded`` are the properties that an embedded object gets.

    ``nested`` schemas are those of ``allOf``, ``anyOf``, ``oneOf`` and ``not``: they describe nothing themselves.
    ``older``: it has been through ``reduced``.
    """
    below = functools.partial(published, embedded=embedded, older=older)
    found = {name: raw[name] for name in _KEPT if _speaks(name, raw.get(name))}
    properties = {name: below(one, nested=nested) for name, one in (raw.get("properties") or {}).items()}
    if properties:
        found["properties"] = properties
    for name in ("items", "additionalProperties", "not"):
        one = raw.get(name)
        if isinstance(one, dict):
            found[name] = below(one, nested=nested or name == "not")
        elif one is not None:
            found[name] = one
    for name in ("allOf", "anyOf", "oneOf"):
        if raw.get(name):
            found[name] = [below(one, nested=True) for one in raw[name]]
    if not nested:
        if not older:
            _unfold(found)
        if found.get("x-kubernetes-embedded-resource") and not (older and reduced.takes_anything(raw)):
            found["properties"] = {**properties, **embedded}
            required = found.get("required", [])
            found["required"] = [*required, *(name for name in ("kind", "apiVersion") if name not in required)]
    return found


def _speaks(name: str, value: Any) -> bool:
    return value is not None and not (name in _SILENT and not value)


def _unfold(schema: Schema) -> None:
    """An int-or-string says which types it has, unless it says so already. In place."""
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
