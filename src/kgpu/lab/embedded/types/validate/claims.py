"""Persistent volumes and claims."""

from __future__ import annotations

from typing import Any, Final

from kgpu.base.quantity import Quantity
from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    finalizer_names,
    immutable,
    label_selector,
    metadata,
    metadata_update,
    not_supported,
    quantity,
    syntax,
)  # fmt: skip

_MODES: Final = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_VOLUME_MODES: Final = ("Block", "Filesystem")
_POLICIES: Final = ("Delete", "Recycle", "Retain")
_PV_SOURCES: Final = (
    "hostPath", "gcePersistentDisk", "awsElasticBlockStore", "glusterfs", "nfs", "rbd", "quobyte", "cephfs", "iscsi",
    "cinder", "fc", "flocker", "flexVolume", "azureFile", "vsphereVolume", "photonPersistentDisk", "portworxVolume",
    "azureDisk", "scaleIO", "local", "storageos", "csi",
)  # fmt: skip


def claim(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    """Check a PersistentVolumeClaim."""
    meta, spec = obj["metadata"], obj["spec"]
    if subresource == "status" and old is not None:
        metadata_update(errors, meta, old["metadata"])
        return
    if old is None:
        metadata(errors, meta, namespaced=True, rule=texts.subdomain)
        finalizer_names(errors, meta)
        claim_spec(errors, "spec", spec)
        return
    metadata_update(errors, meta, old["metadata"])
    finalizer_names(errors, meta)
    claim_spec(errors, "spec", spec)
    _claim_update(errors, spec, old["spec"], old.get("status", {}))


def claim_spec(errors: Errors, path: str, spec: Object) -> None:
    """Check the spec of a claim or of a claim template."""
    modes = spec.get("accessModes") or []
    if not modes:
        errors.append(required(f"{path}.accessModes", "at least 1 access mode is required"))
    label_selector(errors, f"{path}.selector", spec.get("selector"))
    for mode in modes:
        if mode not in _MODES:
            errors.append(not_supported(f"{path}.accessModes", mode, _MODES))
    if "ReadWriteOncePod" in modes and any(mode in _MODES and mode != "ReadWriteOncePod" for mode in modes):
        words = "may not use ReadWriteOncePod with other access modes"
        errors.append(forbidden_field(f"{path}.accessModes", words))
    size = (spec.get("resources") or {}).get("requests", {}).get("storage")
    if size is None:
        errors.append(required(f"{path}.resources[storage]"))
    elif quantity(size).nanos <= 0:
        errors.append(bad_value(f"{path}.resources[storage]", str(quantity(size)), "must be greater than zero"))
    for field in ("storageClassName", "volumeAttributesClassName"):
        if spec.get(field):
            syntax(errors, f"{path}.{field}", spec[field], texts.subdomain)
    if spec.get("volumeMode") is not None and spec["volumeMode"] not in _VOLUME_MODES:
        errors.append(not_supported(f"{path}.volumeMode", spec["volumeMode"], _VOLUME_MODES))
    for field in ("dataSource", "dataSourceRef"):
        if spec.get(field) is not None:
            _source(errors, f"{path}.{field}", spec[field])


def _source(errors: Errors, path: str, source: Object) -> None:
    for field in ("name", "kind"):
        if not source.get(field):
            errors.append(required(f"{path}.{field}"))
    group = source.get("apiGroup") or ""
    if not group and source.get("kind") != "PersistentVolumeClaim":
        words = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
        errors.append(bad_value(path, source.get("kind", ""), words))
    if group:
        syntax(errors, f"{path}.apiGroup", group, texts.subdomain)
    if source.get("namespace"):
        syntax(errors, f"{path}.namespace", source["namespace"], texts.label)


_CLAIM_MUTABLE: Final = ("resources", "volumeAttributesClassName", "volumeName")


def _claim_update(errors: Errors, spec: Object, old: Object, status: Object) -> None:
    """Check that only the size of a bound claim grows and that a volume is named only once."""

    def fixed(claim: Object) -> dict[str, Any]:
        return {key: value for key, value in claim.items() if key not in _CLAIM_MUTABLE}

    bound = status.get("phase") == "Bound"
    size, before = _size(spec), _size(old)
    if (
        fixed(spec) != fixed(old)
        or (old.get("volumeName") and spec.get("volumeName") != old.get("volumeName"))
        or (size != before and not bound)
    ):
        words = (
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
        )
        errors.append(forbidden_field("spec", words))
    elif size < before:
        words = "field can not be less than status.capacity"
        if size < quantity((status.get("capacity") or {}).get("storage", "0")):
            errors.append(forbidden_field("spec.resources.requests.storage", words))


def _size(spec: Object) -> Quantity:
    return quantity((spec.get("resources") or {}).get("requests", {}).get("storage", "0"))


def volume(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    """Check a PersistentVolume."""
    meta, spec = obj["metadata"], obj["spec"]
    if old is not None:
        metadata_update(errors, meta, old["metadata"])
    if subresource == "status":
        return
    if old is None:
        metadata(errors, meta, namespaced=False, rule=texts.subdomain)
    finalizer_names(errors, meta)
    _volume_spec(errors, "spec", spec)
    if old is not None:
        new_source = {name: spec[name] for name in _PV_SOURCES if name in spec}
        old_source = {name: old["spec"][name] for name in _PV_SOURCES if name in old["spec"]}
        if new_source != old_source:
            words = "spec.persistentvolumesource is immutable after creation"
            errors.append(forbidden_field("spec.persistentvolumesource", words))
        immutable(errors, "spec.volumeMode", spec.get("volumeMode"), old["spec"].get("volumeMode"))


def _volume_spec(errors: Errors, path: str, spec: Object) -> None:
    modes = spec.get("accessModes") or []
    if not modes:
        errors.append(required(f"{path}.accessModes"))
    for mode in modes:
        if mode not in _MODES:
            errors.append(not_supported(f"{path}.accessModes", mode, _MODES))
    capacity = spec.get("capacity") or {}
    if not capacity:
        errors.append(required(f"{path}.capacity"))
    if "storage" not in capacity or len(capacity) > 1:
        errors.append(not_supported(f"{path}.capacity", capacity, ("storage",)))
    for name, size in capacity.items():
        if quantity(size).nanos <= 0:
            errors.append(bad_value(f"{path}.capacity[{name}]", str(quantity(size)), "must be greater than zero"))
    policy = spec.get("persistentVolumeReclaimPolicy", "")
    if policy and policy not in _POLICIES:
        errors.append(not_supported(f"{path}.persistentVolumeReclaimPolicy", policy, _POLICIES))
    present = [name for name in _PV_SOURCES if name in spec]
    for name in present[1:]:
        errors.append(forbidden_field(f"{path}.{name}", "may not specify more than 1 volume type"))
    if not present:
        errors.append(required(path, "must specify a volume type"))
    if "hostPath" in spec and not spec["hostPath"].get("path"):
        errors.append(required(f"{path}.hostPath.path"))
    if "local" in spec:
        if not spec["local"].get("path"):
            errors.append(required(f"{path}.local.path"))
        if not (spec.get("nodeAffinity") or {}).get("required"):
            errors.append(required(f"{path}.nodeAffinity", "Local volume requires node affinity"))
    if spec.get("storageClassName"):
        syntax(errors, f"{path}.storageClassName", spec["storageClassName"], texts.subdomain)
    if spec.get("volumeMode") is not None and spec["volumeMode"] not in _VOLUME_MODES:
        errors.append(not_supported(f"{path}.volumeMode", spec["volumeMode"], _VOLUME_MODES))
