"""What is read of an ELF file, whatever its bytes."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kgpu.host.elf import Elf, read_elf, soname
from tests.budget import tries
from tests.host.tree import elf

WHOLE = elf(soname="libx.so.1", interpreter="/lib64/ld-linux-x86-64.so.2")


def test_facts_of_whole_files(tmp_path) -> None:
    path = tmp_path / "x"
    path.write_bytes(WHOLE)
    assert read_elf(path) == Elf(
        bits=64, machine=62, soname="libx.so.1", interpreter="/lib64/ld-linux-x86-64.so.2", size=len(WHOLE)
    )
    path.write_bytes(elf(bits=32, machine=3))
    assert (read_elf(path).bits, read_elf(path).machine) == (32, 3)


def test_a_real_program_and_library(sim_libs) -> None:
    assert soname(sim_libs / "libnvidia-ml.so.1") == "libnvidia-ml.so.1"
    shell = read_elf(type(sim_libs)(os.path.realpath("/bin/sh")))
    assert "/ld-" in shell.interpreter
    assert shell.bits == 64


def test_a_soname_with_a_folder_is_none(tmp_path) -> None:
    (tmp_path / "x").write_bytes(elf(soname="../../etc/x"))
    assert soname(tmp_path / "x") == ""


def test_what_is_no_file_has_no_facts(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "none", "", "a\0b"):
        assert read_elf(tmp_path / name) == Elf()


@given(st.binary(max_size=400))
@tries(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_text(tmp_path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    assert isinstance(soname(path), str)
    path.write_bytes(b"\x7fELF\x02\x01" + data)
    assert isinstance(soname(path), str)


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255), st.booleans())
@tries(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_and_changed_files_give_text(tmp_path, at: int, change: int, cut: bool) -> None:
    path = tmp_path / "x"
    data = bytearray(WHOLE)
    data[at] ^= change
    path.write_bytes(WHOLE[:at] if cut else bytes(data))
    found = read_elf(path)
    assert "/" not in found.soname
    if cut:
        assert found.soname in {"", "libx.so.1"}
