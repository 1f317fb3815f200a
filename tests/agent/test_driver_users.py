"""Who has the driver open, from a /proc of the test's making and from the real one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from kgpu.agent.driver_users import DriverUser, driver_users


def process(
    proc: Path, pid: int, parent: int, *, state: str = "S", name: str = "python3", fd: str = "", maps: str = ""
) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} 1 1 0 -1 4194304\n")
    if fd:
        os.symlink(fd, folder / "fd" / "7")
    os.symlink("pipe:[3]", folder / "fd" / "1")
    if maps:
        (folder / "maps").write_text(f"7f00-7f01 r-xp 00000000 00:00 1   {maps}\n")


def test_the_process_and_what_came_of_it_and_no_other(tmp_path: Path) -> None:
    process(tmp_path, 1, 0, fd="/dev/nvidiactl")
    process(tmp_path, 10, 1)
    process(tmp_path, 11, 10, fd="/dev/nvidia0", name="a (b) c")
    process(tmp_path, 12, 11, maps="/run/nvidia/driver/usr/lib/libnvidia-ml.so.570.1")
    process(tmp_path, 13, 10, maps="/usr/lib/libcuda.so.1")
    process(tmp_path, 14, 10, maps="/usr/lib/libc.so.6")
    process(tmp_path, 15, 10, fd="/dev/nvidia-uvm", state="Z")
    process(tmp_path, 20, 1, fd="/dev/nvidia0")
    (tmp_path / "16").mkdir()  # ended while it was looked at
    (tmp_path / "17").mkdir()
    (tmp_path / "17/stat").write_text("nonsense")
    assert driver_users(tmp_path, 10) == (
        DriverUser(pid=11, name="a (b) c"), DriverUser(pid=13, name="python3"), DriverUser(pid=12, name="python3")
    )  # fmt: skip
    assert driver_users(tmp_path, 99) == ()


def test_a_child_that_hangs_in_the_kernel_counts_and_its_memory_is_not_read(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, state="D")
    process(tmp_path, 11, 10, state="D")
    os.mkfifo(tmp_path / "11/maps")  # to open it would wait for good
    (user,) = driver_users(tmp_path, 10)
    assert user == DriverUser(pid=11, name="python3", hangs=True)
    assert str(user) == "process 11 (python3) is held in the kernel by the driver"


def test_a_real_child(sim_root: Any) -> None:
    root = sim_root("l4")
    library = root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    code = "import ctypes,sys;ctypes.CDLL(sys.argv[1]);print(1,flush=True);sys.stdin.read()"
    with subprocess.Popen(
        ["python3", "-c", code, str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in [user.pid for user in driver_users()]
        child.stdin.close()
        child.wait()
    assert child.pid not in [user.pid for user in driver_users()]
