"""Where the pods are looked for: nobody's namespace is taken where something is changed."""

from __future__ import annotations

import pytest

from kgpu.base.errors import KubeError
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import CLUSTER_POLICIES
from kgpu.kube.port import PODS
from kgpu.workloads.find import find
from kgpu.workloads.rows import workload
from tests.workloads.making import PLUGIN, agent, pod

ROW = workload("device-plugin")


def cluster(*pods: dict[str, object]) -> FakeApi:
    api = FakeApi()
    for one in pods:
        api.put(PODS, one)
    return api


async def test_the_operators_namespace_is_the_policys_word() -> None:
    api = cluster(pod(PLUGIN, "a", namespace="gpus"), pod(PLUGIN, "a", namespace="tenant"))
    api.put(CLUSTER_POLICIES, {"metadata": {"name": "p"}, "status": {"namespace": "gpus"}})
    found = await find(api, ROW, changes=True)
    assert (found.namespace, [one.namespace for one in found.pods]) == ("gpus", ["gpus"])


async def test_agents_without_an_operator_are_found_to_be_read_and_named_to_be_changed() -> None:
    api = cluster(agent("a", namespace="kube-system"))
    assert (await find(api, ROW)).namespace == "kube-system"
    with pytest.raises(KubeError, match="such pods are in kube-system") as caught:
        await find(api, ROW, changes=True)
    assert caught.value.remedy == "name it: -n kube-system"
    assert (await find(api, ROW, namespace="kube-system", changes=True)).pods


async def test_several_namespaces_are_a_question() -> None:
    api = cluster(pod(PLUGIN, "a", namespace="one"), pod(PLUGIN, "a", namespace="two"))
    with pytest.raises(KubeError, match="such pods are in one, two"):
        await find(api, ROW)


@pytest.mark.parametrize(("node", "remedy"), [("", "see what runs: kgpu status"), ("b", "see why: kgpu doctor node b")])
async def test_none_is_told_with_where_to_look(node: str, remedy: str) -> None:
    with pytest.raises(KubeError) as caught:
        await find(cluster(agent("a")) if node else cluster(), ROW, node=node)
    assert caught.value.remedy == remedy
