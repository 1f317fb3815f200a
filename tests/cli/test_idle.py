"""``kgpu idle`` over the API in memory and an agent's real answer: listed, explained, kept, stopped, brought back."""

from __future__ import annotations

import datetime as dt
import json
import time
from typing import Any

import msgspec
import pytest

from kgpu.base.times import stamp_of
from kgpu.cli import idle
from kgpu.cli.main import main
from kgpu.formats import names
from kgpu.formats.usage_now import (
    VERSION,
    DeviceSaid,
    HolderSaid,
    UsageBucket,
    UsageLast,
    UsageNow,
    UsageSource,
    encode,
)
from kgpu.formats.usage_prices import PricesSaid
from kgpu.formats.usage_prices import encode as encode_prices
from kgpu.formats.usage_reclaim import ReclaimSaid, WorkloadSaid
from kgpu.formats.usage_reclaim import encode as encode_reclaim
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import DEPLOYMENTS, GPU_USAGE_POLICIES, NAMESPACES, REPLICA_SETS
from kgpu.kube.port import CONFIG_MAPS, EVENTS, NODES, PODS, Object, Resource
from kgpu.usage.reclaim.record import DataFreeze, ReclaimRecord
from kgpu.usage.reclaim.record import encode as encode_record

Said = pytest.CaptureFixture[str]
OWN = names.GPU_OPERATOR_NAMESPACE
HOUR_US = 3_600_000_000
UPTIME_US = 40 * HOUR_US


def device(number: int, *, hours: float | None, pod: str = "llama-1-x") -> DeviceSaid:
    """A device that was busy until so many hours ago, None: until now."""
    end = UPTIME_US if hours is None else UPTIME_US - int(hours * HOUR_US)
    step = 300_000_000
    buckets = tuple(
        UsageBucket(begin_us=at, end_us=at + step, watched_us=step, peak=0.9 if at < end else 0.0, mean=0.0)
        for at in range(UPTIME_US - 24 * HOUR_US, UPTIME_US, step)
    )
    active = 0.9 if hours is None else 0.0
    holder = HolderSaid(namespace="team-a", pod=pod, uid=f"uid-{pod}", owner="Deployment/llama", since_us=HOUR_US)
    return DeviceSaid(
        device=f"GPU-{number}", product="NVIDIA H100 80GB HBM3", memory_mib=81_559, source=UsageSource.COUNTERS,
        last=UsageLast(at_us=UPTIME_US, gr_engine=active, gpu_util=active, memory_mib=60_000, processes=("1",)),
        buckets=buckets, holders=(holder,) if pod else (),
    )  # fmt: skip


