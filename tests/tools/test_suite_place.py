"""Where the suite keeps files: in memory where there is room, and what a killed run left there goes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from kgpu.lab import processes
from tools.suite import place


@pytest.mark.parametrize(("free", "inside"), [(64 * 2**30, True), (2**30, False)])
def test_it_is_in_memory_where_there_is_plenty(
    free: int, inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    monkeypatch.setattr(place, "_ROOM", 2 * 2**30)
    memory = tmp_path / "memory"
    memory.mkdir()
    assert place.make(memory, free=free).parent == (memory if inside else other)


def test_it_is_elsewhere_where_there_is_no_such_folder(tmp_path: Path) -> None:
    made = place.make(tmp_path / "none", free=64 * 2**30)
    shutil.rmtree(made)
    assert made.parent == Path(tempfile.gettempdir())


def test_what_a_killed_run_left_goes_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        dead = processes.record(child.pid)
        child.kill()
    for name, owner in (("suite-dead", dead), ("suite-alive", processes.record(1)), ("other", dead)):
        (tmp_path / name).mkdir()
        (tmp_path / name / place.OWNER).write_bytes(msgspec.json.encode(owner))
    (tmp_path / "suite-just-begun").mkdir()
    place.clear(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "suite-alive", "suite-just-begun"]
