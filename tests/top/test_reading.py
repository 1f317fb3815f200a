"""Exporters over real sockets: by address, through an API server's proxy, and everything that goes wrong there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from kgpu.base.errors import ConfigError, KubeError, UserError
from kgpu.formats.names import NODE_HOST_LABEL
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.open import open_reader
from kgpu.hw.port import Accelerator, HardwareFinding, Inventory, Problem
from kgpu.hw.port import Process as Seen
from kgpu.hw.simulator import operate
from kgpu.hw.verdicts import GpuVerdict, MemoryVerdicts
from kgpu.kube.client import connect
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import CLUSTER_POLICIES, DEPLOYMENTS
from kgpu.kube.port import NODES, PODS, PodPages
from kgpu.top.cluster import ClusterSource
from kgpu.top.exporters import LIMIT, Exporters, parse_address
from kgpu.top.find import Via, slim_node, slim_pod, targets
from kgpu.top.host import HostSource
from kgpu.top.model import GpuHealth, GpuNode, NodeRoutes, NodeTrouble, Route
from kgpu.top.run import NodeWatch
from kgpu.top.source import FakeSource
from tests.ports import free_port
from tests.top.exporting import Server, api_page, exporter_pod, fleet, gpu_node, kubeconfig, node_text

GOOD = node_text("n", 2)
# Seconds after which whoever never answers is given up; whoever does has time, however busy the machine is.
SOON, PATIENCE = 2.0, 60.0


class SoonGivingUp(Exporters):
    """Waits ``SOON`` for those that hang, and ``PATIENCE`` for all others, which is what it says of both."""

    def __init__(self, pages: PodPages | None = None, *, hangs: Callable[[Route], bool] = lambda _: False) -> None:
        super().__init__(pages, deadline=PATIENCE)
        self._hangs = hangs

    async def _page(self, route: Route) -> str:
        async with asyncio.timeout(SOON if self._hangs(route) else None):
            return await super()._page(route)


def refused(code: int, message: str = "no") -> tuple[int, str]:
    return code, json.dumps({"kind": "Status", "code": code, "message": message})


async def direct(page, **options) -> GpuNode:
    async with Server(page).running() as server:
        target = NodeRoutes(node="n", routes=(Route(url=f"http://127.0.0.1:{server.port}"),))
        return await Exporters(**options).look(target)


async def test_an_exporter_by_address() -> None:
    node = await direct(lambda _: (200, GOOD))
    assert (node.name, node.driver_version, len(node.gpus)) == ("n", "570.133.20", 2)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (lambda _: (200, "<html>sign in</html>"), "no metric"),
        (lambda _: (200, "{}"), "no metric"),
        (lambda _: (401, ""), "401"),
        (lambda _: (500, "x"), "500"),
        (lambda _: (0, ""), "no answer within"),
        (lambda _: (200, "#" * (LIMIT + 1)), "does not answer"),
    ],
)
async def test_what_is_no_exporter_is_told(page, words) -> None:
    with pytest.raises(UserError) as told:
        await direct(page, deadline=SOON if words == "no answer within" else PATIENCE)
    assert words in told.value.what
    assert told.value.remedy


async def test_nobody_listens() -> None:
    with pytest.raises(UserError, match="does not answer"):
        await Exporters().look(NodeRoutes(node="n", routes=(Route(url=f"http://127.0.0.1:{free_port()}"),)))


async def both_ways(tmp_path: Path, proxied, own, *, inside: bool, looks=1, hangs=lambda _: False):
    """An exporter that can be asked in both ways; what was read, and what was asked."""
    async with Server(own).running() as exporter:
        api_answer = api_page([], [], proxied)
        async with Server(api_answer).running() as server:
            path = tmp_path / "config"
            path.write_text(kubeconfig(f"http://127.0.0.1:{server.port}"))
            api = connect(str(path))
            pod = exporter_pod("n", ip="127.0.0.1")
            pod["spec"]["containers"][0]["ports"][0]["containerPort"] = exporter.port
            (target,) = targets([(0, slim_pod(pod))], None, via=Via.AUTO, inside=inside)
            reader = SoonGivingUp(api, hangs=hangs)
            try:
                found = [await reader.look(target) for _ in range(looks)]
            finally:
                await api.close()
            return found, [*(f"api {one}" for one in server.requests), *(f"direct {one}" for one in exporter.requests)]


@pytest.mark.parametrize("inside", [False, True])
async def test_the_likelier_way_is_first(tmp_path, inside) -> None:
    (node,), asked = await both_ways(tmp_path, lambda _: (200, GOOD), lambda _: (200, GOOD), inside=inside)
    assert len(node.gpus) == 2
    assert [one.split()[0] for one in asked] == ["direct" if inside else "api"]


@pytest.mark.parametrize("code", [403, 404, 500, 501, 503])
async def test_where_the_api_server_refuses_the_pod_itself_is_asked_and_that_way_is_kept(tmp_path, code) -> None:
    nodes, asked = await both_ways(tmp_path, lambda _: refused(code), lambda _: (200, GOOD), inside=False, looks=3)
    assert [len(node.gpus) for node in nodes] == [2, 2, 2]
    assert [one.split()[0] for one in asked].count("api") == 1


async def test_where_a_pod_can_not_be_reached_the_api_server_is_asked(tmp_path) -> None:
    nodes, asked = await both_ways(
        tmp_path, lambda _: (200, GOOD), lambda _: (0, ""), inside=True, looks=2, hangs=lambda route: not route.proxied
    )
    assert [len(node.gpus) for node in nodes] == [2, 2]
    assert [one.split()[0] for one in asked].count("direct") == 1


async def test_the_first_ways_trouble_is_told_with_the_right_that_is_missing(tmp_path) -> None:
    with pytest.raises(UserError) as told:
        await both_ways(tmp_path, lambda _: refused(403), lambda _: (500, ""), inside=False)
    assert "pods/proxy" in told.value.remedy


class Lab:
    """A cluster of exporters behind an API server's proxy."""

    def __init__(self, tmp_path: Path, pods, nodes, texts, *, hangs: str = "") -> None:
        """The pod of that name hangs."""
        self.pods, self.nodes, self.texts, self.hangs = pods, nodes, texts, hangs
        self.path = tmp_path / "config"
        self.server = Server(api_page(pods, nodes, lambda pod: self.texts[pod]))

    async def watched(self, rounds: int = 1, **options) -> NodeWatch:
        async with self.server.running() as server:
            self.path.write_text(kubeconfig(f"http://127.0.0.1:{server.port}"))
            api = connect(str(self.path))
            exporters = SoonGivingUp(api, hangs=lambda route: route.pod == self.hangs)
            source = ClusterSource(api, exporters, via=Via.PROXY, inside=False)
            watch = NodeWatch(source, **options)
            try:
                for _ in range(rounds):
                    await watch.once()
                self.notes = source.notes
            finally:
                await watch.close()
                await source.close()
            return watch


