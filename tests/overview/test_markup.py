"""No text becomes a tag: whatever pods, nodes, labels and messages are called, the page has the same elements."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgpu.overview.markup import Markup, joined, tag, text
from kgpu.overview.model import (
    LabButtons,
    OverviewQuery,
    PendingPod,
    Told,
    ToldEvidence,
    ToldIdle,
    ToldIdleness,
)
from kgpu.overview.plan import shown
from kgpu.overview.render import parts
from kgpu.overview.views import LiveView
from kgpu.top.model import GpuHealth
from tests.budget import tries
from tests.overview.making import NOW, Outline, finding, gathered, gpu, html_of, node

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='x", "</title></main>", "<!--", "]]>",
    "&lt;b&gt;", "\x00\x1b[2J\x07", "\u202eevil", "a\nevent: page\ndata: <b>x</b>\n\n", "javascript:alert(1)", "\ud800", "`${x}`",
)  # fmt: skip


def page_of(word: str) -> str:
    """A page in which every text that comes from outside is ``word``."""
    report = (
        finding(word, word, evidence=(ToldEvidence(value=word, object=word, field=word),), remedy=(word, f"kubectl {word}"),
                nodes=(word,), pods=(word,), expected=word, level="wait", consequences=(finding(word, word),)),
    )  # fmt: skip
    idle = ToldIdle(
        who=word, kind=word, state=word, gpus=1, per_hour=1, currency=word, where=word, since=word, wasted=1
    )
    known = gathered(
        node(word, gpu(word, 0, f"ns{word}/{word}", health=GpuHealth.BAD, reason=word, action=word)),
        node(f"x{word}", gpu("x", 0), trouble=word),
        report=report,
        waiting=Told((PendingPod(namespace=word, name=word, asks=((word, 1),), since=word),), NOW, word),
        idleness=Told(ToldIdleness(idle=(idle,), silent={word: word}), NOW, word),
        trouble=word,
        remedy=word,
    )
    lab = LabButtons(secret=word, nodes=frozenset({word}), actions=((word, word),))
    return html_of(known, OverviewQuery(notes=(word,)), lab=lab)


# The same number of lines, slashes and blanks as in what it stands for decides nothing but what texts say.
PLAIN = Outline(page_of("plain")).tags


@pytest.mark.parametrize("word", HOSTILE)
def test_hostile_text_changes_no_element(word) -> None:
    outline = Outline(page_of(word))
    assert [tag for tag, _ in outline.tags if tag == "script"] == ["script"]
    assert {tag for tag, _ in outline.tags} == {tag for tag, _ in PLAIN}
    assert not [row for row in outline.attributes if row[1].startswith("on") or row[1] == "style"]
    addresses = [value for _, name, value in outline.attributes if name in {"href", "src", "action"}]
    assert all(value.startswith(("./", "#", "style.css", "page.js", "lab", "data:,")) for value in addresses)


@tries(200)
@given(word=st.text(max_size=40))
@example(word="0 0")
@example(word="<b>")
def test_any_text_leaves_the_elements_as_they_are(word) -> None:
    # Not the markup's: whether a step is a command or has lines, and whose a workload is.
    word = " ".join(word.replace("/", "-").splitlines())
    assert Outline(page_of(f"x {word}")).tags == PLAIN


@tries(200)
@given(word=st.text(max_size=60))
def test_text_comes_out_as_it_went_in_but_for_what_cant_be_seen(word) -> None:
    class Reader(Outline):
        pass

    reader = Reader(tag("p", word, title=word))
    visible = "".join(char if char.isprintable() else "\ufffd" for char in word)
    assert "".join(reader.texts) == visible
    assert [value for _, _, value in reader.attributes] == [visible]


@pytest.mark.parametrize("word", HOSTILE)
def test_no_text_begins_an_event_of_its_own(word) -> None:
    view = LiveView()
    page = shown(gathered(node("a", gpu("a", 0, f"ml/{word}")), report=[finding(cause=word)]), OverviewQuery(), None)
    view.put(parts(page))
    sent = view.since("").decode()
    assert [line for line in sent.split("\n") if line and not line.startswith("data: ")] == [
        "event: page",
        f"id: {view.stamp}",
    ]
    assert sent.count("\n\n") == 1


def test_what_is_markup_stays_so() -> None:
    assert tag("p", tag("b", "<"), " & ", None, 3) == "<p><b>&lt;</b> &amp; 3</p>"
    assert tag("input", type="text", aria_label="x", for_="y", hidden=True, disabled=False, title=None) == (
        '<input type="text" aria-label="x" for="y" hidden>'
    )
    assert isinstance(joined("a", Markup("<br>")), Markup)
    assert text(None) == ""
