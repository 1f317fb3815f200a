"""How a custom kind is published in OpenAPI v2: less of its schema than in v3, for kubectl's sake.

Source of the rules: apiextensions' controller/openapi (v2/conversion.go, builder/builder.go).
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
_LEFT_OUT: Final = frozenset({"allOf", "anyOf", "oneOf", "not", "nullable", "default"})


def takes_anything(raw: Schema) -> bool:
    """Whether nothing is said of it at all: a client would take the properties, even metadata, for all there can be."""
    return bool(raw.get(_PRESERVE))


def reduced(raw: Schema) -> Schema:
    """A copy without what v2 can't say, with everything below."""
    found = {name: value for name, value in raw.items() if name not in _LEFT_OUT}
    preserves = takes_anything(raw)
    if raw.get("nullable") or preserves:
        # Clients stumble over untyped or open values that have items or properties.
        found.pop("items", None)
        found.pop("properties", None)
    kind = raw.get("type")
    untyped = (kind == "array" and "items" not in found) or (kind == "object" and preserves)
    if raw.get("nullable") or untyped:
        found.pop("type", None)
    return _below(found)


def _below(found: Schema) -> Schema:
    required = found.get("required")
    properties = found.get("properties") or {}
    if required:
        found["required"] = [one for one in required if not (properties.get(one) or {}).get("nullable")]
    for name in ("items", "additionalProperties"):
        one = found.get(name)
        if isinstance(one, dict):
            found[name] = reduced(one)
            if name == "additionalProperties" and one.get("nullable"):
                found.pop("required", None)
    if properties:
        found["properties"] = {name: reduced(one) for name, one in properties.items()}
    return found
