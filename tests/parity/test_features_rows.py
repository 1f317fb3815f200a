"""Every feature of node feature discovery's rules and of its worker has an answer (``features_rows.yaml``): a test that
shows it, or a reason that ``docs/explanation/decisions.md`` gives to everybody.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.parity.test_driver_rows import ANSWERS, ROOT, numbers
from tests.test_promises import named_tests, one_line

ROWS: Final[list[dict[str, Any]]] = yaml.safe_load((Path(__file__).parent / "features_rows.yaml").read_text())
ALL: Final = "5-6, 10-65, 69-70"
"""The others are about its master and about other programs."""


def test_every_row_has_one_answer() -> None:
    found = [number for row in ROWS for number in numbers(row["rows"])]
    assert sorted(found) == sorted(numbers(ALL))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["rows"].replace(", ", " "))
def test_an_answer_is_shown_or_has_its_reason(row: dict[str, Any]) -> None:
    tests = [test.partition("::") for test in row.get("by", ())]
    assert [f"{file}::{name}" for file, _, name in tests if name not in named_tests(file)] == []
    assert row["now"] in ANSWERS
    if row["now"] == "yes":
        assert tests
        assert "reason" not in row
    else:
        assert one_line(row["reason"]) in one_line((ROOT / "docs/explanation/decisions.md").read_text())
