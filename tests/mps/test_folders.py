"""Folders, marks, shared memory, and the programs' surroundings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.formats.mps_folders import read_served, served_text
from kgpu.mps import folders
from kgpu.mps.model import DaemonSpec
from kgpu.mps.programs import DriverPrograms


def spec(root: Path, resource: str = "nvidia.com/gpu") -> DaemonSpec:
    return DaemonSpec(root=str(root), resource=resource, gpus=("GPU-a",), replicas=(4,))


def test_folders_come_and_go_and_another_resource_keeps_its_own(tmp_path: Path) -> None:
    root = tmp_path / "mps"
    one, other = spec(root), spec(root, "nvidia.com/gpu.shared")
    folders.prepare_shm(str(root), mounted=False)
    for each in (one, other):
        folders.prepare(each)
        folders.mark(each)
    assert os.stat(one.pipe).st_mode & 0o777 == 0o755
    folders.mark_ready(str(root), ready=True)
    folders.remove(one)
    assert sorted(path.name for path in (root / "nvidia.com").iterdir()) == ["gpu.shared"]
    folders.unmark(other)
    assert not Path(other.started).exists()
    folders.remove(other)
    folders.remove(other)
    folders.remove_root(str(root))
    assert not root.exists()


def test_what_an_agent_has_left_that_was_killed_while_it_wrote_goes_and_others_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "mps"
    root.mkdir()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr("os.unlink", lambda *_: None)  # as if it was killed
    with pytest.raises(KeyboardInterrupt):
        folders.mark_ready(str(root), ready=True)
    monkeypatch.undo()
    assert len(list(root.iterdir())) == 1
    (root / "others").touch()
    folders.remove_root(str(root))
    assert [path.name for path in root.iterdir()] == ["others"]
    (root / "others").unlink()
    folders.remove_root(str(root))
    assert not root.exists()


def test_a_link_leads_nowhere(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "mps", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (root / "nvidia.com/gpu").mkdir(parents=True)
    (root / "nvidia.com/gpu/pipe").symlink_to(elsewhere)
    (root / "shm").symlink_to(elsewhere)
    with pytest.raises(HostError, match="can't be made or removed"):
        folders.prepare(spec(root))
    with pytest.raises(HostError):
        folders.prepare_shm(str(root), mounted=False)
    folders.remove(spec(root))
    assert elsewhere.is_dir()


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "mps").write_text("")
    with pytest.raises(HostError, match="can't be made or removed"):
        folders.prepare(spec(tmp_path / "mps"))
    with pytest.raises(HostError):
        folders.mark_ready(str(tmp_path / "mps"), ready=True)
    folders.mark_ready(str(tmp_path / "mps"), ready=False)


@pytest.mark.parametrize(
    ("text", "kib"),
    [("MemTotal:       1000 kB\nMemFree: 1 kB\n", 500), ("", 65536), ("MemTotal:", 65536), ("MemTotal: x kB", 65536)],
)
def test_half_of_the_memory(tmp_path: Path, text: str, kib: int) -> None:
    (tmp_path / "meminfo").write_text(text)
    assert folders.shm_kib(tmp_path / "meminfo") == kib
    assert folders.shm_kib(tmp_path / "none") == 65536


def test_what_a_mark_says_is_read_again() -> None:
    served = {"GPU-a": 4, "GPU-b": 10}
    assert read_served(served_text(served)) == served


@pytest.mark.parametrize(
    "text", ["", "GPU-a", "GPU-a x", "GPU-a -1", " 4", "GPU-a 4\nnonsense", "GPU-a ٤", "a 1000000"]
)
def test_a_mark_of_another_program_says_nothing(text: str) -> None:
    assert read_served(text) is None


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounts need root")
# In a mount namespace of its own, whose mounts end with it.
APART = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c"]


@needs_root
def test_the_shared_memory_is_a_tmpfs_that_stays_until_it_is_replaced(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from kgpu.mps import folders
root, shm = {str(tmp_path)!r}, Path({str(tmp_path)!r}) / "shm"
folders.shm_kib = lambda: 1024
folders.prepare_shm(root, mounted=True)
assert shm.is_mount()
line = next(line for line in Path("/proc/mounts").read_text().splitlines() if f" {{shm}} " in line)
assert line.startswith("shm ") and "noexec" in line and "nosuid" in line and "size=1024k" in line, line
(shm / "a").touch()
folders.prepare_shm(root, mounted=True)
assert (shm / "a").exists()
folders.prepare_shm(root, mounted=True, again=True)
assert shm.is_mount() and not (shm / "a").exists()
folders.remove_root(root)
assert not shm.exists()
"""
    done = subprocess.run([*APART, script], capture_output=True, text=True, timeout=120, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("this container may not mount")
    assert done.returncode == 0, done.stderr


@needs_root
@pytest.mark.parametrize("own_root", [False, True])
def test_a_program_finds_the_shared_memory_and_the_folders_in_their_place(tmp_path: Path, own_root: bool) -> None:
    mps, root = tmp_path / "mps", tmp_path / "root"
    folders.prepare_shm(str(mps), mounted=False)
    (mps / "shm/marker").touch()
    (root / "usr/bin").mkdir(parents=True)
    programs = DriverPrograms(str(root) if own_root else "/")
    if own_root:  # with as much of a system as the program needs
        for folder in ("bin", "lib", "lib64"):
            (root / folder).symlink_to(f"usr/{folder}")
        _copy_shell(root)
    words = programs.sharing(str(mps), "sh", "-c", f"ls /dev/shm && ls {mps}/shm")
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("this container may not mount")
    assert done.stdout == "marker\nmarker\n", done.stderr
    assert not Path("/dev/shm/marker").exists()


def _copy_shell(root: Path) -> None:
    """A shell, ls, and their libraries, below the root."""
    listed = subprocess.run(["ldd", "/bin/sh", "/bin/ls"], capture_output=True, text=True, check=True).stdout
    words = {word for line in listed.splitlines() for word in line.split()}
    for path in ("/bin/sh", "/bin/ls", *(word for word in words if word.startswith("/") and word[-1] != ":")):
        target = root / path.removeprefix("/") if path.startswith("/usr/") else root / "usr" / path.removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(Path(path).read_bytes())
        target.chmod(0o755)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="there is no nvidia-cuda-mps-control in"):
        DriverPrograms(str(tmp_path)).find("nvidia-cuda-mps-control")


def test_with_selinux_the_pipe_folder_is_labelled_for_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: dict[str, bytes] = {}
    monkeypatch.setattr(os, "setxattr", lambda path, name, value: labels.update({f"{path} {name}": value}))
    made = spec(tmp_path)
    folders.prepare(made, selinux=tmp_path)
    assert labels == {f"{made.pipe} security.selinux": b"system_u:object_r:container_file_t:s0\0"}

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setxattr", refused)
    with pytest.raises(HostError, match="can't be labelled for containers: Operation not permitted"):
        folders.prepare(made, selinux=tmp_path)
