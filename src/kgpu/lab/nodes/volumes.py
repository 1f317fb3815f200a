"""A pod's volumes as folders of this machine: emptyDir, ConfigMaps, Secrets, the downward API, projections, hostPath.

``needed`` names what must be fetched, ``write`` makes the folders. Kinds that have no meaning here are empty folders.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.formats.cdi import CdiMount
from kgpu.kube.port import Object
from kgpu.lab.nodes.environment import CONFIG_MAP, SECRET, Ref, decode, expand, field, names_in, resource_field

TOKEN: Final = "serviceAccountToken"  # noqa: S105 - a kind of source
# Source of a volume or projection -> (kind of object, key of its name).
_OBJECTS: Final = {"configMap": (CONFIG_MAP, "name"), "secret": (SECRET, "secretName")}


class VolumeError(LabError):
    """A volume can't be made; ``what`` is the kubelet's wording."""


def needed(pod: Object) -> set[Ref]:
    """The ConfigMaps and Secrets that the volumes show."""
    return {ref for volume in pod["spec"].get("volumes") or () for ref, _ in _references(volume)}


def wants_token(pod: Object) -> bool:
    """Whether a volume shows a service account token."""
    return any(
        TOKEN in source
        for volume in pod["spec"].get("volumes") or ()
        for source in (volume.get("projected") or {}).get("sources") or ()
    )


def _references(volume: Object) -> Iterator[tuple[Ref, bool]]:
    for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
        for key, (kind, name_key) in _OBJECTS.items():
            if key in source:
                source_ref = source[key]
                yield (kind, source_ref.get(name_key) or source_ref.get("name") or ""), bool(source_ref.get("optional"))


def write(
    pod: Object, folder: Path, *, objects: Mapping[Ref, Object | None], facts: Mapping[str, str],
    allocatable: Mapping[str, str], token: str = "", host: Callable[[str], Path] = Path,
    persistent: Mapping[str, Path] | None = None,
) -> dict[str, Path]:  # fmt: skip
    """Make every volume below ``folder``: name to path. ``host`` finds the host's; ``persistent`` are there already.

    Raises VolumeError, OSError.
    """
    paths: dict[str, Path] = {}
    for volume in pod["spec"].get("volumes") or ():
        name = plain_name(volume["name"])
        if persistent and name in persistent:
            paths[name] = persistent[name]
            continue
        if "hostPath" in volume:
            paths[name] = host(volume["hostPath"]["path"])
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                paths[name].mkdir(parents=True, exist_ok=True)
            continue
        place = paths[name] = folder / name
        place.mkdir(parents=True, exist_ok=True)
        sources = (volume.get("projected") or {}).get("sources")
        for source in sources if sources is not None else [volume]:
            for path, data in _files(
                pod, name, source, objects=objects, facts=facts, allocatable=allocatable, token=token
            ):
                _put(place, path, data)
    return paths


def read_only(pod: Object) -> frozenset[str]:
    """The volumes of claims that the pod takes read-only, wherever they are mounted."""
    volumes = pod["spec"].get("volumes") or ()
    return frozenset(one["name"] for one in volumes if (one.get("persistentVolumeClaim") or {}).get("readOnly"))


def forget_memory(pod: Object, folder: Path) -> None:
    """After a reboot: remove the volumes below ``folder`` that are kept in memory."""
    for volume in pod["spec"].get("volumes") or ():
        if (volume.get("emptyDir") or {}).get("medium") == "Memory":
            shutil.rmtree(folder / plain_name(volume["name"]), ignore_errors=True)


def _put(place: Path, path: str, data: bytes) -> None:
    """One file of a volume. Raises VolumeError when it would not be in the volume."""
    target = inside(place, path)
    # Containers can write here, so what lies there may be a link by now: it is replaced, not followed.
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(inside(place, path), data)


def inside(place: Path, path: str) -> Path:
    """``place/path``, whose folder is really in ``place``. Raises VolumeError."""
    target = place / path
    parts = Path(path).parts
    wrong = not parts or ".." in parts or "\0" in path or os.path.isabs(path)
    if wrong or not target.parent.resolve().is_relative_to(place.resolve()):
        raise VolumeError(f'"{path}" is not a path in the volume', "a relative path without ..", "correct the path")
    return target


def plain_name(name: str) -> str:
    """A name that is one part of a path. Raises VolumeError."""
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise VolumeError(f'"{name}" is not a volume\'s name', "letters, digits and dashes", "correct the name")
    return name


def _files(
    pod: Object, volume: str, source: Object, *, objects: Mapping[Ref, Object | None], facts: Mapping[str, str],
    allocatable: Mapping[str, str], token: str,
) -> Iterator[tuple[str, bytes]]:  # fmt: skip
    for key, (kind, name_key) in _OBJECTS.items():
        if key not in source:
            continue
        about = source[key]
        name = about.get(name_key) or about.get("name") or ""
        obj = objects.get((kind, name))
        if obj is None:
            if about.get("optional"):
                continue
            raise VolumeError(
                f'MountVolume.SetUp failed for volume "{volume}" : {kind} "{name}" not found',
                "an object of that name",
                f"create the {kind}",
            )
        data = decode(kind, obj)
        items = about.get("items")
        for entry in [{"key": data_key, "path": data_key} for data_key in data] if items is None else items:
            if entry["key"] in data:
                yield entry["path"], data[entry["key"]]
            elif not about.get("optional"):
                why = f"references non-existent config key: {entry['key']}"
                raise VolumeError(
                    f'MountVolume.SetUp failed for volume "{volume}" : {why}',
                    "that key",
                    f"add it to the {kind}",
                )
    for entry in (source.get("downwardAPI") or {}).get("items") or ():
        if "fieldRef" in entry:
            yield entry["path"], field(pod, entry["fieldRef"]["fieldPath"], facts).encode()
        elif "resourceFieldRef" in entry:
            ref = entry["resourceFieldRef"]
            yield entry["path"], resource_field(pod, {"name": ref.get("containerName", "")}, ref, allocatable).encode()
    if TOKEN in source and token:
        yield source[TOKEN].get("path") or "token", token.encode()


def mounts(
    container: Object, places: Mapping[str, Path], env: Mapping[str, str], unwritable: frozenset[str] = frozenset()
) -> tuple[CdiMount, ...]:
    """The container's volume mounts as bind mounts; ``env`` is its environment, for ``subPathExpr``. ``unwritable``:
    volumes that are read-only wherever they are mounted.

    Raises VolumeError for a subPath outside, OSError.
    """
    bind_mounts = []
    for row in container.get("volumeMounts") or ():
        place = places.get(row["name"])
        if place is None:
            continue
        if sub := _sub(row, env):
            place = _sub_path(container, row, place, sub)
        options: Any = ("ro",) if row.get("readOnly") or row["name"] in unwritable else ()
        bind_mounts.append(CdiMount(host_path=str(place), container_path=row["mountPath"], options=options))
    return tuple(bind_mounts)


def _sub(row: Object, env: Mapping[str, str]) -> str:
    """The path in the volume that is mounted, "" for all of it. Raises VolumeError."""
    expression = str(row.get("subPathExpr") or "")
    if not expression:
        return str(row.get("subPath") or "")
    if missing := sorted({name for name in names_in(expression) if not env.get(name)}):
        raise VolumeError(
            f"missing value for {', '.join(missing)}", "variables of the container", "set them in its env"
        )
    sub = expand(expression, env)
    if sub.startswith("/"):
        raise VolumeError(
            f"error SubPath `{sub}` must not be an absolute path", "a relative path", "correct the variable"
        )
    if ".." in sub.split("/"):
        text = f"unable to provision SubPath `{sub}`: must not contain '..'"
        raise VolumeError(text, "a path in the volume", "correct the variable")
    return sub


def _sub_path(container: Object, row: Object, place: Path, sub: str) -> Path:
    try:
        target = inside(place, sub)
        if not target.resolve().is_relative_to(place.resolve()):
            raise VolumeError(f"{sub} is a link out of the volume", "a path in the volume", "correct the subPath")
    except VolumeError as error:
        text = f'failed to prepare subPath for volumeMount "{row["name"]}" of container "{container["name"]}"'
        raise VolumeError(text, error.expected, error.remedy) from error
    if not target.exists():
        target.mkdir(parents=True)
    return target
