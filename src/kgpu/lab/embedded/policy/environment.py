"""What the expressions of a policy may name, and of which types; expressions compiled with the checks of their kind.

``object``, ``oldObject`` and ``params`` are untyped, unless somebody who checks types says otherwise; ``request`` and
``namespaceObject`` have the types that the real server has built for them; ``variables`` are those defined before.
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
# Values of these types can't be handed from one expression to another; their expressions are repeated instead.
_REPEATED: Final = ("optional_type", "uint", "type(", "kubernetes.", "net.")


@dataclass(frozen=True, slots=True)
class PolicyVariable:
    """A variable of a policy: its expression, and the program or what is wrong with it."""

    name: str
    text: str
    program: CompiledExpression | CelError

    @property
    def type(self) -> Any:
        """As later expressions see it."""
        return (
            _seen(self.program.type, self.program.result) if isinstance(self.program, CompiledExpression) else Type.DYN
        )

    @property
    def source(self) -> str:
        """The expression that gives its value within others."""
        known = isinstance(self.program, CompiledExpression) and any(one in self.program.result for one in _REPEATED)
        return self.text if known else f"{cel_library.VARIABLE}('{self.name}')"


def _seen(kind: Any, words: str) -> Any:
    """The real server forgets the types of variables that it has no declaration for."""
    if "." not in words.replace("google.protobuf.", "") and "optional_type" not in words and "type(" not in words:
        return kind
    return Type.List(Type.DYN) if words.startswith("list(") else Type.DYN


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What may be named (``params``, ``authorizer`` and its ``requestResource`` or not), and which types objects and
    params have (None: any).

    ``pool`` makes descriptors with those types among them; ``words`` are what the types are called in complaints.
    """

    params: bool = False
    authorizer: bool = True
    request_resource: bool = True
    object_type: Any = None
    params_type: Any = None
    pool: Callable[[], Any] = cel_values.fresh_pool
    words: Mapping[str, str] = field(default_factory=dict)

    def environment(self, variables: Sequence[PolicyVariable] | None = None) -> Environment:
        """With these variables; None where there are no variables at all."""
        pool, type_ = self._pool(variables or ()), self.object_type or Type.DYN
        found = {
            "object": type_, "oldObject": type_, "namespaceObject": Type(f"{_PACKAGE}.Namespace"),
            "request": Type(f"{_PACKAGE}.AdmissionRequest"),
            _EXTRA: Type.Map(Type.STRING, Type.List(Type.STRING)),
        }  # fmt: skip
        if self.params:
            found["params"] = self.params_type or Type.DYN
        if self.authorizer:
            found["authorizer"] = Type(cel_values.AUTHORIZER)
            if self.request_resource:
                found["authorizer.requestResource"] = Type(cel_values.RESOURCE_CHECK)
        lazy = {}
        if variables is not None:
            found["variables"] = Type(_VARIABLES)
            found |= {f"variables.{one.name}": one.type for one in variables}
            lazy = {f"variables.{one.name}": one.source for one in variables}
        return Environment(found, pool=pool, names=self.words, lazy=lazy)

    def _pool(self, variables: Sequence[PolicyVariable]) -> Any:
        pool = self.pool()
        pool.AddSerializedFile(_described())
        file = _file("kgpu_variables.proto")
        message = file.message_type.add(name="variables")
        for number, name in enumerate(dict.fromkeys(one.name for one in variables), start=1):
            _add(message, number, name, "dyn")
        pool.AddSerializedFile(file.SerializeToString())
        return pool


def compiled(environment: Environment, text: str, results: Sequence[str] = ()) -> CompiledExpression | CelError:
    """The program, or why it is none: what the compiler says, or a result that is none of ``results``."""
    found = environment.compile(text)
    if isinstance(found, CelError):
        return CelError(f"compilation failed: {found}")
    if results and found.result not in results:
        wanted = results[0] if len(results) == 1 else f"one of [{' '.join(results)}]"
        return CelError(f"must evaluate to {wanted} but got {found.result}")
    return found


def composed(names: Names, rows: Sequence[Mapping[str, Any]]) -> list[PolicyVariable]:
    """The variables of a policy, each compiled with those before it."""
    found: list[PolicyVariable] = []
    for row in rows:
        text = str(row.get("expression") or "")
        program = compiled(names.environment(mentioned(found, text)), text)
        found.append(PolicyVariable(str(row.get("name") or ""), text, program))
    return found


def mentioned(variables: Sequence[PolicyVariable], text: str) -> list[PolicyVariable]:
    """Those that an expression may name, itself or through what stands for others: at least those that it does."""
    found: list[PolicyVariable] = []
    for one in reversed(variables):
        if one.name in text:
            found.append(one)
            text += one.source
    return found[::-1]


@functools.cache
def _described() -> bytes:
    file = _file("kgpu_admission.proto")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in ("struct", "timestamp"))
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, one in enumerate(fields.split(), start=1):
            field_name, _, kind = one.partition(":")
            _add(message, number, field_name, kind or "string")
    return file.SerializeToString()


def _file(name: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=name, package=_PACKAGE, syntax="proto3")
    if name == "kgpu_variables.proto":
        file.dependency.append("google/protobuf/struct.proto")
    return file


def _add(message: descriptor_pb2.DescriptorProto, number: int, name: str, kind: str) -> None:
    label = _FIELD.LABEL_REPEATED if kind.endswith("*") or kind == "texts" else _FIELD.LABEL_OPTIONAL
    made = message.field.add(name=name, number=number, label=label, json_name=f"j{number}")
    kind = kind.rstrip("*")
    if kind in _SCALARS:
        made.type = _SCALARS[kind]
        return
    made.type = _FIELD.TYPE_MESSAGE
    if kind == "texts":
        entry = message.nested_type.add(name=f"{name[:1].upper()}{name[1:]}Entry")
        entry.options.map_entry = True
        for at, part in enumerate(("key", "value"), start=1):
            entry.field.add(name=part, number=at, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
        made.type_name = f".{_PACKAGE}.{message.name}.{entry.name}"
    else:
        made.type_name = _KNOWN.get(kind, f".{_PACKAGE}.{kind}")
