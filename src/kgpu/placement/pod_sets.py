"""The sets of pods that a manifest becomes: how many of each template, with whose names, owners and labels. Pure.

What controllers add that scheduling or grouping goes by is added: the index of an Indexed Job's pods, the labels of a
JobSet and of a LeaderWorkerSet's groups. Amounts are taken as the API servers' defaults have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from kgpu.base.plain import items, mapping, number, text
from kgpu.formats import names
from kgpu.placement.state import Object

MOST_SETS: Final = 20_001
REPLICA_SPECS: Final = {
    "PyTorchJob": "pytorchReplicaSpecs", "TFJob": "tfReplicaSpecs", "XGBoostJob": "xgbReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs", "MPIJob": "mpiReplicaSpecs", "JAXJob": "jaxReplicaSpecs",
}  # fmt: skip
"""Kubeflow's jobs, with the field of the spec that has the replicas of each role."""
HELD_IN: Final = {"JobSet": "replicatedJobs", "LeaderWorkerSet": "leaderWorkerTemplate", **REPLICA_SPECS}
"""The field of the spec that has the templates of pods, of kinds that are no part of Kubernetes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """``count`` pods of a template, which are ``name`` and a number, or that name where there is but ``alone`` one."""

    name: str
    template: Object
    count: int = 1
    owner: str = ""
    alone: bool = False
    claims: tuple[Object, ...] = ()
    """Templates of the volume claims that each pod gets its own of."""


def pod_sets(obj: Object, name: str) -> list[PodSet]:
    """Of an object of a kind of ``kgpu.placement.workloads.MADE_OF``; ``name`` is what this copy of it is called. At
    most ``MOST_SETS``, whatever it asks for.
    """
    return list(islice(_SETS.get(text(obj.get("kind")), _replicas)(obj, name), MOST_SETS))


def _pod(obj: Object, name: str) -> Iterator[PodSet]:
    yield PodSet(name=name, template=obj, alone=True)


def _replicas(obj: Object, name: str) -> Iterator[PodSet]:
    spec = mapping(obj.get("spec"))
    yield PodSet(
        name=name, template=mapping(spec.get("template")), count=number(spec.get("replicas"), 1),
        owner=f"{text(obj.get('kind'))}/{name}", claims=tuple(map(mapping, items(spec.get("volumeClaimTemplates")))),
    )  # fmt: skip


def _job(obj: Object, name: str) -> Iterator[PodSet]:
    yield from _pods_of_job(mapping(obj.get("spec")), name, {}, {})


def _cron_job(obj: Object, name: str) -> Iterator[PodSet]:
    """One run of it."""
    job = mapping(mapping(mapping(obj.get("spec")).get("jobTemplate")).get("spec"))
    yield from _pods_of_job(job, f"{name}-0", {}, {})


def _pods_of_job(
    spec: Object, name: str, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Iterator[PodSet]:
    """As many at once as the Job's parallelism and what it has to complete allow."""
    count = number(spec.get("parallelism"), 1)
    if spec.get("completions") is not None:
        count = min(count, number(spec.get("completions"), 1))
    index = {names.JOB_INDEX: "0"} if spec.get("completionMode") == "Indexed" else {}
    template = _with(mapping(spec.get("template")), labels, {**annotations, **index})
    yield PodSet(name=name, template=template, count=count, owner=f"Job/{name}")


def _job_set(obj: Object, name: str) -> Iterator[PodSet]:
    for group in map(mapping, items(mapping(obj.get("spec")).get("replicatedJobs"))):
        for at in range(number(group.get("replicas"), 1)):
            job = mapping(mapping(group.get("template")).get("spec"))
            yield from _pods_of_job(job, f"{name}-{text(group.get('name'))}-{at}", {names.JOBSET_NAME: name}, {})


def _leader_worker_set(obj: Object, name: str) -> Iterator[PodSet]:
    spec = mapping(obj.get("spec"))
    group = mapping(spec.get("leaderWorkerTemplate"))
    worker = mapping(group.get("workerTemplate"))
    leader = mapping(group.get("leaderTemplate")) or worker
    for at in range(number(spec.get("replicas"), 1)):
        labels = {names.LWS_NAME: name, names.LWS_GROUP_INDEX: str(at)}
        one = f"{name}-{at}"
        yield PodSet(name=one, template=_with(leader, labels, {}), owner=f"StatefulSet/{name}", alone=True)
        count = number(group.get("size"), 1) - 1
        yield PodSet(name=one, template=_with(worker, labels, {}), count=count, owner=f"StatefulSet/{one}")


def _kubeflow(obj: Object, name: str) -> Iterator[PodSet]:
    kind = text(obj.get("kind"))
    for role, replicas in mapping(mapping(obj.get("spec")).get(REPLICA_SPECS[kind])).items():
        spec = mapping(replicas)
        template = mapping(spec.get("template"))
        yield PodSet(
            name=f"{name}-{role.lower()}", template=template, count=number(spec.get("replicas"), 1),
            owner=f"{kind}/{name}",
        )  # fmt: skip


def _with(template: Object, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Object:
    metadata = mapping(template.get("metadata"))
    return {
        **template,
        "metadata": {
            **metadata, "labels": {**mapping(metadata.get("labels")), **labels},
            "annotations": {**mapping(metadata.get("annotations")), **annotations},
        },
    }  # fmt: skip


_SETS: Final[Mapping[str, Callable[[Any, str], Iterator[PodSet]]]] = {
    "Pod": _pod, "Job": _job, "CronJob": _cron_job, "JobSet": _job_set, "LeaderWorkerSet": _leader_worker_set,
    **dict.fromkeys(REPLICA_SPECS, _kubeflow),
}  # fmt: skip
