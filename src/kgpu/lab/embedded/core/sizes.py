"""How large an object may be: what the real server's etcd takes in one request.

Built-in kinds are kept as protobuf there, so that their JSON may be larger; custom ones are kept as JSON.
"""

from __future__ import annotations

from typing import Any, Final

from kgpu.lab.embedded.core.model import encode
from kgpu.lab.embedded.status import ApiError, Object

MAX_BYTES: Final = 3 << 19  # etcd's default of --max-request-bytes, 1.5 MiB
MANY: Final = 50_000
"""Fields and items from which on an object that is too large is refused before it is validated."""
TOO_MANY: Final = 400_000
"""Fields and items that no object has which etcd would take, but for one made to keep a server busy."""
_NESTS: Final = (dict, list)
_HEAD: Final = 2  # bytes of a field's number and length


class TooLargeError(ApiError):
    """Etcd's refusal as it arrives."""

    def __init__(self) -> None:
        super().__init__(500, "", "etcdserver: request is too large")


def check(obj: Object, size: int) -> None:
    """Raises TooLargeError; ``size`` is that of the object's JSON."""
    if size <= MAX_BYTES:
        return
    # Imported here as hardly any object comes so far.
    from kgpu.lab.embedded import protobuf

    if (obj.get("apiVersion"), obj.get("kind")) not in protobuf.types() or binary_size(obj) > MAX_BYTES:
        raise TooLargeError


def check_parts(obj: Object) -> None:
    """As ``check``, for an object that would take long to validate: the real server would refuse it only after that."""
    parts = _parts(obj)
    if parts > TOO_MANY or (parts > MANY and binary_size(obj) > MAX_BYTES):
        raise TooLargeError


def _parts(obj: Object) -> int:
    found = 0
    todo: list[Any] = [obj]
    while todo:
        one = todo.pop()
        found += len(one)
        todo += [value for value in (one.values() if type(one) is dict else one) if type(value) in _NESTS]
    return found


def binary_size(obj: Object) -> int:
    """About what the object has as protobuf: keys of maps, which look like fields, are left out."""
    metadata = obj.get("metadata") or {}
    owners = metadata.get("managedFields") or ()
    return _size({**obj, "metadata": {**metadata, "managedFields": None}}) + len(encode(owners))


def _size(obj: Object) -> int:
    found = 0
    todo: list[Any] = [obj]
    while todo:
        one = todo.pop()
        found += _HEAD * len(one)
        for value in one.values() if type(one) is dict else one:
            kind = type(value)
            if kind is str:
                found += len(value)
            elif kind in _NESTS:
                todo.append(value)
            else:
                found += 1
    return found
