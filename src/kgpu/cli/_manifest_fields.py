"""Whether an API server would take the fields of a manifest's objects: strict decoding, in its own words.

By the schemas of the embedded cluster, which are Kubernetes' own; they are read when there is a manifest, and no
earlier. Of kinds that a CustomResourceDefinition defines only the templates of Jobs and pods in them are known. A
cluster that is newer than the schemas may have fields that these lack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kgpu.base.errors import ConfigError
from kgpu.base.plain import items, mapping, text
from kgpu.base.printable import one_line
from kgpu.cli._manifests import by_key, named

if TYPE_CHECKING:
    from kgpu.lab.embedded.kinds import ApiKind

_MOST: Final = 5
"""Objects whose refusals one error has."""
_LONGEST: Final = 600
_POD: Final = "io.k8s.api.core.v1.PodTemplateSpec"
_JOB: Final = "io.k8s.api.batch.v1.JobTemplateSpec"
_EVERYWHERE: Final = frozenset({"Pod", "Deployment", "ReplicaSet", "StatefulSet", "Job", "CronJob"})
"""Kinds that every API server has in the one version that the schemas have."""
_MINOR: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})", re.ASCII)


class _TypedPart(NamedTuple):
    """A part of an object whose type is known: where it is, and the name of its schema."""

    value: Any
    schema: str
    path: str


def field_refusals(objects: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What an API server says against the fields of the objects that it would not take, by their kind and name."""
    return {named(obj): one_line(words, _LONGEST) for obj in objects if (words := _refusal(obj))}


def may_know_more(nodes: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the cluster of these Nodes is newer than the schemas: no kubelet is newer than its API server."""
    kubelets = (mapping(mapping(node.get("status")).get("nodeInfo")).get("kubeletVersion") for node in nodes)
    return any(_minor(text(version)) > _minor(schema_version()) for version in kubelets)


def schema_version() -> str:
    """The release of Kubernetes whose fields are known, as ``v1.35.4``."""
    from kgpu.lab.embedded.kinds import discovery_data

    return str(discovery_data()["version"])


def doubt(maker: str, words: str) -> str:
    """A note in place of a refusal, where the cluster is newer than the schemas."""
    return f"{maker}: {words}, says Kubernetes {schema_version()}; this cluster is newer and may know more"


def check_fields(objects: Iterable[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Notes about fields that only a newer API server may know. Raises ConfigError for others that are unknown."""
    refused = field_refusals(objects)
    if not refused:
        return ()
    if may_know_more(nodes):
        return tuple(doubt(maker, words) for maker, words in refused.items())
    told = [f"the API server would refuse {maker}: {words}" for maker, words in refused.items()]
    more = f"; and {len(told) - _MOST} more" if len(told) > _MOST else ""
    raise ConfigError(
        "; ".join(told[:_MOST]) + more, f"kinds and fields of Kubernetes {schema_version()}",
        f"correct the manifest; the fields there are: kubectl explain {next(iter(refused)).partition('/')[0].lower()}"
        " --recursive",
    )  # fmt: skip


def _minor(version: str) -> tuple[int, ...]:
    found = _MINOR.match(version)
    return tuple(map(int, found.groups())) if found else ()


def _refusal(obj: Mapping[str, Any]) -> str:
    from kgpu.lab.embedded.kinds import ApiKind, builtin

    api_version, name = text(obj.get("apiVersion")), text(obj.get("kind"))
    served = next((row for row in builtin() if row.kind == name and row.api_version == api_version), None)
    if served is not None:
        return _decoded(served, [_TypedPart(obj, served.schema, "")])
    if name in _EVERYWHERE:
        return f'no matches for kind "{name}" in version "{api_version}"' if api_version else "apiVersion not set"
    group, _, version = api_version.rpartition("/")
    return _decoded(ApiKind(group=group, version=version, plural="", kind=name), _templates(name, obj))


def _decoded(kind: ApiKind, parts: Iterable[_TypedPart]) -> str:
    """The server's words, "" where it takes them. JSON of a wrong type goes before unknown fields, as there."""
    from kgpu.lab.embedded.duplicate_fields import words
    from kgpu.lab.embedded.kinds import schema_data
    from kgpu.lab.embedded.schema import SchemaNode
    from kgpu.lab.embedded.strict import check, refusal

    unknown: list[str] = []
    wrong: list[str] = []
    for part in parts:
        schema = SchemaNode({"$ref": part.schema}, schema_data())
        _, more_unknown, more_wrong = check(by_key(part.value), schema, path=part.path)
        unknown += more_unknown
        wrong += more_wrong
    if wrong:
        return refusal(kind, wrong[:1])
    return refusal(kind, [words(unknown)]) if unknown else ""


def _templates(kind: str, obj: Mapping[str, Any]) -> Iterator[_TypedPart]:
    """The templates in an object of a kind that is no part of Kubernetes."""
    from kgpu.placement.pod_sets import REPLICA_SPECS

    spec = mapping(obj.get("spec"))
    if kind == "JobSet":
        for at, job in enumerate(items(spec.get("replicatedJobs"))):
            yield _TypedPart(mapping(job).get("template"), _JOB, f"spec.replicatedJobs[{at}].template")
    elif kind == "LeaderWorkerSet":
        for field in ("leaderTemplate", "workerTemplate"):
            template = mapping(spec.get("leaderWorkerTemplate")).get(field)
            yield _TypedPart(template, _POD, f"spec.leaderWorkerTemplate.{field}")
    elif field := REPLICA_SPECS.get(kind, ""):
        for role, replicas in mapping(spec.get(field)).items():
            yield _TypedPart(mapping(replicas).get("template"), _POD, f"spec.{field}.{role}.template")
