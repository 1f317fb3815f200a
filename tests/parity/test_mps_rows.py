"""Every feature of NVIDIA's device plugin that is about MPS has a test that shows it (``mps_rows.yaml``)."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.parity.answers import lacks, numbers, rows_of

ROWS: Final[list[dict[str, Any]]] = rows_of("mps")
ALL: Final = "16, 46, 57, 105, 112-121, 123-124"
"""The rows of sheet 2; the DaemonSet (122) is the operator's."""


def test_every_row_has_one_answer() -> None:
    found = [number for row in ROWS for number in numbers(row["rows"])]
    assert sorted(found) == sorted(numbers(ALL))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["rows"].replace(", ", " "))
def test_an_answer_is_shown(row: dict[str, Any]) -> None:
    assert row["now"] == "yes"
    assert lacks(row) == []