async def test_a_broken_node_is_told_and_the_others_are_read(tmp_path) -> None:
    pods, nodes, texts = fleet(4, 2)
    pages = {name: (200, text) for name, text in texts.items()}
    pages["exporter-node-1"] = refused(503)
    pages["exporter-node-2"] = (0, "")
    pods[3]["status"] = {
        "phase": "Pending",
        "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}],
    }
    lab = Lab(tmp_path, pods, [*nodes, gpu_node("bare"), gpu_node("cpu", 0)], pages, hangs="exporter-node-2")
    found = (await lab.watched()).nodes
    told = {name: node.trouble.what if node.trouble else len(node.gpus) for name, node in found.items()}
    assert told == {
        "node-0": 2,
        "node-1": "the exporter does not answer the API server",
        "node-2": "no answer within 60 s",
        "node-3": "the exporter's pod does not run: ImagePullBackOff",
        "bare": "no metrics exporter runs there",
    }


async def test_a_node_without_an_exporter_is_told_how_to_get_one_and_a_labs_by_the_labs_own_command(tmp_path) -> None:
    simulated = gpu_node("of-a-lab")
    simulated["metadata"].setdefault("labels", {})[NODE_HOST_LABEL] = "06d0cb27eb0ccacb"
    found = (await Lab(tmp_path, [], [gpu_node("bare"), simulated], {}).watched()).nodes
    ways = {name: node.trouble.remedy for name, node in found.items() if node.trouble}
    assert "kgpu exporter on the node" in ways["bare"]
    assert "kgpu lab up --operator" in ways["of-a-lab"]
    assert "lab" not in ways["bare"]


