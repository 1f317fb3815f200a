"""What people ask for themselves, with few rights."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.formats import names
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import JOBS
from kgpu.kube.port import KubeRefusedError
from kgpu.usage.reclaim import owners, requests
from kgpu.usage.reclaim.reading import ClusterLook

SPACE = "research"
OTHERS = (
    owners.LEADER_WORKER_SETS,
    owners.NOTEBOOKS,
    owners.INFERENCE_SERVICES,
    owners.JOB_SETS,
    owners.KUEUE_WORKLOADS,
)


def cluster(code: int) -> FakeApi:
    """A Job that kgpu has suspended, and an API server that answers so for kinds of other projects."""
    api = FakeApi()
    memory = {names.RECLAIM_ACTION: "suspend", names.ORIGINAL_REPLICAS: "running"}
    job: dict[str, Any] = {
        "metadata": {"name": "train", "namespace": SPACE, "annotations": memory},
        "spec": {"suspend": True},
    }
    api.put(JOBS, job)
    api.refuse |= {(verb, kind.plural): code for kind in OTHERS for verb in ("get", "list")}
    return api


@pytest.mark.parametrize("code", [403, 404])
async def test_kinds_that_one_may_not_read_or_that_are_not_there_keep_nobody_from_the_others(code: int) -> None:
    api = cluster(code)
    assert await requests.resume(api, SPACE, "train") == "Job research/train"
    resource, obj = await requests.named(ClusterLook(api, ""), SPACE, "train")
    assert (resource, obj["spec"]) == (JOBS, {"suspend": False})


async def test_who_may_not_look_everywhere_is_told_so() -> None:
    api = cluster(403)
    with pytest.raises(ConfigError, match="you may not read LeaderWorkerSet, InferenceService, Notebook, Workload"):
        await requests.resume(api, SPACE, "other")
    with pytest.raises(ConfigError, match="you may not read LeaderWorkerSet, Notebook, InferenceService, JobSet"):
        await requests.named(ClusterLook(api, ""), SPACE, "other")


async def test_a_name_of_nothing_that_was_stopped_is_answered_with_what_was() -> None:
    with pytest.raises(ConfigError) as caught:
        await requests.resume(cluster(404), SPACE, "trane")
    assert (caught.value.expected, caught.value.remedy) == ("train", f"kgpu idle resume {SPACE}/NAME")
    with pytest.raises(ConfigError, match="stopped nothing") as caught:
        await requests.resume(cluster(404), "other", "train")
    assert caught.value.remedy == "`kgpu idle -n other` lists what is idle"


async def test_an_outage_is_no_missing_right() -> None:
    with pytest.raises(KubeRefusedError):
        await requests.resume(cluster(500), SPACE, "train")
