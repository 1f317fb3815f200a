"""A real Prometheus scrapes real exporters of simulated nodes: rules load, alerts fire and resolve, panels have data."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pytest

from kgpu.base.files import write_atomic
from kgpu.base.metric_text import page
from kgpu.base.times import stamp_of
from kgpu.formats import yaml
from kgpu.formats.crd.nodeoperation import NodeOperationSpec, NodeOperationStatus
from kgpu.formats.names import ENV_HEALTH_CONFIG
from kgpu.hw.simulator.create import create_root
from kgpu.monitoring.alerts import ALERTS
from kgpu.monitoring.boards import BOARDS
from kgpu.monitoring.grafana import Board, Panel
from kgpu.monitoring.model import RuleGroup
from kgpu.monitoring.records import RECORDS
from kgpu.operations.metrics import figures
from kgpu.operations.model import Operation
from kgpu.operator.metrics import OperatorFigures
from kgpu.usage.wasted import HOUR_US, WastedCounters, metric_lines
from tests.monitoring.world import (
    Kubelet,
    Node,
    Pages,
    Prometheus,
    closing,
    free_port,
    kgpu,
    rendered,
    scrape_config,
    shortened,
    until,
)

HEALTHY = 'gpu_operator_node_{}_ready{{node="n1"}} {}\n'
COUNTERS = "counters.csv"
GOOD = "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n"
IDLE = "idle"
"""A node with MIG instances that nobody uses: what is idle there is no news."""
WORK = ("utilization=50", "memory-used=20000")
PATIENT = "version: v1\ntimes: {raiseAfter: 1h, hungAfter: 1h}"
"""The health role judges no reading: on a busy machine a minute goes by, and what it says then stays for five more."""
OF_PAGES = (RuleGroup.OPERATOR, RuleGroup.OPENSHIFT, RuleGroup.OPERATIONS, RuleGroup.NODES)
"""Groups that ask what is on pages."""
CHECKS = ("plugin", "driver", "toolkit", "cuda")
TOOLKIT_TROUBLES = ("nfd_too_old", "imagestream_missing", "rhcos_tags_missing", "imagestream_broken")


@dataclass
class World:
    """Prometheus, the nodes by name, the kubelet of n2, and pages of programs that are not run here."""

    prometheus: Prometheus
    nodes: dict[str, Node]
    kubelet: Kubelet
    pages: Pages


def operator_page(*, well: bool) -> str:
    own = OperatorFigures()
    status = {"reconciliation_status": float(well), "reconciliation_has_nfd_labels": float(well)}
    toolkit = {f"openshift_driver_toolkit_{trouble}": float(not well) for trouble in TOOLKIT_TROUBLES}
    own.passed({**status, **toolkit, "gpu_nodes_total": 4.0, "nodes_upgrades_failed": float(not well)})
    return own.text() + operations_page(well=well)


def operations_page(*, well: bool) -> str:
    """Operations as the engine tells of them: one holds its node and one has failed long ago, or all that alerts name."""
    now = time.time()
    held, spec = stamp_of(now - (60 if well else 90000)), NodeOperationSpec(node_name="n1", type="Maintenance")
    begun = NodeOperationStatus(phase="Acting", started_at=held, phase_since=held)
    late = NodeOperationStatus(
        phase="Restoring", started_at=held, phase_deadline=stamp_of(now + (900 if well else -900))
    )
    over = NodeOperationStatus(
        phase="Failed",
        result="TransientFailure",
        reason="NotWell",
        completed_at=stamp_of(now - (90000 if well else 60)),
    )
    asked = msgspec.structs.replace(spec, approved=False)
    needs = msgspec.structs.replace(spec, type="Maintenance" if well else "Replace")
    rows = (
        ("needs", needs, begun), ("begun", spec, begun), ("late", spec, late), ("over", spec, over), ("asked", asked, NodeOperationStatus()),
    )  # fmt: skip
    operations = [
        Operation(name=name, uid=name, version="1", created=now - (60 if well else 90000), spec=spec, status=status)
        for name, spec, status in rows
    ]
    return figures(operations, (), {}, nodes=(), now=now, served=True, breaker=not well)


def node_page(*, well: bool) -> str:
    return "".join(HEALTHY.format(check, int(well)) for check in CHECKS)


def state_metrics(*, well: bool) -> str:
    """As kube-state-metrics has it."""
    about = 'node="n1",resource="nvidia_com_gpu",unit="integer"'
    return f"kube_node_status_capacity{{{about}}} 8\nkube_node_status_allocatable{{{about}}} {8 if well else 7}\n"


def wasted_page(since: float, *, well: bool) -> str:
    """As kgpu-usage counts: a GPU that is free, or three that team-a holds."""
    counters = WastedCounters(since_us=0)
    hours = int((time.time() - since) * HOUR_US / 3600)
    for reason, namespace, gpus in (("free", "", 1), ("held-idle", "team-a", 0 if well else 3)):
        counters.add(reason, namespace, hours * gpus, 3_060_000, "USD")
    return page(metric_lines(counters))


def set_pages(pages: Pages, *, well: bool) -> None:
    pages.texts = {
        "/operator": operator_page(well=well), "/node": node_page(well=well), "/state": state_metrics(well=well),
        "/usage": partial(wasted_page, time.time(), well=well),
    }  # fmt: skip


def uuids(root: Path) -> list[str]:
    """Of the GPUs."""
    shown = kgpu("lab", "hw", "show", "--root", str(root), "-o", "json")
    return list(dict.fromkeys(re.findall(r"GPU-[0-9a-f-]{36}", shown)))


@pytest.fixture(scope="module")
def world(prometheus_bin: Path, sim_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    agent = ("agent", "--roles", "exporter,health", "--labels-sink", "none")
    nodes = {}
    (folder / COUNTERS).write_text(GOOD)
    with contextlib.ExitStack() as stack:
        for name, gpus, words in (
            ("n1", 8, agent),
            ("n2", 2, agent),
            ("n3", 1, ("exporter",)),
            ("n4", 1, ("exporter",)),
            ("n5", 1, ("exporter", "-f", str(folder / COUNTERS))),
            (IDLE, 1, ("exporter",)),
        ):
            here = folder / name
            here.mkdir()
            root = Path(create_root("hgx-h100", here / "root", gpus=gpus, seed=name))
            nodes[name] = Node(name, here, root, free_port(), words)
            nodes[name].hw("set", *WORK)
            nodes[name].env = {ENV_HEALTH_CONFIG: PATIENT}
        nodes[IDLE].env |= {"KGPU_EXPORTER_MIG_COPIES": "true"}  # as the replaced exporter counts
        nodes[IDLE].hw("mig", "--gpu", "0", "--profiles", "3g.40gb,1g.10gb:2")
        held = {}
        for name, namespace in (("n1", "team-a"), ("n2", "team-b")):
            gpu = uuids(nodes[name].root)
            devices = {"nvidia.com/gpu": tuple(gpu[:2] if name == "n1" else gpu[:1])}
            pods = {(namespace, "training-0", "main"): devices}
            held[name] = Kubelet(nodes[name].folder, pods)
            stack.enter_context(closing(held[name]))
            nodes[name].env |= {
                "DCGM_EXPORTER_KUBERNETES": "true", "DCGM_POD_RESOURCES_KUBELET_SOCKET": str(held[name].socket),
            }  # fmt: skip
        for node in nodes.values():
            stack.enter_context(closing(node))
            node.start()
        pages = Pages()
        stack.enter_context(closing(pages))
        set_pages(pages, well=True)
        for node in nodes.values():
            until(f"{node.name} serves", node.begun)
        prometheus = Prometheus(prometheus_bin / "prometheus", folder, config(folder, nodes, pages))
        stack.enter_context(closing(prometheus))
        until("Prometheus answers", prometheus.ready)
        # A rate needs samples from before what it shall see.
        samples = "count_over_time(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[10s]) >= 3"
        until("every GPU of n1 has been seen", lambda: len(prometheus.query(samples)) >= 8)
        yield World(prometheus, nodes, held["n2"], pages)


def config(folder: Path, nodes: dict[str, Node], pages: Pages) -> dict[str, object]:
    """Prometheus' configuration, from the objects that the operator makes."""
    objects = rendered()
    monitors = {one["metadata"]["name"]: one for one in objects if one["kind"] == "ServiceMonitor"}
    rules = folder / "rules.yaml"
    groups = [group for one in objects if one["kind"] == "PrometheusRule" for group in one["spec"]["groups"]]
    rules.write_text(yaml.dump({"groups": shortened(groups)}))
    exporters = {name: (f"127.0.0.1:{node.port}", f"kgpu-agent-{name}") for name, node in nodes.items()}
    others = []
    for job, path, monitor in (
        ("gpu-operator", "/operator", monitors["gpu-operator"]),
        ("nvidia-node-status-exporter", "/node", monitors["nvidia-node-status-exporter"]),
        ("kgpu-usage", "/usage", monitors["kgpu-usage"]),
    ):
        made = scrape_config(monitor, {"n1": (f"127.0.0.1:{pages.port}", "pod")})
        others.append({**made, "job_name": job, "metrics_path": path})
    state = {"job_name": "kube-state-metrics", "scrape_interval": "500ms", "scrape_timeout": "450ms",
             "metrics_path": "/state", "static_configs": [{"targets": [f"127.0.0.1:{pages.port}"]}],
             "honor_labels": True}  # fmt: skip
    return {
        "global": {"evaluation_interval": "500ms"},
        "rule_files": [str(rules)],
        "scrape_configs": [scrape_config(monitors["nvidia-dcgm-exporter"], exporters), *others, state],
    }


