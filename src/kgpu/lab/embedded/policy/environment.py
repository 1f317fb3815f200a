"""The names that a policy's expressions may use, with their types; compiles expressions and checks their result types.

``object``, ``oldObject`` and ``params`` are untyped, except for type checks; ``request`` and ``namespaceObject`` have
the types that the real server declares for them; ``variables`` are those defined before.
Source: pkg/admission/plugin/cel of the API server.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import descriptor_pb2

from kgpu.lab.embedded.cel import library as cel_library
from kgpu.lab.embedded.cel import values as cel_values
from kgpu.lab.embedded.cel.program import CelError, CompiledExpression, Environment, Type

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_PACKAGE: Final = "kubernetes"
_VARIABLES: Final = "kubernetes.variables"
_SCALARS: Final = {"string": _FIELD.TYPE_STRING, "int": _FIELD.TYPE_INT64, "bool": _FIELD.TYPE_BOOL}
_KNOWN: Final = {
    "dyn": ".google.protobuf.Value", "map": ".google.protobuf.Struct", "time": ".google.protobuf.Timestamp",
}  # fmt: skip
_GVK: Final = "group version kind"
_GVR: Final = "group version resource"
_METADATA: Final = (
    "name generateName namespace labels:texts annotations:texts UID creationTimestamp:time "
    "deletionGracePeriodSeconds:int deletionTimestamp:time generation:int resourceVersion finalizers:string*"
)
# Message -> its fields, each ``name`` (a text) or ``name:type``; a star for lists, ``texts`` for a map of texts.
_MESSAGES: Final = {
    "GroupVersionKind": _GVK,
    "GroupVersionResource": _GVR,
    "UserInfo": "username uid groups:string* extra:map",
    "AdmissionRequest": (
        "kind:GroupVersionKind resource:GroupVersionResource subResource requestKind:GroupVersionKind "
        "requestResource:GroupVersionResource requestSubResource name namespace operation userInfo:UserInfo "
        "dryRun:bool options:dyn"
    ),
    "NamespaceMetadata": _METADATA,
    "NamespaceSpec": "finalizers:string*",
    "NamespaceCondition": "status type lastTransitionTime:time message reason",
    "NamespaceStatus": "conditions:NamespaceCondition* phase",
    "Namespace": "metadata:NamespaceMetadata spec:NamespaceSpec status:NamespaceStatus",
}
_EXTRA: Final = "request.userInfo.extra"
# Values of these types can't be passed from one expression to another; their expressions are repeated instead.
_REPEATED: Final = ("optional_type", "uint", "type(", "kubernetes.", "net.")


@dataclass(frozen=True, slots=True)
class PolicyVariable:
    """A variable of a policy: its expression, and its program or compile error."""

    name: str
    text: str
    program: CompiledExpression | CelError

    @property
    def type(self) -> Any:
        """The type that later expressions see."""
        return (
            _seen(self.program.type, self.program.result) if isinstance(self.program, CompiledExpression) else Type.DYN
        )

    @property
    def source(self) -> str:
        """The text that stands for the variable's value in other expressions."""
        known = isinstance(self.program, CompiledExpression) and any(kind in self.program.result for kind in _REPEATED)
        return self.text if known else f"{cel_library.VARIABLE}('{self.name}')"


