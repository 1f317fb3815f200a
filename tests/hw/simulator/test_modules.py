"""The simulated driver's modules: what programs see without them, what keeps them, and another version in their place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kgpu.base.errors import ConfigError, HwError
from kgpu.formats.simulated import state_file
from kgpu.hw.simulator import create, modules, operate, processes
from kgpu.hw.simulator.reboot import reboot

Roots = Callable[..., Path]
OLD, NEW = "550.54.15", "570.133.20"


@pytest.fixture
def root(sim_root: Roots) -> Path:
    return sim_root("hgx-h100", gpus=2, driver=OLD)


def smi(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [root / "usr/bin/nvidia-smi", *arguments], env={**os.environ, **create.environment(root)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def files(root: Path) -> set[str]:
    """Every file and link under the root, by its path from there."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or not path.is_dir()}


def test_without_its_modules_no_program_finds_a_driver(root: Path) -> None:
    before = files(root)
    modules.unload(root)
    answer = smi(root)
    assert answer.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in answer.stdout + answer.stderr
    gone = before - files(root)
    assert {"proc/driver/nvidia/version", "sys/module/nvidia/refcnt", "sys/module/nvidia_uvm/refcnt"} <= gone
    assert not [path for path in gone if path.startswith(("dev/", "usr/"))]
    assert state_file(str(root)) is not None
    assert not modules.loaded(root)
    assert operate.snapshot(root)["driver_loaded"] is False


def test_loaded_again_everything_is_as_it_was(root: Path) -> None:
    before = files(root)
    modules.unload(root)
    modules.unload(root)
    assert modules.load(root) == OLD
    assert files(root) == before
    assert smi(root, "-L").stdout.count("GPU ") == 2


def test_another_version_comes_with_its_libraries_and_cuda(root: Path) -> None:
    modules.unload(root)
    assert modules.load(root, NEW) == NEW
    shown = smi(root, "--query-gpu=driver_version", "--format=csv,noheader").stdout.split()
    assert shown == [NEW, NEW]
    assert NEW in (root / "proc/driver/nvidia/version").read_text()
    assert (root / "sys/module/nvidia/version").read_text() == f"{NEW}\n"
    assert os.readlink(create.library_path(root) / "libcuda.so.1") == f"libcuda.so.{NEW}"
    assert operate.snapshot(root)["cuda_version"] == "12.8"
    kernel_says = (root / "dev/kmsg").read_text()
    assert f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {NEW}" in kernel_says


def test_a_process_on_a_gpu_keeps_the_modules(root: Path) -> None:
    processes.add(root, 1, pid=4242)
    with pytest.raises(HwError, match="in use by processes 4242"):
        modules.unload(root)
    assert smi(root, "-L").returncode == 0
    processes.remove(root, 1, 4242)
    modules.unload(root)
    assert not modules.loaded(root)


def test_a_program_with_nvml_open_keeps_the_modules(root: Path) -> None:
    program = (
        "import pynvml, sys; pynvml.nvmlInit(); print('open', flush=True); sys.stdin.read(); pynvml.nvmlShutdown()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, **create.environment(root)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as client:  # fmt: skip
        assert client.stdout is not None
        assert client.stdout.readline() == "open\n"
        with pytest.raises(HwError, match="a program that has NVML open"):
            modules.unload(root)
        client.communicate("")
    modules.unload(root)
    assert not modules.loaded(root)


def test_another_version_waits_until_the_loaded_one_has_gone(root: Path) -> None:
    assert modules.load(root) == modules.load(root, OLD) == OLD
    with pytest.raises(ConfigError, match=f"driver {OLD} is loaded"):
        modules.load(root, NEW)
    assert smi(root, "--query-gpu=driver_version", "--format=csv,noheader").stdout.split() == [OLD, OLD]


def test_nouveau_keeps_the_modules_out(root: Path) -> None:
    modules.unload(root)
    (root / "sys/module/nouveau").mkdir()
    with pytest.raises(HwError, match="nouveau has the GPUs"):
        modules.load(root)
    assert not modules.loaded(root)
    (root / "sys/module/nouveau").rmdir()
    assert modules.load(root) == OLD


@pytest.mark.parametrize("version", ["latest", "", "570/../x", "5", "570.133.20.1"])
def test_a_bad_version_changes_nothing(root: Path, version: str) -> None:
    modules.unload(root)
    with pytest.raises(ConfigError):
        modules.load(root, version or "-")
    assert not modules.loaded(root)


def test_a_root_without_modules_can_be_made_anew(root: Path) -> None:
    modules.unload(root)
    create.create_root("hgx-h100", root, gpus=1, force=True)
    assert modules.loaded(root)


def test_a_machine_that_boots_loads_them_and_one_that_is_healed_does_not(root: Path) -> None:
    before = files(root)
    modules.unload(root)
    operate.clear(root)
    assert not modules.loaded(root)
    assert smi(root).returncode == 9
    reboot(root)
    assert modules.loaded(root)
    assert files(root) == before
