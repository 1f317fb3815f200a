"""The envelope that Kubernetes puts around a message: a magic number, the kind, and the object's bytes."""

from __future__ import annotations

import functools
from typing import Final

from kgpu.lab.embedded.kinds import schema_data
from kgpu.lab.embedded.protobuf.messages import JsonReader, known, read
from kgpu.lab.embedded.protobuf.special import MACHINERY
from kgpu.lab.embedded.protobuf.wire import BYTES, BadMessageError, length, skip, tag
from kgpu.lab.embedded.status import Object

MEDIA: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_DELETE: Final = "DeleteOptions"
_CUSTOM: Final = (
    "object *unstructured.Unstructured does not implement the protobuf marshalling interface and cannot be encoded to "
    "a protobuf message"
)
# Field numbers of runtime.Unknown, all of them bytes.
_FIELDS: Final = {1: "TypeMeta", 2: "Raw", 3: "ContentEncoding", 4: "ContentType"}


@functools.cache
def types() -> dict[tuple[str, str], str]:
    """(apiVersion, kind) -> the schema's name, for every type that the API knows."""
    names = {}
    for name, schema in schema_data().items():
        for gvk in schema.get("x-kubernetes-group-version-kind", ()):
            api_version = f"{gvk['group']}/{gvk['version']}" if gvk["group"] else gvk["version"]
            names[api_version, gvk["kind"]] = name
    return names


def decode(data: bytes, default: tuple[str, str], json: JsonReader) -> Object:
    """The object as JSON data. Raises BadMessageError.

    ``default`` is the expected (apiVersion, kind), which also stands for those that the envelope leaves out. An object
    of an unknown kind has only apiVersion and kind, which the caller checks anyway.
    """
    parts = _open(data)
    head = read(parts["TypeMeta"], f"{MACHINERY}runtime.TypeMeta", json)
    api_version, kind = head.get("apiVersion", ""), head.get("kind") or default[1]
    if not api_version or api_version.count("/") > 1:
        api_version = default[0]
    name = f"{MACHINERY}apis.meta.v1.{_DELETE}" if kind == _DELETE else types().get((api_version, kind), "")
    type_meta: Object = {"apiVersion": api_version, "kind": kind}
    try:
        if known(name):
            return {**type_meta, **read(parts["Raw"], name, json), **type_meta}
        if (api_version, kind) == default:
            raise BadMessageError(_CUSTOM)
    except BadMessageError as error:
        error.api_version, error.kind = api_version, kind
        raise
    return type_meta


def _open(data: bytes) -> dict[str, bytes]:
    if not data:
        raise BadMessageError("empty data")
    if not data.startswith(_MAGIC):
        expected = " ".join(map(str, _MAGIC))
        raise BadMessageError(f"provided data does not appear to be a protobuf message, expected prefix [{expected}]")
    if len(data) == len(_MAGIC):
        raise BadMessageError("empty body")
    parts = dict.fromkeys(_FIELDS.values(), b"")
    at, end = len(_MAGIC), len(data)
    while at < end:
        begin = at
        number, wire, at = tag(data, at, end, "Unknown")
        field = _FIELDS.get(number)
        if field is None:
            at = skip(data, begin, end)
            continue
        if wire != BYTES:
            raise BadMessageError(f"proto: wrong wireType = {wire} for field {field}")
        at, stop = length(data, at, end)
        parts[field] = data[at:stop]
        at = stop
    return parts
