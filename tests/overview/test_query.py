"""What an address asks for, whatever it has."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.overview.model import OverviewQuery
from kgpu.overview.pieces import link
from kgpu.overview.query import MOST_NAME, MOST_WORDS, parse
from kgpu.top.sorts import SORTS
from tests.budget import tries
from tests.overview.making import gathered, html_of


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("", OverviewQuery()),
        ("q=a+b&node=n&ns=ml&sort=power&page=3", OverviewQuery(words="a b", node="n", namespace="ml", sort="power", page=3)),
        ("q=%00%0a%20x", OverviewQuery(words="\ufffd x")),
        ("stamp=1&token=2", OverviewQuery()),
    ],
)  # fmt: skip
def test_a_query(text, query) -> None:
    assert parse(text) == query
    assert parse(text).notes == ()


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("sort=<b>", "There is no order <b>"),
        ("page=0", "The page is no number."),
        ("page=-1", "The page is no number."),
        ("page=" + "9" * 30, "The page is no number."),
        ("page=²", "The page is no number."),
        ("colour=red", "The address's colour is not known."),
        ("&".join(f"a{n}=1" for n in range(40)), "too many fields"),
    ],
)
def test_what_is_not_understood_is_told(text, note) -> None:
    query = parse(text)
    assert (query.sort, query.page) == ("health", 1)
    assert any(note in said for said in query.notes)
    html_of(gathered(), query)


@tries(200)
@given(text=st.text())
def test_any_query_is_some_query(text) -> None:
    query = parse(text)
    assert len(query.words) <= MOST_WORDS
    assert len(query.node) <= MOST_NAME
    assert query.sort in SORTS
    assert query.page >= 1


@tries(200)
@given(
    words=st.text(alphabet=st.characters(min_codepoint=33, categories=("L", "N", "P")), max_size=30),
    node=st.from_regex(r"[a-z0-9.-]{0,30}", fullmatch=True), sort=st.sampled_from(sorted(SORTS)), page=st.integers(1, 999),
)  # fmt: skip
def test_a_link_leads_to_what_it_was_made_of(words, node, sort, page) -> None:
    query = OverviewQuery(words=words, node=node, sort=sort, page=page)
    assert parse(link(query).removeprefix("./?")) == query
    assert urlencode({"q": words}) in link(query) or not words
