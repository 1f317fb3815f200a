"""What of NVIDIA's DRA driver is about sharing and preparing claims has a test that shows it (``dra_rows.yaml``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.parity.test_driver_rows import numbers
from tests.test_promises import named_tests

ROWS: Final[list[dict[str, Any]]] = yaml.safe_load((Path(__file__).parent / "dra_rows.yaml").read_text())
ALL: Final = "14-16, 19-22, 25"
"""The rows of sheet 9."""


def test_every_row_has_one_answer() -> None:
    found = [number for row in ROWS for number in numbers(row["rows"])]
    assert sorted(found) == sorted(numbers(ALL))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["rows"].replace(", ", " "))
def test_an_answer_is_shown(row: dict[str, Any]) -> None:
    tests = [test.partition("::") for test in row["by"]]
    assert row["now"] == "yes"
    assert tests
    assert [f"{file}::{name}" for file, _, name in tests if name not in named_tests(file)] == []
