"""Running a host's program in its own root: found by its own PATH, missing ones told as shells do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kgpu.host.chroot import in_root


def test_our_own_root_needs_no_help() -> None:
    assert in_root("/", ["systemctl", "restart", "x"]) == ["systemctl", "restart", "x"]


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the root needs root")
def test_a_program_of_another_root(tmp_path: Path) -> None:
    def run(*words: str) -> int:
        return subprocess.run(in_root(tmp_path, words), capture_output=True, check=False, timeout=60).returncode

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "not-a-program").write_text("")
    assert run("/bin/missing") == 127
    assert run("/bin/not-a-program") == 126
    # A script whose interpreter is looked for in the other root, and is not there.
    script = tmp_path / "bin" / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert run("/bin/script") == 127


@pytest.mark.skipif(os.geteuid() == 0, reason="root may change the root")
def test_without_the_right(tmp_path: Path) -> None:
    done = subprocess.run(in_root(tmp_path, ["/bin/true"]), capture_output=True, check=False, timeout=60)
    assert done.returncode == 126