async def test_agents_count_on_gpu_nodes_alone(tmp_path) -> None:
    names = ("gpu", "cpu")
    pods = [exporter_pod(name, app="kgpu-agent") for name in names]
    pages = {f"exporter-{name}": (200, node_text(name, 1)) for name in names}
    lab = Lab(tmp_path, pods, [gpu_node("gpu"), gpu_node("cpu", 0)], pages)
    assert list((await lab.watched()).nodes) == ["gpu"]


async def lookalike(where: str, policy: str = "", **options) -> tuple[list[str], list[str]]:
    """The Authorization that a pod in namespace ``where`` gets; it has an exporter's labels. And the nodes found."""
    got: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        got.extend(line for line in head.split("\r\n") if line.lower().startswith("authorization:"))
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(GOOD)}\r\nConnection: close\r\n\r\n{GOOD}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pod = exporter_pod("n", ip="127.0.0.1")
    pod["metadata"]["namespace"] = where
    pod["spec"]["containers"][0]["ports"][0]["containerPort"] = server.sockets[0].getsockname()[1]
    api = FakeApi()
    api.put(PODS, pod)
    # Made by the same tenant.
    labels = {"app.kubernetes.io/name": "kgpu", "app.kubernetes.io/component": "gpu-operator"}
    api.put(DEPLOYMENTS, {"metadata": {"name": "gpu-operator", "namespace": where, "labels": labels}})
    if policy:
        api.put(CLUSTER_POLICIES, {"metadata": {"name": "cluster-policy"}, "status": {"namespace": policy}})
    headers = {"Authorization": "Basic bWU6aHVzaA=="}
    source = ClusterSource(api, Exporters(headers=headers), via=Via.DIRECT, inside=True, **options)
    try:
        found = await source.targets()
        for target in found:
            await source.look(target)
    finally:
        await source.close()
        server.close()
    return got, [target.node for target in found]


@pytest.mark.parametrize("policy", ["", "gpus"])
async def test_a_tenants_pod_with_an_exporters_labels_is_not_asked_and_gets_no_password(policy) -> None:
    assert await lookalike("tenant", policy) == ([], [])


@pytest.mark.parametrize(
    ("where", "policy", "options"),
    [
        ("gpu-operator", "", {}),
        ("gpus", "gpus", {}),
        ("tenant", "gpus", {"namespaces": frozenset({"gpus", "tenant"})}),
    ],
)
async def test_exporters_of_kgpus_namespace_and_of_those_named_are_asked(where, policy, options) -> None:
    got, nodes = await lookalike(where, policy, **options)
    assert (got, nodes) == (["Authorization: Basic bWU6aHVzaA=="], ["n"])


async def test_nodes_that_were_not_asked_for_are_not_asked(tmp_path) -> None:
    pods, nodes, texts = fleet(3, 1)
    lab = Lab(tmp_path, pods, nodes, {name: (200, text) for name, text in texts.items()})
    watch = await lab.watched(only=frozenset({"node-1", "typo"}))
    assert {name: node.trouble is None for name, node in watch.nodes.items()} == {"node-1": True, "typo": False}
    assert sum("proxy" in one for one in lab.server.requests) == 1


async def test_without_the_right_to_list_nodes_exporters_are_still_read(tmp_path) -> None:
    pods, nodes, texts = fleet(2, 1)
    lab = Lab(tmp_path, pods, nodes, {name: (200, text) for name, text in texts.items()})
    usual = lab.server.page
    lab.server.page = lambda target: refused(403) if target.startswith("/api/v1/nodes") else usual(target)
    assert len((await lab.watched()).nodes) == 2
    assert "Nodes can't be listed" in lab.notes[0]


async def test_no_api_server_is_an_error(tmp_path) -> None:
    lab = Lab(tmp_path, [], [], {})
    lab.server.page = lambda _: refused(403, "pods is forbidden")
    with pytest.raises(KubeError, match="forbidden"):
        await lab.watched()


