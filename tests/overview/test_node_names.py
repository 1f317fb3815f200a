"""Who may not list nodes sees no name of one, but of those where a pod of his is; sums stay."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kgpu.overview.model import OverviewQuery, Told, ToldEvidence, ToldIdleness, ViewerRights
from kgpu.overview.node_names import told_to
from kgpu.overview.plan import shown
from kgpu.overview.rights import namespaces_in
from kgpu.top.model import ShownGpu
from tests.overview.making import NOW, error, finding, gathered, gpu, html_of, node

SECRET = "quarry"
MINE = ViewerRights(frozenset({"ml"}), nodes=False)
NOBODY = ViewerRights(frozenset(), nodes=False)


def far(name: str, *users: str, **more) -> ShownGpu:
    """A GPU whose id says nothing of its node, as those of drivers don't."""
    return replace(gpu(name, 0, *users, **more), uuid=f"GPU-{len(name)}{name[-1]}")


def cluster():
    report = (
        finding(f"Node {SECRET}-1", "it is lost", nodes=(f"{SECRET}-1",)),
        finding("Node mine", "GPU 0 is too hot", nodes=("mine",), evidence=(ToldEvidence(object="Node mine", value="hot"),
                ToldEvidence(object=f"Node {SECRET}-1", value="cold"), ToldEvidence(object="ConfigMap ops/x", value="c1"))),
        finding("Cluster", "the scheduler is away"),
        finding("Pod ml/x", "it waits", pods=("ml/x",), nodes=(f"{SECRET}-2",), evidence=(ToldEvidence(object="Pod ml/x", value="v1"),)),
        finding("Pod ml/y", f"{SECRET}-control has no room", pods=("ml/y",)),
        finding("Node mine", "under it", nodes=("mine",), consequences=(finding(f"Node {SECRET}-control", "far", nodes=(f"{SECRET}-control",)),)),
    )  # fmt: skip
    return gathered(
        node("mine", gpu("mine", 0, "ml/a", busy=50), gpu("mine", 1, "ops/b")),
        node(f"{SECRET}-1", far(f"{SECRET}-1", "ops/c", reason=f"ask {SECRET}-1"), trouble=f"{SECRET}-1:9400 refused"),
        node(f"{SECRET}-2", far(f"{SECRET}-2")),
        report=report,
        events=Told((error("mine", uuid=f"GPU-{SECRET}", text=f"{SECRET} fell"), error(f"{SECRET}-1"), error(f"{SECRET}-9")), NOW, f"no {SECRET}"),
        verdicts=Told((error(f"{SECRET}-1", "driver:lost", text=SECRET),), NOW),
        idleness=Told(ToldIdleness(silent={f"{SECRET}-2": f"{SECRET} says no", f"{SECRET}-9": "x"}), NOW, f"kgpu idle: {SECRET}"),
    )  # fmt: skip


def html(rights: ViewerRights, query: OverviewQuery | None = None) -> str:
    return html_of(told_to(cluster(), rights), query, rights.namespaces)


@pytest.mark.parametrize("rights", [MINE, NOBODY])
@pytest.mark.parametrize(
    "query", [OverviewQuery(), OverviewQuery(sort="natural"), OverviewQuery(node="hidden 2"), OverviewQuery(page=2)]
)
def test_no_name_of_such_a_node_is_in_the_page(rights, query) -> None:
    found = html(rights, query)
    assert SECRET not in found
    assert ("mine" in found) == (rights is MINE and query.node == "")
    assert f"{3 if rights is MINE else 4} errors of nodes that you may not name are not listed here" in found


def test_who_may_list_nodes_or_sees_every_pod_is_told_their_names() -> None:
    assert SECRET in html(ViewerRights(frozenset({"ml"}), nodes=True))
    known = cluster()
    assert told_to(known, ViewerRights(None, nodes=False)) is known


def test_sums_and_states_stay() -> None:
    all_of, some = (shown(told_to(cluster(), rights), OverviewQuery(), rights.namespaces)
                    for rights in (ViewerRights(None, nodes=True), NOBODY))  # fmt: skip
    for name in ("nodes", "busy", "free", "stale", "idle", "silent"):
        assert getattr(all_of.totals, name) == getattr(some.totals, name), name
    assert all_of.totals.whole.gpus == some.totals.whole.gpus
    assert sorted(cell.state for cell in all_of.rows) == sorted(cell.state for cell in some.rows)


def test_what_the_doctor_says_of_ones_own_is_told_without_the_rest() -> None:
    known = told_to(cluster(), MINE)
    page = shown(known, OverviewQuery(), MINE.namespaces)
    assert [one.cause for one in page.findings] == ["GPU 0 is too hot", "it waits"]
    assert page.hidden_findings == 4
    (hot, waits) = page.findings
    assert [row.value for row in hot.evidence] == ["hot"]
    assert (waits.nodes, [row.value for row in waits.evidence]) == ((), ["v1"])


@pytest.mark.parametrize("query", [OverviewQuery(node=f"{SECRET}-1"), OverviewQuery(words=SECRET)])
def test_a_filter_finds_no_node_that_has_no_name(query) -> None:
    page = shown(told_to(cluster(), MINE), query, MINE.namespaces)
    assert (page.rows, page.findings, page.troubles, page.unwell) == ((), (), (), ())


def test_evidence_from_a_namespace_that_is_not_seen_is_not_quoted() -> None:
    assert "ops" in namespaces_in(cluster())
    found = told_to(cluster(), ViewerRights(frozenset({"ml"}), nodes=True))
    values = [row.value for one in found.report.value.findings for row in one.evidence]
    assert values == ["hot", "cold", "v1"]


def test_nodes_without_a_name_are_told_apart_and_it_is_said_why() -> None:
    found = html(NOBODY)
    assert set(re.findall(r"hidden \d", found)) >= {"hidden 1", "hidden 2", "hidden 3"}
    assert "you may not list nodes" in found
