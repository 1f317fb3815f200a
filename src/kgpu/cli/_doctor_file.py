"""``kgpu doctor -f``: whether the pods of a manifest would run, and if not, why, before it is applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from kgpu.base.errors import ConfigError
from kgpu.base.plain import mapping
from kgpu.base.printable import counted, one_line
from kgpu.cli._manifests import STDIN, by_key, named, read_manifests

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator

    from kgpu.doctor.model import Report
    from kgpu.doctor.snapshot import Snapshot
    from kgpu.doctor.unapplied import UnappliedPod
    from kgpu.kube.port import Object, Resource
    from kgpu.placement.model import PodOutcome
    from kgpu.placement.pod_sets import PodSet

_RIGHTS: Final = "cannot create resource"
"""What a refusal for want of rights says; quotas and policies refuse with the same code."""


_UNASKED: Final = "not known is what the API server would say"


Sight = Callable[[str, str], "Awaitable[Snapshot]"]
"""A path or a kubeconfig -> what is seen there."""


class TryingApi(Protocol):
    """An API server that can be asked what it would say."""

    async def try_create(self, resource: Resource, obj: Object) -> Object:
        """``create`` as a dry run with strict decoding: it is judged, and nothing is made. Raises KubeError."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What an API server said. ``refused``: its words against an object, by kind and name. ``notes``: what it could not
    be asked. ``decoded``: the objects whose fields it has judged.
    """

    refused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    decoded: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class WouldRun:
    """``nodes``: by pod the node that it would get, "" for none. ``refusals`` are the API server's words."""

    nodes: dict[str, str]
    refusals: tuple[str, ...]
    notes: tuple[str, ...]
    report: Report

    @property
    def exit_code(self) -> int:
        """As of ``kgpu doctor``: 0 all would run, 1 some would not."""
        return 1 if self.refusals or self.report.real or not all(self.nodes.values()) else 0

    def text(self, findings: str) -> str:
        """For a terminal; ``findings`` is the report."""
        lines = [f"✘ the API server would refuse it: {words}" for words in self.refusals]
        places = Counter(node for node in self.nodes.values() if node)
        got = sum(places.values())
        if got:
            where = ", ".join(f"{node} ({counted(count, 'pod')})" for node, count in sorted(places.items()))
            lines.append(f"{got} of {counted(len(self.nodes), 'pod')} would get a node: {where}")
        lines += [f"note: {note}" for note in self.notes]
        if got < len(self.nodes):
            lines.append(f"{counted(len(self.nodes) - got, 'pod')} would wait:")
            lines += ["", findings]
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """As JSON: the report's own keys, and what is said of each pod."""
        pods = [{"pod": pod, "node": node or None} for pod, node in self.nodes.items()]
        return {**self.report.data(), "pods": pods, "refusals": list(self.refusals), "notes": list(self.notes)}


async def would_run(snapshot: Snapshot, objects: tuple[Any, ...], namespace: str, *, file: str) -> WouldRun:
    """What would become of the objects in the cluster of the snapshot. Raises ConfigError."""
    from kgpu.cli._cluster_objects import objects_of
    from kgpu.doctor.model import Report, Subject
    from kgpu.doctor.plan import diagnose
    from kgpu.doctor.unapplied import about_manifest
    from kgpu.placement.answer import answer
    from kgpu.placement.model import Origin
    from kgpu.placement.question import WhatIfQuestion
    from kgpu.placement.state import READS
    from kgpu.placement.workloads import MADE_OF

    if not any(obj.get("kind") in MADE_OF for obj in objects):
        return WouldRun(nodes={}, refusals=(), notes=(), report=Report())
    found = answer(WhatIfQuestion(manifests=objects, namespace=namespace), list(objects_of(snapshot, READS)))
    mine = [one for one in found.outcomes if one.origin is Origin.SUBMITTED]
    for obj in objects:  # what comes with the pods is there before them
        snapshot.add({**obj, "metadata": {"namespace": namespace, **mapping(obj.get("metadata"))}})
    pods = list(_pods(mine, objects, file))
    for pod in pods:
        snapshot.add(pod.as_object())
    names = {pod.name for pod in pods}
    reports: list[Report] = []
    for pod in _first_waiting(pods):
        report = diagnose(snapshot, target=Subject("Pod", pod.name, pod.namespace))
        reports.append(replace(report, findings=tuple(about_manifest(one, pod, names) for one in report.findings)))
    nodes = {f"{one.pod.namespace}/{one.pod.name}": one.node for one in mine}
    return WouldRun(nodes=nodes, refusals=found.refusals, notes=found.notes, report=_together(reports) or Report())


def _pods(outcomes: Iterable[PodOutcome], objects: tuple[Any, ...], file: str) -> Iterator[UnappliedPod]:
    from kgpu.doctor.unapplied import UnappliedPod

    sets = {(one.owner, one.name): (one.template, kind) for kind, one in _sets(objects)}
    for one in outcomes:
        owner, name = one.pod.owner, one.pod.name
        found = sets.get((owner, name)) or sets.get((owner, name.rpartition("-")[0]))
        if found is not None:
            yield UnappliedPod(
                namespace=one.pod.namespace, name=name, template=found[0], maker=found[1], node=one.node,
                message=one.message or "; ".join(one.reasons), file="" if file == STDIN else file,
                alone=len(objects) == 1,
            )  # fmt: skip


def _sets(objects: tuple[Any, ...]) -> Iterator[tuple[str, PodSet]]:
    """The sets of pods of each object, with its kind."""
    from kgpu.placement.pod_sets import pod_sets
    from kgpu.placement.workloads import MADE_OF, own_name

    for obj in objects:
        kind = obj.get("kind")
        if kind in MADE_OF:
            for one in pod_sets(obj, own_name(obj)):
                yield kind, one