async def test_a_pod_without_address_or_with_odd_parts_breaks_nothing() -> None:
    odd = {"metadata": {"name": "p", "namespace": "x"}, "spec": {"nodeName": "n", "containers": ["?", {"ports": [3]}]},
           "status": "?"}  # fmt: skip
    (found,) = targets([(0, slim_pod(odd))], [slim_node({"metadata": {"name": "n"}})], via=Via.AUTO, inside=False)
    assert found.trouble is not None


@pytest.mark.parametrize("resource", ["amd.com/gpu", "amd.com/cpx_nps4", "habana.ai/gaudi", "gpu.intel.com/i915"])
def test_a_node_of_any_vendor_without_an_exporter_is_shown(resource: str) -> None:
    node = {"metadata": {"name": "n"}, "status": {"capacity": {resource: "8", "cpu": "4"}}}
    (found,) = targets([], [slim_node(node)], via=Via.AUTO, inside=False)
    assert found.trouble is not None
    assert found.devices == 8
    assert targets([], [slim_node({**node, "status": {"capacity": {resource: "0"}}})], via=Via.AUTO, inside=False) == ()


@pytest.mark.parametrize(("count", "devices"), [("1k", 1000), (7, 7), ("-1", 0), ("x", 0), (None, 0), ("1E", 0)])
def test_devices_are_counted_as_kubernetes_writes_numbers(count: object, devices: int) -> None:
    capacity = {"nvidia.com/mig-1g.10gb": count, "nvidia.com/gpu": "2", "example.com/gpu": "5"}
    (found,) = targets([], [slim_node({"metadata": {"name": "n"}, "status": {"capacity": capacity}})],
                       via=Via.AUTO, inside=False)  # fmt: skip
    assert found.devices == 2 + devices


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def dead() -> UserError:
    return UserError("gone", "there", "look")


async def test_a_node_that_fails_keeps_what_was_known_and_is_tried_again_more_rarely() -> None:
    clock = Clock()
    node = await direct(lambda _: (200, GOOD))
    source = FakeSource({"n": node, "m": replace(node, name="m")})
    watch = NodeWatch(source, now=clock)
    await watch.once()
    source.nodes["n"] = dead()
    await watch.once()
    before = source.looks
    await watch.once()
    assert source.looks == before + 1  # m alone
    found = watch.nodes["n"]
    assert (found.trouble, len(found.gpus)) == (NodeTrouble(what="gone", remedy="look"), 2)
    source.nodes["n"] = node
    clock.now += 60
    await watch.once()
    assert watch.nodes["n"].trouble is None
    del source.nodes["m"]
    await watch.once()
    assert list(watch.nodes) == ["n"]


async def test_a_node_that_hangs_holds_nobody_up_and_a_key_reads_anew() -> None:
    node = await direct(lambda _: (200, GOOD))
    looks = {"slow": 0, "quick": 0}

    class Slow(FakeSource):
        async def look(self, target: NodeRoutes) -> GpuNode:
            looks[target.node] += 1
            if target.node == "slow":
                await asyncio.Event().wait()
            return node

    watch = NodeWatch(Slow({"slow": node, "quick": node}))
    running = asyncio.create_task(watch.run(0.01))
    async with asyncio.timeout(60):
        while looks["quick"] < 3:
            watch.changed.clear()
            await watch.changed.wait()
    assert looks["slow"] == 1
    assert watch.waiting >= 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert watch.waiting == 0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.1", ("10.0.0.1", "http://10.0.0.1:9400")),
        ("a=https://h:1/metrics", ("a", "https://h:1")),
        ("[::1]:9", ("[::1]:9", "http://[::1]:9")),
    ],
)
def test_addresses(text, found) -> None:
    assert parse_address(text) == found


@pytest.mark.parametrize("text", ["", "=h", "ftp://h", "h:x", "h/other", "http://u:p@h", "h?x", "http://[::1"])
def test_what_is_no_address(text) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)


