"""What is shown of what is known: states, sums, filters, and that nothing unknown or old is a number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.overview.model import (
    CellState,
    MapScale,
    NamespaceLimit,
    OverviewQuery,
    PendingPod,
    Told,
    ToldIdle,
    ToldIdleness,
)
from kgpu.overview.plan import ROWS, STALE_AFTER, shown
from kgpu.top.model import GpuHealth, GpuInstance, GpuProcess, GpuUser
from tests.overview.making import NOW, finding, fleet, gathered, gpu, html_of, node

ALL = OverviewQuery()
IDLE = ToldIdle(
    who="ml/train", kind="Deployment", state="held-idle", gpus=2, per_hour=6.12, currency="USD", wasted=12.24
)


def state_of(one, **more) -> CellState:
    page = shown(gathered(node("a", one, **more)), ALL, None)
    return page.rows[0].state


@pytest.mark.parametrize(
    ("one", "state"),
    [
        (gpu("a", 0), CellState.FREE),
        (gpu("a", 0, "ml/x"), CellState.HELD),
        (gpu("a", 0, processes=(GpuProcess(pid=1),)), CellState.HELD),
        (gpu("a", 0, "ml/x", busy=1), CellState.BUSY),
        (gpu("a", 0, busy=100), CellState.BUSY),
        (gpu("a", 0, "ml/x", busy=None), CellState.UNKNOWN),
        (gpu("a", 0, busy=None), CellState.UNKNOWN),
        (gpu("a", 0, busy=0, parts=(GpuInstance(gpu_instance=1, users=(GpuUser(namespace="ml", pod="x"),)),)), CellState.HELD),
        (gpu("a", 0, "ml/x", busy=50, health=GpuHealth.WARN), CellState.WARN),
        (gpu("a", 0, "ml/x", busy=50, health=GpuHealth.BAD), CellState.BAD),
        (gpu("a", 0, "ml/x", busy=None, health=GpuHealth.LOST), CellState.LOST),
    ],
)  # fmt: skip
def test_a_gpu_is_what_is_worst_of_it(one, state) -> None:
    assert state_of(one) is state


@pytest.mark.parametrize(
    ("busy", "fill"), [(0, 0), (0.2, 1), (25, 1), (26, 2), (75, 3), (76, 4), (100, 4), (250, 4), (float("nan"), 0)]
)
def test_any_activity_is_seen(busy, fill) -> None:
    assert shown(gathered(node("a", gpu("a", 0, busy=busy))), ALL, None).rows[0].fill == fill


@pytest.mark.parametrize(
    ("gpus", "scale"),
    [(0, "cards"), (1, "cards"), (16, "cards"), (17, "rows"), (256, "rows"), (257, "dense"), (8000, "dense")],
)
def test_cells_get_smaller_with_the_cluster(gpus, scale) -> None:
    nodes = fleet(gpus // 8) if gpus % 8 == 0 else (node("a", *(gpu("a", i) for i in range(gpus))),)
    page = shown(gathered(*nodes), ALL, None)
    assert page.scale is MapScale(scale)
    assert sum(len(each.cells) for _, own in page.pools for each in own) == gpus


def test_a_namespace_has_what_its_quotas_allow_also_while_it_holds_nothing() -> None:
    limits = tuple(
        NamespaceLimit(namespace=space, resource=f"{vendor}.com/gpu", used=used, hard=4)
        for space, vendor, used in (("ml", "nvidia", 1), ("ml", "amd", 0), ("free", "nvidia", 0))
    )
    known = gathered(node("a", gpu("a", 0, "ml/x"), gpu("a", 1, "ops/y")), limits=Told(limits, NOW))
    rows = {row.name: (row.held, row.limits) for row in shown(known, ALL, None).namespaces}
    assert rows == {"ml": (1, limits[:2]), "ops": (1, ()), "free": (0, limits[2:])}
    assert [row.name for row in shown(known, OverviewQuery(namespace="free"), None).namespaces] == ["free"]
    assert "1 of 4 nvidia.com/gpu, 0 of 4 amd.com/gpu" in html_of(known)
    unknown = replace(known, limits=Told((), None, "forbidden"))
    assert {row.limits for row in shown(unknown, ALL, None).namespaces} == {None}
    assert "forbidden" in html_of(unknown)


def test_a_node_that_cant_be_read_is_shown_as_it_was_and_is_in_no_sum() -> None:
    old, well = node("a", gpu("a", 0, "ml/x", busy=90), trouble="it is silent"), node("b", gpu("b", 0, "ml/y", busy=10))
    known = replace(gathered(well, old), read_at={"a": NOW - 43, "b": NOW})
    page = shown(known, ALL, None)
    assert (page.totals.whole.gpus, page.totals.stale, page.totals.busy, page.totals.whole.utilization) == (1, 1, 1, 10)
    assert [(each.name, each.stale) for _, own in page.pools for each in own] == [("a", 43), ("b", None)]
    assert [(row.name, row.held) for row in page.namespaces] == [("ml", 1)]
    html = html_of(known)
    assert "40 s ago" in html
    assert "it is silent" in html


@pytest.mark.parametrize(
    ("age", "pace", "stale"),
    [
        (STALE_AFTER, 0.0, False),
        (STALE_AFTER + 1, 0.0, True),
        (STALE_AFTER + 1, 20.0, True),
        (2 * STALE_AFTER, STALE_AFTER, False),
        (2 * STALE_AFTER + 1, STALE_AFTER, True),
    ],
)
def test_what_is_not_read_for_a_minute_or_two_rounds_is_old_though_nothing_failed(age, pace, stale) -> None:
    page = shown(gathered(node("a", gpu("a", 0)), age=age, pace=pace), ALL, None)
    assert (page.rows[0].state is CellState.STALE) == stale


def test_a_node_that_was_never_read_has_no_age() -> None:
    known = replace(gathered(node("a", gpu("a", 0), trouble="no exporter")), read_at={})
    assert "never read" in html_of(known)


@pytest.mark.parametrize(
    ("idleness", "idle"),
    [
        (Told(ToldIdleness(idle=(IDLE,)), NOW), 2),
        (Told(ToldIdleness(), NOW), 0),
        (Told(ToldIdleness()), None),
        (Told(ToldIdleness(), None, "it failed"), None),
        (Told(ToldIdleness(silent={"*": "no agent watches usage"}), NOW), None),
        (Told(ToldIdleness(silent={"a": "refused"}), NOW), None),
    ],
)
def test_what_nobody_says_of_idleness_is_not_zero(idleness, idle) -> None:
    page = shown(gathered(node("a", gpu("a", 0)), idleness=idleness), ALL, None)
    assert page.totals.idle == idle
    assert page.totals.per_hour == (None if idle is None else 6.12 if idle else 0)


def test_idleness_of_some_nodes_is_told_with_how_many_are_missing() -> None:
    idleness = Told(ToldIdleness(idle=(IDLE,), silent={"b": "refused"}), NOW)
    html = html_of(gathered(node("a", gpu("a", 0)), node("b", gpu("b", 0)), idleness=idleness))
    assert "not known of 1 node" in html
    assert "6.12 USD" in html


def test_a_pod_that_waits_has_the_doctors_root_cause_and_its_remedy() -> None:
    deep = finding("Pod ml/x", "the largest node has 8", pods=("ml/x",))
    root = finding(
        "Node a", "the node is full", pods=("ml/y",), remedy=("kubectl -n ml delete pod y",), consequences=(deep,)
    )
    pods = (PendingPod(namespace="ml", name="x", asks=(("nvidia.com/gpu", 16),)), PendingPod(namespace="ml", name="z"))
    page = shown(gathered(report=(root,), waiting=Told(pods, NOW)), ALL, None)
    assert [(row.pod.name, row.finding and row.finding.cause) for row in page.waiting] == [
        ("x", "the node is full"), ("z", None),
    ]  # fmt: skip
    html = html_of(gathered(report=(root,), waiting=Told(pods, NOW)))
    assert "kubectl -n ml delete pod y" in html
    assert "kgpu doctor pod ml/z" in html


def test_a_filter_is_of_gpus_findings_and_whoever_waits() -> None:
    report = (finding("Node a", "a is bad", nodes=("a",)), finding("Node b", "b is bad", nodes=("b",), pods=("ml/q",)))
    waiting = Told((PendingPod(namespace="ml", name="q"), PendingPod(namespace="dev", name="r")), NOW)
    known = gathered(node("a", gpu("a", 0, "dev/x")), node("b", gpu("b", 0, "ml/y")), report=report, waiting=waiting)
    page = shown(known, OverviewQuery(node="b"), None)
    assert [row.row.node.name for row in page.rows] == ["b"]
    assert [one.cause for one in page.findings] == ["b is bad"]
    page = shown(known, OverviewQuery(namespace="dev"), None)
    assert [row.row.node.name for row in page.rows] == ["a"]
    assert [row.pod.name for row in page.waiting] == ["r"]
    assert page.findings == ()
    assert [row.row.node.name for row in shown(known, OverviewQuery(words="y ml"), None).rows] == ["b"]


def test_an_unwell_gpu_is_told_until_the_doctor_speaks_of_its_node() -> None:
    bad = node("a", gpu("a", 0, health=GpuHealth.BAD, reason="Xid79", action="reboot"))
    assert [cell.row.gpu.uuid for cell in shown(gathered(bad), ALL, None).unwell] == ["GPU-a-0"]
    assert shown(gathered(bad, report=(finding("Node a"),)), ALL, None).unwell == ()


def test_the_worst_gpus_come_first_and_lists_have_pages() -> None:
    nodes = (*fleet(20), node("z", gpu("z", 0, health=GpuHealth.LOST)))
    page = shown(gathered(*nodes), ALL, None)
    assert (page.rows[0].row.node.name, len(page.rows), page.pages) == ("z", ROWS, 4)
    last = shown(gathered(*nodes), OverviewQuery(page=4), None)
    assert len(last.rows) == 161 - 3 * ROWS
    assert shown(gathered(*nodes), OverviewQuery(page=99), None).rows == last.rows
