"""The list of hardware errors: one row for each, whoever tells of it; what is not known is said."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest

from kgpu.overview.error_list import MOST
from kgpu.overview.model import OverviewQuery, Told
from kgpu.overview.plan import shown
from kgpu.top.history import GpuHistory
from kgpu.top.model import GpuNode
from tests.overview.making import NOW, Outline, error, finding, fleet, gathered, gpu, html_of, node
from tests.overview.test_render import FIRST_PAINT

NODE = node("a", gpu("a", 0, "ml/train"), gpu("a", 1))
FIRST, LAST = "2026-12-01T09:00:00Z", "2026-12-01T10:00:00Z"


def rows(known, **query):
    return shown(known, OverviewQuery(**query), None).errors


def told(*errors):
    return Told(errors, NOW)


def test_the_same_error_is_one_row_whoever_tells_of_it() -> None:
    events = told(error(uuid="", at=LAST, since=FIRST, count=3), error(at=FIRST, count=1))
    known = gathered(NODE, events=events, verdicts=told(error(at=FIRST, since=FIRST, text="by health")))
    (row,) = rows(known)
    assert (row.error.at, row.error.since, row.error.count) == (LAST, FIRST, 4)
    assert (row.place, row.holders) == ("GPU 0", ("ml/train",))
    text = Outline(html_of(known)).text
    assert f"Xid 79 : {row.means}" in text
    assert f"4 times since {FIRST}" in text
    assert "kgpu xid 79" in text
    assert shown(known, OverviewQuery(), None).totals.errors == 1


def test_the_newest_is_first_and_other_gpus_and_codes_have_rows_of_their_own() -> None:
    events = told(error(at=FIRST), error(at=LAST, code="Xid 48"), error(at=FIRST, index=1, uuid="GPU-a-1"))
    assert [(row.error.code, row.place) for row in rows(gathered(NODE, events=events))] == [
        ("Xid 48", "GPU 0"), ("Xid 79", "GPU 0"), ("Xid 79", "GPU 1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"node": "a"}, 1), ({"node": "b"}, 0), ({"namespace": "ml"}, 1), ({"namespace": "ops"}, 0),
        ({"words": "xid 79"}, 1), ({"words": "train"}, 1), ({"words": "nowhere"}, 0),
    ],
)  # fmt: skip
def test_a_filter_holds_for_errors_too(query: dict[str, str], count: int) -> None:
    assert len(rows(gathered(NODE, events=told(error())), **query)) == count


def test_an_xid_that_comes_while_the_page_reads_is_listed_and_an_older_one_only_counted() -> None:
    history = GpuHistory()
    reading = gpu("a", 0)

    def read(xid: int, at: float) -> GpuNode:
        return GpuNode(name="a", gpus=(replace(reading, values={**reading.values, "last_xid": xid}),), read_at=at)

    history.add(read(48, 1_764_600_000), NOW - 20)
    before = gathered(read(48, 1_764_600_000), history=history)
    assert rows(before) == ()
    assert "1 GPU shows an Xid of which nobody says when it came" in html_of(before)
    history.add(read(79, 1_764_600_010), NOW - 10)
    (row,) = rows(gathered(read(79, 1_764_600_010), history=history))
    assert (row.error.code, row.error.at, row.error.count) == ("Xid 79", "2025-12-01T14:40:10Z", None)
    assert rows(gathered(read(79, 1), history=history), words="nowhere") == ()
    assert rows(replace(gathered(read(79, 1), history=history), now=NOW + 90_000)) == ()


@pytest.mark.parametrize(
    ("cause", "linked"),
    [
        ("GPU 0000:3b:00 of node a has fallen off the bus (Xid 79)", True),
        ("GPU 0 (GPU-a-0) of node a (Xid 48, 79, process 7; x)", True),
        ("GPU 1 (GPU-a-1) of node a (Xid 79)", False),
        ("it has errors (Xid 48, process 79)", False),
        ("it has errors (SXid 79)", False),
    ],
)
def test_the_doctors_finding_is_linked_where_it_speaks_of_the_error(cause: str, linked: bool) -> None:
    known = gathered(NODE, events=told(error()), report=[finding("Node a", cause, nodes=("a",))])
    assert (rows(known)[0].finding is not None) == linked
    assert ('<a href="#attention">HW-01 above</a>' in html_of(known)) == linked


def test_a_source_that_is_not_there_is_named_and_the_list_is_not_just_empty() -> None:
    missing = gathered(NODE, events=Told((), None, "events can't be listed"), verdicts=Told(()))
    text = Outline(html_of(missing)).text
    assert "Of Events of nodes: events can't be listed" in text
    assert "Of health's reports nothing is known yet" in text
    assert "None is known." not in text
    assert shown(missing, OverviewQuery(), None).totals.errors is None
    assert "None is known. From Events, which a cluster keeps for an hour" in Outline(html_of(gathered(NODE))).text


def test_whatever_it_says_is_only_text() -> None:
    evil = "<img src=x onerror=alert(1)>\x1b[2J"
    known = gathered(
        NODE,
        events=told(
            error(code=evil, text=evil, pci=evil), error(code="Xid abc"), error(node=evil, uuid=evil, index=None)
        ),
    )
    outline = Outline(html_of(known))
    assert "img" not in {name for name, _ in outline.tags}
    assert "\x1b" not in html_of(known)


def test_a_long_list_is_cut_and_the_page_stays_small() -> None:
    many = told(*(error(f"node-{n}", f"Xid {n % 170}", text="x" * 300, count=n + 1) for n in range(1000)))
    html = html_of(gathered(*fleet(1000), events=many))
    assert f"and {1000 - MOST} more" in html
    assert len(gzip.compress(html.encode())) < FIRST_PAINT


def test_the_legend_says_no_word_twice() -> None:
    words = Outline(html_of(gathered(NODE))).text
    assert "1 held somebody has it, and it does nothing now" in words
    assert "1 free nobody holds it" in words
