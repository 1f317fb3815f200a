"""YAML as Go programs read it; hostile texts are errors, never crashes."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats import yaml
from kgpu.formats.yaml import dump, load, load_all, load_document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12:30:45", "12:30:45"), ("1e3", 1000.0), ("2020-01-01", "2020-01-01"), ("y", True), ("N", False), ("off", False),
        ("0777", 511), ("0o17", 15), ("0x1F", 31), ("0b101", 5), ("1_000", 1000), ("-3", -3), ("+3", 3), ("1.50", 1.5),
        (".5", 0.5), ("~", None), ("null", None), ("''", ""), ("'y'", "y"), ("!!str 5", "5"), ("08", 8.0), ("v1", "v1"),
        ("1.2.3", "1.2.3"), ("-", [None]), ("=", "="), ("18446744073709551615", 2**64 - 1), ("1e999", "1e999"),
        ("18446744073709551616", float(2**64)), ("'<<'", "<<"), ("0x", "0x"), ("1__", 1),
    ],
)  # fmt: skip
def test_scalars_as_go_reads_them(text: str, value: Any) -> None:
    got = load(text)
    assert got == value
    assert type(got) is type(value)


def test_keys_become_text() -> None:
    assert load("1: a\ny: b\n2.5: c\n~: d\n") == {"1": "a", "true": "b", "2.5": "c", "null": "d"}


def test_anchors_and_merges() -> None:
    text = "base: &b {x: 1, z: 2}\none: {<<: *b, x: 5}\nmany: {<<: [{x: 7}, *b]}\n"
    assert load(text) == {"base": {"x": 1, "z": 2}, "one": {"x": 5, "z": 2}, "many": {"x": 7, "z": 2}}


def test_json_is_yaml() -> None:
    value = {"a": [1, 2.5, None, True, "x\ty é \u2028"], "b": {"c": ""}}
    assert load(json.dumps(value)) == value
    assert load(json.dumps(value, indent="\t", ensure_ascii=False).replace("\u2028", "\\u2028")) == value


def test_documents() -> None:
    assert load("") is None
    assert load("# only a comment\n") is None
    assert load_all("--- 1\n---\n--- {a: 2}\n") == [1, {"a": 2}]
    with pytest.raises(ConfigError, match="2 documents"):
        load("--- 1\n--- 2\n")


def test_lines_are_known() -> None:
    document = load_document("a:\n  b:\n  - x\n  - c: 1\n")
    assert [document.line(path) for path in [(), ("a",), ("a", "b", 1), ("a", "b", 1, "c"), ("a", "q")]] == [
        1,
        1,
        4,
        4,
        1,
    ]


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", ['line 3: key "a" is there twice', "line 1"]),
        ("x: {a: 1, a: 2}", ['key "a" is there twice']),
        ("a: b: c", ["line 1, column 5"]),
        ("a:\n\t- b", ["line 2"]),
        ("[" * 100_000, ["nested deeper"]),
        ("- " * 50_000, ["nested deeper"]),
        ("{a: " * 50_000, ["nested deeper"]),
        (BOMB, ["more than"]),
        ("a: &x [*x]", ["alias *x"]),
        ("*nothing", ["alias *nothing"]),
        ("!!python/object:os.system x", ["tag"]),
        ("!!binary aGk=", ["tag"]),
        ("!custom {a: 1}", ["tag !custom"]),
        ("!!int x", ["is not what its tag"]),
        ("a: .inf", ["can't be carried in JSON"]),
        ("a: .NaN", ["can't be carried in JSON"]),
        ("? [1]\n: 2", ["can't be a key"]),
        ("a: {<<: 5}", ["takes a mapping"]),
        ("\x00", ["error parsing"]),
        ("'", ["error parsing"]),
        (b"\xff\xfe\xff", ["not UTF-8"]),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str | bytes, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        load(text, source="FILE")
    assert all(word in refused.value.what for word in ["FILE", *words])
    assert refused.value.expected
    assert refused.value.remedy


def test_a_huge_text_is_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml, "MAX_BYTES", 10)
    with pytest.raises(ConfigError, match="larger than"):
        load("a" * 11)


TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.sampled_from(
        ["y", "null", "1e3", "0777", "<<", "12:30", "- a", "a: b", "# c", "0x1", "_1", "2020-01-01", "", " x "]
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcxyz01 :-", max_size=6), inner, max_size=4),
    max_leaves=20,
)


@given(TREES)
def test_what_is_dumped_is_loaded_again(value: Any) -> None:
    assert load(dump(value)) == value


def test_a_key_may_be_there_twice_for_who_asks_what_was_lost() -> None:
    text = "x:\n  a: 1\n  a:\n    b: 1\n    b: 2\n7: 1\n7: 2\nx: {c: 1}\n"
    found = load_document(text, repeated=True)
    assert found.value == {"x": {"c": 1}, "7": 2}
    assert found.repeated == [(5, "b"), (4, "a"), (7, 7), (8, "x")]


@given(TREES)
def test_json_texts_load_as_json(value: Any) -> None:
    text = json.dumps(value)
    if "\\ud" in text:
        # Surrogate pairs are JSON's way beyond 16 bits; YAML has none, in Go neither.
        return
    assert load(text) == value


@given(st.one_of(st.text(max_size=200), st.text("{}[]:,-&*!|>'\"%@`#?\n\t ab1.", max_size=60), st.binary(max_size=100)))
def test_any_text_is_a_value_or_a_three_part_error(text: str | bytes) -> None:
    parts = None
    try:
        json.dumps(load(text), allow_nan=False)
    except ConfigError as problem:
        parts = problem
    assert parts is None or (parts.expected and parts.remedy)


@pytest.mark.parametrize("read", [load, load_document])
@pytest.mark.parametrize("text", ["[" * 90 + "a," * 150_000 + "a" + "]" * 90, "- {b: {c: 1}}\n" * 30_000])
def test_memory_grows_with_what_is_there_and_not_with_its_depth(read: Any, text: str) -> None:
    """2 MB took 880: each value had its whole path beside it."""
    tracemalloc.start()
    try:
        read(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 120 * len(text)


def test_a_line_within_a_merge_or_under_an_index_is_known() -> None:
    document = load_document("a: &a\n  x: 1\nb:\n  <<: *a\n  q:\n  - 1\n  -\n    z: 2\n")
    assert [document.line(path) for path in [("b", "q", 1, "z"), ("b", "<<"), ("b", "x"), ("a", "x"), ("n",)]] == [
        8, 4, 3, 2, 1
    ]  # fmt: skip
