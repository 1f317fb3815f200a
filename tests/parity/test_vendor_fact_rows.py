"""Every fact that the sheets on AMD's and Gaudi's programs have in a table has a test that holds it (``vendor_fact_rows.yaml``),
or a reason that ``docs/explanation/decisions.md`` gives.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.parity.answers import lacks, rows_of

SECTIONS: Final[dict[str, list[dict[str, Any]]]] = rows_of("vendor_fact")
# How many facts each section has.
FACTS: Final = {
    "2.4 preferred allocation": 27, "2.5 node labeller": 17, "4.1 Gaudi's device plugin": 14,
    "4.2 habana-container-runtime": 8, "4.3 Gaudi's base operator": 2, "4.5 Gaudi's DRA driver": 11, "4.6 libhlml": 10,
    "metrics 3 AMD's metrics exporter": 29,
}  # fmt: skip


def test_every_fact_of_a_section_is_there_once() -> None:
    assert {section: len({row["fact"] for row in rows}) for section, rows in SECTIONS.items()} == FACTS
    assert all(len(rows) == FACTS[section] for section, rows in SECTIONS.items())


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=f"{section.split()[0]} {row['fact']}") for section, rows in SECTIONS.items() for row in rows],
)
def test_a_fact_is_held_or_has_its_reason(row: dict[str, Any]) -> None:
    assert lacks(row) == []
