"""Kubernetes objects as rules read them: any field may be absent, of a wrong type or hostile, and nothing here raises.

A path is written as people write it: ``status.allocatable[nvidia.com/gpu]``, ``spec.containers[0].image``. ``cite``
quotes a field as evidence. Objects keep what rules need: managed fields, copies of themselves in annotations and
secrets are dropped on the way in (``lean``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from kgpu.base.plain import items, mapping, number, strings, text
from kgpu.base.times import moment_of
from kgpu.doctor import secrets
from kgpu.doctor.model import Evidence, Subject
from kgpu.doctor.read_kinds import kind_of
from kgpu.fit.read import owner_of
from kgpu.formats import names

Key: TypeAlias = tuple[str, str]
"""Namespace ("" for none) and name."""

_STEP: Final = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")
MAX_ANNOTATION: Final = 4096
MAX_TEXT: Final = 16 * 1024
"""Characters of a text in custom objects, and of an image: nobody bounds them, and rules seek in them."""
MAX_DATA: Final = 256 * 1024
_NOISE: Final = frozenset({"deployment.kubernetes.io/revision"})
_BUILT_IN: Final = frozenset(
    {"Pod", "Node", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet", "Job", "CronJob", "ResourceSlice"}
)
"""Kinds whose spec has texts only where a pod's spec has; of all others every text is cleaned."""
_HEAD: Final = frozenset({"apiVersion", "kind", "metadata"})
CLUSTER_POLICIES: Final = "clusterpolicies.nvidia.com"
_SCHEMAS_READ: Final = frozenset({CLUSTER_POLICIES})
"""Definitions of kinds whose schema rules read. Those of a cluster's other kinds are megabytes."""
_API_ACCESS: Final = "kube-api-access-"
_UNREAD: Final = (
    "terminationMessagePath", "terminationMessagePolicy", "livenessProbe", "readinessProbe", "startupProbe",
    "lifecycle",
)  # fmt: skip
_BY_LABELS: Final = ("nodeSelector", "affinity", "topologySpreadConstraints", "hostAliases")
_USUAL_VOLUMES: Final = frozenset(
    {"name", "configMap", "secret", "emptyDir", "hostPath", "projected", "persistentVolumeClaim", "downwardAPI"}
)
"""Those that have names and paths alone."""
_OF_DRIVERS: Final = frozenset({"volumeAttributes", "options"})
"""What a volume tells its driver, passwords of shares among it."""


@functools.lru_cache(maxsize=4096)
def steps(path: str) -> tuple[str, ...]:
    """The keys of a path, from the outside in."""
    return tuple(inner or outer for inner, outer in _STEP.findall(path))


def at(value: Any, path: str) -> Any:
    """What is at a path, None where nothing is."""
    for step in steps(path):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def seconds(when: Any) -> float | None:
    """A time as Kubernetes writes it, in seconds since 1970; None for anything else."""
    try:
        found = moment_of(when)
        return None if found is None else found.timestamp()
    except OverflowError:
        return None


def shown(value: Any) -> str:
    """A value as evidence shows it; an absent one is ``<none>``."""
    import msgspec

    if value is None:
        return "<none>"
    if isinstance(value, str):
        return value or '""'
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return "<unreadable>"


