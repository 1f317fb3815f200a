"""Every complaint, case and proof of ``sources.yaml`` has tests that are there, or a reason why it has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.test_promises import named_tests

SOURCES: Final[dict[str, list[dict[str, Any]]]] = yaml.safe_load((Path(__file__).parent / "sources.yaml").read_text())
ROWS: Final = [row for rows in SOURCES.values() for row in rows]
SHORTEST: Final = 30
"""The fewest characters of a reason that says something."""


def lacks(row: dict[str, Any]) -> list[str]:
    """What is wrong with a row."""
    tests, why_not = row.get("tests", []), row.get("why_not", "")
    wrong = [f"no test {test}" for test in tests if not _is_there(test)]
    if bool(tests) is bool(why_not):
        wrong.append("it has either tests or a reason why not")
    if why_not and (len(why_not) < SHORTEST or not why_not.endswith(".")):
        wrong.append("its reason is no sentence")
    if row.keys() - {"of", "says", "tests", "why_not"} or not (row.get("of") and row.get("says")):
        wrong.append("it says of what, and what")
    return [f"{row.get('of')}: {row.get('says')}: {what}" for what in wrong]


def _is_there(test: str) -> bool:
    """Whether pytest collects it: a function of a file of tests, both with the names that it looks for."""
    file, _, name = test.partition("::")
    return Path(file).name.startswith("test_") and name in named_tests(file)


@pytest.mark.parametrize("part", SOURCES)
def test_every_row_has_its_tests_or_a_reason(part: str) -> None:
    assert [lack for row in SOURCES[part] for lack in lacks(row)] == []


def test_no_fact_stands_twice() -> None:
    facts = [(row["of"], row["says"]) for row in ROWS]
    assert len(facts) == len(set(facts))


@pytest.mark.parametrize("line", range(1, 13))
def test_every_line_of_the_proofs_has_rows(line: int) -> None:
    assert [row for row in SOURCES["proofs"] if row["of"] == str(line) and row.get("tests")]


@pytest.mark.parametrize(
    "row",
    [
        {"of": "x#1", "says": "it fails"},
        {"of": "x#1", "says": "it fails", "tests": []},
        {"of": "x#1", "says": "it fails", "why_not": "later"},
        {"of": "x#1", "says": "it fails", "why_not": ""},
        {"of": "x#1", "says": "it fails", "tests": ["operations/test_plan.py::test_that_nobody_has_written"]},
        {"of": "x#1", "says": "it fails", "tests": ["operations/world.py::Cluster"]},
        {"of": "x#1", "says": "it fails", "tests": ["operations/test_gone.py::test_x"]},
        {"says": "it fails", "why_not": "There is a sentence that says why it has none."},
        {"of": "x#1", "says": "it fails", "test": ["operations/test_sources.py::test_no_fact_stands_twice"]},
    ],
    ids=str,
)
def test_a_row_without_proof_is_found(row: dict[str, Any]) -> None:
    assert lacks(row)
