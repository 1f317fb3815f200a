"""``nvidia-smi --gpu-reset`` on simulated GPUs: what it refuses, what it cures, and how it can go wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kgpu.hw.simulator import mig, operate
from kgpu.hw.simulator.create import environment
from kgpu.hw.simulator.state import DriverState
from tests.child import child
from tests.hw.simulator.nvml_process import Nvml
from tests.native.test_smi import query, smi

Root = Callable[..., Path]
REFUSED = "The following GPUs could not be reset:\n  GPU {}: In use by another client\n"
CONTEXT = (
    "import ctypes,sys; c=ctypes.CDLL('libcuda.so.1'); x=ctypes.c_void_p(); c.cuInit(0);"
    "assert c.cuCtxCreate_v2(ctypes.byref(x),0,{})==0; print(flush=True); sys.stdin.read()"
)


@contextmanager
def cuda(root: Path, gpu: int) -> Iterator[int]:
    """A process with a context on the GPU; its pid."""
    process = child(
        [sys.executable, "-c", CONTEXT.format(gpu)], env={**os.environ, **environment(root)}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process as running:
        assert running.stdout is not None
        running.stdout.readline()
        yield running.pid


def open_nodes(pid: int, root: Path) -> set[str]:
    """The device nodes of the root that the process has open."""
    folder = Path(f"/proc/{pid}/fd")
    links = [os.readlink(folder / name) for name in os.listdir(folder)]
    return {os.path.basename(link) for link in links if link.startswith(f"{root}/dev/")}


def at_rest(root: Path) -> Path:
    """With persistence mode off, as a reset needs it."""
    smi(root, "-pm", "0")
    return root


def bus_of(root: Path, gpu: int) -> str:
    return query(root, "pci.bus_id", "-i", str(gpu))[0][0]


def gpu(root: Path, index: int) -> dict[str, Any]:
    found: dict[str, Any] = operate.snapshot(root)["gpus"][index]
    return found


def test_persistence_mode_keeps_the_gpu_in_use(sim_root: Root) -> None:
    root = sim_root(gpus=2)
    assert smi(root, "--gpu-reset", "-i", "0", code=255).startswith(REFUSED.format(bus_of(root, 0)))
    smi(root, "-pm", "0", "-i", "0")
    assert smi(root, "-r", "-i", "0") == f"GPU {bus_of(root, 0)} was successfully reset.\nAll done.\n"
    assert (gpu(root, 0)["resets"], gpu(root, 1)["resets"]) == (1, 0)


def test_a_program_on_the_gpu_keeps_it_and_no_other(sim_root: Root) -> None:
    root = at_rest(sim_root(gpus=2))
    with cuda(root, 1) as pid:
        assert open_nodes(pid, root) == {"nvidiactl", "nvidia-uvm", "nvidia1"}
        assert "In use by another client" in smi(root, "-r", "-i", "1", code=255)
        smi(root, "-r", "-i", "0")
    smi(root, "-r", "-i", "1")


def test_who_only_watches_keeps_every_gpu_until_it_stops_or_dies(sim_root: Root) -> None:
    root = at_rest(sim_root(gpus=2))
    with Nvml(root) as watcher:
        pid = int(watcher("os.getpid()"))
        assert open_nodes(pid, root) == {"nvidiactl", "nvidia0", "nvidia1"}
        for index in ("0", "1"):
            assert "In use by another client" in smi(root, "-r", "-i", index, code=255)
        watcher.run("nvmlShutdown()")
        assert not open_nodes(pid, root)
        smi(root, "-r", "-i", "0")
        watcher.run("nvmlInit(); nvmlInit(); nvmlShutdown()")
        smi(root, "-r", "-i", "0", code=255)
        os.kill(pid, signal.SIGKILL)
        watcher.process.wait()
        smi(root, "-r", "-i", "0")


def test_a_process_that_is_there_by_word_alone_counts(sim_root: Root) -> None:
    root = at_rest(sim_root(gpus=1))
    with DriverState.open(root / "state") as state:
        slot = state.gpu(0).process[0]
        slot.used, slot.pid, slot.kind = 1, 4242, 1
        smi(root, "-r", code=255)
        slot.used = 0
        smi(root, "-r")


def test_it_cures_what_a_reset_cures_and_nothing_else(sim_root: Root) -> None:
    root = at_rest(sim_root(gpus=2))
    for xid in (48, 74, 119):
        operate.inject(root, "xid", gpu=1, xid=xid)
    operate.set_values(root, {"remap-failed": "on", "compute-mode": "prohibited", "power-limit": 500}, gpu=1)
    with DriverState.open(root / "state") as state:
        aggregate = list(state.gpu(1).ecc_aggregate)
        assert sum(aggregate) == 1
    # It can still be named, but says nothing of itself.
    assert smi(root, "-L").count("UUID: GPU-") == 2
    assert query(root, "temperature.gpu", "-i", "1") == [["[GPU requires reset]"]]
    smi(root, "--gpu-reset", "-i", "1")
    after = gpu(root, 1)
    assert (after["recovery_action"], after["ecc"]["uncorrected"], after["nvlinks"]["active"]) == ("none", 0, 18)
    assert after["faults"] == ["xid 119", "remap failed"]
    assert query(root, "compute_mode,power.limit,persistence_mode", "-i", "1") == [["Default", "700.00 W", "Disabled"]]
    with DriverState.open(root / "state") as state:
        assert list(state.gpu(1).ecc_aggregate) == aggregate
        assert (state.gpu(1).remap_pending, state.gpu(1).remap_uncorrected) == (0, 1)


def test_instances_are_gone_and_the_mode_stays(sim_root: Root) -> None:
    root = at_rest(sim_root(gpus=1))
    mig.partition(root, 0, ["3g.40gb"])
    smi(root, "-r")
    assert gpu(root, 0)["mig"] == {"capable": True, "enabled": True, "pending": False, "devices": []}


def test_a_reset_can_be_made_to_fail_once(sim_root: Root) -> None:
    root = at_rest(sim_root(gpus=1))
    operate.inject(root, "xid", gpu=0, xid=48)
    operate.set_values(root, {"next-reset": "fails"}, gpu=0)
    assert gpu(root, 0)["faults"][-1] == "the next reset fails"
    assert smi(root, "-r", code=255) == f"Unable to reset GPU {bus_of(root, 0)}: Unknown Error\n"
    assert (gpu(root, 0)["recovery_action"], gpu(root, 0)["resets"]) == ("reset", 0)
    smi(root, "-r")
    assert (gpu(root, 0)["recovery_action"], gpu(root, 0)["resets"]) == ("none", 1)


def test_a_reset_can_lose_the_gpu_or_give_it_another_name(sim_root: Root) -> None:
    root = at_rest(sim_root(gpus=2))
    uuids = [gpu(root, index)["uuid"] for index in (0, 1)]
    operate.set_values(root, {"next-reset": "loses"}, gpu=0)
    operate.set_values(root, {"next-reset": "renames"}, gpu=1)
    smi(root, "-r")
    assert (gpu(root, 0)["faults"], gpu(root, 0)["recovery_action"]) == (["lost"], "reboot")
    assert gpu(root, 1)["uuid"] not in uuids
    assert gpu(root, 1)["uuid"][:-1] == uuids[1][:-1]


def test_a_reset_can_hang_until_that_is_cleared(sim_root: Root) -> None:
    root = at_rest(sim_root(gpus=1))
    operate.set_values(root, {"next-reset": "hangs"}, gpu=0)
    command = [root / "usr/bin/nvidia-smi", "-r"]
    with child(command, env={**os.environ, **environment(root)}, stdout=subprocess.PIPE, text=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        operate.clear(root)
        assert process.wait(60) == 0
    assert gpu(root, 0)["resets"] == 1


@pytest.mark.parametrize(("profile", "missing"), [("dgx-1-v100", 4), ("hgx-h100", 0), ("dgx-a100-40g", 0), ("l4", 0)])
def test_before_ampere_nvlink_peers_are_reset_together(sim_root: Root, profile: str, missing: int) -> None:
    root = at_rest(sim_root(profile))
    code = 255 if missing else 0
    said = smi(root, "-r", "-i", "0", code=code)
    assert said.count("  GPU ") == missing
    assert missing == 0 or "reset together. These are missing:" in said
    smi(root, "-r")
    assert {one["resets"] for one in operate.snapshot(root)["gpus"][1:]} == {1}
