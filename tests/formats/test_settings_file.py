"""Config files whose keys are rows: sections from dots, and the values that the file gives."""

from __future__ import annotations

from kgpu.formats.settings import Setting, read_unchanged, resolve
from kgpu.formats.settings_file import table_of, values_of
from kgpu.formats.strict import Problems, boolean, read_table, text
from kgpu.formats.yaml import load_document

ROWS = (
    Setting(attr="name", key="name", read_file=text, read=read_unchanged),
    Setting(attr="bright", key="look.light.bright", read_file=boolean, read=read_unchanged, default=True),
    Setting(attr="color", key="look.color", read_file=text, read=read_unchanged, default="red"),
)


def given(content: str) -> tuple[dict[str, object], list[str]]:
    document = load_document(content, source="a.yaml")
    table = table_of(ROWS)
    problems = Problems("a.yaml", document, table)
    tree = read_table(problems, (), document.value, table)
    return values_of(ROWS, tree), [problem.what for problem in problems.found]


def test_keys_with_dots_are_sections() -> None:
    assert given("name: x\nlook: {light: {bright: false}}\n") == ({"name": "x", "look.light.bright": False}, [])
    assert given("") == ({}, [])


def test_what_the_file_does_not_give_is_the_default() -> None:
    values, _ = given("look: {light: {bright: false}}\n")
    resolved = resolve(ROWS, file=values)
    assert resolved.values == {"name": "", "bright": False, "color": "red"}
    assert {attr: value.where for attr, value in resolved.given.items()} == {"bright": "look.light.bright"}


def test_problems_have_their_lines() -> None:
    _, problems = given("look:\n  light: {bright: 3}\n  colour: blue\n")
    assert ["line 2" in problems[0], "line 3" in problems[1]] == [True, True]
