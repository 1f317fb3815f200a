"""Whether a CEL selector of devices compiles, with the real server's words where it does not (DRA-05).

``device`` has the fields that ``k8s.io/dynamic-resource-allocation/cel`` declares. Costs are not estimated.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kgpu.lab.embedded.cel.program import Environment

_MESSAGE: Final = "kubernetes.DRADevice"


@functools.lru_cache(maxsize=1024)
def complaint(text: str) -> str:
    """What is wrong with the expression, "" for nothing."""
    from kgpu.lab.embedded.cel.program import CelError

    program = _environment().compile(text)
    if isinstance(program, CelError):
        # Of a text without any, cel-go counts columns from 0 and shows no line.
        words = str(program) if text else str(program).split("\n", 1)[0].replace(":1:1:", ":1:0:", 1)
        return f"compilation failed: {words}"
    if program.result not in {"bool", "dyn"}:
        # What is of any type here is declared as a message of any type there.
        result = program.result.replace("map(string, dyn)", "map(string, google.protobuf.Any)")
        return f"must evaluate to bool or the unknown type, not {result}"
    return ""


@functools.cache
def _environment() -> Environment:
    from google.protobuf import descriptor_pb2

    from kgpu.lab.embedded.cel import values
    from kgpu.lab.embedded.cel.program import Environment, Type

    field = descriptor_pb2.FieldDescriptorProto
    package, _, name = _MESSAGE.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(name="kgpu_device.proto", package=package, syntax="proto3")
    file.dependency.append("google/protobuf/struct.proto")
    message = file.message_type.add(name=name)
    fields = {
        "driver": (field.TYPE_STRING, ""),
        "allowMultipleAllocations": (field.TYPE_BOOL, ""),
        "attributes": (field.TYPE_MESSAGE, ".google.protobuf.Struct"),
        "capacity": (field.TYPE_MESSAGE, ".google.protobuf.Struct"),
    }
    for number, (field_name, (kind, type_name)) in enumerate(fields.items(), start=1):
        declared = message.field.add(name=field_name, number=number, label=field.LABEL_OPTIONAL, type=kind)
        declared.json_name = f"j{number}"
        if type_name:
            declared.type_name = type_name
    pool = values.fresh_pool()
    pool.AddSerializedFile(file.SerializeToString())
    return Environment(
        {
            "device": Type(_MESSAGE),
            "device.attributes": Type.Map(Type.STRING, Type.Map(Type.STRING, Type.DYN)),
            "device.capacity": Type.Map(Type.STRING, Type.Map(Type.STRING, Type(values.QUANTITY))),
        },
        pool=pool,
    )