async def test_this_nodes_driver_with_a_lost_gpu(sim_root) -> None:
    root = sim_root("hgx-h100", gpus=2)
    operate.inject(root, "lost", gpu=1)
    host = HostSource(open_reader(driver_root=root), name="here")
    try:
        (target,) = await host.targets()
        node = await host.look(target)
    finally:
        await host.close()
    assert (node.name, node.driver_version != "") == ("here", True)
    assert [gpu.health for gpu in node.gpus] == [GpuHealth.OK, GpuHealth.LOST]
    assert node.gpus[0].values["memory_total_mib"] > 80_000
    assert node.gpus[1].action


async def test_this_nodes_health_is_the_verdicts_else_the_drivers_word() -> None:
    gpus = tuple(
        Accelerator(vendor="nvidia", index=at, uuid=f"u{at}", name="L4", recovery_action=action)
        for at, action in enumerate(("none", "reset", "none", "unknown"))
    )
    reader = FakeReader(Inventory(vendor="nvidia", driver_version="1", accelerators=gpus))

    async def judged(verdicts: MemoryVerdicts | None) -> list[tuple[GpuHealth, str]]:
        found = await HostSource(reader, verdicts=verdicts).look(NodeRoutes(node="n"))
        return [(gpu.health, gpu.action) for gpu in found.gpus]

    alone = [(GpuHealth.OK, ""), (GpuHealth.BAD, "reset"), (GpuHealth.OK, ""), (GpuHealth.OK, "")]
    assert await judged(None) == await judged(MemoryVerdicts()) == alone
    verdicts = MemoryVerdicts()
    verdicts.put(
        GpuVerdict(uuid="u0", action="replace", withdraws=True, what="a row failed"),
        GpuVerdict(uuid="u1"),
        GpuVerdict(uuid="u2", action="inspect", what="it is hot"),
    )
    assert await judged(verdicts) == [
        (GpuHealth.BAD, "replace"),
        (GpuHealth.OK, ""),
        (GpuHealth.WARN, "inspect"),
        (GpuHealth.OK, ""),
    ]


@pytest.mark.parametrize(("problem", "verdict", "health"), [
    (Problem.HUNG, GpuVerdict(uuid="u"), GpuHealth.WARN),
    (Problem.HUNG, GpuVerdict(uuid="u", action="reboot", withdraws=True), GpuHealth.LOST),
    (Problem.HUNG, GpuVerdict(uuid="u", muted="in maintenance"), GpuHealth.LOST),
    (Problem.HUNG, None, GpuHealth.LOST),
    (Problem.LOST, GpuVerdict(uuid="u"), GpuHealth.LOST),
    (Problem.NEEDS_RESET, GpuVerdict(uuid="u", action="reset-gpu", withdraws=True), GpuHealth.BAD),
])  # fmt: skip
async def test_a_gpu_of_this_node_is_lost_when_it_can_not_be_read(problem, verdict, health) -> None:
    found = HardwareFinding(subject="u", problem=problem, what="it does", expected="e", remedy="do it")
    gpu = Accelerator(vendor="nvidia", index=0, uuid="u", name="L4", findings=(found,))
    reader = FakeReader(Inventory(vendor="nvidia", driver_version="1", accelerators=(gpu,)))
    verdicts = MemoryVerdicts()
    if verdict is not None:
        verdicts.put(verdict)
    node = await HostSource(reader, verdicts=verdicts).look(NodeRoutes(node="n"))
    assert [(one.health, one.action != "ignore") for one in node.gpus] == [(health, True)]


async def test_processes_of_this_node_have_their_command_and_user(tmp_path) -> None:
    gpu = Accelerator(vendor="nvidia", index=0, uuid="u", name="L4")
    folder = tmp_path / "41"
    folder.mkdir()
    (folder / "cmdline").write_bytes("/usr/bin/python3\0학습.py\0\x1b[2J\0".encode())
    seen = (Seen(uuid="u", pid=41, memory_mib=512, sm_percent=30.0), Seen(uuid="u", pid=42, memory_mib=1024))
    reader = FakeReader(Inventory(vendor="nvidia", driver_version="1", accelerators=(gpu,)), processes=seen)
    (found,) = (await HostSource(reader, proc=str(tmp_path)).look(NodeRoutes(node="n"))).gpus
    assert [(one.pid, one.command, one.user != "") for one in found.processes] == [
        (42, "", False), (41, "python3 학습.py �[2J", True),
    ]  # fmt: skip


