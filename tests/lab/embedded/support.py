"""A core as tests need it: the real kinds and patches, plain rules instead of the real ones, a few namespaces."""

from __future__ import annotations

from collections.abc import Sequence

from kgpu.lab.embedded.core.model import Admission, Call, User, copied
from kgpu.lab.embedded.core.verbs import Core
from kgpu.lab.embedded.kinds import Kind, Kinds, schema_data
from kgpu.lab.embedded.schema import Node
from kgpu.lab.embedded.status import FieldError, Object, required
from kgpu.lab.embedded.store import Log, Store

ADMIN = User("admin", ("system:masters",))
CALL = Call(user=ADMIN, manager="test")
NAMESPACES = ("default", "other")


class PlainRules:
    """What every kind has in common: a status apart, a generation that follows the spec, a name that is needed."""

    def schema(self, kind: Kind) -> Node:
        return Node({"$ref": kind.schema}, schema_data())

    def decode(self, kind: Kind, obj: Object, call: Call) -> Object:
        return {**copied(obj), "apiVersion": kind.api_version, "kind": kind.kind}

    def default(self, kind: Kind, obj: Object) -> None:
        if kind.plural == "pods":
            obj.setdefault("spec", {}).setdefault("terminationGracePeriodSeconds", 30)

    def prepare(self, kind: Kind, obj: Object, old: Object | None, subresource: str) -> None:
        if old is None:
            obj.pop("status", None)
            if kind.plural == "namespaces":
                obj["spec"], obj["status"] = {"finalizers": ["kubernetes"]}, {"phase": "Active"}
            if kind.plural == "pods":
                obj["status"] = {"phase": "Pending"}
            if "status" in kind.subresources:
                obj["metadata"]["generation"] = 1
            return
        taken = {"status": "status", "finalize": "spec"}.get(subresource, "")
        for part in ("spec", "status", "data"):
            if (part == taken) if taken else (part != "status"):
                continue
            if part in old:
                obj[part] = old[part]
            else:
                obj.pop(part, None)
        if kind.plural == "namespaces" and subresource != "finalize":
            obj["spec"] = old["spec"]
        if not subresource and obj.get("spec") != old.get("spec") and "generation" in obj["metadata"]:
            obj["metadata"]["generation"] += 1

    def validate(self, kind: Kind, obj: Object, old: Object | None, subresource: str) -> list[FieldError]:
        if not kind.stored:
            return []
        return [] if obj["metadata"].get("name") else [required("metadata.name", "name or generateName is required")]


def make_core(*, admission: Sequence[Admission] = (), journal: Log | None = None) -> Core:
    rules = PlainRules()
    core = Core(Kinds(), Store(journal), lambda _kind: rules, admission)
    for name in NAMESPACES:
        if core.store.get(("", "namespaces"), "", name) is None:
            core.create(kind(core, "namespaces"), "", {"metadata": {"name": name}}, CALL)
    return core


def kind(core: Core, plural: str, group: str = "") -> Kind:
    return core.kinds.need(group, plural)


def config_map(name: str, data: dict[str, str] | None = None, **metadata: object) -> Object:
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data or {},
    }  # fmt: skip


def pod(name: str, **spec: object) -> Object:
    containers = [{"name": "c", "image": "registry.invalid/none"}]
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec},
    }  # fmt: skip
