"""Each row of the documents about idle GPUs, cost, placement and sharing has a test that shows it, or a reason that
``docs/explanation/decisions.md`` gives.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.parity.answers import lacks, rows_of

ROWS: Final[list[dict[str, Any]]] = rows_of("usage")
ALL: Final = [
    "B01",
    "B64",
    "B65",
    "B74",
    "B75",
    "C13",
    "C14",
    "C15",
    "C16",
    "C17",
    "C24",
    "C43",
    "C49",
    "D01",
    "D40",
    "D62",
    "E01",
]


def test_every_row_has_one_answer() -> None:
    assert sorted(one for row in ROWS for one in row["rows"].split(", ")) == ALL


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["rows"].replace(", ", " "))
def test_an_answer_is_shown_or_has_its_reason(row: dict[str, Any]) -> None:
    assert lacks(row) == []
