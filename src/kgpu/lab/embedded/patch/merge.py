"""JSON merge patch (RFC 7386)."""

from __future__ import annotations

from typing import Any

from kgpu.lab.embedded.patch.gotext import json_name
from kgpu.lab.embedded.status import Object, bad_request


def apply(live: Object, patch: Any) -> Object:
    """``live`` with ``patch``; neither is changed, parts of both are shared."""
    if patch is None:
        raise bad_request("Invalid JSON Patch")
    if not isinstance(patch, dict):
        raise bad_request(
            f"error decoding patch: json: cannot unmarshal {json_name(patch)} into Go value of type "
            "map[string]interface {}"
        )
    return _merged(live, patch)


def _merged(live: Object, patch: Object) -> Object:
    result = dict(live)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            old = result.get(key)
            result[key] = _merged(old if isinstance(old, dict) else {}, value)
        else:
            result[key] = value
    return result
