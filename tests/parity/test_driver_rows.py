"""Every feature of NVIDIA's drivers' side has an answer (``driver_rows.yaml``): a test that shows it, or a reason that
``docs/explanation/decisions.md`` gives to everybody. What was open of the rest of that operator has one, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import pytest

from tests.parity.answers import lacks, numbers, rows_of

ROWS: Final[list[dict[str, Any]]] = rows_of("driver")
DRIVERS: Final = "85-175, 377-473, 573-575, 577, 580, 599, 602, 653-674, 683-687, 695, 720-721"
"""The rows of sheet 1 that are about drivers, whatever they were once answered with."""
OPEN: Final = (
    "1-12, 26-30, 32-37, 40, 47-48, 53-54, 57, 76, 78-81, 83, 135-151, 180, 182-183, 185, 210-220, 223-238, 240, 243, "
    "245-246, 248, 274-288, 290, 293, 295-296, 299, 302, 305-306, 308, 310-313, 315-317, 319-376, 474-553, 575-576, "
    "584-585, 588, 590-595, 597, 602, 608-609, 621-630, 642, 650, 653-674, 683-687, 695, 709-710, 713-714, 720-721"
)
"""The rows of sheet 1 that were once answered with no or partly; those about OpenShift have answers elsewhere."""
OPENSHIFT: Final = {10: {33}}
ALL: Final = {10: "1-44"}


def answered(sheet: int) -> Iterable[int]:
    return (number for row in ROWS if row["sheet"] == sheet for number in numbers(row["rows"]))


def test_every_row_has_one_answer() -> None:
    assert numbers(DRIVERS) | numbers(OPEN) <= set(answered(1))
    assert numbers(ALL[10]) - OPENSHIFT[10] == set(answered(10))
    for sheet in (1, 10):
        assert [number for number, times in Counter(answered(sheet)).items() if times > 1] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['sheet']}:{re.sub(r'[ ,]+', ' ', row['rows'])[:40]}")
def test_an_answer_is_shown_or_has_its_reason(row: dict[str, Any]) -> None:
    assert lacks(row) == []
