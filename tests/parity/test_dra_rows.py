"""Every feature of NVIDIA's DRA driver has an answer (``dra_rows.yaml``): a test that shows it, or a reason that
``docs/explanation/decisions.md`` gives to everybody.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.parity.answers import lacks, numbers, rows_of

ROWS: Final[list[dict[str, Any]]] = rows_of("dra")
ALL: Final = "1-44"


def test_every_row_has_one_answer() -> None:
    found = [number for row in ROWS for number in numbers(row["rows"])]
    assert sorted(found) == sorted(numbers(ALL))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["rows"].replace(", ", " "))
def test_an_answer_is_shown_or_has_its_reason(row: dict[str, Any]) -> None:
    assert lacks(row) == []
