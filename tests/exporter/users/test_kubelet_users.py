"""Who uses what, kept current: news is found soon, each part fails alone and comes back, and nothing blocks a scrape."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.clock import VirtualClock, settle
from kgpu.base.errors import HwError, KubeletError
from kgpu.exporter.config import resolve
from kgpu.exporter.model import PodFacts, Unit, Users
from kgpu.exporter.users import kubelet_users
from kgpu.exporter.users.claims import SLICES, of_node, project
from kgpu.exporter.users.containers import Containers
from kgpu.exporter.users.followed_objects import AGAIN_SECONDS, FollowedObjects
from kgpu.exporter.users.jobs import Jobs
from kgpu.exporter.users.kubelet_users import (
    KEPT_SECONDS,
    PERIOD,
    POLL,
    SLOW_SECONDS,
    SOONEST,
    KubeletUsers,
    UserSources,
)
from kgpu.exporter.users.open import _brief, open_users
from kgpu.exporter.users.reserved_claims import ReservedClaims
from kgpu.formats import names
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import Process
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import PODS, Resource, Selector
from kgpu.kubelet.pod_resources import DeviceClaim, FakeHoldings
from tests.exporter.made import gpu, holding, inventory, partition, uuid

pytestmark = pytest.mark.usefixtures("patient")

HELD = holding("p", uuid(0))
CID = "ab" * 32


class Bench:
    """Users over fakes, and what was told."""

    def __init__(self, **sources: Any) -> None:
        self.clock = VirtualClock()
        self.reader = FakeReader(inventory(gpu(0), gpu(1, partition(1, 7))))
        self.holdings = FakeHoldings(HELD)
        self.told: list[Any] = []
        self.api = FakeApi()
        made = {name: make(self) if callable(make) else make for name, make in sources.items()}
        given = {"reader": self.reader, "holdings": self.holdings, **made}
        self.users = KubeletUsers(UserSources(**given), tell=self.told.append, clock=self.clock)

    async def after(self, seconds: float) -> Users:
        await self.clock.advance(seconds)
        return await self.users.current()

    async def until(self, condition: Callable[[Users], bool], step: float = 1.0) -> Users:
        async with asyncio.timeout(60):
            while not condition(found := await self.after(step)):  # noqa: ASYNC110 - a virtual clock
                await asyncio.sleep(0)
            return found


@contextlib.asynccontextmanager
async def bench(**sources: Any) -> AsyncIterator[Bench]:
    made = Bench(**sources)
    try:
        yield made
    finally:
        await made.users.close()


def pods(bench_: Bench) -> FollowedObjects:
    return FollowedObjects(
        bench_.api, (PODS,), Selector(fields=(("spec.nodeName", "n1"),)), project=_brief, clock=bench_.clock
    )


def slices(bench_: Bench) -> FollowedObjects:
    return FollowedObjects(bench_.api, SLICES, of_node("n1"), project=project, clock=bench_.clock)


def pod(name: str = "p", node: str = "n1", **labels: str) -> dict:
    return {"metadata": {"name": name, "namespace": "team", "uid": f"u-{name}", "labels": labels},
            "spec": {"nodeName": node, "containers": [{"name": "main"}]}}  # fmt: skip


async def test_the_kubelet_is_asked_at_once_then_every_few_seconds_however_often_one_looks() -> None:
    async with bench() as b:
        first = await b.users.current()
        assert first.holdings == (HELD,)
        for _ in range(4):
            assert await b.after(1) is first
        assert b.holdings.asked == 1
        b.holdings.now = (holding("q", uuid(0)),)
        assert (await b.after(PERIOD)).holdings == (holding("q", uuid(0)),)
        assert b.holdings.asked == 2


async def test_what_did_not_change_stays_the_same_object(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("7")
    async with bench(jobs=tmp_path) as b:
        first = await b.users.current()
        b.holdings.now = (holding("p", uuid(0)),)
        again = await b.after(PERIOD)
        assert again is not first
        assert again.holdings is first.holdings
        assert again.jobs is first.jobs
        assert again.jobs == {Unit(uuid(0)): ("7",)}


async def test_a_device_that_the_kubelet_has_just_given_is_news(tmp_path: Path) -> None:
    checkpoint = tmp_path / "kubelet_internal_checkpoint"
    async with bench(checkpoint=checkpoint) as b:
        heard: list[int] = []
        b.users.changed = lambda: heard.append(1)
        await b.users.current()
        await b.after(POLL)
        checkpoint.write_text("{}")
        b.holdings.now = ()
        await b.clock.advance(POLL)
        assert heard
        assert (await b.users.current()).holdings == ()
        checkpoint.write_text("{ }")
        b.holdings.now = (HELD,)
        assert (await b.after(SOONEST / 2)).holdings == ()  # a busy kubelet is not asked all the time
        assert (await b.after(SOONEST)).holdings == (HELD,)


async def test_the_last_word_stays_while_the_kubelet_is_away_but_not_for_ever() -> None:
    async with bench() as b:
        await b.users.current()
        b.holdings.problem = KubeletError("gone", "an answer", "look")
        b.holdings.problem.__cause__ = FileNotFoundError()
        for _ in range(3):
            found = await b.after(PERIOD)
            assert (found.holdings, found.failures) == ((HELD,), {"holdings": "no-socket"})
        assert [advice.reason for advice in b.told] == ["UsersNotKnown"]
        found = await b.after(KEPT_SECONDS)
        assert (found.holdings, found.failures) == (None, {"holdings": "no-socket"})
        b.holdings.problem = None
        found = await b.after(PERIOD)
        assert (found.holdings, found.failures) == ((HELD,), {})
        b.holdings.problem = KubeletError("gone", "an answer", "look")
        await b.after(PERIOD)
        assert len(b.told) == 2


async def test_a_kubelet_that_never_answered_is_not_known() -> None:
    async with bench() as b:
        b.holdings.problem = KubeletError("gone", "an answer", "look")
        found = await b.users.current()
        assert (found.holdings, found.failures) == (None, {"holdings": "unreachable"})


async def test_a_kubelet_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    never = asyncio.Event()
    async with bench() as b:
        await b.users.current()
        monkeypatch.setattr(kubelet_users, "WAIT", 0.05)
        ask = b.holdings.holdings

        async def hang() -> Any:
            await never.wait()
            return await ask()

        b.holdings.holdings = hang  # type: ignore[method-assign]
        async with asyncio.timeout(60):
            found = await b.after(PERIOD)
            assert (found.holdings, found.failures) == ((HELD,), {})
            found = await b.after(SLOW_SECONDS + 1)
        assert (found.holdings, found.failures) == ((HELD,), {"users": "slow"})
        never.set()
        await settle()
        assert (await b.after(0)).failures == {}


async def test_without_a_driver_the_holdings_are_known_all_the_same() -> None:
    async with bench() as b:
        b.reader.set_down(HwError("down", "a driver", "load it"))
        found = await b.users.current()
        assert found.holdings == (HELD,)
        assert found.failures == {"devices": "driver"}


async def test_a_defect_costs_nothing_but_itself(caplog: pytest.LogCaptureFixture) -> None:
    async with bench() as b:
        b.holdings.problem = RuntimeError("never thought of")
        found = await b.users.current()
        assert found.failures == {"users": "defect"}
        assert "never thought of" in caplog.text
        b.holdings.problem = None
        assert (await b.after(PERIOD)).failures == {}


async def test_labels_and_uids_of_the_pods_that_hold_something() -> None:
    async with bench(pods=pods) as b:
        b.api.put(PODS, pod(app="x"))
        b.api.put(PODS, pod("idle"))
        b.api.put(PODS, pod("elsewhere", "n2"))
        found = await b.until(lambda users: bool(users.pods), step=0.1)
        assert found.pods == {("team", "p"): PodFacts(uid="u-p", labels={"app": "x"})}
        b.api.put(PODS, pod(app="y"))
        found = await b.until(lambda users: users.pods[("team", "p")].labels == {"app": "y"}, step=0.1)
        b.api.set_down(True)
        found = await b.until(lambda users: bool(users.failures))
        assert found.failures == {"pods": "unreachable"}
        assert found.pods[("team", "p")].labels == {"app": "y"}
        assert [advice.reason for advice in b.told] == ["UsersNotKnown"]


async def test_the_first_look_has_the_labels_already() -> None:
    async with bench(pods=pods, slices=slices) as b:
        b.api.put(PODS, pod(app="x"))
        assert (await b.users.current()).pods == {("team", "p"): PodFacts(uid="u-p", labels={"app": "x"})}


async def test_an_api_server_that_is_away_at_the_start_is_not_waited_for() -> None:
    async with bench(pods=pods) as b:
        b.api.set_down(True)
        found = await b.users.current()
        assert (found.holdings, found.failures) == ((HELD,), {"pods": "unreachable"})


@pytest.mark.parametrize("version", SLICES, ids=lambda one: one.version)
async def test_claims_in_every_version_of_the_api(version: Any) -> None:
    attributes = {"attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid(0)}}}
    async with bench(slices=slices) as b:
        b.api.unserved = set(SLICES) - {version}
        b.holdings.now = (holding("p", "gpu-0", resource="gpu.nvidia.com", claim=DeviceClaim("c", "n1")),)
        deep = version.version == "v1beta1"
        spec = {
            "nodeName": "n1", "driver": "gpu.nvidia.com", "pool": {"name": "n1", "generation": 1},
            "devices": [{"name": "gpu-0", **({"basic": attributes} if deep else attributes)}],
        }  # fmt: skip
        b.api.put(version, {"metadata": {"name": "s"}, "spec": spec})
        found = await b.until(lambda users: bool(users.claimed), step=0.1)
        assert found.claimed == {("gpu.nvidia.com", "n1", "gpu-0"): uuid(0)}
        assert found.missing == {}


@pytest.mark.parametrize(("version", "shown"), [(SLICES[0], False), (SLICES[1], True), (SLICES[2], True)])
async def test_claims_that_an_older_kubelet_does_not_tell_of(version: Any, shown: bool) -> None:
    attributes = {"attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid(0)}}}
    device = {"name": "gpu-0", **({"basic": attributes} if version.version == "v1beta1" else attributes)}
    claims = Resource("resource.k8s.io", version.version, "resourceclaims", "ResourceClaim")
    async with bench(slices=slices, reserved=lambda b: ReservedClaims(b.api, clock=b.clock)) as b:
        b.api.unserved = set(SLICES) - {version}
        b.holdings.now = ()
        spec = {"nodeName": "n1", "driver": "gpu.nvidia.com", "pool": {"name": "n1"}, "devices": [device]}
        b.api.put(version, {"metadata": {"name": "s"}, "spec": spec})
        for name, pool in (("mine", "n1"), ("elsewhere", "n2"), ("free", "n1")):
            result = {"request": "r", "driver": "gpu.nvidia.com", "pool": pool, "device": "gpu-0"}
            status = {"allocation": {"devices": {"results": [result]}}} if name != "free" else {}
            users = [{"resource": "pods", "name": f"p-{name}", "uid": "u"}, {"resource": "other", "name": "x"}]
            obj = {"metadata": {"name": name, "namespace": "team"}, "status": {**status, "reservedFor": users}}
            b.api.put(claims, obj)
        found = await b.users.current()
        assert [(one.pod, one.container) for one in found.holdings or ()] == ([("p-mine", "")] if shown else [])
        for _ in range(3):
            assert len((await b.after(PERIOD)).holdings or ()) == int(shown)
        assert [call[1] for call in b.api.calls].count("resourceclaims") == int(shown)
        b.api.refuse[("list", "resourceclaims")] = 403
        found = await b.after(40)
        assert found.failures == ({"claims": "forbidden"} if shown else {})


async def test_claims_without_the_api_and_when_it_comes() -> None:
    async with bench(slices=slices) as b:
        b.api.unserved = set(SLICES)
        b.holdings.now = (holding("p", "gpu-0", resource="gpu.nvidia.com", claim=DeviceClaim("c", "n1")),)
        found = await b.until(lambda users: bool(users.failures))
        assert found.failures == {"claimed": "not-served"}
        assert found.missing == {("claim", "not-published"): 1}
        b.api.unserved = set()
        spec = {"nodeName": "n1", "driver": "gpu.nvidia.com", "pool": {"name": "n1"},
                "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": uuid(0)}}}]}  # fmt: skip
        b.api.put(SLICES[0], {"metadata": {"name": "s"}, "spec": spec})
        found = await b.until(lambda users: not users.failures and bool(users.claimed), step=AGAIN_SECONDS / 4)
        assert found.missing == {}


async def test_the_memory_of_a_pods_processes_is_its_share(tmp_path: Path) -> None:
    for pid, group in ((10, f"0::/kubepods/pod{'0' * 32}/{CID}"), (11, "0::/user.slice")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/cgroup").write_text(group)
    (tmp_path / "var/log/containers").mkdir(parents=True)
    (tmp_path / f"var/log/containers/p_team_main-{CID}.log").touch()
    async with bench(containers=Containers(proc=tmp_path / "proc", root=tmp_path)) as b:
        b.reader.set_processes([
            Process(uuid=uuid(0), pid=10, memory_mib=300, sm_percent=20.0), Process(uuid=uuid(0), pid=11, memory_mib=1),
        ])  # fmt: skip
        found = await b.users.current()
        assert found.shares == {
            (Unit(uuid(0)), ("team", "p", "main")): {"memory_used_mib": 300.0, "utilization_percent": 20.0}
        }
        assert found.missing == {("process", "in-no-pod"): 1}
        assert [advice.what for advice in b.told] == ["a process on a GPU is in no pod"]
        b.reader.set_processes([])
        assert (await b.after(PERIOD)).shares == {}


@pytest.mark.parametrize("away", ["kubelet", "driver"])
async def test_a_pod_is_not_told_of_while_nobody_says_what_it_holds(tmp_path: Path, away: str) -> None:
    (tmp_path / "proc/10").mkdir(parents=True)
    (tmp_path / "proc/10/cgroup").write_text(f"0::/kubepods/pod{'0' * 32}/{CID}")
    (tmp_path / "var/log/containers").mkdir(parents=True)
    (tmp_path / f"var/log/containers/p_team_main-{CID}.log").touch()
    async with bench(containers=Containers(proc=tmp_path / "proc", root=tmp_path)) as b:
        b.reader.set_processes([Process(uuid=uuid(0), pid=10, memory_mib=300)])
        if away == "kubelet":
            b.holdings.problem = KubeletError("gone", "an answer", "look")
        else:
            b.reader.inventory = away_inventory  # type: ignore[method-assign]
        found = await b.users.current()
        assert found.missing == {}
        assert found.shares == {(Unit(uuid(0)), ("team", "p", "main")): {"memory_used_mib": 300.0}}
        assert [advice.reason for advice in b.told] == ["UsersNotKnown"]


async def away_inventory() -> Any:
    raise HwError("down", "a driver", "load it")


async def test_a_kubelet_that_says_that_nobody_holds_anything_is_believed(tmp_path: Path) -> None:
    (tmp_path / "proc/10").mkdir(parents=True)
    (tmp_path / "proc/10/cgroup").write_text(f"0::/kubepods/pod{'0' * 32}/{CID}")
    (tmp_path / "var/log/containers").mkdir(parents=True)
    (tmp_path / f"var/log/containers/p_team_main-{CID}.log").touch()
    async with bench(containers=Containers(proc=tmp_path / "proc", root=tmp_path)) as b:
        b.reader.set_processes([Process(uuid=uuid(0), pid=10, memory_mib=300)])
        b.holdings.now = ()
        assert (await b.users.current()).missing == {("process", "device-not-held"): 1}


async def test_a_job_folder_that_hangs_holds_the_loop_up_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    loop = threading.get_ident()

    def hang(*_: Any) -> Jobs:
        assert threading.get_ident() != loop, "files are read on the event loop"
        free.wait(20)
        return Jobs({Unit(uuid(0)): ("7",)}, {})

    monkeypatch.setattr("kgpu.exporter.users.kubelet_users.read_jobs", hang)
    async with bench(jobs=tmp_path) as b:
        looking = asyncio.create_task(b.users.current())
        await settle()
        free.set()
        await looking
        found = await b.until(lambda users: bool(users.jobs))
        assert found.jobs == {Unit(uuid(0)): ("7",)}


async def test_what_is_held_and_not_shown_is_told_once() -> None:
    async with bench() as b:
        b.holdings.now = (HELD, holding("q", "GPU-old"))
        for _ in range(3):
            found = await b.after(PERIOD)
            assert found.missing == {("device", "unknown-id"): 1}
        assert [(one.reason, one.evidence) for one in b.told] == [
            ("PodNotShown", ("team/q, container main: device GPU-old",))
        ]


async def test_only_what_is_asked_for_is_opened(tmp_path: Path) -> None:
    told: list[Any] = []
    api = FakeApi()
    reader = FakeReader(inventory(gpu(0)))

    def opened(**given: str) -> UserSources:
        flags = {"pod_resources": str(tmp_path / "none"), **given}
        return open_users(resolve(flags), reader, tell=told.append, api=api, node="n1")._from

    nothing = opened()
    assert (nothing.holdings, nothing.pods, nothing.slices, nothing.containers) == (None, None, None, None)
    plain = opened(kubernetes="true")
    assert plain.holdings is not None
    assert (plain.pods, plain.slices, plain.jobs) == (None, None, None)
    assert opened(kubernetes="true", pod_uid="true").pods is not None
    assert opened(kubernetes="true", dra="true").slices is not None
    assert opened(jobs_dir="/jobs").jobs == Path("/jobs")
    assert not told
    made = open_users(resolve({"kubernetes": "true", "pod_labels": "true", "dra": "true"}), reader, tell=told.append)
    assert (made._from.pods, made._from.slices) == (None, None)
    assert "the pods' labels and uids and the devices of resource claims are not shown" in told[0].what
    assert not api.calls


async def test_one_look_over_the_real_socket(tmp_path: Path) -> None:
    told: list[Any] = []
    users = open_users(
        resolve({"kubernetes": "true", "pod_resources": str(tmp_path / "none")}), FakeReader(inventory(gpu(0))),
        tell=told.append,
    )  # fmt: skip
    found = await users.current()
    await users.close()
    assert (found.holdings, found.failures) == (None, {"holdings": "no-socket"})
    assert len(told) == 1


def test_who_made_a_pod_is_known_by_annotations_that_are_not_kept() -> None:
    labels = {names.LWS_NAME: "llm", names.LWS_GROUP_INDEX: "0a1b2c3d4e"}
    owner = {"kind": "StatefulSet", "name": "llm-0a1b2c3d", "controller": True}
    about = {"name": "p", "namespace": "ml", "labels": labels, "ownerReferences": [owner],
             "annotations": {names.LWS_LEADER_NAME: "llm-0a1b2c3d"}}  # fmt: skip
    found = _brief({"metadata": about})
    assert (found["owner"], found["gang"]) == ("LeaderWorkerSet/llm", "LeaderWorkerSet/llm/0a1b2c3d4e")
    assert sorted(found["metadata"]) == ["labels", "name", "namespace"]
