"""A pod's volumes as folders of this machine: emptyDir, ConfigMaps, Secrets, the downward API, projections, hostPath.

``needed`` names what must be fetched, ``write`` makes the folders. Kinds that have no meaning here are empty folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import LabError
from kgpu.formats.cdi import Mount
from kgpu.kube.port import Object
from kgpu.lab.nodes.environment import CONFIG_MAP, SECRET, Ref, decode, field, resource_field

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
                found = source[key]
                yield (kind, found.get(name_key) or found.get("name") or ""), bool(found.get("optional"))


def write(
    pod: Object, folder: Path, *, objects: Mapping[Ref, Object | None], facts: Mapping[str, str],
    allocatable: Mapping[str, str], token: str = "",
) -> dict[str, Path]:  # fmt: skip
    """Make every volume below ``folder``: name to path. Raises VolumeError, OSError."""
    found: dict[str, Path] = {}
    for volume in pod["spec"].get("volumes") or ():
        name = volume["name"]
        if "hostPath" in volume:
            found[name] = Path(volume["hostPath"]["path"])
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                found[name].mkdir(parents=True, exist_ok=True)
            continue
        place = found[name] = folder / name
        place.mkdir(parents=True, exist_ok=True)
        sources = (volume.get("projected") or {}).get("sources")
        for source in sources if sources is not None else [volume]:
            for path, data in _files(pod, name, source, objects, facts, allocatable, token):
                target = place / path
                if ".." in Path(path).parts or os.path.isabs(path):
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
    return found


def _files(  # noqa: PLR0917
    pod: Object, volume: str, source: Object, objects: Mapping[Ref, Object | None], facts: Mapping[str, str],
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
        for entry in [{"key": one, "path": one} for one in data] if items is None else items:
            if entry["key"] in data:
                yield entry["path"], data[entry["key"]]
            elif not about.get("optional"):
                raise VolumeError(
                    f'MountVolume.SetUp failed for volume "{volume}" : references non-existent config key: {entry["key"]}',  # noqa: E501
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


def mounts(container: Object, places: Mapping[str, Path]) -> tuple[Mount, ...]:
    """The container's volume mounts as bind mounts. Raises OSError when a subPath can't be made."""
    found = []
    for row in container.get("volumeMounts") or ():
        place = places.get(row["name"])
        if place is None:
            continue
        if sub := str(row.get("subPath") or ""):
            place = place / sub
            if not place.exists() and ".." not in Path(sub).parts:
                place.mkdir(parents=True, exist_ok=True)
        options: Any = ("ro",) if row.get("readOnly") else ()
        found.append(Mount(host_path=str(place), container_path=row["mountPath"], options=options))
    return tuple(found)
