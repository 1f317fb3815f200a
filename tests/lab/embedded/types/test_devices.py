"""Claims, templates, classes and slices are judged as the real server does it: its answers are those recorded."""

from __future__ import annotations

import pytest

from tests.lab.embedded.types import device_answers, verdicts
from tests.lab.embedded.types.device_table import rows
from tests.lab.embedded.types.row import Row

RECORDED = device_answers.recorded()
ROWS = rows()
SERVED = verdicts.core()


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_it_answers_as_the_real_server(row: Row) -> None:
    assert list(verdicts.judged(SERVED, row)) == RECORDED[row.id]


def test_each_answer_is_a_row_s() -> None:
    assert RECORDED.keys() == {row.id for row in ROWS}
