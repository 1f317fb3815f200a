"""One change at a time on a machine, and who holds it up."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.formats.names import ENV_RUN_DIR
from kgpu.mig.lock import LOCK, alone, run_folder
from tests.child import child


def test_a_second_one_is_told_who_has_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with alone(folder, "apply of sevens"):
        with pytest.raises(HostError) as refused, alone(folder, "restore"):
            raise AssertionError
        assert f"by process {os.getpid()} (apply of sevens)" in refused.value.what
    with alone(folder, "apply of \x1b[31m halves"), pytest.raises(HostError, match=r"\(apply of �\[31m halves\)"):
        alone(folder, "restore").__enter__()
    with alone(folder, "again"):
        pass


def test_who_is_killed_holds_nothing_up(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from kgpu.mig.lock import alone\n"
        "with alone(Path(sys.argv[1]), 'apply'): print('held', flush=True); time.sleep(1000)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with child([sys.executable, "-c", script, str(tmp_path)], stdout=-1, env=environment) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(HostError, match=f"by process {other.pid} "), alone(tmp_path, "restore"):
            raise AssertionError
        other.kill()
        other.wait()
        with alone(tmp_path, "restore"):
            assert (tmp_path / LOCK).read_text() == f"process {os.getpid()} (restore)"


@pytest.mark.parametrize("what", ["a file", "a link", "a folder"])
def test_a_folder_that_can_not_be_used(tmp_path: Path, what: str) -> None:
    target = tmp_path / "target"
    if what == "a file":
        (tmp_path / "run").touch()
    else:
        (tmp_path / "run").mkdir()
    if what == "a link":
        (tmp_path / "run" / LOCK).symlink_to(target)
    if what == "a folder":
        (tmp_path / "run" / LOCK).mkdir()
    with pytest.raises(HostError, match="can't be written"), alone(tmp_path / "run", "apply"):
        raise AssertionError
    assert not target.exists()


def test_each_machine_has_its_own(sim_root, tmp_path: Path) -> None:
    root = sim_root("hgx-h100", gpus=1)
    assert run_folder(str(root), {ENV_RUN_DIR: "/run/other"}) == root / "run/kgpu"
    assert run_folder(str(tmp_path), {ENV_RUN_DIR: "/run/other"}) == Path("/run/other")
    assert run_folder("", {}) == Path("/run/kgpu")
