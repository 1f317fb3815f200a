"""Volumes of pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.defaults.pod import VOLUME_SOURCES
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    annotation_map,
    duplicate,
    labels,
    needed,
    not_supported,
    one_of,
    quantity,
    too_long,
)  # fmt: skip
from kgpu.lab.embedded.types.validate.claims import claim_spec
from kgpu.lab.embedded.types.validate.environment import VOLUME_FIELDS, field_reference, resource_reference
from kgpu.lab.embedded.types.validate.mounts import descending, no_backsteps, not_reserved

_MODE_WORDS: Final = "must be a number between 0 and 0777 (octal), both inclusive"
_HOST_TYPES: Final = (
    "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket",
)  # fmt: skip


def volumes(errors: Errors, path: str, volume_list: list[Object], pod_name: str) -> dict[str, Object]:
    """Check ``spec.volumes`` and return the valid ones by name; mounts may refer to these."""
    known: dict[str, Object] = {}
    ephemeral_claims = {
        f"{pod_name}-{volume.get('name', '')}" for volume in volume_list if pod_name and "ephemeral" in volume
    }
    for index, volume in enumerate(volume_list):
        at, name = f"{path}[{index}]", volume.get("name", "")
        before = len(errors)
        _sources(errors, at, volume)
        needed(errors, f"{at}.name", name, texts.label)
        if name in known:
            errors.append(duplicate(f"{at}.name", name))
        if len(errors) == before:
            known[name] = volume
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName", "")
        if claim in ephemeral_claims:
            words = "must not reference a PVC that gets created for an ephemeral volume"
            errors.append(bad_value(f"{at}.persistentVolumeClaim.claimName", claim, words))
    return known


def _sources(errors: Errors, path: str, volume: Object) -> None:
    present = [source for source in VOLUME_SOURCES if source in volume]
    # emptyDir is checked first, whatever other sources there are.
    present.sort(key=lambda source: source != "emptyDir")
    if not present:
        errors.append(required(path, "must specify a volume type"))
    for source in present[:1]:
        check = _CHECKS.get(source)
        if check is not None:
            check(errors, f"{path}.{source}", volume[source])
    for source in present[1:]:
        errors.append(forbidden_field(f"{path}.{source}", "may not specify more than 1 volume type"))


def _mode(errors: Errors, path: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= 0o777:
        errors.append(bad_value(path, value, _MODE_WORDS))


def _empty_dir(errors: Errors, path: str, source: Object) -> None:
    limit = source.get("sizeLimit")
    if limit is not None and quantity(limit).nanos < 0:
        errors.append(forbidden_field(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity"))


def _host_path(errors: Errors, path: str, source: Object) -> None:
    host_path = source.get("path", "")
    if not host_path:
        errors.append(required(f"{path}.path"))
        return
    no_backsteps(errors, f"{path}.path", host_path)
    kind = source.get("type")
    if kind is not None and kind not in _HOST_TYPES:
        errors.append(not_supported(f"{path}.type", kind, _HOST_TYPES))


def _items(errors: Errors, path: str, items: list[Object] | None) -> None:
    for index, item in enumerate(items or ()):
        at = f"{path}.items[{index}]"
        for field in ("key", "path"):
            if not item.get(field):
                errors.append(required(f"{at}.{field}"))
        not_reserved(errors, f"{at}.path", item.get("path", ""))
        _mode(errors, f"{at}.mode", item.get("mode"))


def _secret(errors: Errors, path: str, source: Object) -> None:
    if not source.get("secretName"):
        errors.append(required(f"{path}.secretName"))
    _mode(errors, f"{path}.defaultMode", source.get("defaultMode"))
    _items(errors, path, source.get("items"))


def _config_map(errors: Errors, path: str, source: Object) -> None:
    if not source.get("name"):
        errors.append(required(f"{path}.name"))
    _mode(errors, f"{path}.defaultMode", source.get("defaultMode"))
    _items(errors, path, source.get("items"))


def _nfs(errors: Errors, path: str, source: Object) -> None:
    for field in ("server", "path"):
        if not source.get(field):
            errors.append(required(f"{path}.{field}"))
    if not source.get("path", "").startswith("/"):
        errors.append(bad_value(f"{path}.path", source.get("path", ""), "must be an absolute path"))


def _claim(errors: Errors, path: str, source: Object) -> None:
    if not source.get("claimName"):
        errors.append(required(f"{path}.claimName"))


def _downward(errors: Errors, path: str, source: Object) -> None:
    _mode(errors, f"{path}.defaultMode", source.get("defaultMode"))
    for item in source.get("items") or ():
        _downward_file(errors, path, item)


def _downward_file(errors: Errors, path: str, item: Object) -> None:
    if not item.get("path"):
        errors.append(required(f"{path}.path"))
    not_reserved(errors, f"{path}.path", item.get("path", ""))
    if "fieldRef" in item:
        field_reference(errors, f"{path}.fieldRef", item["fieldRef"], VOLUME_FIELDS)
        if "resourceFieldRef" in item:
            words = "fieldRef and resourceFieldRef can not be specified simultaneously"
            errors.append(bad_value(path, "resource", words))
    elif "resourceFieldRef" in item:
        resource_reference(errors, f"{path}.resourceFieldRef", item["resourceFieldRef"], volume=True)
    else:
        errors.append(required(path, "one of fieldRef and resourceFieldRef is required"))
    _mode(errors, f"{path}.mode", item.get("mode"))


def _projected(errors: Errors, path: str, source: Object) -> None:
    _mode(errors, f"{path}.defaultMode", source.get("defaultMode"))
    used_paths: set[str] = set()
    for index, projection in enumerate(source.get("sources") or ()):
        at = f"{path}.sources[{index}]"
        for name in ("secret", "configMap"):
            part = projection.get(name)
            if part is not None:
                if not part.get("name"):
                    errors.append(required(f"{at}.{name}.name"))
                _items(errors, f"{at}.{name}", part.get("items"))
                _take(
                    errors,
                    path,
                    used_paths,
                    [(item.get("path"), part.get("name", "")) for item in part.get("items") or ()],
                )
        part = projection.get("downwardAPI")
        if part is not None:
            for item in part.get("items") or ():
                _downward_file(errors, f"{at}.downwardAPI", item)
                _take(errors, path, used_paths, [(item.get("path"), item.get("path", ""))])
        token = projection.get("serviceAccountToken")
        if token is not None:
            _token(errors, path, at, token)
        if len(projection) > 1:
            errors.append(forbidden_field(at, "may not specify more than 1 volume type per source"))


def _take(errors: Errors, path: str, used_paths: set[str], pairs: list[tuple[str | None, str]]) -> None:
    for file_path, shown in pairs:
        if file_path in used_paths:
            errors.append(bad_value(path, shown, "conflicting duplicate paths"))
        elif file_path:
            used_paths.add(file_path)


def _token(errors: Errors, path: str, at: str, token: Object) -> None:
    seconds = token.get("expirationSeconds", 0)
    where = f"{at}.serviceAccountToken.expirationSeconds"
    if seconds < 600:
        errors.append(bad_value(where, seconds, "may not specify a duration less than 10 minutes"))
    if seconds > 1 << 32:
        errors.append(bad_value(where, seconds, "may not specify a duration larger than 2^32 seconds"))
    if not token.get("path"):
        errors.append(required(f"{path}.path"))
    else:
        not_reserved(errors, f"{path}.path", token["path"])


def _ephemeral(errors: Errors, path: str, source: Object) -> None:
    template = source.get("volumeClaimTemplate")
    at = f"{path}.volumeClaimTemplate"
    if template is None:
        errors.append(required(at))
        return
    meta = template.get("metadata") or {}
    annotation_map(errors, f"{at}.metadata.annotations", meta.get("annotations"))
    labels(errors, f"{at}.metadata.labels", meta.get("labels"))
    for field in meta:
        if field not in {"annotations", "labels"}:
            errors.append(forbidden_field(f"{at}.metadata.{field}", "cannot be set"))
    claim_spec(errors, f"{at}.spec", template.get("spec") or {})


def _csi(errors: Errors, path: str, source: Object) -> None:
    driver = source.get("driver", "")
    if not driver:
        errors.append(required(f"{path}.driver"))
    elif len(driver) > 63:
        errors.append(too_long(f"{path}.driver", 63))
    for message in texts.subdomain(driver.lower()) if driver else ():
        errors.append(bad_value(f"{path}.driver", driver, message))


def _image(errors: Errors, path: str, source: Object) -> None:
    if not source.get("reference"):
        errors.append(required(f"{path}.reference"))
    one_of(errors, f"{path}.pullPolicy", source.get("pullPolicy", ""), ("Always", "IfNotPresent", "Never"))


def _git(errors: Errors, path: str, source: Object) -> None:
    if not source.get("repository"):
        errors.append(required(f"{path}.repository"))
    descending(errors, f"{path}.directory", source.get("directory", ""))


_CHECKS: Final[dict[str, Callable[[Errors, str, Object], None]]] = {
    "emptyDir": _empty_dir,
    "hostPath": _host_path,
    "gitRepo": _git,
    "secret": _secret,
    "configMap": _config_map,
    "nfs": _nfs,
    "persistentVolumeClaim": _claim,
    "downwardAPI": _downward,
    "projected": _projected,
    "ephemeral": _ephemeral,
    "csi": _csi,
    "image": _image,
}
