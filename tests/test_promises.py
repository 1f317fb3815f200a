"""What the documentation promises is held by tests: ``promises.yaml`` names, for sentences of its pages, the tests.

A row's sentence stands on its page, outside of the generated tables; each of its tests is there, and its figures are the
source's. Every page of how-to and reference has a row. Whether a test asserts what the sentence says is for whoever writes
the row.
"""

from __future__ import annotations

import ast
import functools
import importlib
import operator
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).parent.parent
PROMISES: Final[dict[str, list[dict[str, Any]]]] = yaml.safe_load((ROOT / "tests/promises.yaml").read_text())
ROWS: Final = [(page, row["says"], tuple(row["by"])) for page, rows in PROMISES.items() for row in rows]
GENERATED: Final = re.compile(r"<!-- generated: .*?<!-- end -->", re.DOTALL)
# Measured, by `make bench`, and written down; no test asserts a duration.
MEASURED: Final = frozenset({"docs/reference/figures.md"})


@functools.cache
def words_of(page: str) -> str:
    """The hand-written text of a page, on one line."""
    return one_line(GENERATED.sub("", (ROOT / page).read_text()))


def one_line(text: str) -> str:
    return " ".join(text.split())


@functools.cache
def named_tests(file: str) -> frozenset[str]:
    """The names of a file's tests; none for a file that is not there."""
    path = ROOT / "tests" / file
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def missing(page: str, says: str, tests: tuple[str, ...]) -> list[str]:
    """What a row names and what is not there; a row without tests lacks them."""
    lacks = [] if one_line(says) in words_of(page) else [f"{page} doesn't say: {says}"]
    lacks += [
        f"no test {test}" for test in tests if test.partition("::")[2] not in named_tests(test.partition("::")[0])
    ]
    return lacks or ([] if tests else [f"no test for: {says}"])


@pytest.mark.parametrize("page", PROMISES)
def test_what_a_page_promises_stands_there_and_has_its_tests(page: str) -> None:
    assert [lack for row in ROWS if row[0] == page for lack in missing(*row)] == []


FIGURES: Final = {
    place: (page, value)
    for page, rows in PROMISES.items()
    for row in rows
    for place, value in row.get("figures", {}).items()
}


@pytest.mark.parametrize("place", FIGURES)
def test_a_figure_of_a_sentence_is_the_sources(place: str) -> None:
    page, value = FIGURES[place]
    module, _, name = place.partition(":")
    assert operator.attrgetter(name)(importlib.import_module(module)) == value, f"{page} says otherwise"


def test_every_page_of_how_to_and_reference_has_a_promise_with_a_test() -> None:
    pages = {str(path.relative_to(ROOT)) for part in ("how-to", "reference") for path in ROOT.glob(f"docs/{part}/*.md")}
    assert pages - MEASURED - PROMISES.keys() == set()


def test_a_row_of_what_is_not_there_is_found() -> None:
    here = "test_promises.py::test_a_row_of_what_is_not_there_is_found"
    assert missing("README.md", "kgpu makes accelerators usable on Kubernetes", (here,)) == []
    assert missing("README.md", "kgpu makes coffee", (here,)) == ["README.md doesn't say: kgpu makes coffee"]
    assert missing("README.md", "kgpu makes accelerators usable", ("test_promises.py::test_none", "no.py::test_a")) == [
        "no test test_promises.py::test_none", "no test no.py::test_a",
    ]  # fmt: skip
    assert missing("README.md", "kgpu makes accelerators usable", ()) != []