def firing(world: World) -> set[str]:
    return {one for one in world.prometheus.firing() if IDLE not in one.split()}


def test_every_rule_is_loaded_and_can_be_evaluated(world: World) -> None:
    def rules() -> list[dict[str, str]]:
        return [rule for group in world.prometheus.get("rules")["groups"] for rule in group["rules"]]

    until("every rule has been evaluated", lambda: all(rule["health"] != "unknown" for rule in rules()))
    assert [rule for rule in rules() if rule["health"] != "ok"] == []
    assert {rule["name"] for rule in rules()} == {alert.name for alert in ALERTS} | {record.name for record in RECORDS}


def test_t12_labels_by_which_documents_ask(world: World) -> None:
    """Who uses a GPU is ``pod``; where it is has three names; the exporter's own pod is in no series of a GPU."""
    until("a pod is known", lambda: world.prometheus.query('DCGM_FI_DEV_GPU_UTIL{pod=~"training-.*"}'))
    series: list[dict[str, dict[str, str]]] = []

    def known() -> bool:
        series[:] = world.prometheus.query("DCGM_FI_DEV_GPU_UTIL")
        return bool(series)

    until("GPUs are known", known)
    for one in series:
        labels = one["metric"]
        assert labels["node"] == labels["kubernetes_node"] == labels["Hostname"] == labels["hostname"]
        assert labels.get("pod", "training-0") == "training-0"
        assert labels.get("pod") == labels.get("exported_pod")
    for query in (
        'avg(DCGM_FI_DEV_GPU_UTIL{pod=~"training-.*"}) by (pod)',
        "avg(DCGM_FI_DEV_GPU_UTIL) by (Hostname) < 60",
        "sum(DCGM_FI_DEV_POWER_USAGE) by (Hostname)",
        "(DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)) * 100",
    ):
        # A scrape that a busy machine was too late for leaves a gap.
        until(f"data for {query}", lambda query=query: world.prometheus.query(query))  # type: ignore[misc]


