"""Every feature of NVIDIA's DRA driver has an answer (``dra_rows.yaml``): a test that shows it, or a reason that
``docs/explanation/decisions.md`` gives to everybody. Its known defects have tests in which kgpu does it right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.parity.test_driver_rows import ANSWERS, ROOT, numbers
from tests.test_promises import named_tests, one_line

ROWS: Final[list[dict[str, Any]]] = yaml.safe_load((Path(__file__).parent / "dra_rows.yaml").read_text())
DEFECTS: Final[list[dict[str, Any]]] = yaml.safe_load((Path(__file__).parent / "dra_defects.yaml").read_text())
ALL: Final = "1-44"


def unknown(tests: list[str]) -> list[str]:
    parts = [test.partition("::") for test in tests]
    return [f"{file}::{name}" for file, _, name in parts if name not in named_tests(file)]


def test_every_row_has_one_answer() -> None:
    found = [number for row in ROWS for number in numbers(row["rows"])]
    assert sorted(found) == sorted(numbers(ALL))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["rows"].replace(", ", " "))
def test_an_answer_is_shown_or_has_its_reason(row: dict[str, Any]) -> None:
    assert unknown(row.get("by", [])) == []
    assert row["now"] in ANSWERS
    if row["now"] == "yes":
        assert row["by"]
        assert "reason" not in row
    else:
        assert one_line(row["reason"]) in one_line((ROOT / "docs/explanation/decisions.md").read_text())


def test_every_defect_has_its_tests() -> None:
    assert [row["number"] for row in DEFECTS] == list(range(1, 9))
    assert [(row["number"], unknown(row["by"])) for row in DEFECTS if not row["by"] or unknown(row["by"])] == []
