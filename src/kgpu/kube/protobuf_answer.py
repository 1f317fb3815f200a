"""Reads the object's name and version from a protobuf answer of the API server: all that a writer needs of it.

For a write to a Node the server spends a tenth of its time on putting the whole object into JSON, which a program that
follows Nodes anyway gets again from its watch. The binary form costs it next to nothing, and the version is one field
in it: ``Unknown`` (raw = 2) around the object (metadata = 1), as Kubernetes' generated.proto files number them. Nothing
else is decoded, so that no description of any kind is needed. Total: bytes of another shape are a ValueError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kgpu.kube.port import Object

CONTENT_TYPE: Final = "application/vnd.kubernetes.protobuf"
MAGIC: Final = b"k8s\x00"
_RAW, _METADATA = 2, 1
_FIELDS: Final = {1: "name", 3: "namespace", 5: "uid", 6: "resourceVersion"}
_STATUS: Final = {3: "message", 4: "reason"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read(answer: bytes) -> Object:
    """The object's metadata: name, namespace, uid and resourceVersion, as far as they are there. Raises ValueError."""
    return {"metadata": _texts(_part(_object(answer), _METADATA), _FIELDS)}


def read_status(answer: bytes) -> Object:
    """The message and reason of a refusal's Status, as far as they are there. Raises ValueError."""
    return _texts(_object(answer), _STATUS)


def _object(answer: bytes) -> bytes:
    if not answer.startswith(MAGIC):
        raise ValueError("it does not begin with k8s")
    return _part(answer[len(MAGIC) :], _RAW)


def _texts(message: bytes, fields: Mapping[int, str]) -> Object:
    return {fields[number]: value.decode() for number, value in _parts(message) if number in fields and value}


def _part(message: bytes, number: int) -> bytes:
    return next((value for field, value in _parts(message) if field == number), b"")


def _parts(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields that hold bytes, in order; other fields are passed over."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if at + size > len(message):
            raise ValueError("a field is cut off")
        if kind == _BYTES:
            yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("a number is cut off")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is too long")
