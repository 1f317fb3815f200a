"""Where the suite keeps files: in memory where there is room, and what a killed run left goes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from kgpu.lab import processes
from tools.suite import place


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(("free", "inside"), [(64 * 2**30, os.geteuid() == 0), (2**30, False)])
def test_it_is_in_memory_where_there_is_plenty(free: int, inside: bool, temporary: Path) -> None:
    made = place.make(free=free)
    try:
        assert made.parent == temporary
        assert made.is_mount() == inside
        (made / "1").mkdir()
    finally:
        place.remove(made)
    assert list(temporary.iterdir()) == []


def test_what_a_killed_run_left_goes_and_that_of_a_living_one_stays(temporary: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        dead = processes.record(child.pid)
        child.kill()
    for name, owner in (("suite-dead", dead), ("suite-alive", processes.record(1)), ("other", dead)):
        (temporary / name).mkdir()
        (temporary / name / place.OWNER).write_bytes(msgspec.json.encode(owner))
    (temporary / "suite-just-begun").mkdir()
    place.clear()
    assert sorted(path.name for path in temporary.iterdir()) == ["other", "suite-alive", "suite-just-begun"]
