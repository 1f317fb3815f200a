"""Files of the driver are read up to a limit and strictly: what no driver writes is an error of its own kind."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.hw import sysfs as files
from kgpu.hw.sysfs import GarbageError
from tests.budget import tries

GOOD = [
    (files.number, "42\n", 42),
    (files.number, "-1\n", -1),
    (files.hexadecimal, "0x74a1\n", 0x74A1),
    (files.word, "CPX\n", "CPX"),
    (files.line, "AMD Instinct MI300X OAM \n", "AMD Instinct MI300X OAM"),
    (files.line, "\n", ""),
    (files.error_counts, "ue: 3\nce: 14\n", (3, 14)),
    (files.properties, "simd_count 1216\nunique_id 18446744073709551615\n\n", {"simd_count": 1216, "unique_id": 2**64 - 1}),
    (files.properties, "name with words\nsimd_count 4\n", {"simd_count": 4}),
]  # fmt: skip
BAD = [
    (files.number, "4 2"), (files.number, ""), (files.number, "\u0661"), (files.number, "9" * 21), (files.number, "\xff"),
    (files.hexadecimal, "74a1"), (files.hexadecimal, "0x"), (files.word, "A B"), (files.word, "\0"),
    (files.line, "a\nb"), (files.line, "x" * 201), (files.line, "\x1b[2J"), (files.error_counts, "ue: 1"),
    (files.error_counts, "ce: 1\nue: 1"), (files.properties, "a 1\n" * 300),
]  # fmt: skip
READERS = [files.number, files.hexadecimal, files.word, files.line, files.error_counts, files.properties]


@pytest.mark.parametrize(("read", "text", "found"), GOOD)
def test_what_drivers_write(tmp_path, read, text: str, found) -> None:
    (tmp_path / "f").write_text(text)
    assert read(str(tmp_path / "f")) == found


@pytest.mark.parametrize(("read", "text"), BAD)
def test_what_no_driver_writes(tmp_path, read, text: str) -> None:
    (tmp_path / "f").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(GarbageError):
        read(str(tmp_path / "f"))


def test_a_file_is_read_up_to_its_limit(tmp_path) -> None:
    (tmp_path / "f").write_bytes(b"7" * 100_000)
    assert len(files.raw(str(tmp_path / "f"))) == files.LIMIT
    with pytest.raises(GarbageError):
        files.number(str(tmp_path / "f"))


def test_what_is_not_there_is_no_garbage(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        files.number(str(tmp_path / "none"))


@tries(150)
@given(st.sampled_from(READERS), st.binary(max_size=300))
def test_any_content_is_read_or_refused(tmp_path_factory, read, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    with contextlib.suppress(GarbageError):
        read(str(path))