class Obj:
    """One object. Its ``data`` is a plain dictionary; read it through the methods."""

    __slots__ = ("_labels", "created", "data", "kind", "name", "namespace", "source")

    def __init__(self, data: Mapping[str, Any], source: str = "") -> None:
        metadata = mapping(data.get("metadata"))
        self.data = data
        self._labels: dict[str, str] | None = None
        self.kind = text(data.get("kind"))
        self.name = text(metadata.get("name"))
        self.namespace = text(metadata.get("namespace"))
        self.created = text(metadata.get("creationTimestamp"))
        self.source = source
        """The file that it was read from, "" for the API server."""

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        return str(self.subject)

    @property
    def key(self) -> Key:
        return (self.namespace, self.name)

    @property
    def path(self) -> str:
        """``namespace/name``, or the name alone."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def subject(self) -> Subject:
        return Subject(self.kind, self.name, self.namespace)

    @property
    def uid(self) -> str:
        return self.text("metadata.uid")

    @property
    def labels(self) -> dict[str, str]:
        if self._labels is None:  # rules ask a cluster's nodes for them a hundred thousand times
            self._labels = strings(at(self.data, "metadata.labels"))
        return self._labels

    @property
    def annotations(self) -> dict[str, str]:
        return strings(at(self.data, "metadata.annotations"))

    @property
    def owner(self) -> str:
        """``Kind/name`` of the controller, "" for none."""
        return plain(owner_of(mapping(self.data.get("metadata"))))

    @property
    def deleting(self) -> bool:
        return bool(self.at("metadata.deletionTimestamp"))

    def at(self, path: str) -> Any:
        """What is at a path, None where nothing is."""
        return at(self.data, path)

    def text(self, path: str) -> str:
        return text(at(self.data, path))

    def number(self, path: str, default: int = 0) -> int:
        """An integer; one that is written as text counts too."""
        found = at(self.data, path)
        if isinstance(found, str) and len(found) < 20 and found.lstrip("-").isdecimal():
            return int(found)
        return number(found, default)

    def map(self, path: str) -> Mapping[str, Any]:
        return mapping(at(self.data, path))

    def maps(self, path: str) -> list[Mapping[str, Any]]:
        """The entries of a list that are objects."""
        return [one for one in items(at(self.data, path)) if isinstance(one, dict)]

    def list(self, path: str) -> Sequence[Any]:
        return items(at(self.data, path))

    def cite(self, path: str, value: Any = None) -> Evidence:
        """A field quoted as evidence, with what is there or the part of it given as ``value``."""
        return Evidence(
            object=str(self), field=path, value=shown(self.at(path) if value is None else value), file=self.source
        )

    def conditions(self) -> Iterator[Condition]:
        """What ``status.conditions`` says."""
        for position, entry in enumerate(items(self.at("status.conditions"))):
            if isinstance(entry, dict):
                yield Condition(self, position, entry)

    def condition(self, kind: str) -> Condition | None:
        return next((one for one in self.conditions() if one.type == kind), None)

    def holding(self, kind: str) -> Condition | None:
        """The condition where it is True."""
        found = self.condition(kind)
        return found if found is not None and found.status == "True" else None


class Condition:
    """One entry of ``status.conditions``."""

    __slots__ = ("_obj", "_position", "message", "reason", "since", "status", "type")

    def __init__(self, obj: Obj, position: int, entry: Mapping[str, Any]) -> None:
        self._obj, self._position = obj, position
        self.type, self.status = text(entry.get("type")), text(entry.get("status"))
        self.reason, self.message = text(entry.get("reason")), text(entry.get("message"))
        self.since = text(entry.get("lastTransitionTime"))

    def cite(self) -> Evidence:
        said = ", ".join(part for part in (self.status, self.reason, self.message) if part)
        return self._obj.cite(f"status.conditions[{self._position}] ({self.type})", said)


_ODD: Final = re.compile(r"(?:^-|[^\w.:/@%+=,-])")


@functools.lru_cache(maxsize=16384)
def plain(name: str) -> str:
    """A name as it may stand in a command that somebody pastes: what no name has and a shell would understand is ``?``.

    Not all that objects name is checked by the API server (owners, claims, volumes), and nothing in a file is.
    """
    return _ODD.sub("?", name)


def lean(data: Mapping[str, Any]) -> dict[str, Any]:
    """An object without what no rule reads, and without secrets. The given one is not changed."""
    document = dict(data)
    kind = kind_of(text(document.get("kind")), text(document.get("apiVersion")))
    document["metadata"] = _lean_metadata(document.get("metadata"))
    if kind in ("ConfigMap", "Secret"):
        for field in ("data", "stringData", "binaryData"):
            if isinstance(document.get(field), dict):
                document[field] = secrets.data_of("Secret" if field == "binaryData" else kind, document[field])
    elif kind == "Event":
        document |= {
            field: secrets.cleaned(document[field]) for field in ("message", "note") if text(document.get(field))
        }
    elif kind in _BUILT_IN:
        if "status" in document:
            document["status"] = secrets.messages(document["status"])
    else:
        if kind == "CustomResourceDefinition" and text(document["metadata"].get("name")) not in _SCHEMAS_READ:
            document["spec"] = _without_schemas(document.get("spec"))
        document = {
            field: field_content if field in _HEAD else secrets.under_key(field, secrets.scrubbed(_cut(field_content)))
            for field, field_content in document.items()
        }
    for holder in _pod_specs(document, kind):
        holder["spec"] = _lean_pod_spec(mapping(holder["spec"]))
        if holder is not document and "metadata" in holder:
            holder["metadata"] = _lean_metadata(holder["metadata"])
    return document


def _without_schemas(spec: Any) -> Any:
    """A definition's spec without what its kind's fields are."""
    if not isinstance(spec, dict) or not isinstance(spec.get("versions"), list):
        return spec
    versions = [
        {key: value for key, value in version.items() if key != "schema"} if isinstance(version, dict) else version
        for version in spec["versions"]
    ]
    return {**spec, "versions": versions}


def _cut(value: Any, depth: int = 0) -> Any:
    """Any document with no text longer than ``MAX_TEXT``."""
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if depth > secrets.MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return {key: _cut(one, depth + 1) for key, one in value.items()}
    return [_cut(one, depth + 1) for one in value] if isinstance(value, list) else value


def _lean_metadata(value: Any) -> dict[str, Any]:
    metadata = dict(mapping(value))
    metadata.pop("managedFields", None)
    metadata.pop("selfLink", None)
    if isinstance(metadata.get("annotations"), dict):
        metadata["annotations"] = {
            key: secrets.under_key(key, secrets.cleaned(value[:MAX_ANNOTATION]))
            if key != names.LAST_APPLIED
            else secrets.HIDDEN  # that there is one says that somebody has applied it
            for key, value in metadata["annotations"].items()
            if isinstance(value, str) and key not in _NOISE
        }
    if isinstance(metadata.get("labels"), dict):
        metadata["labels"] = secrets.labels(
            {
                plain(str(key)): plain(label) if isinstance(label, str) else label
                for key, label in metadata["labels"].items()
            }
        )
    return metadata


def _pod_specs(document: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    """Yield each mapping that has a pod's spec under ``spec``, copied so that it can be changed."""
    if kind == "Pod":
        if isinstance(document.get("spec"), dict):
            yield document
        return
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return
    document["spec"] = spec = dict(spec)
    if "selector" in spec and kind in _BUILT_IN:
        spec["selector"] = secrets.scrubbed(spec["selector"])
    if "volumeClaimTemplates" in spec:
        spec["volumeClaimTemplates"] = secrets.scrubbed(spec["volumeClaimTemplates"])
    if isinstance(spec.get("jobTemplate"), dict) and isinstance(spec["jobTemplate"].get("spec"), dict):
        spec["jobTemplate"] = dict(spec["jobTemplate"])
        spec["jobTemplate"]["metadata"] = _lean_metadata(spec["jobTemplate"].get("metadata"))
        spec["jobTemplate"]["spec"] = spec = dict(spec["jobTemplate"]["spec"])
    if isinstance(spec.get("template"), dict) and isinstance(spec["template"].get("spec"), dict):
        spec["template"] = template = dict(spec["template"])
        yield template