async def test_nodes_are_found_anew_after_a_while_and_an_outage_keeps_what_was_found(monkeypatch) -> None:
    api = FakeApi()
    api.put(PODS, exporter_pod("a"))
    api.put(NODES, gpu_node("a"))
    api.pages["gpu-operator", "exporter-a"] = node_text("a", 3)
    source = ClusterSource(api, Exporters(api), via=Via.PROXY, inside=False)
    (target,) = await source.targets()
    assert len((await source.look(target)).gpus) == 3
    api.put(NODES, gpu_node("b"))
    assert len(await source.targets()) == 1
    monkeypatch.setattr("kgpu.top.cluster.FIND_AGAIN", 0.0)
    assert [one.node for one in await source.targets()] == ["a", "b"]
    api.set_down(True)
    assert len(await source.targets()) == 2
    assert "nodes are as of" in source.notes[0]


class Rounds:
    """Rounds of 2 seconds of a clock of one's own, of a cluster where ``fails(node, second)`` says who does not answer."""

    def __init__(self, fails) -> None:
        self.fails = fails
        self.now = 0.0
        self.found_at: list[float] = []

    async def look(self, target: NodeRoutes) -> GpuNode:
        if self.fails(target.node, self.now):
            raise UserError("no answer", "one", "wait")
        return GpuNode(name=target.node)

    async def run(self, seconds: int, monkeypatch) -> list[float]:
        """When nodes and pods were listed. A node that failed is asked again after 10 seconds, as by ``NodeWatch``."""
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        api = FakeApi()
        for name in ("a", "b"):
            api.put(PODS, exporter_pod(name))
            api.put(NODES, gpu_node(name))
        source = ClusterSource(api, self, via=Via.PROXY, inside=False)
        due: dict[str, float] = {}
        for second in range(0, seconds, 2):
            self.now = float(second)
            listed = len(api.calls)
            targets = await source.targets()
            if len(api.calls) > listed:
                self.found_at.append(self.now)
            for target in targets:
                if due.get(target.node, 0.0) <= self.now:
                    try:
                        await source.look(target)
                    except UserError:
                        due[target.node] = self.now + 10
        return self.found_at


async def test_one_that_never_answers_does_not_make_the_cluster_be_listed_all_the_time(monkeypatch) -> None:
    found = await Rounds(lambda node, _: node == "a").run(600, monkeypatch)
    assert found[:4] == [0, 6, 16, 36]
    assert len(found) == 1 + 4 + 8
    assert {after - before for before, after in pairwise(found[5:])} == {60}


async def test_one_that_answered_is_looked_up_at_once_when_it_fails_beside_one_that_is_dead(monkeypatch) -> None:
    found = await Rounds(lambda node, now: node == "a" or now >= 330).run(400, monkeypatch)
    assert min(at for at in found if at >= 330) - 330 <= 6


async def test_one_that_answers_again_is_looked_up_at_once_when_it_fails_again(monkeypatch) -> None:
    found = await Rounds(lambda node, now: node == "a" and not 300 <= now < 450).run(500, monkeypatch)
    assert [before for before, after in pairwise(found) if after - before == 60 and 300 <= before < 440]
    assert min(at for at in found if at >= 450) - 450 <= 6


async def test_one_that_now_answers_and_now_does_not_counts_as_one_that_fails(monkeypatch) -> None:
    found = await Rounds(lambda node, now: node == "a" and now % 24 < 12).run(600, monkeypatch)
    assert len(found) <= 1 + 4 + 9


async def test_an_exporter_that_is_gone_is_looked_up_again_soon(monkeypatch) -> None:
    monkeypatch.setattr("kgpu.top.cluster.MISSED_AGAIN", 0.0)
    api = FakeApi()
    api.put(PODS, exporter_pod("a"))
    api.put(NODES, gpu_node("a"))
    source = ClusterSource(api, Exporters(api), via=Via.PROXY, inside=False)
    (target,) = await source.targets()
    with pytest.raises(UserError):
        await source.look(target)
    api.put(NODES, gpu_node("b"))
    assert [one.node for one in await source.targets()] == ["a", "b"]
    api.put(NODES, gpu_node("c"))
    assert len(await source.targets()) == 2, "once is enough until one fails again"
