"""Lists as files: what the page shows, whole, by the same rights, and harmless in a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from kgpu.overview.downloads import LISTS, as_text
from kgpu.overview.model import NamespaceLimit, OverviewQuery, PendingPod, Told, ToldIdle, ToldIdleness, ViewerRights
from kgpu.overview.node_names import told_to
from kgpu.overview.plan import ROWS, shown
from tests.overview.making import NOW, error, finding, gathered, gpu, node

EVIL = '=HYPERLINK("http://evil.example")'


def cluster():
    idle = ToldIdle(
        who="ml/web", kind="Deployment", state="held-idle", gpus=2, per_hour=6.0, currency="USD", wasted=None
    )
    return gathered(
        node("a", gpu("a", 0, "ml/x", busy=40), gpu("a", 1, "ops/secret", busy=None)),
        node("b", gpu("b", 0), trouble="it is away"),
        report=[finding("Node a", EVIL, nodes=("a",)), finding("Pod ops/secret", "it is stuck", pods=("ops/secret",))],
        waiting=Told((PendingPod(namespace="ml", name="w", asks=(("nvidia.com/gpu", 2),)),), NOW),
        idleness=Told(ToldIdleness(idle=(idle,)), NOW),
        events=Told((error("a", count=3), error("b", text="ops/secret")), NOW),
        limits=Told((NamespaceLimit(namespace="ml", resource="nvidia.com/gpu", used=1, hard=4),), NOW),
    )  # fmt: skip


def read(name: str, *, rights: ViewerRights | None = None, query: OverviewQuery | None = None) -> list[dict[str, Any]]:
    """The rows as JSON; as CSV there are as many."""
    given = rights or ViewerRights(None, nodes=True)
    page = shown(told_to(cluster(), given), query or OverviewQuery(), given.namespaces)
    rows = json.loads(as_text(page, name, "json"))
    table = list(csv.DictReader(io.StringIO(as_text(page, name, "csv").decode(), newline="")))
    assert (rows.pop("version"), list(rows), len(table)) == (1, [name], len(rows[name]))
    assert all(tuple(row) == LISTS[name][0] for row in table)
    return list(rows[name])


def test_what_nobody_knows_is_null_and_what_is_old_has_no_figures() -> None:
    rows = {(row["node"], row["gpu"]): row for row in read("gpus")}
    assert (rows["a", 0]["busy_percent"], rows["a", 0]["pods"], rows["a", 0]["age_seconds"]) == (40.0, ["ml/x"], 0.0)
    assert rows["a", 1]["busy_percent"] is None
    assert (rows["b", 0]["state"], rows["b", 0]["power_w"]) == ("stale", None)
    assert read("idle")[0]["wasted"] is None
    assert {row["namespace"]: row["quota"] for row in read("namespaces")} == {
        "ml": ["1 of 4 nvidia.com/gpu"],
        "ops": [],
    }


@pytest.mark.parametrize("name", LISTS)
def test_by_rights_and_filter_it_is_what_the_page_shows(name) -> None:
    assert read(name)
    limited = json.dumps(read(name, rights=ViewerRights(frozenset({"ml"}), nodes=False)))
    assert ("secret" in limited, '"b"' in limited, "ops" in limited) == (False, False, False)
    assert "secret" not in json.dumps(read(name, rights=ViewerRights(frozenset(), nodes=False)))
    assert [row for row in read(name, query=OverviewQuery(words="nowhere")) if row.get("namespace") != "ml"] == []


def test_no_text_is_a_formula() -> None:
    page = shown(cluster(), OverviewQuery(), None)
    for name in LISTS:
        for row in csv.reader(io.StringIO(as_text(page, name, "csv").decode(), newline="")):
            assert not [cell for cell in row if cell.startswith(("=", "+", "-", "@"))]
    assert EVIL in [row["cause"] for row in read("attention")], "as it is in JSON"


def test_a_table_of_several_pages_is_whole() -> None:
    known = gathered(*(node(f"n{number}", *(gpu(f"n{number}", index) for index in range(8))) for number in range(ROWS)))
    page = shown(known, OverviewQuery(page=3), None, rows=1000)
    assert len(json.loads(as_text(page, "gpus", "json"))["gpus"]) == 8 * ROWS
