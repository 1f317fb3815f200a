"""Settings as rows: who wins, what counts as given, and what is told of what changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.go_flags import read_bool
from kgpu.formats.settings import (
    WITHOUT_EFFECT,
    FlagShape,
    Setting,
    choice,
    read_list,
    refuse,
    resolve,
    some_of,
    switch,
    without_effect,
)

ROW = Setting(attr="color", flag="--color", envs=("COLOR", "OLD_COLOR"), key="look.color", default="red")
EMPTY = Setting(attr="path", flag="--path", envs=("A_PATH",), empty_counts=True, default="/usr")
IDLE = Setting(attr="hook", flag="--hook", envs=("HOOK",), key="a.hook", default="x", idle="there are no hooks")
GONE = Setting(attr="file", flag="--file", envs=("A_FILE",), idle="it reads no such file", instead="use --color")


def value(row: Setting, **sources: Any) -> Any:
    return resolve((row,), **sources).values[row.attr]


def test_flag_beats_the_first_variable_beats_the_next_beats_the_file_beats_the_default() -> None:
    sources: dict[str, Any] = {
        "flags": {"color": "1"}, "env": {"COLOR": "2", "OLD_COLOR": "3"}, "file": {"look.color": "4"},
    }  # fmt: skip
    assert value(ROW, **sources) == "1"
    assert value(ROW, env=sources["env"], file=sources["file"]) == "2"
    assert value(ROW, env={"OLD_COLOR": "3"}, file=sources["file"]) == "3"
    assert value(ROW, file=sources["file"]) == "4"
    assert value(ROW) == "red"


def test_where_a_value_was_given_is_known() -> None:
    found = resolve((ROW, EMPTY), env={"OLD_COLOR": "blue"})
    assert {attr: (one.value, one.where) for attr, one in found.given.items()} == {"color": ("blue", "OLD_COLOR")}


@pytest.mark.parametrize("nothing", [None, ()])
def test_a_flag_that_is_not_there_is_not_given(nothing: Any) -> None:
    assert value(ROW, flags={"color": nothing}) == "red"


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_variable_counts_where_the_row_says_so(text: str) -> None:
    assert value(ROW, env={"COLOR": text}) == "red"
    assert value(EMPTY, env={"A_PATH": text}) == text


def test_a_default_is_read_like_what_is_given_where_the_row_says_so() -> None:
    assert value(switch("on", "--on", "", default="true", reads_default=True)) is True
    assert value(switch("on", "--on", "", default=False)) is False


@pytest.mark.parametrize(
    ("sources", "where"),
    [
        ({"flags": {"on": "maybe"}}, "--on"), ({"env": {"ON": "maybe"}}, "ON"), ({"file": {"a.on": "maybe"}}, "a.on"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_by_its_place(sources: dict[str, Any], where: str) -> None:
    row = Setting(
        attr="on", flag="--on", envs=("ON",), key="a.on", read=read_bool, shape=FlagShape.SWITCH, default=False
    )
    with pytest.raises(ConfigError) as refused:
        value(row, **sources)
    assert refused.value.what.startswith(f"{where}: ")


def test_one_of_a_few_words_says_what_was_meant() -> None:
    read = choice(("mixed", "single"), "unknown strategy: ")
    assert read(" mixed ", "--s") == "mixed"
    with pytest.raises(ConfigError) as refused:
        read("mixd", "--s")
    assert refused.value.what == "--s: unknown strategy: mixd"
    assert refused.value.expected == "one of mixed, single"
    assert 'did you mean "mixed"' in refused.value.remedy


def test_some_of_a_few_words() -> None:
    assert some_of(("a", "b"), "bad: ")(["a,b", "a"], "--l") == ("a", "b")
    with pytest.raises(ConfigError, match="--l: bad: c"):
        some_of(("a", "b"), "bad: ")("a,c", "--l")
    with pytest.raises(ConfigError, match="--l: bad: "):
        some_of(("a", "b"), "bad: ", needed=True)("", "--l")


@given(st.lists(st.text("ab, ", max_size=6), max_size=4))
def test_a_list_has_each_word_once_and_none_that_is_empty(texts: list[str]) -> None:
    found = read_list(texts, "")
    assert len(set(found)) == len(found)
    assert set(found) == {word.strip() for text in texts for word in text.split(",")} - {""}


def test_what_changes_nothing_is_told_where_another_value_is_given() -> None:
    assert list(without_effect((ROW, IDLE), resolve((ROW, IDLE), env={"HOOK": "x", "COLOR": "blue"}))) == []
    (told,) = without_effect((ROW, IDLE), resolve((ROW, IDLE), env={"HOOK": "/opt/hook"}))
    assert (told.reason, told.subject, told.what) == (WITHOUT_EFFECT, "HOOK", "HOOK has no effect")
    assert told.remedy == "take --hook or HOOK or a.hook out"


def test_what_is_refused_says_what_to_use() -> None:
    refuse((GONE,), flags={}, env={"A_FILE": ""}, among="the other flags")
    with pytest.raises(ConfigError) as refused:
        refuse((ROW, GONE), flags={"color": "red"}, env={"A_FILE": "/x"}, among="the other flags")
    assert refused.value.what == "A_FILE is refused: it reads no such file"
    assert (refused.value.expected, refused.value.remedy) == ("the other flags without A_FILE", "use --color")