def test_nothing_fires_while_all_is_well(world: World) -> None:
    until("metrics are there", lambda: len(world.prometheus.query("kgpu_gpu_up == 1")) == 14)
    until("alerts of the beginning are over", lambda: not firing(world))


PANELS = [(board, panel) for board in BOARDS for panel in board.panels]


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=[f"{board.file}: {panel.title}" for board, panel in PANELS])
def test_a_panel_has_data(world: World, board: Board, panel: Panel) -> None:
    for expr, _ in panel.queries:
        plain = re.sub(r"\$(node|namespace|instance|gpu)\b", ".*", expr)
        until(f"data for {plain}", lambda plain=plain: world.prometheus.query(plain))


@pytest.mark.parametrize("record", RECORDS, ids=[record.name for record in RECORDS])
def test_a_recorded_series_has_data(world: World, record: object) -> None:
    until("data", lambda: world.prometheus.query(record.name))  # type: ignore[attr-defined]


Step = Callable[[World], None]


def hw(node: str, *words: str) -> Step:
    return lambda world: world.nodes[node].hw(*words)


def again(node: str, *words: str) -> Step:
    def step(world: World) -> None:
        world.nodes[node].stop()
        world.nodes[node].start(*words)

    return step


def driver_gone(node: str) -> Step:
    """The driver was unloaded: what talked to it is gone, and nothing can talk to it again."""

    def step(world: World) -> None:
        world.nodes[node].hw("inject", "init-error", "DRIVER_NOT_LOADED")
        world.nodes[node].end_children()

    return step


def counters(text: str) -> Step:
    return lambda world: write_atomic(world.nodes["n5"].folder.parent / COUNTERS, text.encode())


