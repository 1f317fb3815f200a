"""The table of fields as messages of the protobuf library, which then encodes what our decoder has to understand."""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from kgpu.lab.embedded.protobuf import messages

_TYPES = {"s": "STRING", "y": "BYTES", "r": "BYTES", "b": "BOOL", "i": "INT32", "l": "INT64", "d": "DOUBLE"}
Proto = descriptor_pb2.FieldDescriptorProto


def plain(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")


def _type(field: Any, row: messages.MessageField) -> None:
    if row.letter:
        field.type = Proto.Type.Value(f"TYPE_{_TYPES[row.letter]}")
    else:
        field.type, field.type_name = Proto.TYPE_MESSAGE, f".k.{plain(row.message)}"


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="k.proto", package="k", syntax="proto2")
    for name in messages._table():
        made = file.message_type.add(name=plain(name))
        for number, row in messages.message(name).fields.items():
            field = made.field.add(name=f"f{number}", number=number, label=Proto.LABEL_OPTIONAL)
            if row.many:
                field.label = Proto.LABEL_REPEATED
            if row.many != "%":
                _type(field, row)
                continue
            entry = made.nested_type.add(name=f"F{number}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=Proto.LABEL_OPTIONAL, type=Proto.TYPE_STRING)
            _type(entry.field.add(name="value", number=2, label=Proto.LABEL_OPTIONAL), row)
            field.type, field.type_name = Proto.TYPE_MESSAGE, f".k.{made.name}.F{number}Entry"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def new(name: str) -> Message:
    """An empty message of the library; its fields are ``f`` and their number."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"k.{plain(name)}"))()