def _seen(kind: Any, words: str) -> Any:
    """The real server forgets the types of variables that it has no declaration for."""
    if "." not in words.replace("google.protobuf.", "") and "optional_type" not in words and "type(" not in words:
        return kind
    return Type.List(Type.DYN) if words.startswith("list(") else Type.DYN


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """Which names are declared (``params``, ``authorizer``, its ``requestResource``), and the types of objects and
    params (None: any).

    ``pool`` makes descriptors that include those types; ``words`` are the names of the types in error messages.
    """

    params: bool = False
    authorizer: bool = True
    request_resource: bool = True
    object_type: Any = None
    params_type: Any = None
    pool: Callable[[], Any] = cel_values.fresh_pool
    words: Mapping[str, str] = field(default_factory=dict)

    def environment(self, variables: Sequence[PolicyVariable] | None = None) -> Environment:
        """An environment with these variables; None if the expression may not use any."""
        pool, object_type = self._pool(variables or ()), self.object_type or Type.DYN
        types = {
            "object": object_type, "oldObject": object_type, "namespaceObject": Type(f"{_PACKAGE}.Namespace"),
            "request": Type(f"{_PACKAGE}.AdmissionRequest"),
            _EXTRA: Type.Map(Type.STRING, Type.List(Type.STRING)),
        }  # fmt: skip
        if self.params:
            types["params"] = self.params_type or Type.DYN
        if self.authorizer:
            types["authorizer"] = Type(cel_values.AUTHORIZER)
            if self.request_resource:
                types["authorizer.requestResource"] = Type(cel_values.RESOURCE_CHECK)
        lazy = {}
        if variables is not None:
            types["variables"] = Type(_VARIABLES)
            types |= {f"variables.{variable.name}": variable.type for variable in variables}
            lazy = {f"variables.{variable.name}": variable.source for variable in variables}
        return Environment(types, pool=pool, names=self.words, lazy=lazy)

    def _pool(self, variables: Sequence[PolicyVariable]) -> Any:
        pool = self.pool()
        pool.AddSerializedFile(_described())
        file = _file("kgpu_variables.proto")
        message = file.message_type.add(name="variables")
        for number, name in enumerate(dict.fromkeys(variable.name for variable in variables), start=1):
            _add(message, number, name, "dyn")
        pool.AddSerializedFile(file.SerializeToString())
        return pool


def compiled(environment: Environment, text: str, results: Sequence[str] = ()) -> CompiledExpression | CelError:
    """The program, or the compiler's error, or an error if the result type is not one of ``results``."""
    program = environment.compile(text)
    if isinstance(program, CelError):
        return CelError(f"compilation failed: {program}")
    if results and program.result not in results:
        wanted = results[0] if len(results) == 1 else f"one of [{' '.join(results)}]"
        return CelError(f"must evaluate to {wanted} but got {program.result}")
    return program


def composed(declarations: Declarations, rows: Sequence[Mapping[str, Any]]) -> list[PolicyVariable]:
    """The variables of a policy, each compiled with those before it."""
    variables: list[PolicyVariable] = []
    for row in rows:
        text = str(row.get("expression") or "")
        program = compiled(declarations.environment(mentioned(variables, text)), text)
        variables.append(PolicyVariable(str(row.get("name") or ""), text, program))
    return variables


def mentioned(variables: Sequence[PolicyVariable], text: str) -> list[PolicyVariable]:
    """The variables that an expression uses, itself or through other variables; may include some that it does not."""
    used: list[PolicyVariable] = []
    for variable in reversed(variables):
        if variable.name in text:
            used.append(variable)
            text += variable.source
    return used[::-1]


@functools.cache
def _described() -> bytes:
    file = _file("kgpu_admission.proto")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in ("struct", "timestamp"))
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, spec in enumerate(fields.split(), start=1):
            field_name, _, kind = spec.partition(":")
            _add(message, number, field_name, kind or "string")
    return file.SerializeToString()


def _file(name: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=name, package=_PACKAGE, syntax="proto3")
    if name == "kgpu_variables.proto":
        file.dependency.append("google/protobuf/struct.proto")
    return file


def _add(message: descriptor_pb2.DescriptorProto, number: int, name: str, kind: str) -> None:
    label = _FIELD.LABEL_REPEATED if kind.endswith("*") or kind == "texts" else _FIELD.LABEL_OPTIONAL
    proto_field = message.field.add(name=name, number=number, label=label, json_name=f"j{number}")
    kind = kind.rstrip("*")
    if kind in _SCALARS:
        proto_field.type = _SCALARS[kind]
        return
    proto_field.type = _FIELD.TYPE_MESSAGE
    if kind == "texts":
        entry = message.nested_type.add(name=f"{name[:1].upper()}{name[1:]}Entry")
        entry.options.map_entry = True
        for at, part in enumerate(("key", "value"), start=1):
            entry.field.add(name=part, number=at, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
        proto_field.type_name = f".{_PACKAGE}.{message.name}.{entry.name}"
    else:
        proto_field.type_name = _KNOWN.get(kind, f".{_PACKAGE}.{kind}")
