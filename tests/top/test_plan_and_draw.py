"""Rows by view, filter and sort; lines that fit any terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from kgpu.base.errors import ConfigError
from kgpu.top import draw
from kgpu.top.columns import DrawingStyle, row_cells
from kgpu.top.history import GpuHistory
from kgpu.top.model import GpuHealth, GpuInstance, GpuNode, GpuProcess, GpuUser, NodeTrouble, ShownGpu
from kgpu.top.plan import plan
from kgpu.top.rows import Detail, GpuRow, NodeTotals, PodRow, TableView, TroubleRow, Wish
from kgpu.top.sorts import SORTS, check_sort
from tests.budget import tries

A, B, C = (
    GpuUser(namespace="ml", pod="a"),
    GpuUser(namespace="ml", pod="b", memory_mib=512),
    GpuUser(namespace="web", pod="c"),
)


def gpu(index: int, *users: GpuUser, node: str = "n", health: GpuHealth = GpuHealth.OK, **values: float) -> ShownGpu:
    return ShownGpu(
        index=index, uuid=f"GPU-{node}-{index}", name="NVIDIA L4", users=users, health=health, values=values
    )


def memory(used: float, total: float = 24_000) -> dict[str, float]:
    return {"memory_used_mib": used, "memory_total_mib": total}


NODES = (
    GpuNode(name="node-10", gpus=(gpu(0, C, node="10", utilization_percent=90, power_w=60, **memory(2000)),)),
    GpuNode(
        name="node-9",
        gpus=(
            gpu(0, A, node="9", utilization_percent=0, power_w=30, **memory(9000)),
            gpu(1, A, B, node="9", utilization_percent=40, temperature_c=80, **memory(1000)),
            gpu(2, node="9", health=GpuHealth.LOST),
        ),
    ),
    GpuNode(name="node-11", trouble=NodeTrouble(what="no answer", remedy="look")),
    GpuNode(name="node-12", trouble=NodeTrouble(what="no answer", remedy="look")),
)


def shown(history: GpuHistory | None = None, now: float = 0.0, **wish):
    return plan(NODES, Wish(**wish), history or GpuHistory(), now)


def order(**wish) -> list[tuple[str, int]]:
    return [(row.node.name, row.gpu.index) for row in shown(**wish).rows if isinstance(row, GpuRow)]


def test_nodes_are_in_the_order_of_their_numbers_and_named_once() -> None:
    assert order() == [("node-9", 0), ("node-9", 1), ("node-9", 2), ("node-10", 0)]
    text = "\n".join(lines(160))
    assert (text.count("node-9 "), text.count("node-10 ")) == (1, 1)


@pytest.mark.parametrize(
    ("sort", "first"),
    [("utilization", ("node-10", 0)), ("memory", ("node-9", 0)), ("power", ("node-10", 0)),
     ("temperature", ("node-9", 1)), ("health", ("node-9", 2)), ("user", ("node-9", 0))],
)  # fmt: skip
def test_sorts(sort, first) -> None:
    assert order(sort=sort)[0] == first
    assert order(sort=sort, reverse=True)[-1] == first or sort == "user"


def test_sorts_by_time_without_work() -> None:
    history = GpuHistory()
    idle = gpu(0, utilization_percent=0)
    history.add(GpuNode(name="x", gpus=(gpu(1, utilization_percent=50),)), 0)
    history.add(GpuNode(name="x", gpus=(idle, gpu(1, utilization_percent=0))), 100)
    found = plan([GpuNode(name="x", gpus=(idle, gpu(1)))], Wish(sort="idle"), history, 160)
    assert [(row.gpu.index, row.idle.seconds, row.idle.at_least) for row in found.gpus] == [
        (1, 160, False), (0, 60, True),
    ]  # fmt: skip


def test_a_gpu_is_idle_only_when_no_measure_shows_work() -> None:
    history = GpuHistory()
    history.add(GpuNode(name="x", gpus=(gpu(0, utilization_percent=0, sm_percent=3),)), 0)
    assert history.idle("GPU-n-0", 50) is None


def test_values_that_were_told_already_are_no_history() -> None:
    history = GpuHistory()
    for now, read_at in ((0, 5.0), (2, 5.0), (4, 6.0)):
        history.add(GpuNode(name="x", gpus=(gpu(0, utilization_percent=read_at),), read_at=read_at), now)
    history.add(GpuNode(name="y", gpus=(gpu(1, utilization_percent=1),)), 0)
    history.add(GpuNode(name="y", gpus=(gpu(1, utilization_percent=1),)), 2)
    assert (history.activity("GPU-n-0"), history.activity("GPU-n-1")) == ((5, 6), (1, 1))


def states(history: GpuHistory, now: float, *gpus: ShownGpu) -> list[str]:
    found = plan([GpuNode(name="n", gpus=gpus)], Wish(), history, now)
    return [row_cells(row, DrawingStyle())["state"][0] for row in found.rows]


def test_an_xid_of_before_is_not_shown_as_if_it_were_new() -> None:
    history = GpuHistory()
    old = gpu(0, last_xid=79, power_w=1)
    history.add(GpuNode(name="n", gpus=(old,)), 0)
    assert states(history, 10, old) == ["ok"]
    assert states(GpuHistory(), 0, gpu(0, health=GpuHealth.UNKNOWN, last_xid=79)) == ["last xid 79"], (
        "nobody has judged it"
    )


def test_an_xid_that_comes_is_shown_with_its_age() -> None:
    history = GpuHistory()
    before, after = gpu(0, power_w=1), gpu(0, last_xid=31, power_w=1)
    for now, seen in ((0, before), (5, before), (7, after), (9, after)):
        history.add(GpuNode(name="n", gpus=(seen,), read_at=1.0), now)
    assert states(history, 127, after) == ["ok xid 31 2m ago"]
    silent = replace(gpu(0, health=GpuHealth.LOST), values={})
    history.add(GpuNode(name="n", gpus=(silent,)), 130)
    history.add(GpuNode(name="n", gpus=(after,)), 140)
    assert history.xid_age("GPU-n-0", 147) == 140, "a GPU that was silent for a while has no new one"
    history.round_ends(None, 10_000)
    assert history.xid_age("GPU-n-0", 10_000) is None


def test_a_verdict_that_stands_says_what_to_do() -> None:
    bad = replace(gpu(0, health=GpuHealth.BAD, last_xid=95), action="reset-gpu")
    assert states(GpuHistory(), 0, bad) == ["BAD: reset-gpu"]


def test_a_remark_is_a_row_and_the_node_is_not_silent() -> None:
    node = GpuNode(name="x", gpus=(gpu(0),), remark=NodeTrouble(what="pods are not known"))
    screen = plan([node], Wish(), GpuHistory(), 0)
    assert (screen.silent, len(screen.rows)) == (0, 2)
    assert screen.rows[0] == TroubleRow(nodes=("x",), what="pods are not known")


def test_what_silent_nodes_have_is_said_and_not_called_none() -> None:
    trouble = NodeTrouble(what="no metrics exporter runs there")
    nodes = [
        GpuNode(name="a", devices=8, trouble=trouble),
        GpuNode(name="b", gpus=(gpu(0),), devices=1, trouble=trouble),
    ]
    screen = plan(nodes, Wish(), GpuHistory(), 0)
    assert screen.unread == 8, "what a node has told before is shown as it was"
    assert "2 nodes (2 silent)  1 GPU, 0 in use  8 devices not read" in str(draw.summary(screen, 200, LOOK)[0])
    alone = plan(nodes[:1], Wish(), GpuHistory(), 0)
    assert "1 node (1 silent)  8 devices not read" in str(draw.summary(alone, 200, LOOK)[0])
    assert "0 GPUs" in str(draw.summary(plan([], Wish(), GpuHistory(), 0), 200, LOOK)[0])


@pytest.mark.parametrize("name", ["", "x", "memori"])
def test_an_unknown_sort_is_refused(name) -> None:
    with pytest.raises(ConfigError):
        check_sort(name)


def test_a_sort_may_be_cut_short() -> None:
    assert check_sort("mem") == "memory"
    assert {check_sort(name) for name in SORTS} == set(SORTS)


@pytest.mark.parametrize(
    ("words", "found"),
    [("node-9", 3), ("ML/A", 2), ("ml/a node-9 l4", 2), ("lost", 1), ("GPU-10-0", 1), ("nothing", 0)],
)
def test_every_word_of_a_filter_must_be_somewhere(words, found) -> None:
    assert len(order(words=words)) == found


def test_namespaces_and_nodes() -> None:
    assert order(namespaces=frozenset({"web"})) == [("node-10", 0)]
    assert order(nodes=frozenset({"node-10"})) == [("node-10", 0)]
    pods = [row for row in shown(view=TableView.PODS, namespaces=frozenset({"ml"})).rows if isinstance(row, PodRow)]
    assert [(row.namespace, row.pod) for row in pods] == [("ml", "a"), ("ml", "b")]


def test_nodes_with_the_same_trouble_are_one_row_in_every_view() -> None:
    for view in TableView:
        first = shown(view=view).rows[0]
        assert isinstance(first, TroubleRow)
        assert first.nodes == ("node-11", "node-12")


def test_sums() -> None:
    whole = shown().whole
    assert (whole.gpus, whole.used, whole.lost, whole.pods) == (4, 3, 1, 3)
    assert (whole.utilization, whole.memory_mib, whole.power_w) == (pytest.approx(130 / 3), 12_000, 90)
    nodes = [row for row in shown(view=TableView.NODES, sort="memory").rows if isinstance(row, NodeTotals)]
    assert [(row.node.name, row.whole.memory_mib) for row in nodes] == [("node-9", 10_000), ("node-10", 2000)]


def test_a_pod_has_its_own_memory_where_it_shares_and_the_gpus_where_it_does_not() -> None:
    rows = {row.pod: row for row in shown(view=TableView.PODS).rows if isinstance(row, PodRow)}
    assert (rows["a"].devices, rows["a"].shared, rows["a"].memory_mib, rows["a"].nodes) == (2, 1, 9000, ("node-9",))
    assert (rows["b"].memory_mib, rows["c"].memory_mib) == (512, 2000)


LOOK = DrawingStyle()


def lines(width: int, look: DrawingStyle = LOOK, nodes=NODES, **wish) -> list[str]:
    screen = plan(nodes, Wish(**wish), GpuHistory(), 0)
    made = draw.table(screen.rows, wish.get("view", TableView.GPUS), width, look) + draw.summary(screen, width, look)
    return [line.plain for line in made]


KOREAN = GpuNode(
    name="노드-서울-일번",
    gpus=(
        ShownGpu(
                 index=0, uuid="u", name="엔비디아 가속기", values={"utilization_percent": 30, **memory(1), "last_xid": 79},
                 users=(GpuUser(namespace="학습팀", pod="모델-훈련-0"), GpuUser(namespace="학습팀", pod="모델-훈련-1")),
                 parts=(GpuInstance(gpu_instance=1, profile="1g.10gb", users=(A,)),), health=GpuHealth.BAD, action="reset-gpu",
                 processes=(GpuProcess(pid=7, command="파이썬 train.py", user="김", memory_mib=100),),
        ),
    ),
)  # fmt: skip


@tries(120)
@given(st.integers(1, 200), st.sampled_from(TableView), st.sampled_from(Detail), st.booleans())
def test_no_line_is_wider_than_the_terminal(width, view, detail, ascii_only) -> None:
    nodes = (*NODES, KOREAN)
    for line in lines(width, DrawingStyle(ascii_only=ascii_only), nodes, view=view, detail=detail):
        assert cell_len(line) <= width


def test_columns_go_one_by_one_and_the_most_important_stay() -> None:
    wide, narrow = lines(160)[0], lines(48)[0]
    assert "SM" not in narrow
    assert all(head in wide for head in ("NODE", "GPU", "BUSY", "MEM", "GIB", "TEMP", "POWER", "STATE", "USED BY"))
    assert all(head in narrow for head in ("NODE", "GPU", "BUSY"))


def test_ascii_has_no_other_characters() -> None:
    assert [line for line in lines(160, DrawingStyle(ascii_only=True)) if not line.isascii()] == []
    assert [line for line in lines(160) if not line.isascii()], "nothing was there to leave out"


def test_shared_users_instances_and_processes_stand_under_their_gpu() -> None:
    text = "\n".join(lines(200, nodes=(KOREAN,)))
    assert "학습팀/모델-훈련-1" in text
    assert "MIG 1g.10gb" in text
    assert "7 김 파이썬 train.py" in text
    assert "BAD: reset-gpu" in text
    assert "MIG" not in "\n".join(lines(200, nodes=(KOREAN,), detail=Detail.COMPACT))
