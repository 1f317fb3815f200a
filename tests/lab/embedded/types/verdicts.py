"""What the embedded rules make of a row: a code and an object or a message, without what differs by chance."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from kgpu.lab.embedded.core.model import ApiUser, Call
from kgpu.lab.embedded.core.verbs import ApiCore
from kgpu.lab.embedded.kinds import ApiKind, Kinds
from kgpu.lab.embedded.status import ApiError
from kgpu.lab.embedded.store import ObjectStore
from kgpu.lab.embedded.types.admission import chain
from kgpu.lab.embedded.types.rules import BuiltinRules
from tests.lab.embedded.types.table import STANDING, Object, Row

ADMIN = ApiUser("admin", ("system:masters",))
KINDS = Kinds()
MERGE = "application/merge-patch+json"
_CHANCE = ("uid", "creationTimestamp", "resourceVersion", "managedFields")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def kind_of(manifest: Object) -> ApiKind:
    found = KINDS.of(manifest["apiVersion"], manifest["kind"])
    assert found is not None, manifest["kind"]
    return found


def settled(manifest: Object, namespace: str) -> Object:
    """The manifest in that namespace, where it says nothing else."""
    found = copy.deepcopy(manifest)
    if kind_of(found).namespaced:
        found["metadata"].setdefault("namespace", namespace)
    about = found.get("involvedObject", {})
    if about.get("namespace") == "NAMESPACE":
        about["namespace"] = namespace
    return found


def core() -> ApiCore:
    """With the namespaces of the table, their accounts and what stands in them."""
    made = ApiCore(KINDS, ObjectStore(), lambda kind: BuiltinRules(), chain())
    call = Call(user=ADMIN, manager="test")
    for name in ("default", "kube-system", *STANDING):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        made.create(KINDS.need("", "namespaces"), "", namespace, call)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
        made.create(KINDS.need("", "serviceaccounts"), name, account, call)
    for name, objects in STANDING.items():
        for one in objects:
            made.create(kind_of(one), name, settled(one, name), call)
    return made


def judged(served: ApiCore, row: Row, namespace: str | None = None) -> tuple[int, Any]:
    """The code, and the object or the message."""
    call = Call(user=ADMIN, manager="test", dry_run=True)
    manifest = settled(row.manifest, namespace or row.namespace)
    kind = kind_of(manifest)
    where = manifest["metadata"].get("namespace", "") if kind.namespaced else ""
    try:
        if row.patch is None:
            return 201, plain(served.create(kind, where, manifest, call).obj)
        name = manifest["metadata"]["name"]
        if served.reads.get(kind.group, kind.plural, where, name) is None:
            standing = Call(user=ADMIN, manager="test")
            served.create(kind, where, manifest, standing)
            if row.first is not None:
                served.patch(kind, where, name, MERGE, row.first, standing, subresource=row.subresource)
        stored, _ = served.patch(kind, where, name, MERGE, row.patch, call, subresource=row.subresource)
        return 200, plain(stored.obj) if row.subresource else changed(stored.obj)
    except ApiError as error:
        return error.code, words(error.message)


def owned(obj: Object) -> list[Object]:
    """The field sets of an object's managers."""
    return [one["fieldsV1"] for one in obj["metadata"].get("managedFields", [])]


def words(message: str) -> str:
    """A message without ids and differences of internal types; JSON values in it have their keys in order."""
    text = _UID.sub("UID", message).split("\n", 1)[0]
    found, at = "", 0
    while at < len(text):
        if text[at] in "{[":
            try:
                value, end = json.JSONDecoder().raw_decode(text, at)
            except ValueError:
                pass
            else:
                found, at = found + json.dumps(value, sort_keys=True), end
                continue
        found, at = found + text[at], at + 1
    return found


def changed(obj: Object) -> Object:
    """Of an updated object what no controller has a hand in."""
    found = plain(obj)
    found.pop("status", None)
    (found.get("spec") or {}).pop("nodeName", None)
    annotations = found["metadata"].get("annotations", {})
    annotations.pop("deployment.kubernetes.io/revision", None)
    if not annotations:
        found["metadata"].pop("annotations", None)
    return found


def plain(obj: Object) -> Object:
    """An object without what differs by chance."""
    found = copy.deepcopy(obj)
    for name in _CHANCE:
        found["metadata"].pop(name, None)
    if found["metadata"].get("generateName"):
        found["metadata"].pop("name", None)
    if found["kind"] == "Service":
        for name in ("clusterIP", "clusterIPs"):
            if found["spec"].get(name) not in (None, "None", ["None"]):
                found["spec"][name] = "given"
        for port in found["spec"].get("ports", ()):
            if port.get("nodePort"):
                port["nodePort"] = "given"
    return _calm(found)


def _calm(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _calm(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_calm(one) for one in value]
    if isinstance(value, str):
        text = _TIME.sub("TIME", _UID.sub("UID", value))
        return re.sub(r"kube-api-access-\w{5}$", "kube-api-access", text)
    return value
