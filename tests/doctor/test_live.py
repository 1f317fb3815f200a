"""The live source: what it asks for, what it does without, and that the shipped rights are exactly those."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from kgpu.base.errors import KubeError
from kgpu.doctor.plan import diagnose
from kgpu.doctor.read_kinds import KINDS
from kgpu.doctor.sources.live import collect
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES, KubeRefusedError
from tests.doctor.example import all_examples

MANIFEST = Path(__file__).parents[2] / "docs" / "how-to" / "doctor-rights.yaml"
RESOURCES = {one.resource.kind: one.resource for one in KINDS}


class FakeLogs:
    """Logs by pod; remembers who was asked for."""

    def __init__(self, said: dict[str, list[str]], *, refuse: bool = False) -> None:
        self.said, self.refuse, self.asked = said, refuse, list[str]()

    async def logs(
        self, namespace: str, pod: str, container: str, *, previous: bool, tail: int, limit: int, since: int = 0
    ) -> bytes:
        assert tail <= 1000
        assert limit <= 1 << 20
        self.asked.append(f"{namespace}/{pod}/{container}{' before' if previous else ''}")
        if self.refuse:
            raise KubeRefusedError("no pods/log", "the right to it", "ask for it", code=403)
        return "\n".join(self.said.get(f"{namespace}/{pod}", ())).encode()


def api_of(objects: list[dict[str, Any]]) -> tuple[FakeApi, FakeLogs]:
    api, said = FakeApi(), dict[str, list[str]]()
    for one in objects:
        name = f"{one['metadata'].get('namespace', '')}/{one['metadata'].get('name', '')}"
        if one["kind"] == "PodLog":
            said.setdefault(name, []).extend(one["lines"])
        elif one["kind"] in RESOURCES:
            resource = RESOURCES[one["kind"]]
            api.put(resource, {"metadata": {}, **_of_the_stack(one), "apiVersion": resource.version})
    return api, FakeLogs(said)


def _of_the_stack(one: dict[str, Any]) -> dict[str, Any]:
    """Parts of a stack as they are: with a folder of their node, by which they are believed to be some."""
    if one["kind"] != "Pod" or one["metadata"]["namespace"] != "gpu-operator":
        return one
    return {**one, "spec": {**one["spec"], "volumes": [{"name": "host", "hostPath": {"path": "/run/nvidia"}}]}}


def example(name: str) -> Any:
    return next(one for one in all_examples() if one.name == name)


async def test_what_it_reads_gives_what_a_file_gives() -> None:
    for name in ("DPL-01", "SCH-08", "TNT-01"):
        one = example(name)
        api, logs = api_of(one.broken)
        found = await collect(api, logs=logs, now=one.taken)
        report = diagnose(found, strict=True)
        assert report.findings, name
        assert report.findings[0].id == one.rule
        assert report.findings[0].cause == diagnose(one.snapshot(one.broken)).findings[0].cause


async def test_it_only_lists_what_the_shipped_rights_grant() -> None:
    granted = set[tuple[str, str, str]]()
    for obj in yaml.safe_load_all(MANIFEST.read_text()):
        for rule in obj.get("rules", ()):
            granted |= {(g, r, v) for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    wanted = {(one.resource.group, one.resource.plural, "list") for one in KINDS}
    assert granted == wanted | {("", "pods/log", "get")}
    assert not any(resource == "secrets" for _, resource, _ in granted)
    api, logs = api_of(example("DPL-01").broken)
    api.served = {one.resource for one in KINDS}
    await collect(api, logs=logs)
    asked = {(verb, plural) for verb, plural, _ in api.calls} - {("discover", "")}
    assert asked == {("list", plural) for _, plural, verb in granted if verb == "list"}


class Counted:
    """An API that counts how many are asking at a moment."""

    def __init__(self, api: FakeApi) -> None:
        self.api, self.asking, self.most = api, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.api, name)

    async def list(self, resource: Any, **how: Any) -> Any:
        self.asking += 1
        self.most = max(self.most, self.asking)
        try:
            for _ in range(10):
                await asyncio.sleep(0)
            return await self.api.list(resource, **how)
        finally:
            self.asking -= 1


async def test_it_asks_for_four_things_at_a_time() -> None:
    """docs/how-to/find-out-why-a-pod-is-stuck.md says so."""
    api, logs = api_of(example("DPL-01").broken)
    api.served = {one.resource for one in KINDS}
    counted = Counted(api)
    await collect(counted, logs=logs)
    assert counted.most == 4


async def test_it_lists_each_kind_once_in_pages_and_watches_nothing() -> None:
    api, logs = api_of(example("DPL-01").broken)
    api.served = {one.resource for one in KINDS}
    await collect(api, logs=logs)
    asked = collections.Counter(api.calls)
    del asked["discover", "", ""]
    assert asked == collections.Counter(("list", one.resource.plural, "") for one in KINDS)
    # Of 1,000 nodes and 10,000 pods, with the three that tell which kinds there are: some 78.
    assert NODES.page == 500
    assert 3 + len(KINDS) + 1_000 // NODES.page - 1 + 10_000 // NODES.page - 1 == 78


def failing(name: str) -> dict[str, Any]:
    """A pod with a GPU whose container ends in an error."""
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {
            "nodeName": "gpu-1",
            "containers": [{"name": "a", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
        "status": {
            "phase": "Failed",
            "containerStatuses": [{"name": "a", "state": {"terminated": {"exitCode": 1}}, "restartCount": 0}],
        },
    }


async def test_it_reads_the_logs_of_200_containers_at_most_four_at_a_time_and_says_how_many_are_left() -> None:
    api, _ = api_of([{"kind": "Node", "metadata": {"name": "gpu-1"}}, *(failing(f"p{at:03}") for at in range(230))])
    asking: list[int] = [0]

    class Slow(FakeLogs):
        async def logs(self, *where: Any, **how: Any) -> bytes:
            asking.append(asking[-1] + 1)
            for _ in range(10):
                await asyncio.sleep(0)
            asking.append(asking[-1] - 1)
            return await super().logs(*where, **how)

    logs = Slow({})
    found = await collect(api, logs=logs)
    assert len(set(logs.asked)) == len(logs.asked) == 200
    assert max(asking) == 4
    assert "logs of 30 more containers" in [gap.what for gap in found.missing]


async def test_a_right_that_is_missing_is_told_and_the_rest_counts() -> None:
    one = example("DPL-01")
    api, logs = api_of(one.broken)
    api.refuse = {("list", "events"): 403, ("list", "configmaps"): 403}
    found = await collect(api, logs=FakeLogs(logs.said, refuse=True), now=one.taken)
    told = {gap.what: gap for gap in found.missing}
    assert "doctor-rights.yaml" in told["events of the cluster"].how
    assert "configmaps of the cluster" in told
    assert any(what.startswith("logs such as of gpu-operator/") for what in told)
    assert "ConfigMap" not in found.listed
    assert found.nodes


@pytest.mark.parametrize("plural", ["nodes", "pods"])
async def test_without_nodes_or_pods_there_is_nothing_to_say(plural: str) -> None:
    api, logs = api_of(example("DPL-01").broken)
    api.refuse = {("list", plural): 403}
    with pytest.raises(KubeError):
        await collect(api, logs=logs)


async def test_an_outage_is_an_error_that_is_explained() -> None:
    api, logs = api_of([])
    api.set_down(True)
    with pytest.raises(KubeError):
        await collect(api, logs=logs)


async def test_a_kind_of_another_version_is_asked_in_the_servers_version() -> None:
    api, logs = api_of(example("SCH-08").broken)
    old = dataclasses.replace(RESOURCES["ResourceClaim"], version="v1beta1")
    api.put(old, {"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "ml"}})
    found = await collect(api, logs=logs)
    assert found.get("ResourceClaim", "c", "ml")


GPU_NODE = {
    "kind": "Node",
    "metadata": {"name": "gpu-1", "labels": {"nvidia.com/gpu.present": "true"}},
    "status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
}
CPU_NODE = {
    "kind": "Node",
    "metadata": {"name": "cpu-1"},
    "status": {"allocatable": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
}
NOT_FOUND = ["sh: 1: nvidia-smi: not found"]


def one_pod(
    name: str, *, node: str = "gpu-1", ready: bool = False, gpus: int = 0, created: str = "", **container: Any
) -> dict[str, Any]:
    """A pod that runs and is Ready, or that keeps ending."""
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    state: dict[str, Any] = {"running": {}} if ready else {"waiting": {"reason": "CrashLoopBackOff"}}
    created = created or "2026-01-01T10:00:00Z"
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "uid": name, "creationTimestamp": created},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "a", "image": "registry.example.org/web:1", "resources": limits, **container}],
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "a", "ready": ready, "state": state, "restartCount": 0 if ready else 9}],
            "conditions": [{"type": "Ready", "status": str(ready), "lastTransitionTime": created}],
        },
    }


async def test_of_pods_that_look_for_no_gpu_on_nodes_without_one_no_log_is_read() -> None:
    objects = example("DPL-01").broken
    api, logs = api_of([*objects, CPU_NODE, one_pod("web", node="cpu-1"), one_pod("calm", ready=True)])
    await collect(api, logs=logs)
    assert any(name.startswith("gpu-operator/plugin-a/") for name in logs.asked)
    assert not any(name.startswith("ml/") for name in logs.asked)


@pytest.mark.parametrize(
    ("node", "more"),
    [
        ("gpu-1", {}),
        ("cpu-1", {"image": "nvidia/cuda:12.4.1-base-ubuntu22.04"}),
        ("cpu-1", {"image": "pytorch/pytorch:2.5.1-cuda12.4"}),
        ("cpu-1", {"command": ["sh", "-c", "nvidia-smi && python train.py"]}),
        ("cpu-1", {"args": ["torchrun", "--nproc-per-node=8", "train.py"]}),
        ("cpu-1", {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}),
    ],
)
async def test_a_program_that_fails_for_want_of_a_gpu_it_has_not_asked_for_is_told(
    node: str, more: dict[str, Any]
) -> None:
    """Of the whole cluster, with nobody asking for the pod."""
    api, logs = api_of([GPU_NODE, CPU_NODE, one_pod("train", node=node, **more)])
    logs.said["ml/train"] = NOT_FOUND
    report = diagnose(await collect(api, logs=logs, now=1767268800.0), strict=True)
    assert "ml/train/a before" in logs.asked
    (found,) = [one for one in report.findings if "ml/train" in one.pods]
    assert found.id == "QTA-10"
    assert NOT_FOUND[0] in found.evidence[0].value


async def test_a_ready_pod_that_does_not_see_its_gpu_is_told() -> None:
    api, logs = api_of([GPU_NODE, one_pod("train", ready=True, gpus=1)])
    logs.said["ml/train"] = ["GPU available: False, used: False"]
    report = diagnose(await collect(api, logs=logs, now=1767268800.0), strict=True)
    assert logs.asked == ["ml/train/a"]
    assert [one.id for one in report.real] == ["RUN-24"]


async def test_of_ready_pods_the_newest_are_read_and_the_others_counted() -> None:
    pods = [one_pod(f"p{at:02}", ready=True, gpus=1, created=f"2026-01-01T10:{at:02}:00Z") for at in range(25)]
    api, logs = api_of([GPU_NODE, *pods])
    found = await collect(api, logs=logs)
    assert logs.asked == [f"ml/p{at:02}/a" for at in range(24, 4, -1)]
    gap = next(gap for gap in found.missing if gap.what == "logs of 5 more Ready pods that hold GPUs")
    assert "newest 20" in gap.why
    assert not gap.slight


async def test_who_asks_for_gpus_and_fails_comes_before_who_does_not_and_before_who_is_ready() -> None:
    """With many of each no more than the bound are read, and what is left out is counted."""
    stack = [one for one in example("DPL-01").broken if one["kind"] == "Pod" and one["metadata"]["name"] == "plugin-a"]
    pods = [
        *(one_pod(f"ready-{at:02}", ready=True, gpus=1) for at in range(10)),
        *(one_pod(f"fails-{at:03}", created=f"2026-01-01T11:00:{at % 60:02}Z") for at in range(200)),
        *(failing(f"asks-{at:02}") for at in range(20)),
    ]
    api, logs = api_of([GPU_NODE, *stack, *pods])
    found = await collect(api, logs=logs)
    assert len(logs.asked) == 200
    tiers = [next(t for t in ("asks", "fails", "ready", "plugin") if f"/{t}" in name) for name in logs.asked]
    assert tiers.index("fails") == tiers.count("asks") + tiers.count("plugin")
    assert (tiers.count("plugin") > 0, tiers.count("asks"), tiers.count("ready")) == (True, 20, 0)
    left = 2 * 200 + 10 - tiers.count("fails")
    assert f"logs of {left} more containers" in [gap.what for gap in found.missing]
