"""Strict decoding: unknown fields and JSON of the wrong type, with the real server's messages.

Types are compiled once. A first pass copies a valid object; only after an error a second pass makes the messages, which
name Go's types: those that are not in a schema are in ``_GO_TYPES``, Go's embedded structs in ``_INLINED``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.schema import SchemaNode

_API: Final = "io.k8s.apimachinery.pkg."
_SPECIAL: Final = {
    f"{_API}api.resource.Quantity": "quantity",
    f"{_API}util.intstr.IntOrString": "int or text",
    f"{_API}runtime.RawExtension": "any",
    f"{_API}apis.meta.v1.FieldsV1": "any",
    f"{_API}apis.meta.v1.Time": "text",
    f"{_API}apis.meta.v1.MicroTime": "text",
}
_QUANTITY_WORDS: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_NAMES: Final[dict[type, str]] = {
    dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number",
}  # fmt: skip
# Fields whose Go type has a name of its own: (type, field) -> Go's name.
_GO_TYPES: Final = {
    ("Container", "imagePullPolicy"): "v1.PullPolicy",
    ("Container", "terminationMessagePolicy"): "v1.TerminationMessagePolicy",
    ("ContainerPort", "protocol"): "v1.Protocol",
    ("DaemonSetUpdateStrategy", "type"): "v1.DaemonSetUpdateStrategyType",
    ("DeploymentStrategy", "type"): "v1.DeploymentStrategyType",
    ("JobSpec", "completionMode"): "v1.CompletionMode",
    ("LabelSelectorRequirement", "operator"): "v1.LabelSelectorOperator",
    ("NodeSelectorRequirement", "operator"): "v1.NodeSelectorOperator",
    ("ObjectMeta", "uid"): "types.UID",
    ("OwnerReference", "uid"): "types.UID",
    ("PersistentVolumeClaimSpec", "accessModes"): "[]v1.PersistentVolumeAccessMode",
    ("PodCondition", "status"): "v1.ConditionStatus",
    ("PodCondition", "type"): "v1.PodConditionType",
    ("PodSpec", "dnsPolicy"): "v1.DNSPolicy",
    ("PodSpec", "preemptionPolicy"): "v1.PreemptionPolicy",
    ("PodSpec", "restartPolicy"): "v1.RestartPolicy",
    ("PodStatus", "phase"): "v1.PodPhase",
    ("ServicePort", "protocol"): "v1.Protocol",
    ("ServiceSpec", "sessionAffinity"): "v1.ServiceAffinity",
    ("ServiceSpec", "type"): "v1.ServiceType",
    ("Taint", "effect"): "v1.TaintEffect",
    ("Toleration", "effect"): "v1.TaintEffect",
    ("Toleration", "operator"): "v1.TolerationOperator",
}
# Types with an embedded struct: its name, and the fields that are not in it.
_INLINED: Final = {
    "Probe": ("ProbeHandler", None, frozenset({"exec", "httpGet", "tcpSocket", "grpc"})),
    "Volume": ("VolumeSource", frozenset({"name"}), None),
    "EphemeralContainer": ("EphemeralContainerCommon", frozenset({"targetContainerName"}), None),
    "PersistentVolumeSpec": (
        "PersistentVolumeSource",
        frozenset(
            {"accessModes", "capacity", "claimRef", "mountOptions", "nodeAffinity", "persistentVolumeReclaimPolicy",
             "storageClassName", "volumeAttributesClassName", "volumeMode"}
        ),
        None,
    ),
}  # fmt: skip


def check(obj: Any, node: SchemaNode, *, path: str = "") -> tuple[Any, list[str], list[str]]:
    """``(cleaned, unknown, wrong)`` for decoded JSON of the type ``node``.

    ``cleaned`` is a copy without unknown fields and without nulls, ``unknown`` messages as ``unknown field "spec.foo"``
    in the order of the document, ``wrong`` the first type error as Go words it, if any: that is a 400 whatever the
    request's fieldValidation. ``path`` stands before the fields' paths. Custom resources keep what
    ``x-kubernetes-preserve-unknown-fields`` allows.
    """
    compiled = _compiled(node)
    if obj is None:
        return compiled.empty(), [], []
    try:
        return compiled.copy(obj), [], []
    except _OddError:
        report = _Report()
        where = _Where("", "", path)
        cleaned = compiled.explain(obj, where, report)
        return cleaned, report.unknown, report.wrong[:1]


def refusal(kind: ApiKind, reasons: list[str]) -> str:
    """The message that the real server puts around decoding errors."""
    return f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {", ".join(reasons)}'


class Members(list[tuple[str, Any]]):
    """A JSON object's members in the order of the text, duplicate names included."""


