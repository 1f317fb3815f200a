"""Where a driver's nvidia-smi is, and how it is run: in a real root, and outside of a simulated one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.host.smi import ask_smi, find_smi

SCRIPT = '#!/bin/sh\necho "$LD_LIBRARY_PATH $KGPU_HW_STATE $*"\n'


def program(folder: Path) -> Path:
    path = folder / "usr/bin/nvidia-smi"
    path.parent.mkdir(parents=True)
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return path


def test_links_are_followed_inside_the_root(tmp_path: Path) -> None:
    assert find_smi(str(tmp_path)) is None
    made = program(tmp_path / "opt")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-smi").symlink_to("/opt/usr/bin/nvidia-smi")
    assert find_smi(str(tmp_path)) == "/opt/usr/bin/nvidia-smi"
    made.unlink()
    assert find_smi(str(tmp_path)) is None, "a link to nothing"


def test_its_library_is_found_by_its_place_in_the_root(tmp_path: Path) -> None:
    path, library = program(tmp_path), f"{tmp_path}/lib/libnvidia-ml.so.1"
    done = ask_smi("/", str(path), ["-L"], seconds=60, library=library)
    assert (done.code, done.tail) == (0, f"{tmp_path}/lib  -L\n")
    done = ask_smi(str(tmp_path), "/usr/bin/nvidia-smi", ["-q"], seconds=60, library=library, state="/x/state")
    assert (done.code, done.tail) == (0, f"{tmp_path}/lib /x/state -q\n")


def test_one_that_can_not_be_run(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="can't be run"):
        ask_smi(str(tmp_path), "/usr/bin/nvidia-smi", [], seconds=60, library="", state="/x/state")
