"""A log that is too long is put aside while whoever writes it goes on, and nobody else's is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kgpu.lab.log_rotation import rotate

ROTATE = """
import os, sys
from pathlib import Path
from kgpu.lab.log_rotation import rotate
log = Path(sys.argv[1])
os.write(2, b"x" * 100)
told = [rotate(log, most=100), os.write(2, b"y") and rotate(log, most=100)]
os.write(1, b"out")
os.write(2, b"err")
told.append(rotate(log.with_name("log.1"), most=1))
os.write(2, repr(told).encode())
"""


def test_the_log_is_kept_short(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab") as out:
        subprocess.run([sys.executable, "-c", ROTATE, str(log)], stdout=out, stderr=out, check=True)
    assert (tmp_path / "log.1").read_text() == "x" * 100 + "y"
    assert log.read_text() == "outerr[False, True, False]"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1"]


def test_output_that_goes_elsewhere_is_left_alone(tmp_path: Path) -> None:
    mine, others = tmp_path / "server.log", tmp_path / "other.log"
    for path in (mine, others):
        path.write_bytes(b"x" * 100)
    with others.open("ab") as out:
        assert not rotate(mine, most=10, streams=(out.fileno(),))
    with mine.open("ab") as out:
        assert not rotate(mine, most=100, streams=(out.fileno(),))
        assert rotate(mine, most=99, streams=(out.fileno(),))
        out.write(b"new")
    assert mine.read_bytes() == b"new"
    assert (tmp_path / "server.log.1").read_bytes() == b"x" * 100
    assert others.read_bytes() == b"x" * 100


def test_no_log_is_bounded_where_there_is_none(tmp_path: Path) -> None:
    assert not rotate(tmp_path / "nothing" / "server.log", most=1)


def test_where_no_new_log_can_be_made_the_old_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 100)

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with log.open("ab") as out:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", full)
            assert not rotate(log, most=10, streams=(out.fileno(),))
        assert [path.name for path in tmp_path.iterdir()] == ["log"]
        assert rotate(log, most=10, streams=(out.fileno(),)), "it is tried again"
