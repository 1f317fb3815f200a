"""Evidence bundles: archives of ``kgpu collect`` about one node, each in a ConfigMap that goes with its operation."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final

from kgpu.base.errors import ConfigError, KubeError
from kgpu.base.plain import items, mapping, text
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import OperationEvidence
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import CONFIG_MAPS, KubeApi, KubeRefusedError, Object
from kgpu.operations.model import Operation

MAX_BYTES: Final = 512 * 1024
"""The largest bundle: in base64 it needs a third more, and the API server takes objects of at most a MiB."""
KEY: Final = "bundle.tar.gz"
_MAX_NAME: Final = 253


def name_of(operation: Operation) -> str:
    """The name of the ConfigMap, after the operation's."""
    name = f"kgpu-evidence-{operation.name}"
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[:200]}-{hashlib.sha256(operation.uid.encode()).hexdigest()[:10]}"


async def keep(api: KubeApi, operation: Operation, data: bytes, namespace: str) -> OperationEvidence:
    """Keep an operation's bundle; the garbage collector deletes it with the operation. Raises KubeError."""
    if len(data) > MAX_BYTES:
        raise _too_large(len(data))
    owner = {
        "apiVersion": NODE_OPERATIONS.api_version, "kind": NODE_OPERATIONS.kind, "name": operation.name,
        "uid": operation.uid,
    }  # fmt: skip
    name = name_of(operation)
    body: Object = {
        "metadata": {
            "name": name, "namespace": namespace, "ownerReferences": [owner],
            "labels": {names.OPERATION_LABEL: operation.uid, names.NAME_LABEL: "kgpu"},
        },
        "binaryData": {KEY: base64.b64encode(data).decode()},
        "immutable": True,
    }  # fmt: skip
    try:
        await api.create(CONFIG_MAPS, body)
    except KubeRefusedError as refused:
        if refused.reason != "AlreadyExists":
            raise
        known = await kept(api, operation, namespace)
        if known is None:
            raise _not_ours(namespace, name) from refused
        return known
    return OperationEvidence(namespace=namespace, name=name, size_bytes=len(data))


async def kept(api: KubeApi, operation: Operation, namespace: str) -> OperationEvidence | None:
    """Where an operation's bundle is kept, None if there is none. Raises KubeError."""
    name = name_of(operation)
    obj = await api.get(CONFIG_MAPS, name, namespace=namespace)
    if obj is None or not _belongs(obj, operation):
        return None
    return OperationEvidence(namespace=namespace, name=name, size_bytes=len(_content(obj) or b""))


async def read(api: KubeApi, operation: Operation) -> bytes:
    """An operation's bundle. Raises KubeError, and ConfigError if there is none."""
    evidence = operation.status.evidence
    if evidence is None:
        raise ConfigError(
            f"{operation.name} has no evidence bundle", "a Replace whose evidence was collected",
            f"see `kgpu operations show {operation.name}`; the node as it is now: kgpu collect --node {operation.node}",
        )  # fmt: skip
    where = f"{evidence.namespace}/{evidence.name}"
    obj = await api.get(CONFIG_MAPS, evidence.name, namespace=evidence.namespace)
    data = _content(obj) if obj is not None and _belongs(obj, operation) else None
    if data is None:
        raise ConfigError(
            f"the ConfigMap {where} is gone, or does not hold the bundle of {operation.name}",
            "the ConfigMap that kgpu has made", f"look at the node as it is now: kgpu collect --node {operation.node}",
        )  # fmt: skip
    return data


def _belongs(obj: Object, operation: Operation) -> bool:
    owners = map(mapping, items(mapping(obj.get("metadata")).get("ownerReferences")))
    return any(text(owner.get("uid")) == operation.uid for owner in owners)


def _content(obj: Object) -> bytes | None:
    try:
        return base64.b64decode(text(mapping(obj.get("binaryData")).get(KEY)), validate=True) or None
    except binascii.Error:
        return None


def _not_ours(namespace: str, name: str) -> KubeError:
    return KubeError(
        f"the ConfigMap {namespace}/{name} belongs to something else", "a name that is free", "delete or rename it"
    )


def _too_large(size: int) -> KubeError:
    return KubeError(f"the evidence is {size} bytes large", f"at most {MAX_BYTES}", "collect it by hand: kgpu collect")
