"""Every row of ``complaints.yaml`` has tests that are there, or a reason why it has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.operations.test_sources import lacks

SOURCES: Final[dict[str, list[dict[str, Any]]]] = yaml.safe_load(
    (Path(__file__).parent / "complaints.yaml").read_text()
)


@pytest.mark.parametrize("part", SOURCES)
def test_every_row_has_its_tests_or_a_reason(part: str) -> None:
    assert [lack for row in SOURCES[part] for lack in lacks(row)] == []


def test_no_fact_stands_twice() -> None:
    facts = [(row["of"], row["says"]) for rows in SOURCES.values() for row in rows]
    assert len(facts) == len(set(facts))
