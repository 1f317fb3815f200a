"""What ``kgpu usage`` and ``kgpu idle`` ask a cluster for, against the rights that their page hands out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kgpu.cli import _idle
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import GPU_USAGE_OVERRIDES, GPU_USAGE_POLICIES
from kgpu.kube.operator_namespace import operator_namespace
from kgpu.kube.port import PODS, KubeRefusedError
from kgpu.usage.agents import UsageAgents
from kgpu.usage.reclaim.model import ReclaimMode
from kgpu.usage.reclaim.reading import ClusterLook
from kgpu.usage.states import USUAL_RULES

ROOT = Path(__file__).resolve().parents[2]
OBJECTS = list(yaml.safe_load_all((ROOT / "docs/how-to/usage-rights.yaml").read_text()))
ROLES = {obj["metadata"]["name"]: obj for obj in OBJECTS if "rules" in obj}


def rights(*roles: str) -> set[tuple[str, str]]:
    return {(verb, f"{group}/{resource}") for role in roles for rule in ROLES[role]["rules"]
            for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]}  # fmt: skip


async def test_what_is_asked_for_is_granted_and_no_more() -> None:
    asked: set[tuple[str, str]] = set()

    class Asked(FakeApi):
        async def list(self, resource: Any, **how: Any) -> Any:
            asked.add(("list", f"{resource.group}/{resource.plural}"))
            return await super().list(resource, **how)

        async def pod_page(self, *where: Any, **how: Any) -> str:
            asked.add(("get", "/pods/proxy"))
            return await super().pod_page(*where, **how)

    api = Asked()
    about = {"name": "a", "namespace": "gpu-operator", "labels": {"app": "kgpu-agent"}}
    api.put(PODS, {"metadata": about, "spec": {"nodeName": "n"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}})
    assert (await _idle.look(api, USUAL_RULES, 0.0)).silent  # type: ignore[arg-type]
    agents = UsageAgents(api, namespace=await operator_namespace(api), direct=False)
    assert await agents.history() == ()
    assert len(await agents.find()) == 1
    assert asked == rights("kgpu:usage", "kgpu-usage-readers")


def test_to_explain_one_may_read_what_the_process_reads_and_change_nothing() -> None:
    chart = (ROOT / "charts/kgpu/templates/reclaim.yaml").read_text()
    (text,) = re.findall(
        r"kind: ClusterRole\nmetadata:\n  name: kgpu-reclaim\n.*?\nrules:\n(.*?)\n---", chart, re.DOTALL
    )
    process = {(verb, f"{group}/{resource}") for rule in yaml.safe_load(text) for group in rule["apiGroups"]
               for resource in rule["resources"] for verb in rule["verbs"]}  # fmt: skip
    explain = rights("kgpu:idle-explain", "kgpu:idle-policies")
    assert explain <= process
    assert {verb for verb, _ in explain} == {"get", "list"}
    of_the_process_alone = {"kgpu.dev/gpuusagepolicies/status", "/nodes"}
    assert {what for _, what in process} - {what for _, what in explain} == of_the_process_alone


def test_of_all_namespaces_nothing_is_granted_but_policies() -> None:
    """Pods have variables in them: those of a namespace are for whoever is named there."""
    everywhere = [obj["roleRef"]["name"] for obj in OBJECTS if obj["kind"] == "ClusterRoleBinding"]
    assert rights(*everywhere) == {("list", "nvidia.com/clusterpolicies"), ("list", "kgpu.dev/gpuusagepolicies")}
    bound = {obj["roleRef"]["name"] for obj in OBJECTS if obj["kind"].endswith("Binding")}
    assert bound == ROLES.keys()


async def test_overrides_of_the_namespace_are_enough_for_who_may_list_no_others() -> None:
    class OneNamespace(FakeApi):
        async def list(self, resource: Any, *, namespace: str = "", **how: Any) -> Any:
            if resource == GPU_USAGE_OVERRIDES and namespace != "team-a":
                raise KubeRefusedError("forbidden", "a right", "ask for it", code=403)
            return await super().list(resource, namespace=namespace, **how)

    api = OneNamespace()
    api.put(GPU_USAGE_POLICIES, {"metadata": {"name": "p"}, "spec": {"mode": "notify", "namespaces": ["team-a"]}})
    about = {"name": "o", "namespace": "team-a"}
    api.put(GPU_USAGE_OVERRIDES, {"metadata": about, "spec": {"mode": "observe"}})
    assert (await ClusterLook(api, "").policy("team-a"))[0].mode is ReclaimMode.OBSERVE
    with pytest.raises(KubeRefusedError):
        await ClusterLook(api, "").policy("team-b")
