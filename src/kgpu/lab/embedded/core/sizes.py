"""How large an object may be: what the real server's etcd takes in one request.

Built-in kinds are kept as protobuf there, so that their JSON may be larger; custom ones are kept as JSON.
"""

from __future__ import annotations

from typing import Any, Final

from kgpu.lab.embedded.core.model import encode
from kgpu.lab.embedded.status import ApiError, Object

MAX_BYTES: Final = 3 << 19  # etcd's default of --max-request-bytes, 1.5 MiB
MANY: Final = 50_000
"""An object with more fields and items than this is refused before validation if it is too large."""
TOO_MANY: Final = 400_000
"""No object with more fields and items than this fits into etcd, unless it was made to keep a server busy."""
_NESTS: Final = (dict, list)
_HEAD: Final = 2  # bytes of a field's number and length


class TooLargeError(ApiError):
    """Etcd's refusal as a client gets it."""

    def __init__(self) -> None:
        super().__init__(500, "", "etcdserver: request is too large")


def check(obj: Object, size: int) -> None:
    """Raises TooLargeError; ``size`` is that of the object's JSON."""
    if size <= MAX_BYTES:
        return
    # Imported here as hardly any object is that large.
    from kgpu.lab.embedded import protobuf

    if (obj.get("apiVersion"), obj.get("kind")) not in protobuf.types() or binary_size(obj) > MAX_BYTES:
        raise TooLargeError


def check_parts(obj: Object) -> None:
    """As ``check``, but before validation, which would take long; the real server refuses the object only after it."""
    parts = _parts(obj)
    if parts > TOO_MANY or (parts > MANY and binary_size(obj) > MAX_BYTES):
        raise TooLargeError


def _parts(obj: Object) -> int:
    count = 0
    todo: list[Any] = [obj]
    while todo:
        nested = todo.pop()
        count += len(nested)
        todo += [value for value in (nested.values() if type(nested) is dict else nested) if type(value) in _NESTS]
    return count


def binary_size(obj: Object) -> int:
    """About how many bytes the object has as protobuf. Keys of maps, which look like fields, are not counted."""
    metadata = obj.get("metadata") or {}
    owners = metadata.get("managedFields") or ()
    return _size({**obj, "metadata": {**metadata, "managedFields": None}}) + len(encode(owners))


def _size(obj: Object) -> int:
    size = 0
    todo: list[Any] = [obj]
    while todo:
        nested = todo.pop()
        size += _HEAD * len(nested)
        for value in nested.values() if type(nested) is dict else nested:
            kind = type(value)
            if kind is str:
                size += len(value)
            elif kind in _NESTS:
                todo.append(value)
            else:
                size += 1
    return size
