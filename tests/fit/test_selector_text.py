"""Selectors as text: what ``kubectl --selector`` accepts, what it means, and what is refused (apimachinery's cases)."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.fit.selector_text import MAX_TEXT, parse_selector

LABELS = {"app": "train", "tier": "gpu", "empty": "", "in": "x", "example.org/team": "a.b_c-1"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("  \n", True),
        ("app", True),
        ("nope", False),
        ("!nope", True),
        ("! nope", True),
        ("!app", False),
        ("app=train", True),
        ("app==train", True),
        (" app = train ", True),
        ("app=web", False),
        ("app!=web", True),
        ("nope!=web", True),
        ("app!=train", False),
        ("empty=", True),
        ("app=", False),
        ("app in (web,train)", True),
        ("app in(web, train )", True),
        ("app in (web)", False),
        ("nope in (web)", False),
        ("app notin (web)", True),
        ("nope notin (web)", True),
        ("app notin (web,train)", False),
        ("empty in ()", True),
        ("empty in (x,)", True),
        ("example.org/team=a.b_c-1", True),
        ("app=train,tier=gpu", True),
        ("app=train , tier!=gpu", False),
        ("app in (train,web),!nope,tier,empty notin (x)", True),
        ("in", True),
        ("in in (x)", True),
        ("in=x,notin!=x", True),
    ],
)
def test_what_a_selector_means(text: str, matches: bool) -> None:
    selector = parse_selector(text)
    assert selector.error == ""
    assert selector.matches(LABELS) is matches


@pytest.mark.parametrize(
    "text",
    [
        ",",
        "app,",
        "app, ",
        ",app",
        "app,,tier",
        "!",
        "app!",
        "app! =train",
        "!app=train",
        "app in",
        "app in train",
        "app in (train",
        "app in train)",
        "app in ((train))",
        "app notin",
        "app=train tier=gpu",
        "app=(train)",
        "app===train",
        "app=!train",
        "app>1",
        "app<1",
        "=train",
        "app=no value!",
        "app=-train",
        "app in (-train)",
        "-app",
        "a/b/c=d",
        "/app=train",
        "app=train\x00",
        "åpp=train",
        "app=tråin",
        "app=" + "x" * 64,
        "a" * 64,
        "x" * (MAX_TEXT + 1),
    ],
)
def test_what_is_none_matches_nothing_and_says_why(text: str) -> None:
    selector = parse_selector(text)
    assert selector.error
    assert not selector.matches(LABELS)
    assert not selector.matches({})


@given(st.text(alphabet="ab,=!() in\n", max_size=60))
def test_no_text_breaks_it(text: str) -> None:
    selector = parse_selector(text)
    if selector.error:
        assert not selector.matches({"a": "b"})


@pytest.mark.parametrize("text", ["a " * 2047, "a" + " " * 4094, "(" * MAX_TEXT, "a in (" + "," * 4080, "!" * MAX_TEXT])
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    parse_selector(text)
    assert time.process_time() - began < 2.0