# What is done, what fires then, and what makes it end when the GPUs are well and work as before.
FAULTS: tuple[tuple[Step, tuple[str, ...], Step | None], ...] = (
    (hw("n1", "inject", "hot", "--gpu", "0"), ("GPUHighTemperature",), None),
    (hw("n1", "set", "--gpu", "1", "memory-used=80000"), ("GPUMemoryNearFull", "GPUMemoryAlmostFull"), None),
    (hw("n1", "inject", "xid", "48", "--gpu", "2"), ("GPUXidError", "GPUUnhealthy"), None),
    (hw("n1", "inject", "xid", "61", "--gpu", "1"), ("GPUNeedsInspection",),
     lambda world: world.nodes["n1"].kgpu("health", "set-healthy", "1")),
    (hw("n1", "inject", "xid", "13", "--gpu", "3"), ("GPUXidOfProgram",), None),
    (hw("n1", "inject", "xid", "79", "--gpu", "4"), ("GPUFallenOffBus", "GPULost"), None),
    (hw("n1", "set", "--gpu", "5", "remap-failed=on", "utilization=99"), ("GPURowRemapFailure", "GPUHighUtilization"),
     hw("n1", "set", "--gpu", "5", "remap-failed=off")),
    (hw("n1", "set", "--gpu", "6", "remapped-uncorrected=2", "memory-temperature=100", "utilization=8"),
     ("GPUMemoryErrors", "GPUMemoryHot", "GPUUnderutilized"),
     hw("n1", "set", "--gpu", "6", "memory-temperature=40")),
    (hw("n1", "set", "--gpu", "7", "pcie-replays=500", "utilization=0"), ("GPUPcieReplays", "GPUIdle"), None),
    (hw("n2", "set", "utilization=0"), ("GPUNodeIdle", "GPUNodeUnderutilized"), None),
    (hw("n2", "set", "--gpu", "0", "failing=power"), ("GPUMetricsIncomplete",),
     hw("n2", "set", "--gpu", "0", "failing=none")),
    (lambda world: world.kubelet.stop(), ("GPUUsersUnknown",), lambda world: world.kubelet.start()),
    (again("n3", "--series-limit", "20"), ("GPUSeriesDropped",), again("n3")),
    (lambda world: world.nodes["n4"].stop(), ("GPUExporterDown",), lambda world: world.nodes["n4"].start()),
    (driver_gone("n5"), ("GPUDriverSilent", "GPUMetricsStale"), None),
    (counters("no line of it is good\n"), ("GPUCountersRefused",), counters(GOOD)),
    (lambda world: set_pages(world.pages, well=False),
     ("GPUNotAllocatable", "GPUHoursWasted", *(alert.name for alert in ALERTS if alert.group in OF_PAGES)),
     lambda world: set_pages(world.pages, well=True)),
)  # fmt: skip


def test_each_alert_fires_when_its_fault_is_there_and_resolves_when_it_is_gone(world: World) -> None:
    until("alerts of the beginning are over", lambda: not firing(world))
    for inject, _, _ in FAULTS:
        inject(world)
    expected = {name for _, names, _ in FAULTS for name in names}
    assert expected == {alert.name for alert in ALERTS}
    missing: set[str] = set()

    def all_fired() -> bool:
        missing.clear()
        missing.update(expected - world.prometheus.fired())
        return not missing

    with contextlib.suppress(AssertionError):
        until("all fire", all_fired)
    assert not missing
    for node in world.nodes.values():
        node.hw("clear")
        node.hw("set", *WORK)
    for _, _, clear in FAULTS:
        if clear is not None:
            clear(world)
    left: set[str] = set()

    def all_resolved() -> bool:
        left.clear()
        left.update(firing(world))
        return not left

    with contextlib.suppress(AssertionError):
        until("all resolve", all_resolved)
    assert not left


OF_23382 = yaml.load((Path(__file__).parent / "dashboard_23382.yaml").read_text())


@pytest.mark.parametrize("panel", OF_23382["panels"], ids=[panel["title"] for panel in OF_23382["panels"]])
def test_d62_a_panel_of_dashboard_23382_has_data(world: World, panel: dict[str, str]) -> None:
    """``of``: a label that some of its rows must have. No GPU has a last Xid before its first."""
    if "XID" in panel["query"]:
        world.nodes["n4"].hw("inject", "xid", "13", "--gpu", "0")
    plain = re.sub(r"\$(Hostname|gpu|mig)\b", ".*", panel["query"]).replace("$__rate_interval", "10s")
    wanted = panel.get("of", "")

    def there() -> bool:
        return any(not wanted or one["metric"].get(wanted) for one in world.prometheus.query(plain))

    until(f"data for {plain}", there)


@pytest.mark.parametrize(("label", "metric"), OF_23382["variables"].items())
def test_d62_a_variable_of_dashboard_23382_has_values(world: World, label: str, metric: str) -> None:
    until(
        f"values of {label}", lambda: world.prometheus.query(f'count by({label}) ({metric}{{{label}!=""}})'), seconds=30
    )