def _lean_pod_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    lean_spec = dict(spec)
    for field in _BY_LABELS:
        if field in lean_spec:
            lean_spec[field] = secrets.scrubbed(lean_spec[field])
    for field in ("containers", "initContainers", "ephemeralContainers"):
        if isinstance(lean_spec.get(field), list):
            lean_spec[field] = [
                _lean_container(container) if isinstance(container, dict) else container
                for container in lean_spec[field]
            ]
    if isinstance(lean_spec.get("volumes"), list):
        lean_spec["volumes"] = [
            _lean_volume(volume) if isinstance(volume, dict) else volume
            for volume in lean_spec["volumes"]
            if not text(mapping(volume).get("name")).startswith(_API_ACCESS)
        ]
    return lean_spec


def _lean_volume(volume: Mapping[str, Any]) -> dict[str, Any]:
    if not _USUAL_VOLUMES.issuperset(volume):
        volume = secrets.scrubbed(volume)
    return {
        kind: {field: one for field, one in source.items() if field not in _OF_DRIVERS}
        if isinstance(source, dict) and not _OF_DRIVERS.isdisjoint(source)
        else source
        for kind, source in volume.items()
    }


def _lean_container(container: Mapping[str, Any]) -> dict[str, Any]:
    lean_container = dict(container)
    for field in ("env", "command", "volumeMounts"):
        if field in lean_container:
            lean_container[field] = _CONTAINER[field](lean_container[field])
    if "args" in lean_container:
        lean_container["args"] = secrets.words(lean_container["args"], strings_of(container.get("command")))
    for field in ("image", "workingDir"):
        if isinstance(lean_container.get(field), str):
            lean_container[field] = secrets.cleaned(lean_container[field][:MAX_TEXT])
    for field in _UNREAD:
        lean_container.pop(field, None)
    return lean_container


def strings_of(value: Any) -> list[str]:
    """The texts of a list."""
    return [one for one in items(value) if isinstance(one, str)]


def _mounts(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [one for one in value if not text(mapping(one).get("name")).startswith(_API_ACCESS)]


_CONTAINER: Final = {
    "env": secrets.env_list, "command": secrets.words, "volumeMounts": _mounts,
}  # fmt: skip
