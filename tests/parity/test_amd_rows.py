"""Every feature of AMD's programs has a test that shows it, or a reason that ``docs/explanation/decisions.md`` gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.parity.test_driver_rows import numbers
from tests.test_promises import named_tests, one_line

ROOT: Final = Path(__file__).parent.parent.parent
ROWS: Final[list[dict[str, Any]]] = yaml.safe_load((Path(__file__).parent / "amd_rows.yaml").read_text())
ALL: Final = "1-74"
"""The rows of sheet 11."""


def test_every_row_has_one_answer() -> None:
    found = [number for row in ROWS for number in numbers(row["rows"])]
    assert sorted(found) == sorted(numbers(ALL))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["rows"].replace(", ", " "))
def test_an_answer_is_shown_or_has_its_reason(row: dict[str, Any]) -> None:
    tests = [test.partition("::") for test in row.get("by", ())]
    assert [f"{file}::{name}" for file, _, name in tests if name not in named_tests(file)] == []
    if row["now"] == "yes":
        assert tests
    else:
        assert row["now"] == "no"
        assert one_line(row["reason"]) in one_line((ROOT / "docs/explanation/decisions.md").read_text())