def _first_waiting(pods: Iterable[UnappliedPod]) -> Iterator[UnappliedPod]:
    """One pod without a node of each template: the others of it wait for the same."""
    told: list[object] = []
    for pod in pods:
        if not pod.node and pod.template not in told:
            told.append(pod.template)
            yield pod


def _together(reports: list[Report]) -> Report | None:
    if not reports:
        return None
    return replace(reports[0], findings=tuple(dict.fromkeys(one for row in reports for one in row.findings)))


async def refusals(api: TryingApi, objects: tuple[Any, ...], namespace: str) -> Asked:
    """What the API server would say against objects that make pods, or against a pod of them."""
    from kgpu.base.errors import KubeError
    from kgpu.kube.kinds import NAMESPACES
    from kgpu.kube.port import KubeRefusedError

    asked = Asked()
    new = {mapping(obj.get("metadata")).get("name") for obj in objects if obj.get("kind") == NAMESPACES.kind}
    for maker, resource, obj in _asked(objects, namespace):
        space = obj["metadata"]["namespace"]
        if maker in asked.refused:  # its pod is, too
            continue
        if space in new:
            asked.notes.append(f"{_UNASKED}: namespace {one_line(space, 80)} is not there yet")
            continue
        try:
            await api.try_create(resource, obj)
        except KubeRefusedError as error:
            if error.code == 403 and _RIGHTS in error.message:
                asked.notes.append(f"{_UNASKED} of a {resource.kind}: you may not create one")
                continue
            if error.code == 409:
                name = one_line(obj["metadata"].get("name") or "", 80)
                asked.notes.append(f"{resource.kind} {name} is there already")
            else:
                asked.refused[maker] = one_line(error.message, 600)
        except KubeError as error:
            asked.notes.append(f"{_UNASKED}: {one_line(error.what, 200)}")
            continue
        if resource.kind == maker.partition("/")[0]:  # of a pod of it only the pod's own fields were judged
            asked.decoded.add(maker)
    return replace(asked, notes=list(dict.fromkeys(asked.notes)))


def _asked(objects: tuple[Any, ...], namespace: str) -> Iterator[tuple[str, Resource, Object]]:
    """Each object that makes pods, and one of each set of its pods as its controller would make it; by its name."""
    from kgpu.kube.kinds import CRON_JOBS, DEPLOYMENTS, JOBS, REPLICA_SETS, STATEFUL_SETS
    from kgpu.kube.port import PODS

    rows = {row.kind: row for row in (PODS, DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, JOBS, CRON_JOBS)}
    for obj in objects:
        resource, metadata = rows.get(obj.get("kind")), mapping(obj.get("metadata"))
        space = metadata.get("namespace") or namespace
        if resource is not None and obj.get("apiVersion") != resource.api_version:
            continue  # nobody serves it
        if resource is not None:
            yield named(obj), resource, by_key({**obj, "metadata": {**metadata, "namespace": space}})
        for kind, one in _sets((obj,)):
            if kind != PODS.kind:
                own = {**mapping(one.template.get("metadata")), "namespace": space, "generateName": f"{one.name}-"}
                yield named(obj), PODS, {"metadata": own, "spec": one.template.get("spec") or {}}


async def look_at_file(
    files: tuple[str, ...], namespace: str, path: str, kubeconfig: str, snapshot_of: Sight
) -> WouldRun:  # fmt: skip
    """Read the files, ask the cluster or look at ``path``. Raises UserError."""
    from kgpu.placement.question import check_kinds

    objects = read_manifests(files)
    check_kinds(objects)
    asked = Asked() if path else await _asked_of(kubeconfig, objects, namespace)
    snapshot = await snapshot_of(path, kubeconfig)
    asked = _with_fields(asked, objects, snapshot)
    taken = tuple(obj for obj in objects if named(obj) not in asked.refused)
    found = await would_run(snapshot, taken, namespace, file=files[0] if len(files) == 1 else "")
    words = [said if len(objects) == 1 else f"{maker}: {said}" for maker, said in asked.refused.items()]
    return replace(found, refusals=(*words, *found.refusals), notes=(*found.notes, *asked.notes))


def _with_fields(asked: Asked, objects: tuple[Any, ...], snapshot: Snapshot) -> Asked:
    """The same with what is to be said of the fields that no API server has judged."""
    from kgpu.cli._cluster_objects import objects_of
    from kgpu.cli._manifest_fields import doubt, field_refusals, may_know_more

    found = field_refusals(obj for obj in objects if named(obj) not in asked.decoded)
    if found and may_know_more(objects_of(snapshot, ("Node",))):
        return replace(asked, notes=[*asked.notes, *(doubt(maker, words) for maker, words in found.items())])
    return replace(asked, refused=asked.refused | found)


async def _asked_of(kubeconfig: str, objects: tuple[Any, ...], namespace: str) -> Asked:
    from kgpu.kube.client import connect

    api = connect(kubeconfig)
    try:
        return await refusals(api, objects, namespace)
    finally:
        await api.close()


def print_would_run(found: WouldRun, output: str, findings: str) -> None:
    """In the form asked for; ``findings`` is the report as text."""
    if output == "json":
        import json

        click.echo(json.dumps(found.data(), indent=2, ensure_ascii=False))
    elif output == "yaml":
        from kgpu.formats import yaml

        click.echo(yaml.dump(found.data()).rstrip("\n"))
    elif output == "text":
        click.echo(found.text(findings))
    else:
        raise ConfigError(f"-f has no form {output}", "text, json or yaml", "choose one with -o")