def complaints(members: Any, node: SchemaNode) -> list[str]:
    """The errors of strict decoding about unknown and duplicate fields, in the order of the text.

    ``members``: decoded JSON of the right types, its objects ``Members``. Nothing below an unknown field is checked.
    """
    problems: list[str] = []
    _compiled(node).complain(members, "", problems)
    return problems


class _OddError(Exception):
    """The value is invalid; the second pass makes the message."""


class _Where(NamedTuple):
    """A place in an object: its Go struct, Go's path of fields, and the path with indices."""

    struct: str
    fields: str
    path: str


class _Report:
    def __init__(self) -> None:
        self.unknown: list[str] = []
        self.wrong: list[str] = []

    def mismatch(self, what: str, where: _Where, go: str) -> None:
        field = f"struct field {where.struct}.{where.fields}" if where.struct else "value"
        self.wrong.append(f"json: cannot unmarshal {what} into Go {field} of type {go}")


def _deep(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _deep(inner) for key, inner in value.items()}
    return [_deep(inner) for inner in value] if isinstance(value, list) else value


class _Type:
    """A compiled type that accepts any value."""

    go = "interface {}"

    def copy(self, value: Any) -> Any:
        """A copy; raises _OddError."""
        return _deep(value)

    def explain(self, value: Any, where: _Where, report: _Report) -> Any:  # noqa: ARG002
        return _deep(value)

    def complain(self, value: Any, path: str, problems: list[str]) -> None:
        """Add errors about unknown and duplicate fields; none for types that decode themselves."""

    def empty(self) -> Any:
        """The value that replaces a null in a list or map."""
        return None


class _Scalar(_Type):
    def __init__(self, go: str, allowed: tuple[type, ...], zero: Any) -> None:
        self.go, self._allowed, self._zero = go, allowed, zero
        self._limit = 1 << 31 if go == "int32" else 1 << 63 if go == "int64" else 0

    def copy(self, value: Any) -> Any:
        if type(value) not in self._allowed or (self._limit and not self._fits(value)):
            raise _OddError
        return value

    def _fits(self, value: Any) -> bool:
        return not isinstance(value, int) or -self._limit <= value < self._limit

    def explain(self, value: Any, where: _Where, report: _Report) -> Any:
        try:
            return self.copy(value)
        except _OddError:
            what = _NAMES.get(type(value), "null")
            if what == "number" and self._limit:
                what = f"number {msgspec.json.encode(value).decode()}"
            report.mismatch(what, where, self.go)
            return self._zero

    def empty(self) -> Any:
        return self._zero


