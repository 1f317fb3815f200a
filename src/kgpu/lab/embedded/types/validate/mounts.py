"""Mounts and block devices of containers, and the rules for paths in a pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate.base import Errors, not_found, not_supported

_PROPAGATION: Final = ("Bidirectional", "HostToContainer", "None")
_RECURSIVE: Final = ("Disabled", "Enabled", "IfPossible")


def no_backsteps(errors: Errors, path: str, text: str) -> None:
    if ".." in text.split("/"):
        errors.append(bad_value(path, text, "must not contain '..'"))


def descending(errors: Errors, path: str, text: str) -> None:
    """Check that the path is relative and never leads above its start."""
    if text.startswith("/"):
        errors.append(bad_value(path, text, "must be a relative path"))
    no_backsteps(errors, path, text)


def not_reserved(errors: Errors, path: str, text: str) -> None:
    """As ``descending``, and not one of the names that the kubelet uses in a volume, which begin with ``..``."""
    descending(errors, path, text)
    if text.startswith("..") and not text.startswith("../"):
        errors.append(bad_value(path, text, "must not start with '..'"))


def mounts(errors: Errors, path: str, container: Object, volumes: Mapping[str, Object]) -> None:
    """Check ``volumeMounts``: each names a volume of the pod and has its own path."""
    volume_mounts = container.get("volumeMounts")
    if not volume_mounts:
        return
    blocks = {device.get("name", ""): device.get("devicePath", "") for device in container.get("volumeDevices") or ()}
    points: set[str] = set()
    for index, mount in enumerate(volume_mounts):
        at, name, point = f"{path}[{index}]", mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            errors.append(required(f"{at}.name"))
        if name not in volumes:
            errors.append(not_found(f"{at}.name", name))
        if not point:
            errors.append(required(f"{at}.mountPath"))
        if point in points:
            errors.append(bad_value(f"{at}.mountPath", point, "must be unique"))
        points.add(point)
        if name in blocks:
            errors.append(bad_value(f"{at}.name", name, "must not already exist in volumeDevices"))
        if point in blocks.values():
            errors.append(bad_value(f"{at}.mountPath", point, "must not already exist as a path in volumeDevices"))
        if mount.get("subPath"):
            descending(errors, f"{path}.subPath", mount["subPath"])
        if mount.get("subPathExpr"):
            if mount.get("subPath"):
                words = "subPathExpr and subPath are mutually exclusive"
                errors.append(bad_value(f"{at}.subPathExpr", mount["subPathExpr"], words))
            descending(errors, f"{path}.subPathExpr", mount["subPathExpr"])
        _propagation(errors, f"{path}.mountPropagation", mount.get("mountPropagation"), container)
        _recursive(errors, f"{path}.recursiveReadOnly", mount)


def _propagation(errors: Errors, path: str, value: str | None, container: Object) -> None:
    if value is None:
        return
    if value not in _PROPAGATION:
        errors.append(not_supported(path, value, _PROPAGATION))
    if value == "Bidirectional" and not (container.get("securityContext") or {}).get("privileged"):
        words = "Bidirectional mount propagation is available only to privileged containers"
        errors.append(forbidden_field(path, words))


def _recursive(errors: Errors, path: str, mount: Object) -> None:
    value = mount.get("recursiveReadOnly")
    if value in {None, "Disabled"}:
        return
    if value not in _RECURSIVE:
        errors.append(not_supported(path, value, _RECURSIVE))
        return
    if not mount.get("readOnly"):
        errors.append(forbidden_field(path, "may only be specified when readOnly is true"))
    if mount.get("mountPropagation") not in {None, "None"}:
        words = "may only be specified when mountPropagation is None or not specified"
        errors.append(forbidden_field(path, words))


def devices(errors: Errors, path: str, container: Object, volumes: Mapping[str, Object]) -> None:
    """Check ``volumeDevices``: block volumes, which come from claims."""
    mounted = {mount.get("name", ""): mount.get("mountPath", "") for mount in container.get("volumeMounts") or ()}
    names: set[str] = set()
    paths: set[str] = set()
    for index, device in enumerate(container.get("volumeDevices") or ()):
        at, name, device_path = f"{path}[{index}]", device.get("name", ""), device.get("devicePath", "")
        volume = volumes.get(name)
        if not name:
            errors.append(required(f"{at}.name"))
        if name in names:
            errors.append(bad_value(f"{at}.name", name, "must be unique"))
        if volume is None:
            errors.append(not_found(f"{at}.name", name))
        elif "persistentVolumeClaim" not in volume and "ephemeral" not in volume:
            words = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            errors.append(bad_value(f"{at}.name", name, words))
        if not device_path:
            errors.append(required(f"{at}.devicePath"))
        if device_path in paths:
            errors.append(bad_value(f"{at}.devicePath", device_path, "must be unique"))
        if ".." in device_path.split("/"):
            errors.append(bad_value(f"{at}.devicePath", device_path, "can not contain backsteps ('..')"))
        else:
            paths.add(device_path)
        if name in mounted:
            errors.append(bad_value(f"{at}.name", name, "must not already exist in volumeMounts"))
        if device_path in mounted.values():
            errors.append(
                bad_value(f"{at}.devicePath", device_path, "must not already exist as a path in volumeMounts")
            )
        names.add(name)
