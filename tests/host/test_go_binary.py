"""Go programs that are not run: their modules, replaced ones, and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.host.go_binary import has_symbols, modules
from tests.host.go_program import go_program

LINES = (
    "path\texample.com/engine",
    "mod\texample.com/engine\t(devel)\t",
    "dep\texample.com/a\tv1.2.3\th1:x=",
    "dep\texample.com/b\tv0.1.0\th1:x=",
    "=>\texample.com/fork\tv0.9.0\th1:y=",
    "build\t-compiler=gc",
)


def test_modules_with_the_versions_that_are_really_linked(tmp_path) -> None:
    program = tmp_path / "engine"
    program.write_bytes(go_program(LINES))
    assert modules(program) == {
        "example.com/engine": "(devel)",
        "example.com/a": "v1.2.3",
        "example.com/b": "v0.9.0",
    }


def test_a_real_linker_agrees() -> None:
    """The lab's own containerd, where it has been built."""
    programs = sorted(Path("~/.cache/kgpu/real").expanduser().glob("*/bin/containerd"))
    if not programs:
        pytest.skip("no Go program has been built here")
    found = modules(programs[0])
    assert found["github.com/containerd/ttrpc"].startswith("v1.")
    assert len(found) > 20


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"#!/bin/sh\n",
        b"\x7fELF\x01\x01" + bytes(100),
        go_program(LINES, magic=b"\xff Go buildxyz:"),
        go_program(LINES)[:300],
        go_program(LINES)[:60],
    ],
)
def test_other_files_say_nothing(tmp_path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    assert modules(tmp_path / "x") == {}
    assert modules(tmp_path / "absent") == {}


@given(st.integers(0, 700), st.binary(min_size=1, max_size=8))
def test_no_damage_makes_it_fail(tmp_path_factory, at: int, damage: bytes) -> None:
    data = bytearray(go_program(LINES))
    data[at : at + len(damage)] = damage
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(data)
    assert isinstance(modules(path), dict)


def test_symbols_in_a_program(tmp_path) -> None:
    (tmp_path / "x").write_bytes(go_program((), tail=b"\0lib/cdi.requiresV060\0"))
    assert has_symbols(tmp_path / "x", ["cdi.requiresV060", "cdi.requiresV070"]) == {"cdi.requiresV060"}
    (tmp_path / "empty").touch()
    assert has_symbols(tmp_path / "empty", ["a"]) == frozenset()
