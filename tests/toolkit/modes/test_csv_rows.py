"""Rows of the CSV files: what is read, what is left out and told, and that no bytes make it fail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.toolkit.modes.csv_rows import MAX_BYTES, CsvKind, CsvRow, parse_rows, without_links


def test_rows_of_every_type_each_once() -> None:
    text = b"# nodes\ndev, /dev/nvhost-gpu\r\n\nlib,/usr/lib/a.so,with,commas\nsym , /etc/x\ndir,/etc/y\ndir,/etc/y\n"
    found = parse_rows(text, source="d.csv")
    assert found.rows == (
        CsvRow(CsvKind.DEV, "/dev/nvhost-gpu"),
        CsvRow(CsvKind.LIB, "/usr/lib/a.so,with,commas"),
        CsvRow(CsvKind.SYM, "/etc/x"),
        CsvRow(CsvKind.DIR, "/etc/y"),
    )
    assert found.complaints == ()


@pytest.mark.parametrize(
    "line", ["dev", "DEV,/dev/x", "file,/x", "lib,", "lib,relative", "lib,/a/../../etc/shadow", "lib,/a\x07", ",/x"]
)
def test_bad_line_is_left_out_and_named(line: str) -> None:
    found = parse_rows(f"dir,/a\n{line}\ndir,/b".encode(), source="d.csv")
    assert [row.path for row in found.rows] == ["/a", "/b"]
    (complaint,) = found.complaints
    assert "d.csv, line 2" in complaint


def test_complaints_are_bounded() -> None:
    found = parse_rows(b"bad\n" * 1000, source="d.csv")
    assert len(found.complaints) == 21
    assert "980 more lines" in found.complaints[-1]


def test_huge_file_is_left_out() -> None:
    found = parse_rows(b"#" * (MAX_BYTES + 1), source="d.csv")
    assert found.rows == ()
    assert "more than" in found.complaints[0]


def test_only_links_are_ignored_by_pattern() -> None:
    rows = [CsvRow(CsvKind.SYM, "/usr/lib/tegra/libcuda.so"), CsvRow(CsvKind.LIB, "/usr/lib/tegra/libcuda.so"),
            CsvRow(CsvKind.SYM, "/etc/alternatives/glx")]  # fmt: skip
    assert without_links(rows, ["**/libcuda.so"]) == tuple(rows[1:])
    assert without_links(rows, ["/etc/alternatives/*"]) == tuple(rows[:2])
    assert without_links(rows, ["libcuda.so"]) == tuple(rows)


@given(st.binary(max_size=300))
def test_whatever_the_bytes_each_line_is_a_row_a_complaint_or_nothing(data: bytes) -> None:
    found = parse_rows(data, source="x")
    assert all(row.path.startswith("/") and ".." not in row.path.split("/") for row in found.rows)


@given(
    st.lists(
        st.tuples(st.sampled_from(CsvKind), st.from_regex(r"/[a-z0-9 ,._-]{0,12}[a-z0-9]", fullmatch=True)), max_size=8
    )
)
def test_what_is_written_is_read(rows: list[tuple[CsvKind, str]]) -> None:
    text = "\n".join(f"{kind.value}, {path}" for kind, path in rows)
    expected = [(kind, path) for kind, path in rows if ".." not in path.split("/")]
    assert [(row.kind, row.path) for row in parse_rows(text.encode(), source="x").rows] == list(dict.fromkeys(expected))
