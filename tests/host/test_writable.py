"""A read-only view of a host: exactly the folders asked for can be written, and only while it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.host import writable as module
from kgpu.host.writable import is_read_only, writable

# In a mount namespace of its own: a read-only view of a folder, as a container has it of its host.
SCRIPT = """
import os, subprocess, sys
from pathlib import Path
from kgpu.host.writable import is_read_only, writable

real, seen = Path(sys.argv[1]), Path(sys.argv[2])
subprocess.run(["mount", "--bind", real, seen], check=True)
subprocess.run(["mount", "-o", "remount,bind,ro,nosuid", seen], check=True)

def refused(path):
    try:
        path.write_text("no")
    except OSError:
        return True
    return False

assert refused(seen / "etc/engine/config")
mounts = Path("/proc/self/mountinfo").read_text().count("\\n")
with writable([seen / "etc/engine", seen / "etc/engine/conf.d"]):
    (seen / "etc/engine/conf.d").mkdir()
    (seen / "etc/engine/conf.d/ours").write_text("written")
    assert os.statvfs(seen / "etc/engine").f_flag & os.ST_NOSUID
    assert refused(seen / "etc/other"), "only what was asked for"
    assert not is_read_only(seen / "etc/engine") and is_read_only(seen / "etc")
assert refused(seen / "etc/engine/config")
assert Path("/proc/self/mountinfo").read_text().count("\\n") == mounts
print((real / "etc/engine/conf.d/ours").read_text())
"""


def test_a_folder_of_a_read_only_host(tmp_path: Path) -> None:
    (tmp_path / "real" / "etc" / "engine").mkdir(parents=True)
    (tmp_path / "seen").mkdir()
    allowed = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if allowed.returncode != 0:
        pytest.skip("no right to make a mount namespace here")
    command = ["unshare", "--mount", sys.executable, "-c", SCRIPT, str(tmp_path / "real"), str(tmp_path / "seen")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("written\n", "")
    assert (tmp_path / "real/etc/engine/conf.d/ours").read_text() == "written"


def test_what_can_be_written_already_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        pytest.fail("nothing to mount")

    monkeypatch.setattr(module, "_call", never)
    with writable([tmp_path / "a" / "b"]):
        (tmp_path / "a").mkdir()
    assert not is_read_only(tmp_path)


def test_no_right_to_mount_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(module, "_call", refuse)
    monkeypatch.setattr(module, "is_read_only", lambda _: True)
    with pytest.raises(HostError, match="privileged"), writable([tmp_path]):
        pass


def test_a_folder_that_is_not_there_is_no_read_only_folder(tmp_path: Path) -> None:
    assert not is_read_only(tmp_path / "missing")
