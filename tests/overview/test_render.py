"""The page at every size: well-formed, usable without a script, nothing from outside, and small."""

from __future__ import annotations

import gzip
import itertools
import re
from dataclasses import replace

import pytest

from kgpu.overview.model import KnownCluster, LabButtons, OverviewQuery
from kgpu.overview.plan import shown
from kgpu.overview.render import parts
from kgpu.overview.serve import FOLDER
from kgpu.top.history import GpuHistory
from tests.overview.making import NOW, Outline, finding, fleet, gathered, gpu, html_of, node

SIZES = {0: (), 1: (node("a", gpu("a", 0)),), 8: fleet(1), 128: fleet(16), 8000: fleet(1000)}
FIRST_PAINT = 60_000
"""Bytes, packed, of the page with its style and script."""


@pytest.mark.parametrize("gpus", SIZES)
def test_the_page_is_well_formed_and_takes_nothing_from_outside(gpus) -> None:
    outline = Outline(html_of(gathered(*SIZES[gpus])))
    ids = [value for _, name, value in outline.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    named = [value for _, name, value in outline.attributes if name in {"aria-labelledby", "aria-controls", "for"}]
    assert set(named) <= set(ids)
    assert not [value for _, _, value in outline.attributes if "//" in value]
    assert not [row for row in outline.attributes if row[1] == "style"]
    assert ("html", ("lang",)) in outline.tags
    headings = [tag for tag, _ in outline.tags if re.fullmatch(r"h\d", tag)]
    assert all(int(after[1]) - int(before[1]) <= 1 for before, after in itertools.pairwise(headings))


@pytest.mark.parametrize("gpus", SIZES)
def test_the_first_paint_is_small(gpus) -> None:
    files = [(FOLDER / name).read_bytes() for name in ("style.css", "page.js")]
    assert sum(len(gzip.compress(data)) for data in (html_of(gathered(*SIZES[gpus])).encode(), *files)) < FIRST_PAINT


def test_style_and_script_name_no_other_server() -> None:
    for name in ("style.css", "page.js"):
        assert "//" not in re.sub(r"^//.*", "", (FOLDER / name).read_text(), flags=re.MULTILINE)
        assert "@import" not in (FOLDER / name).read_text()


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (KnownCluster(now=0), "being read for the first time"),
        (gathered(), "No GPU nodes: no node has an exporter"),
        (KnownCluster(now=0, found=True, trouble="the API server refused it", remedy="log in"), "To do: log in"),
    ],
)
def test_what_is_empty_says_why(known, words) -> None:
    assert words in Outline(html_of(known)).text


def test_a_filter_that_finds_nothing_says_so() -> None:
    assert "Nothing is like this filter" in html_of(gathered(*fleet(1)), OverviewQuery(node="nowhere"))


def test_a_node_says_in_words_what_its_cells_show() -> None:
    labels = [value for _, name, value in Outline(html_of(gathered(*fleet(40)))).attributes if name == "aria-label"]
    assert "node-3: 8 GPUs: 4 busy, 4 free" in labels


@pytest.mark.parametrize("gpus", [8, 128])
def test_buttons_are_in_a_lab_alone(gpus) -> None:
    known = gathered(*SIZES[gpus])
    assert 'method="post"' not in html_of(known)
    lab = LabButtons(secret="s3", nodes=frozenset({"node-0"}), actions=(("lose", "Lose"),))
    forms = html_of(known, lab=lab).count('action="lab"')
    assert forms == 8
    assert 'action="lab"' not in html_of(known, lab=replace(lab, nodes=frozenset()))


def test_a_change_of_one_node_changes_one_part_of_the_map() -> None:
    def found(nodes):
        return parts(shown(gathered(*nodes), OverviewQuery(), None))

    nodes = list(fleet(200))
    before = found(nodes)
    nodes[130] = node("node-130", *(gpu("node-130", i, "ml/other", busy=99) for i in range(8)))
    after = found(nodes)
    changed = [name for name in after if name.startswith("map-") and after[name] != before[name]]
    assert list(before) == list(after)
    assert set(changed) <= {"map-0", "map-2"}  # the legend's counts, and the node


@pytest.mark.parametrize(("looked", "words"), [(5.0, "a moment"), (200.0, "over 3 min")])
def test_how_long_a_gpu_has_done_nothing_reads_as_a_time(looked: float, words: str) -> None:
    still, history = node("a", gpu("a", 0)), GpuHistory()
    history.add(still, NOW - looked)
    text = Outline(html_of(gathered(still, history=history))).text
    assert words in text
    assert "over now" not in text


@pytest.mark.parametrize(("count", "said"), [(1, "and 1 thing that follows"), (2, "and 2 things that follow")])
def test_what_follows_from_a_finding_is_counted(count: int, said: str) -> None:
    row = finding(consequences=tuple(finding(id=f"SCH-0{n}") for n in range(count)))
    assert f"Proof (HW-01), {said}" in html_of(gathered(node("a", gpu("a", 0)), report=[row]))