class _Quantity(_Type):
    def copy(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise _OddError
        return value

    def explain(self, value: Any, where: _Where, report: _Report) -> Any:  # noqa: ARG002
        try:
            return self.copy(value)
        except _OddError:
            report.wrong.append(_QUANTITY_WORDS)
            return "0"

    def empty(self) -> Any:
        return "0"


class _ListType(_Type):
    def __init__(self, item: _Type) -> None:
        self.item = item
        self.go = f"[]{item.go}"

    def copy(self, value: Any) -> Any:
        if type(value) is not list:
            raise _OddError
        copy, empty = self.item.copy, self.item.empty
        return [empty() if item is None else copy(item) for item in value]

    def explain(self, value: Any, where: _Where, report: _Report) -> Any:
        if not isinstance(value, list):
            report.mismatch(_NAMES[type(value)], where, self.go)
            return []
        cleaned = []
        for index, item in enumerate(value):
            inside = where._replace(path=f"{where.path}[{index}]")
            cleaned.append(self.item.empty() if item is None else self.item.explain(item, inside, report))
        return cleaned

    def complain(self, value: Any, path: str, problems: list[str]) -> None:
        for index, item in enumerate(value or ()):
            self.item.complain(item, f"{path}[{index}]", problems)

    def empty(self) -> Any:
        return []


class _MapType(_Type):
    def __init__(self, values: _Type) -> None:
        self.values = values
        # In practice every map of quantities has this name.
        self.go = "v1.ResourceList" if isinstance(values, _Quantity) else f"map[string]{values.go}"

    def copy(self, value: Any) -> Any:
        if type(value) is not dict:
            raise _OddError
        copy, empty = self.values.copy, self.values.empty
        return {key: empty() if inner is None else copy(inner) for key, inner in value.items()}

    def explain(self, value: Any, where: _Where, report: _Report) -> Any:
        if not isinstance(value, dict):
            report.mismatch(_NAMES[type(value)], where, self.go)
            return {}
        cleaned = {}
        for key, inner in value.items():
            inside = where._replace(path=f"{where.path}.{key}")
            cleaned[key] = self.values.empty() if inner is None else self.values.explain(inner, inside, report)
        return cleaned

    def complain(self, value: Any, path: str, problems: list[str]) -> None:
        seen: set[str] = set()
        for key, inner in value or ():
            inside = f"{path}.{key}"
            if key in seen:
                problems.append(f'duplicate field "{inside}"')
            seen.add(key)
            self.values.complain(inner, inside, problems)

    def empty(self) -> Any:
        return {}


class _Struct(_Type):
    def __init__(self, node: SchemaNode) -> None:
        self._node = node
        self._fields: dict[str, _Type] | None = None
        self._open = node.preserves_unknown
        self._name = node.name.rpartition(".")[2]
        version = node.name.split(".")[-2] if "." in node.name else ""
        self.go = f"{version}.{self._name}"

    @property
    def fields(self) -> dict[str, _Type]:
        """The fields' types; made at the first use, as types may be recursive."""
        if self._fields is None:
            children = {name: self._node.field(name) for name in self._node.properties}
            self._fields = {
                name: _compiled(child, _GO_TYPES.get((self._name, name), ""))
                for name, child in children.items()
                if child is not None
            }
        return self._fields

    def copy(self, value: Any) -> Any:
        if type(value) is not dict:
            raise _OddError
        fields = self._fields or self.fields
        cleaned = {}
        for key, inner in value.items():
            if inner is None:
                if key not in fields:
                    raise _OddError
                continue
            field = fields.get(key)
            if field is None:
                raise _OddError
            cleaned[key] = field.copy(inner)
        return cleaned

    def explain(self, value: Any, where: _Where, report: _Report) -> Any:
        if not isinstance(value, dict):
            report.mismatch(_NAMES[type(value)], where, self.go)
            return {}
        cleaned = {}
        for key, inner in value.items():
            field = self.fields.get(key)
            path = f"{where.path}.{key}" if where.path else key
            if field is None:
                if self._open:
                    cleaned[key] = _deep(inner)
                else:
                    report.unknown.append(f'unknown field "{path}"')
            elif inner is not None:
                name = self._inlined(key) + key
                fields = f"{where.fields}.{name}" if where.fields else name
                cleaned[key] = field.explain(inner, _Where(self._name, fields, path), report)
        return cleaned

    def complain(self, value: Any, path: str, problems: list[str]) -> None:
        keys: set[str] = set()
        for key, inner in value or ():
            inside = f"{path}.{key}" if path else key
            field = self.fields.get(key)
            if field is None:
                problems.append(f'unknown field "{inside}"')
                continue
            if key in keys:
                problems.append(f'duplicate field "{inside}"')
            keys.add(key)
            field.complain(inner, inside, problems)

    def _inlined(self, key: str) -> str:
        struct, outside, inside = _INLINED.get(self._name, ("", None, frozenset()))
        within = key in inside if inside is not None else outside is not None and key not in outside
        return f"{struct}." if within else ""

    def empty(self) -> Any:
        return {}


_ANY: Final = _Type()
_STRUCTS: Final[dict[str, _Struct]] = {}


def _compiled(node: SchemaNode, go: str = "") -> _Type:
    kind = _SPECIAL.get(node.name) or node.type
    scalar = _scalar(kind, str(node.raw.get("format", "")), go)
    if scalar is not None:
        return scalar
    if kind == "quantity":
        return _Quantity()
    if kind == "array" and node.items is not None:
        return _ListType(_compiled(node.items, go.removeprefix("[]")))
    if kind != "object":
        return _ANY
    if node.properties:
        if not node.name:
            return _Struct(node)
        if node.name not in _STRUCTS:
            _STRUCTS[node.name] = _Struct(node)
        return _STRUCTS[node.name]
    if node.values is not None:
        return _MapType(_compiled(node.values))
    return _ANY


def _scalar(kind: str, form: str, go: str) -> _Scalar | None:
    match kind:
        case "string" | "text":
            return _Scalar("[]uint8" if form == "byte" else go or "string", (str,), "")
        case "integer":
            return _Scalar(form if form in ("int32", "int64") else "int64", (int,), 0)
        case "number":
            return _Scalar("float64", (int, float), 0)
        case "boolean":
            return _Scalar("bool", (bool,), False)
        case "int or text":
            return _Scalar("int32", (int, str), 0)
    return None
