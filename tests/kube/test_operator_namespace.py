"""Where the operator is: by the policy's word, never by what a tenant can make."""

from __future__ import annotations

import pytest

from kgpu.base.errors import KubeError
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import CLUSTER_POLICIES, DEPLOYMENTS
from kgpu.kube.operator_namespace import operator_namespace


@pytest.mark.parametrize(
    ("statuses", "where"),
    [
        ([], "gpu-operator"),
        ([{"namespace": "gpus"}], "gpus"),
        ([None, {}, {"namespace": 7}, {"namespace": ""}, "broken", {"namespace": "gpus"}], "gpus"),
    ],
)
async def test_the_policy_says_where(statuses: list[object], where: str) -> None:
    api = FakeApi()
    labels = {"app.kubernetes.io/name": "kgpu", "app.kubernetes.io/component": "gpu-operator"}
    api.put(DEPLOYMENTS, {"metadata": {"name": "gpu-operator", "namespace": "tenant", "labels": labels}})
    for number, status in enumerate(statuses):
        api.put(CLUSTER_POLICIES, {"metadata": {"name": f"policy-{number}"}, "status": status})
    assert await operator_namespace(api) == where


async def test_without_the_right_or_the_kind_it_is_the_usual_one_and_an_outage_is_told() -> None:
    api = FakeApi()
    api.unserved.add(CLUSTER_POLICIES)
    assert await operator_namespace(api) == "gpu-operator"
    api.down = True
    with pytest.raises(KubeError):
        await operator_namespace(api)
