"""What works per vendor: each cell is true to the vendor's record, and its test is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kgpu.hw.vendor import vendors
from tools.vendor_table import CAPABILITIES, ORDER, Capability, Cell, Level, lines

TESTS = Path(__file__).parent
CELLS = [(row, name) for row in CAPABILITIES for name in ORDER]


def cell_of(row: Capability, vendor: str) -> Cell:
    return row.cells[vendor]


def test_every_vendor_has_a_cell_in_every_row() -> None:
    assert set(ORDER) == set(vendors())
    assert [row.name for row in CAPABILITIES if set(row.cells) != set(ORDER)] == []
    assert len({row.name for row in CAPABILITIES}) == len(CAPABILITIES)


@pytest.mark.parametrize(("row", "vendor"), CELLS, ids=lambda part: getattr(part, "name", part))
def test_a_cell_says_what_the_vendors_record_has(row: Capability, vendor: str) -> None:
    cell = cell_of(row, vendor)
    if row.held is not None:
        assert row.held(vendors()[vendor]) is (cell.level is not Level.NO)
    assert cell.words


@pytest.mark.parametrize(("row", "vendor"), CELLS, ids=lambda part: getattr(part, "name", part))
def test_what_works_has_a_test_and_what_does_not_has_none(row: Capability, vendor: str) -> None:
    cell = cell_of(row, vendor)
    assert bool(cell.test) is (cell.level is not Level.NO)
    if cell.test:
        path, _, name = cell.test.partition("::")
        tree = ast.parse((TESTS / path).read_text())
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name.startswith("test_")
        assert name in functions


def test_the_table_has_a_line_for_each_capability() -> None:
    assert [line[0] for line in lines()] == [row.name for row in CAPABILITIES]
    assert all(len(line) == len(ORDER) + 1 for line in lines())
