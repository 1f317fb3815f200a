"""What agents tell of devices and holders: hostile labels are only text, and there is one series for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from kgpu.formats import names
from kgpu.formats.usage import HolderSharing, RecordedNode
from kgpu.usage.infos import label_name
from tests.usage.watched import BEGIN, POD, WatchedNode

HOSTILE = 'x"} 1\nkgpu_usage_device_info{UUID="GPU-9"} 1\\'


def samples(text: str, name: str) -> list[dict[str, str]]:
    return [
        dict(one.labels)
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name == name
    ]


async def agent(folder: Path, *pods: Any, about: RecordedNode | None = None) -> WatchedNode:
    async def described() -> RecordedNode | None:
        return about

    made = WatchedNode(folder, labels=("team",), about=described if about else None)
    made.busy(10.0)
    made.holders.now = {"GPU-1": pods}
    await made.start()
    return made


async def test_what_a_holder_is_stands_beside_its_counters(tmp_path: Path) -> None:
    pod = structs.replace(
        POD, labels={"team": "a", "app.kubernetes.io/name": "b"}, gang="JobSet/x", claim="c", replicas=4, units=2,
        sharing=HolderSharing.TIME_SLICING,
    )  # fmt: skip
    made = await agent(tmp_path, pod)
    await made.looks(3)
    (told,) = samples(made.watcher.metrics(), "kgpu_usage_holder_info")
    assert told == {
        "UUID": "GPU-1", "namespace": "team", "pod": "p", "container": "main", "uid": "u1", "boot": "boot-1/1000",
        "owner": "Deployment/p", "gang": "JobSet/x", "sharing": "time-slicing", "replicas": "4", "units": "2", "claim": "c",
        "label_team": "a", "label_app_kubernetes_io_name": "b",
    }  # fmt: skip
    made.holders.now = {"GPU-1": ()}
    await made.looks(1)
    assert not samples(made.watcher.metrics(), "kgpu_usage_holder_info"), "as long as it is there"


async def test_hostile_labels_are_only_text(tmp_path: Path) -> None:
    pod = structs.replace(POD, pod=HOSTILE, owner=HOSTILE, labels={"team": HOSTILE * 100, 'k"}{\n': HOSTILE})
    made = await agent(tmp_path, pod)
    await made.looks(2)
    text = made.watcher.metrics()
    (told,) = samples(text, "kgpu_usage_holder_info")
    assert (told["pod"], told["owner"], told["label_k____"]) == (HOSTILE, HOSTILE, HOSTILE)
    assert told["label_team"] == (HOSTILE * 100)[:512], "of a bounded length"
    assert [one["UUID"] for one in samples(text, "kgpu_usage_device_info")] == ["GPU-1"]


async def test_keys_that_become_one_name_don_t_cost_the_page(tmp_path: Path) -> None:
    made = await agent(tmp_path, structs.replace(POD, labels={"a.b": "1", "a/b": "2", "a-b": "3"}))
    await made.looks(2)
    line = next(line for line in made.watcher.metrics().splitlines() if line.startswith("kgpu_usage_holder_info"))
    assert line.count("label_a_b=") == 1
    assert label_name("a.b/c-d") == "a_b_c_d"


async def test_the_node_and_its_clock(tmp_path: Path) -> None:
    about = RecordedNode(
        node="n1", at=BEGIN, labels={names.LABEL_REGION: "eu"}, provider_id="aws:///a", cpus=8, memory_mib=9
    )
    made = await agent(tmp_path, POD, about=about)
    assert "kgpu_usage_uptime_seconds{" not in made.watcher.metrics(), "nothing has been looked at"
    await made.looks(2)
    text = made.watcher.metrics()
    assert samples(text, "kgpu_usage_node_info") == [
        {
            "node": "n1",
            "provider_id": "aws:///a",
            "cpus": "8",
            "memory_mib": "9",
            "label_topology_kubernetes_io_region": "eu",
        }
    ]
    assert 'kgpu_usage_uptime_seconds{node="n1",boot="boot-1/1000"} 1020.000000' in text
    assert f"}} {BEGIN.timestamp() + 1020:.6f}" in text
    assert samples(text, "kgpu_usage_device_info") == [
        {"UUID": "GPU-1", "node": "n1", "boot": "boot-1/1000", "product": "NVIDIA-L4", "memory_mib": "23034"}
    ]


@pytest.mark.parametrize("pods", [1, 16])
async def test_there_is_one_series_for_each_device_and_holder(tmp_path: Path, pods: int) -> None:
    several = [
        structs.replace(POD, uid=f"u{at}", pod=f"p{at}", sharing=HolderSharing.TIME_SLICING, replicas=16)
        for at in range(pods)
    ]
    made = await agent(tmp_path, *several)
    await made.looks(2)
    lines = [line for line in made.watcher.metrics().splitlines() if "_info{" in line]
    assert len(lines) == 1 + pods
