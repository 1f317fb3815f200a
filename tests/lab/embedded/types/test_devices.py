"""Claims, templates, classes and slices are judged as the real server does it: its answers are those recorded."""

from __future__ import annotations

import json
import random

import pytest

from tests import budget
from tests.lab.embedded.types import device_answers, device_mutants, verdicts
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


def test_whatever_is_sent_is_judged() -> None:
    chance = random.Random(budget.count(7, None))
    codes = set()
    for row in device_mutants.mutants(chance, budget.count(300, 5000)):
        code, said = verdicts.judged(SERVED, row)
        json.dumps(said)
        codes.add(code)
    assert codes == {200, 201, 400, 422}
