"""Edits of TOML text: the data is exactly what was meant, and what was not meant stays as it was written."""

from __future__ import annotations

import copy
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.host.engines.edited import lookup, same
from kgpu.host.engines.toml_edit import TomlFile
from kgpu.host.engines.toml_text import key_text, statements, value_text
from tests.budget import tries
from tests.host.engines.documents import TABLES, VALUES, WORDS, toml_documents

PATHS = st.lists(WORDS, min_size=1, max_size=4).map(tuple)


def is_subsequence(part: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(line in rest for line in part)


@tries(300)
@given(toml_documents())
def test_every_statement_is_found_where_it_is(document) -> None:
    data, text = document
    for one in statements(text):
        if one.is_header:
            assert isinstance(lookup(data, one.table), dict)
        else:
            written = tomllib.loads(f"x = {text[one.value_start : one.value_end]}")["x"]
            assert same(written, lookup(data, one.path))
        assert text[one.end - 1] == "\n" or one.end == len(text)


@tries(400)
@given(toml_documents(), PATHS, st.one_of(VALUES, TABLES))
def test_set_changes_exactly_one_thing(document, path, value) -> None:
    data, text = document
    file = TomlFile(text.encode(), "f")
    expected = copy.deepcopy(data)
    table = expected
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            with pytest.raises(ConfigError):
                file.set(path, value)
            return
    table[path[-1]] = value
    file.set(path, value)
    assert same(tomllib.loads(file.text), expected)
    inline = any(not one.is_header and one.path == path[: len(one.path)] for one in statements(text))
    if lookup(data, path, None) is None and not inline:
        before = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
        assert is_subsequence(before, [line.rstrip("\r") for line in file.text.split("\n")])


@tries(400)
@given(toml_documents(), st.data())
def test_delete_takes_exactly_one_thing(document, data_draw) -> None:
    data, text = document
    paths = [one.path[:depth] for one in statements(text) for depth in range(1, len(one.path) + 1)]
    if not paths:
        return
    path = data_draw.draw(st.sampled_from(paths))
    file = TomlFile(text.encode(), "f")
    file.delete(path)
    assert lookup(file.data, path, None) is None
    expected = copy.deepcopy(data)
    del lookup(expected, path[:-1], expected)[path[-1]]
    # Tables that existed only through what was in them go too, and nothing else.
    assert same(pruned(file.data), pruned(expected))


@tries(200)
@given(toml_documents(), PATHS, VALUES)
def test_what_was_added_can_be_taken_out(document, path, value) -> None:
    data, text = document
    file = TomlFile(text.encode(), "f")
    if lookup(data, path, None) is not None or not all(
        isinstance(lookup(data, path[:depth], {}), dict) for depth in range(1, len(path))
    ):
        return
    file.set(path, value)
    file.delete(path)
    assert same(pruned(file.data), pruned(data))


def pruned(data):
    """Without empty tables."""
    if not isinstance(data, dict):
        return data
    rows = {key: pruned(value) for key, value in data.items()}
    return {key: value for key, value in rows.items() if value != {}}


@pytest.mark.parametrize(
    ("text", "path", "value", "result"),
    [
        ("", ("a",), 1, "a = 1\n"),
        ("# c\n", ("a",), 1, "a = 1\n# c\n"),
        ("a = 1 # one\n", ("a",), 2, "a = 2 # one\n"),
        ("a = 1", ("b",), 2, "a = 1\nb = 2\n"),
        ("[t]\n\tx = 1\n\n[u]\n", ("t", "y"), True, "[t]\n\tx = 1\n\ty = true\n\n[u]\n"),
        ("[t]\n[t.u]\nv = 1\n", ("t", "x"), "y", '[t]\n  x = "y"\n[t.u]\nv = 1\n'),
        ("[t.u]\nv = 1\n", ("t", "x"), "y", '[t.u]\nv = 1\n\n[t]\n  x = "y"\n'),
        ("t.u = 1\n", ("t", "x"), 2, "t.u = 1\nt.x = 2\n"),
        ("t = { u = 1 } # c\n", ("t", "x"), 2, "t = { u = 1, x = 2 } # c\n"),
        ('i = ["a"]\n', ("i",), ["a", "b"], 'i = ["a", "b"]\n'),
        ('i = [\n  "a", # c\n]\n', ("i",), ["a", "b"], 'i = [\n  "a",\n  "b", # c\n]\n'),
        ('i = [ # c\n  "a"\n]\r\n', ("i",), ["a", "b"], 'i = [ # c\n  "a",\r\n  "b"\n]\r\n'),
        ("i = []\n", ("i",), ["a"], 'i = ["a"]\n'),
        ('x = """a\n[t]\n"""\n', ("y",), 1, 'x = """a\n[t]\n"""\ny = 1\n'),
        ("", ("a", "b"), {"c": {"d": 1}}, "[a.b.c]\n  d = 1\n"),
        ("[a]\n", ("a", "b.c"), {}, '[a]\n\n[a."b.c"]\n'),
    ],
)
def test_shape_of_edits(text, path, value, result) -> None:
    file = TomlFile(text.encode(), "f")
    file.set(path, value)
    assert file.text == result


@pytest.mark.parametrize(
    ("text", "path", "result"),
    [
        ("a = 1\nb = 2\n", ("a",), "b = 2\n"),
        ("[t]\nx = 1\n# of u\n[u]\n", ("t",), "# of u\n[u]\n"),
        ("a = 1\n\n[t]\nx = 1\n[t.v]\n\n[u]\n", ("t",), "a = 1\n\n[u]\n"),
        ("[t]\nx.y = 1\nx.z = 2\n", ("t", "x"), "[t]\n"),
        ("t = { u = 1, v = 2 }\n", ("t", "u"), "t = { v = 2 }\n"),
    ],
)
def test_shape_of_deletions(text, path, result) -> None:
    file = TomlFile(text.encode(), "f")
    file.delete(path)
    assert file.text == result


@pytest.mark.parametrize(
    "raw",
    [
        b"a = \n", b"a = 1\na = 2\n", b"\xff\xfe", b"[a\n", b"a = " + b"[" * 5000 + b"]" * 5000, b"x" * (1 << 20) + b"=1\n",
    ],
)  # fmt: skip
def test_broken_text_is_refused_with_three_parts(raw) -> None:
    with pytest.raises(ConfigError) as caught:
        TomlFile(raw, "/etc/containerd/config.toml")
    error = caught.value
    assert error.what.startswith("/etc/containerd/config.toml")
    assert error.expected
    assert error.remedy


def test_a_table_in_an_array_is_not_edited() -> None:
    file = TomlFile(b"[[a]]\nb = 1\n", "f")
    with pytest.raises(ConfigError, match="isn't a table"):
        file.set(("a", "c"), 1)
    assert file.text == "[[a]]\nb = 1\n"


@given(st.one_of(VALUES, TABLES, st.text()))
def test_values_are_written_as_they_are_read(value) -> None:
    assert same(tomllib.loads(f"x = {value_text(value)}")["x"], value)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=3))
def test_keys_are_written_as_they_are_read(path) -> None:
    found = tomllib.loads(f"{key_text(path)} = 1")
    assert lookup(found, tuple(path)) == 1
