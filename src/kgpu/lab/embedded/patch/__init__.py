"""Changes to an object as the API takes them: JSON patch, merge patch, strategic merge patch and server-side apply.

``apply_patch`` does the first three. It returns a new object, never changes ``live``, and raises ``ApiError`` worded as
the real server's.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kgpu.lab.embedded.patch import json, merge, strategic
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.status import ApiError, Object

JSON: Final = "application/json-patch+json"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"


def apply_patch(content_type: str, live: Object, body: Any, schema: SchemaNode) -> Object:
    """``live`` with ``body`` (decoded JSON) applied. The result may share parts with ``live`` and ``body``.

    ``schema`` matters to the strategic merge alone, which custom resources do not have: the caller refuses that with
    ``unsupported``. Server-side apply is ``apply.server_side_apply``.
    """
    match content_type:
        case "application/json-patch+json":
            return json.apply(_copy(live), body)
        case "application/merge-patch+json":
            return merge.apply(live, body)
        case "application/strategic-merge-patch+json":
            return strategic.apply(_copy(live), _copy(body), schema)
    raise unsupported()


def unsupported(*, custom: bool = False) -> ApiError:
    """415: no content type that the kind can be patched with; custom resources don't take strategic merges."""
    if not custom:
        return ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    text = f"the body of the request was in an unknown format - accepted media types include: {JSON}, {MERGE}, {APPLY}"
    return ApiError(415, "UnsupportedMediaType", text)


def _copy(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))