class Cluster(FakeApi):
    def agent(self, node: str, *devices: DeviceSaid) -> None:
        pod = {"name": f"agent-{node}", "namespace": OWN, "labels": {"app": names.AGENT_DAEMON_SET}}
        self.put(
            PODS, {"metadata": pod, "spec": {"nodeName": node}, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
        )
        now = UsageNow(
            version=VERSION, node=node, at=dt.datetime.now(dt.UTC), boot="b", uptime_us=UPTIME_US, looked_us=UPTIME_US,
            devices=devices,
        )  # fmt: skip
        self.pages[OWN, f"agent-{node}"] = encode(now).decode()

    def history(self, said: PricesSaid | str) -> None:
        """The Deployment kgpu-usage, which says this of prices."""
        pod = {"name": "history", "namespace": OWN, "labels": {"app": names.USAGE_DEPLOYMENT}}
        self.put(
            PODS, {"metadata": pod, "spec": {"nodeName": "n"}, "status": {"phase": "Running", "podIP": "10.0.0.2"}}
        )
        self.pages[OWN, "history"] = said if isinstance(said, str) else encode_prices(said).decode()

    def workload(self) -> None:
        self.put(NAMESPACES, {"metadata": {"name": "team-a", "labels": {names.RECLAIM_LABEL: "enabled"}}})
        top = self._owned(DEPLOYMENTS, "llama", None, replicas=2)
        middle = self._owned(REPLICA_SETS, "llama-1", (DEPLOYMENTS, top), replicas=2)
        pod = self._owned(PODS, "llama-1-x", (REPLICA_SETS, middle), containers=[], nodeName="gpu-1")
        self.put(PODS, {**pod, "status": {"phase": "Running", "startTime": stamp_of(time.time() - 90_000)}})

    def _owned(self, resource: Resource, name: str, owner: tuple[Resource, Object] | None, **spec: Any) -> Object:
        metadata: Object = {"name": name, "namespace": "team-a", "uid": f"uid-{name}"}
        if owner is not None:
            row, obj = owner
            metadata["ownerReferences"] = [
                {"apiVersion": row.api_version, "kind": row.kind, "name": obj["metadata"]["name"],
                 "uid": obj["metadata"]["uid"], "controller": True}
            ]  # fmt: skip
        return self.put(
            resource, {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}
        )

    def of(self, resource: Resource, name: str, space: str = "team-a") -> Object:
        return next(
            stored.obj for (kind, where, known), stored in self._objects.items()
            if (kind, where, known) == (resource, space, name)
        )  # fmt: skip

    async def close(self) -> None:
        """Several commands use it."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: cluster)
    cluster.workload()
    return cluster


def run(capsys: Said, *words: str) -> tuple[int, str, str]:
    code = main(["kgpu", "idle", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_what_is_idle_is_listed_with_what_it_costs(cluster: Cluster, capsys: Said) -> None:
    cluster.agent("gpu-1", device(0, hours=5), device(1, hours=5))
    code, out, err = run(capsys)
    assert code == 3
    heading, line = out.splitlines()
    assert heading.split()[:4] == ["WHO", "KIND", "STATE", "GPUS"]
    assert line.startswith("team-a/llama  Deployment  held-idle  2")
    assert "5h" in line
    assert "2 x NVIDIA H100 80GB HBM3 on gpu-1" in line
    assert err == ""
    code, out, _ = run(capsys, "-o", "json")
    (row,) = json.loads(out)["idle"]
    assert (code, row["who"], row["gpus"]) == (3, "team-a/llama", 2.0)
    assert row["wasted"] == pytest.approx(5 * row["perHour"], rel=0.02)


EUROS = "currency: EUR\nrows: [{instanceType: p5.48xlarge, capacityType: spot, perNodeHour: 16}, {perGpuHour: 9}]"
SPOT = {names.LABEL_INSTANCE_TYPE: "p5.48xlarge", names.LABEL_KARPENTER_CAPACITY_TYPE: "spot"}


def per_hour(capsys: Said) -> tuple[float, str, str]:
    code, out, err = run(capsys, "-o", "json")
    (row,) = json.loads(out)["idle"]
    assert code == 3
    return row["perHour"], row["currency"], err


def test_prices_are_the_clusters_by_what_its_nodes_are(cluster: Cluster, capsys: Said) -> None:
    cluster.agent("gpu-1", device(0, hours=5), device(1, hours=5))
    assert per_hour(capsys)[:2] == (13.76, "USD")
    cluster.history(PricesSaid(version=1, source="ConfigMap a/b, p.yaml", text=EUROS))
    assert per_hour(capsys) == (18.0, "EUR", "")
    cluster.put(NODES, {"metadata": {"name": "gpu-1", "labels": SPOT}})
    assert per_hour(capsys) == (16.0, "EUR", "")  # Two GPUs are all that this node has.
    cluster.history(PricesSaid(version=1, source="ConfigMap a/b, p.yaml", text=EUROS, problem="line 3 is wrong"))
    assert per_hour(capsys) == (16.0, "EUR", "note: line 3 is wrong\n")


@pytest.mark.parametrize(
    "said",
    ["{", "[" * 9000, '{"version":2}', '{"version":1,"more":1}', "<html>",
     '{"version":1,"source":"p.csv","text":"perGpuHour\\n$3\\n"}'],
)  # fmt: skip
def test_without_the_clusters_list_it_is_kgpus_and_told(cluster: Cluster, capsys: Said, said: str) -> None:
    cluster.agent("gpu-1", device(0, hours=5), device(1, hours=5))
    cluster.history(said)
    cluster.refuse[("list", "nodes")] = 403
    amount, currency, err = per_hour(capsys)
    assert (amount, currency) == (13.76, "USD")
    assert "note: the cluster's price list is" in err
    assert "note: the types of nodes are not known" in err


@pytest.mark.parametrize("words", [("-n", "team-b"), ("--min", "6h"), ("--state", "held-empty")])
def test_what_is_not_asked_for_is_not_listed(cluster: Cluster, capsys: Said, words: tuple[str, ...]) -> None:
    cluster.agent("gpu-1", device(0, hours=5))
    assert run(capsys, *words)[0] == 0


def test_one_busy_gpu_keeps_the_workload_from_being_idle(cluster: Cluster, capsys: Said) -> None:
    cluster.agent("gpu-1", device(0, hours=5), device(1, hours=None))
    code, _, err = run(capsys)
    assert (code, err) == (0, "nothing is idle for 1h or longer\n")


def test_who_asks_for_what_holds_nothing_any_more_is_told_how_it_comes_back(cluster: Cluster, capsys: Said) -> None:
    cluster.agent("gpu-1", device(0, hours=5))
    assert "comes back by: kgpu idle resume team-a/gone" in run(capsys, "explain", "team-a/gone")[2]


def test_who_does_nothing_and_is_too_young_is_told(cluster: Cluster, capsys: Said) -> None:
    still = device(0, hours=5)
    (holder,) = still.holders
    young = msgspec.structs.replace(holder, since_us=UPTIME_US - HOUR_US - 60_000_000)
    cluster.agent("gpu-1", msgspec.structs.replace(still, holders=(young,)))
    code, out, err = run(capsys)
    assert (code, out) == (0, "")
    assert err == (
        "nothing is idle for 1h or longer; 1 workload does nothing and is too young: pods have to be 15m older than that\n"
    )
    assert run(capsys, "-n", "other")[2] == "nothing is idle for 1h or longer\n"
    out = run(capsys, "explain", "team-a/llama")[1]
    assert out.startswith("Deployment team-a/llama does nothing, and is too young to be called idle\n")
    assert "GPU-0 on gpu-1: not known yet, its pod is younger than the time for which it has to be idle" in out
    assert "  STOP   2 data: not known yet: it has to hold its GPUs for 2h 15m, of which 1h 1m have passed\n" in out
    assert json.loads(run(capsys, "explain", "team-a/llama", "-o", "json")[1])["state"] == "unknown"


def test_an_agent_that_does_not_answer_is_told(cluster: Cluster, capsys: Said) -> None:
    cluster.agent("gpu-1", device(0, hours=5))
    cluster.agent("gpu-2", device(1, hours=5))
    cluster.pages[OWN, "agent-gpu-2"] = "{"
    code, out, err = run(capsys)
    assert code == 3
    assert "gpu-2" not in out
    assert "note: gpu-2 is unknown" in err


def test_where_nobody_answers_it_is_not_said_that_nothing_is_idle(cluster: Cluster, capsys: Said) -> None:
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert "set usage.enabled in the chart" in err
    cluster.agent("gpu-1", device(0, hours=5))
    cluster.pages[OWN, "agent-gpu-1"] = "{"
    code, out, err = run(capsys, "-o", "json")
    assert (code, out) == (2, "")
    assert "nothing is known of any GPU (gpu-1: " in err
    cluster.agent("gpu-1")
    code, _, err = run(capsys)
    assert code == 2
    assert "their agents see none" in err


def test_what_reclaiming_doubts_is_explained_and_holds_for_a_persons_word(cluster: Cluster, capsys: Said) -> None:
    cluster.agent("gpu-1", device(0, hours=5))
    spec = {"mode": "reclaim", "namespaces": ["team-a"]}

    def frozen(reason: str) -> None:
        condition = {"type": "Frozen", "status": "True", "reason": reason, "message": "all GPUs turned idle at once"}
        cluster.put(
            GPU_USAGE_POLICIES, {"metadata": {"name": "p"}, "spec": spec, "status": {"conditions": [condition]}}
        )

    frozen("MassIdle")
    assert "  STOP   2 freeze: all GPUs turned idle at once" in run(capsys, "explain", "team-a/llama")[1]
    code, _, err = run(capsys, "reclaim", "team-a/llama")
    assert (code, "all GPUs turned idle at once" in err) == (4, True)
    frozen("BroughtBack")
    assert run(capsys, "reclaim", "team-a/llama", "--dry-run")[0] == 0


def test_free_gpus_are_listed_when_asked_for(cluster: Cluster, capsys: Said) -> None:
    free = msgspec.structs.replace(
        device(0, hours=5, pod=""), last=UsageLast(at_us=UPTIME_US, gr_engine=0.0, gpu_util=0.0, memory_mib=0.0)
    )
    cluster.agent("gpu-1", free)
    assert run(capsys)[0] == 0
    code, out, _ = run(capsys, "--state", "free")
    assert code == 3
    assert out.splitlines()[1].startswith("gpu-1  Node  free   1")


def test_watch_looks_again(cluster: Cluster, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.agent("gpu-1", device(0, hours=5))
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(idle, "_pause", sleep)
    code, out, _ = run(capsys, "--watch")
    assert code == 130
    assert out.count("team-a/llama") == 2


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--state", "hold-idle"), 'did you mean "held-idle"?'),
        (("--min", "1s"), "a time from 5m to 24h"),
        (("--min", "soon"), "invalid duration"),
        (("explain", "llama"), "NAMESPACE/NAME"),
        (("explain", "team-a/none"), "no agent knows a workload none in team-a"),
        (("keep", "team-a/llama", "--for", "60d"), "a time from 1m to 720h"),
        (("explains", "team-a/llama"), "Did you mean 'explain'"),
        (("keep", "team-a/none", "--for", "8h"), "there is no pod and no workload none in team-a"),
        (("resume",), "NAMESPACE/NAME, or --frozen"),
        (("resume", "team-a/llama"), "kgpu has stopped nothing that is called llama"),
    ],
)
def test_what_is_refused_says_what_to_do(cluster: Cluster, capsys: Said, words: tuple[str, ...], what: str) -> None:
    cluster.agent("gpu-1", device(0, hours=5))
    code, _, err = run(capsys, *words)
    assert code == 2
    assert what in err


def test_explain_shows_every_guard(cluster: Cluster, capsys: Said) -> None:
    cluster.agent("gpu-1", device(0, hours=5))
    spec = {"mode": "reclaim", "namespaces": ["team-a"], "protect": {"kinds": ["Deployment"]}}
    cluster.put(GPU_USAGE_POLICIES, {"metadata": {"name": "p"}, "spec": spec})
    code, out, _ = run(capsys, "explain", "team-a/llama-1-x")
    assert code == 0
    assert "Deployment team-a/llama is held-idle since" in out
    assert "policy: p; mode reclaim; idle for 2h, then 30m to react" in out
    assert "  pass   1 mode: the policy reclaims" in out
    assert "  STOP   1 protect: the policy protects the kind Deployment" in out
    assert "  pass  10 traffic: no requests or users are known of, where they are watched" in out
    assert "it looked at no requests (spec.requests.watch is off), and at no users" in out
    assert "     ?   9 budget: asked when it is to be stopped" in out
    assert "protect); else Deployment team-a/llama: scale\n" in out
    assert "deadline, as its annotation says: none" in out
    code, out, _ = run(capsys, "explain", "team-a/llama", "-o", "json")
    said = json.loads(out)
    assert [guard["name"] for guard in said["guards"] if guard["passed"] is False and guard["name"] != "schedule"] == [
        "protect"
    ]


@pytest.mark.parametrize(
    ("length", "seconds"), [("8h", 28_800), ("2d", 172_800), ("1d12h", 129_600), ("30d", 2_592_000)]
)
def test_how_long_it_is_kept(cluster: Cluster, capsys: Said, length: str, seconds: int) -> None:
    before = int(time.time())
    assert run(capsys, "keep", "team-a/llama", "--for", length)[0] == 0
    until = dt.datetime.fromisoformat(cluster.of(DEPLOYMENTS, "llama")["metadata"]["annotations"][names.KEEP_UNTIL])
    assert before + seconds <= until.timestamp() <= time.time() + seconds


def watching(cluster: Cluster) -> None:
    cluster.agent("gpu-1", device(0, hours=5))
    spec = {"mode": "reclaim", "namespaces": ["team-a"], "requests": {"watch": True},
            "schedule": {"days": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], "hours": "00:00-24:00"}}  # fmt: skip
    cluster.put(GPU_USAGE_POLICIES, {"metadata": {"name": "p"}, "spec": spec})


def process(cluster: Cluster, *, ago: float | None = 20.0, **workload: Any) -> None:
    said = WorkloadSaid(namespace="team-a", kind="Deployment", name="llama", **workload)
    at = None if ago is None else time.time() - ago
    cluster.history(encode_reclaim(ReclaimSaid(version=1, at=at, workloads=(said,) if workload else ())).decode())


def test_explain_says_what_the_process_has_seen_of_requests(cluster: Cluster, capsys: Said) -> None:
    watching(cluster)
    process(cluster, watched=True, requests="pod llama-1-x has served requests at 9", step="rest", why="because")
    code, out, _ = run(capsys, "explain", "team-a/llama")
    assert code == 0
    assert "  STOP  10 traffic: pod llama-1-x has served requests at 9" in out
    assert "would be done: nothing now (stopped by traffic); else Deployment team-a/llama: scale" in out
    assert "Z: rest (because)\n" in out
    assert run(capsys, "reclaim", "team-a/llama")[0] == 4
    process(cluster, watched=True)
    _, out, _ = run(capsys, "explain", "team-a/llama")
    assert "  pass  10 traffic:" in out
    assert "it looked at requests, and at no users" in out
    assert "would be done: Deployment team-a/llama: scale" in out


NOT_KNOWN: dict[str, tuple[dict[str, Any] | None, str]] = {
    "no process": (None, "no kgpu-usage runs"),
    "stale": ({"ago": 700.0, "watched": True}, "kgpu-usage looked last at"),
    "it does not lead": ({"ago": None, "watched": True}, "kgpu-usage has not looked yet"),
    "not seen yet": ({}, "kgpu-usage has not seen it yet"),
    "not watched yet": ({"kept_since": 1.0}, "does not watch them yet"),
}


@pytest.mark.parametrize(("said", "why"), NOT_KNOWN.values(), ids=list(NOT_KNOWN))
def test_what_the_process_alone_knows_is_not_guessed(
    cluster: Cluster, capsys: Said, said: dict[str, Any] | None, why: str
) -> None:
    watching(cluster)
    if said is not None:
        process(cluster, **said)
    code, out, _ = run(capsys, "explain", "team-a/llama")
    assert code == 0
    (line,) = (one for one in out.splitlines() if " 10 traffic: " in one)
    assert line.startswith("     ?  10 traffic: requests are not known here: ")
    assert why in line
    assert "would be done: not known here (for want of traffic); if nothing stops it Deployment" in out
    said_json = json.loads(run(capsys, "explain", "team-a/llama", "-o", "json")[1])
    assert [one["passed"] for one in said_json["guards"] if one["name"] == "traffic"] == [None]
    code, _, err = run(capsys, "reclaim", "team-a/llama")
    assert (code, "stays: requests are not known here" in err) == (4, True)
    assert cluster.of(DEPLOYMENTS, "llama")["spec"]["replicas"] == 2


@pytest.mark.parametrize("said", ["{", "[" * 9000, '{"version":2}', '{"version":1,"at":"x"}', "<html>\x1b[2J"])
def test_a_process_that_answers_nonsense_is_not_believed(cluster: Cluster, capsys: Said, said: str) -> None:
    watching(cluster)
    cluster.history(said)
    code, out, _ = run(capsys, "explain", "team-a/llama")
    assert code == 0
    assert "?  10 traffic: requests are not known here: kgpu-usage can't be asked" in out
    assert "\x1b" not in out


def test_explain_says_until_when_a_keep_counts(cluster: Cluster, capsys: Said) -> None:
    watching(cluster)
    process(cluster, watched=True)
    assert run(capsys, "keep", "team-a/llama", "--for", "30d")[0] == 0
    cluster.of(DEPLOYMENTS, "llama")["metadata"]["annotations"][names.KEEP_UNTIL] = "2999-01-01T00:00:00Z"
    since = time.time() - 86_400
    process(cluster, watched=True, kept_since=since)
    out = run(capsys, "explain", "team-a/llama")[1]
    assert f"2999-01-01T00:00:00Z, which counts until {stamp_of(since + 7 * 86_400)}" in out
    process(cluster, watched=True, kept_since=since - 6 * 86_400)
    out = run(capsys, "explain", "team-a/llama")[1]
    assert "  pass   3 annotations:" in out
    cluster.history("no")
    out = run(capsys, "explain", "team-a/llama")[1]
    assert "     ?   3 annotations: Deployment llama has the annotation kgpu.dev/keep-until" in out
    assert "which counts for 7d at most; since when is not known here" in out


def test_keep_says_what_it_cuts(cluster: Cluster, capsys: Said) -> None:
    watching(cluster)
    process(cluster, watched=True)
    code, out, err = run(capsys, "keep", "team-a/llama", "--for", "30d")
    assert code == 0
    until = dt.datetime.fromisoformat(cluster.of(DEPLOYMENTS, "llama")["metadata"]["annotations"][names.KEEP_UNTIL])
    assert until.timestamp() <= time.time() + 7 * 86_400
    assert out == f"Deployment team-a/llama is kept until {stamp_of(until.timestamp())}\n"
    assert err == "note: GPUUsagePolicy p lets an idle workload be kept for 7d at most\n"
    process(cluster, watched=True, kept_since=time.time() - 8 * 86_400)
    code, _, err = run(capsys, "keep", "team-a/llama", "--for", "1h")
    assert code == 2
    assert "can't be kept any longer" in err


def test_who_may_read_no_policy_keeps_it_all_the_same_and_is_told(cluster: Cluster, capsys: Said) -> None:
    watching(cluster)
    cluster.refuse["list", "gpuusagepolicies"] = 403
    code, out, err = run(capsys, "keep", "team-a/llama", "--for", "8h")
    assert (code, "is kept until" in out) == (0, True)
    assert "note: you may not read the GPUUsagePolicies" in err


@pytest.mark.parametrize("name", ["llama", "llama-1-x"])
def test_keep_writes_what_everybody_reads(cluster: Cluster, capsys: Said, name: str) -> None:
    code, out, _ = run(capsys, "keep", f"team-a/{name}", "--for", "8h", "--because", "the demo")
    assert code == 0
    assert out.startswith("Deployment team-a/llama is kept until ")
    annotations = cluster.of(DEPLOYMENTS, "llama")["metadata"]["annotations"]
    assert annotations[names.KEEP_UNTIL] in out
    assert annotations[names.KEEP_BY].endswith(": the demo")
    cluster.agent("gpu-1", device(0, hours=5))
    code, _, err = run(capsys, "reclaim", "team-a/llama")
    assert code == 4
    assert "Deployment team-a/llama stays: Deployment llama has the annotation kgpu.dev/keep-until" in err


def test_a_person_stops_it_and_brings_it_back(cluster: Cluster, capsys: Said) -> None:
    cluster.agent("gpu-1", device(0, hours=5))
    code, out, _ = run(capsys, "reclaim", "team-a/llama", "--dry-run")
    assert (code, "would be stopped" in out) == (0, True)
    assert cluster.of(DEPLOYMENTS, "llama")["spec"]["replicas"] == 2
    code, out, _ = run(capsys, "reclaim", "team-a/llama")
    assert code == 0
    assert out.strip().endswith("to bring it back: kgpu idle resume team-a/llama")
    stopped = cluster.of(DEPLOYMENTS, "llama")
    assert (stopped["spec"]["replicas"], stopped["metadata"]["annotations"][names.ORIGINAL_REPLICAS]) == (0, "2")
    assert any(kind == EVENTS and space == "team-a" for kind, space, _ in cluster._objects)
    code, out, _ = run(capsys, "resume", "team-a/llama")
    assert (code, out) == (0, "Deployment team-a/llama is brought back\n")
    resumed = cluster.of(DEPLOYMENTS, "llama")
    assert resumed["spec"]["replicas"] == 2
    assert not {names.ORIGINAL_REPLICAS, names.RECLAIM_ACTION} & set(resumed["metadata"]["annotations"])


def test_what_somebody_has_started_since_keeps_its_replicas(cluster: Cluster, capsys: Said) -> None:
    cluster.agent("gpu-1", device(0, hours=5))
    run(capsys, "reclaim", "team-a/llama")
    stopped = cluster.of(DEPLOYMENTS, "llama")
    cluster.put(DEPLOYMENTS, {**stopped, "spec": {"replicas": 7}})
    assert run(capsys, "resume", "team-a/llama")[0] == 0
    assert cluster.of(DEPLOYMENTS, "llama")["spec"]["replicas"] == 7


@pytest.mark.parametrize("hours", [None, 1.0])
def test_what_is_busy_or_only_just_idle_stays_whoever_asks(cluster: Cluster, capsys: Said, hours: float | None) -> None:
    cluster.agent("gpu-1", device(0, hours=hours))
    code, _, err = run(capsys, "reclaim", "team-a/llama")
    assert code == 4
    assert "stays: it is busy" in err


def test_a_person_lifts_the_doubt(cluster: Cluster, capsys: Said) -> None:
    record = ReclaimRecord(
        freeze=DataFreeze(why="all GPUs of node n turned idle at once", since=1.0, devices=(("n", "d"),))
    )
    data = {names.RECLAIM_RECORD_KEY: encode_record(record)}
    cluster.put(CONFIG_MAPS, {"metadata": {"name": names.RECLAIM_RECORD, "namespace": OWN}, "data": data})
    assert "turned idle at once" in run(capsys, "resume", "--frozen")[1]
    assert run(capsys, "resume", "--frozen")[1] == "nothing was frozen\n"


def test_kubectl_gpu_idle_is_the_same(cluster: Cluster, capsys: Said) -> None:
    cluster.agent("gpu-1", device(0, hours=5))
    assert main(["kubectl-gpu", "idle"]) == 3
    assert "team-a/llama" in capsys.readouterr().out
