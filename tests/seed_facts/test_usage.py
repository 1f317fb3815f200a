"""What the documents say of idle GPUs, cost, placement and sharing, as kgpu's commands answer it: a test for a row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgpu.cli.main import main
from kgpu.formats.usage import UsageState
from tests.cli.test_idle import Cluster, device
from tests.placement.clusters import GPU, Object, node, pod
from tests.usage.recordings import Device, holder, write
from tests.usage.recordings import node as recorded

Said = pytest.CaptureFixture[str]
PRODUCT = "nvidia.com/gpu.product"
TYPE = "node.kubernetes.io/instance-type"
A100 = "NVIDIA-A100-SXM4-80GB"
HOUR = 3600


def ask(capsys: Said, *words: object, code: int = 0) -> Any:
    """What a command says, as JSON."""
    ended = main(["kgpu", *map(str, words), "-o", "json"])
    out, err = capsys.readouterr()
    assert ended == code, err
    return json.loads(out)


def dump(folder: Path, *objects: Object) -> Path:
    path = folder / "cluster.json"
    items = [{"apiVersion": "v1", **one} for one in objects]
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    return path


def manifest(folder: Path, gpus: int, **spec: Any) -> Path:
    path = folder / f"pod-{gpus}.json"
    path.write_text(json.dumps(pod("new", gpus, owner="", **spec)))
    return path


def prices(folder: Path, text: str) -> Path:
    path = folder / "prices.csv"
    path.write_text(text)
    return path


def gpu_node(name: str, product: str, gpus: int = 8, **labels: str) -> Object:
    return node(name, gpus, labels={PRODUCT: product, **labels})


# What is idle


@pytest.mark.parametrize(
    ("activity", "hours", "idle"),
    [(0.049, 1.1, True), (0.049, 0.9, False), (0.05, 5.0, False), (0.0, 1.1, True)],
    ids=["below 5% for an hour", "for less", "5%", "nothing"],
)
def test_b64_a_gpu_is_idle_below_5_percent_for_an_hour(
    monkeypatch: pytest.MonkeyPatch, capsys: Said, activity: float, hours: float, idle: bool
) -> None:
    cluster = Cluster()
    cluster.workload()
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: cluster)
    said = device(0, hours=hours)
    buckets = [msgspec.structs.replace(one, peak=one.peak or activity) for one in said.buckets]
    last = msgspec.structs.replace(said.last, gr_engine=activity, gpu_util=activity)
    cluster.agent("gpu-1", msgspec.structs.replace(said, buckets=tuple(buckets), last=last))
    found = ask(capsys, "idle", "list", "--min", "1h", code=3 if idle else 0)
    assert [one["who"] for one in found["idle"]] == (["team-a/llama"] if idle else [])


# What it costs


def test_b01_what_an_instance_type_costs_and_whether_it_fits_is_asked_before_it_is_there(
    tmp_path: Path, capsys: Said
) -> None:
    """Availability, cost and need: the type that is dear has room for the work, the cheap one has not."""
    cluster = dump(tmp_path, node("cpu", 0))

    def with_one(kind: str, code: int) -> tuple[float, bool]:
        found = ask(
            capsys, "whatif", "--snapshot", cluster, "--add-nodes", f"{kind}=1", "-f", manifest(tmp_path, 8), code=code
        )
        return found["cost"]["perHour"], found["holds"]

    assert with_one("p5.48xlarge", 0) == (55.04, True)
    assert with_one("p4d.24xlarge", 0) == (21.958, True)
    assert with_one("g6.xlarge", 3) == (0.805, False)


def fleet(folder: Path, weekends: int) -> Path:
    """16 nodes of 8 GPUs, held and idle for 60 hours, so often."""
    devices = []
    for number in range(128):
        device = Device(node=f"gpu-{number // 8:02}", device=f"GPU-{number}")
        pod_of = holder(f"train-{number}", namespace="research")
        for _ in range(weekends):
            device.spend(60 * HOUR, pod_of, state=UsageState.HELD_IDLE, busy=0.0, sm=0.0)
        devices.append(device)
    return write(folder / "u.jsonl", *devices, nodes=[recorded(f"gpu-{at:02}", gpus=8) for at in range(16)])


@pytest.mark.parametrize(("weekends", "cost"), [(1, 23_500.80), (2, 47_001.60)])
def test_b74_a_weekend_of_128_idle_gpus_and_two(tmp_path: Path, capsys: Said, weekends: int, cost: float) -> None:
    own = prices(tmp_path, "product,perGpuHour\n*A100*,3.06\n")
    found = ask(capsys, "usage", "--from", fleet(tmp_path, weekends), "--prices", own)
    (row,) = found["rows"]
    assert (row["cost"], row["wasted_cost"], row["busy_ratio"]) == (cost, cost, 0.0)


@pytest.mark.parametrize(("capital", "an_hour"), [(80_000, 0.38), (240_000, 1.14)])
def test_c16_an_owned_a100_by_what_it_has_cost(tmp_path: Path, capsys: Said, capital: int, an_hour: float) -> None:
    """8 of 10,000 to 30,000 dollars, over three years."""
    own = prices(tmp_path, f"product,capex,years\n*A100*,{capital},3\n")
    path = write(tmp_path / "u.jsonl", Device().spend(100 * HOUR, holder()), nodes=[recorded(gpus=8)])
    (row,) = ask(capsys, "usage", "--from", path, "--prices", own)["rows"]
    assert row["cost"] / 100 == pytest.approx(an_hour, abs=0.005)


@pytest.mark.parametrize(("used", "useful"), [(0.13, 23.54), (0.80, 3.83)])
def test_c16_c49_an_hour_of_use_costs_six_times_less_at_80_percent_than_at_13(
    tmp_path: Path, capsys: Said, used: float, useful: float
) -> None:
    own = prices(tmp_path, "product,perGpuHour\n*A100*,3.06\n")
    path = write(tmp_path / "u.jsonl", Device().spend(100 * HOUR, holder(), busy=1.0, sm=used), nodes=[recorded()])
    (row,) = ask(capsys, "usage", "--from", path, "--prices", own)["rows"]
    assert (row["effective_ratio"], round(row["cost_per_useful_hour"], 2)) == (used, useful)


# Which way to share


def cells(capsys: Said, key: str) -> dict[str, str]:
    found = ask(capsys, "advise", "sharing", "--no-cluster")
    return next(row for row in found["facts"] if row["key"] == key)


@pytest.mark.parametrize(
    ("key", "mig", "time_slicing", "mps"),
    [
        ("memory-isolation", "hardware", "none", "partial"),
        ("fault-containment", "yes", "no", "no"),
        ("gpus", "Ampere", "any", "Volta"),
        ("partitions", "7", "no limit", "48"),
        ("concurrent", "yes", "no", "yes"),
        ("sizes", "fixed", "equal", "any"),
        ("latency", "nothing", "jitter", "little"),
        ("choose", "inference with a guaranteed latency", "development", "replicas of inference"),
    ],
)
def test_c17_d40_the_table_of_ways(capsys: Said, key: str, mig: str, time_slicing: str, mps: str) -> None:
    row = cells(capsys, key)
    assert mig in row["mig"]
    assert time_slicing in row["time-slicing"]
    assert mps in row["mps"]


def recording(folder: Path, product: str, *, memory: int = 8_000, sm: float = 0.1) -> Path:
    """Four days in which one hour in five is busy."""
    device = Device(node="a", device="GPU-0", product=product)
    for at in range(96):
        busy = 0.5 if at % 5 == 0 else 0.0
        who = holder("serve-1", namespace="ml", owner="Deployment/serve", memory_mib_ms=(at + 1) * memory * HOUR * 1000)
        device.spend(HOUR, who, busy=busy, sm=sm if busy else 0.0)
    device.lines = [msgspec.structs.replace(line, memory_mib=81_559) for line in device.lines]
    return write(folder / f"{product}.jsonl", device, nodes=[recorded("a", gpus=8)])


@pytest.mark.parametrize(
    ("product", "neighbours", "way"),
    [(A100, "untrusted", "mig"), ("Tesla-T4", "untrusted", "whole"), (A100, "trusted", "time-slicing")],
    ids=["isolation", "isolation, and hardware that has none", "pattern"],
)
def test_c24_isolation_first_then_hardware_then_the_pattern(
    tmp_path: Path, capsys: Said, product: str, neighbours: str, way: str
) -> None:
    words = ("advise", "workload", "ml/serve", "--from", recording(tmp_path, product), "--neighbours", neighbours)
    assert ask(capsys, *words)["advice"]["way"] == way


# Where pods go


@pytest.mark.parametrize(
    ("product", "words"),
    [
        ("NVIDIA-H100-80GB-HBM3", "NVLink 4, 900 GB/s"),
        (A100, "NVLink 3, 600 GB/s"),
        ("NVIDIA-L40S", "PCIe 4.0, 64 GB/s"),
        ("Tesla-T4", "PCIe 3.0, 32 GB/s"),
    ],
)
def test_c13_c43_how_a_pods_gpus_are_connected_where_it_lands(
    tmp_path: Path, capsys: Said, product: str, words: str
) -> None:
    """PCIe 4.0 is told as NVLink is, both ways together: 900 are 14 times 64."""
    cluster = dump(tmp_path, gpu_node("a", product))
    (placed,) = ask(capsys, "whatif", "--snapshot", cluster, "-f", manifest(tmp_path, 2))["pods"]
    assert placed["node"] == "a"
    assert placed["quality"].startswith(words)


def test_c13_what_connects_the_nodes_of_a_gang(tmp_path: Path, capsys: Said) -> None:
    """InfiniBand HDR is 200 Gb/s."""
    hdr = {"kgpu.dev/rdma.link-layer": "infiniband", "kgpu.dev/rdma.rate": "200", "kgpu.dev/rdma.ports": "8"}
    cluster = dump(tmp_path, *(gpu_node(name, A100, **hdr) for name in ("a", "b")))
    job = tmp_path / "job.json"
    template = {"spec": pod("new", 8)["spec"]}
    spec = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template}
    job.write_text(json.dumps({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}))
    (gang,) = ask(capsys, "whatif", "--snapshot", cluster, "-f", job)["gangs"]
    assert "between nodes: InfiniBand, 200 Gbit/s on 8 ports of each node at least" in gang["quality"]


def test_c14_the_scheduler_counts_alone_and_what_if_says_what_that_means(tmp_path: Path, capsys: Said) -> None:
    """Four are free and no node has four: a pod of four waits, and the plan says which move makes room."""
    nodes = [gpu_node(name, A100, 4) for name in ("a", "b")]
    pods = [pod(f"p{at}", 1, name) for at, name in enumerate("aabb")]
    cluster = dump(tmp_path, *nodes, *pods)
    found = ask(capsys, "whatif", "--snapshot", cluster, "-f", manifest(tmp_path, 4), code=3)
    assert found["resources"]["before"][0]["free"] == 4
    assert found["pods"][0]["nodesByReason"] == {"Insufficient nvidia.com/gpu": 2}
    assert len(ask(capsys, "whatif", "--snapshot", cluster, "--defrag-for", 4)["defrag"]["moves"]) == 2


def test_e01_what_a_count_of_gpus_does_not_say(tmp_path: Path, capsys: Said) -> None:
    """80 GB for a job of 8, without anybody knowing its use, alone on the GPU: memory, utilisation and sharing."""
    words = ("advise", "workload", "ml/serve", "--from", recording(tmp_path, "NVIDIA-H100-80GB-HBM3", memory=8_000))
    found = ask(capsys, *words)
    assert found["advice"]["way"] == "mig"
    assert any("it would fit a Tesla-T4" in one for one in found["besides"])
    assert any("nothing ran for 90% of the time" in one for one in found["besides"])


# Quotas, limits, autoscaling


def test_d01_a_quota_by_namespace_says_what_of_it_is_used_and_busy(tmp_path: Path, capsys: Said) -> None:
    key = f"requests.{GPU}"
    quota = {
        "kind": "ResourceQuota", "metadata": {"name": "gpu-quota", "namespace": "ml"},
        "spec": {"hard": {key: "8"}}, "status": {"hard": {key: "8"}, "used": {key: "8"}},
    }  # fmt: skip
    device = Device(node="a", device="GPU-0").spend(HOUR, holder("p", namespace="ml"), busy=1)
    words = (
        "--snapshot",
        dump(tmp_path, node("a"), pod("p", 8, "a"), quota),
        "--from",
        write(tmp_path / "u.jsonl", device),
    )
    found = ask(capsys, "quota", *words)
    (row,) = found["rows"]
    assert (row["hard"], row["used"], row["held"], found["use"]["ml"]["busy"]) == (8, 8, 8, 1.0)


def test_b75_d01_a_pool_that_karpenter_takes_to_zero(tmp_path: Path, capsys: Said) -> None:
    """What no pod holds is the autoscaler's: what it has to be told of the pool, to remove its nodes and make the first."""
    cluster = dump(tmp_path, gpu_node("a", A100, 8, **{"karpenter.sh/nodepool": "gpus"}))
    found = ask(capsys, "advise", "nodepool", "gpus", "--snapshot", cluster)
    assert (found["kind"], found["offers"]) == ("karpenter", {GPU: 8})
    assert "consolidateAfter" in json.dumps(found)
