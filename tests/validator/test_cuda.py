"""CUDA in a child: real sums on the simulated driver, and every way in which a child can go wrong."""

from __future__ import annotations

import sys
import time

import pytest

from kgpu.host.root import DriverRoot
from kgpu.hw.quick import QuickReading
from kgpu.hw.simulator import operate
from kgpu.hw.simulator.mig import partition
from kgpu.validator.cuda import ChildCuda, find_cuda, read_outcome
from kgpu.validator.cuda_child import ELEMENTS, vectors

PATIENT = 60.0


def uuids(root) -> list[str]:
    return [gpu["uuid"] for gpu in operate.snapshot(root)["gpus"]]


async def test_the_sums_are_right_on_a_simulated_gpu(sim_root) -> None:
    root = sim_root("hgx-h100", gpus=2)
    outcome = await ChildCuda(DriverRoot.at(root)).run(uuids(root)[1], deadline=PATIENT)
    assert (outcome.passed, outcome.elements, outcome.name) == (True, 50_000, "NVIDIA H100 80GB HBM3"), outcome
    assert all(not gpu["processes"] for gpu in operate.snapshot(root)["gpus"])


async def test_each_gpu_fails_for_itself(sim_root) -> None:
    root = sim_root("hgx-h100", gpus=2)
    operate.set_values(root, {"compute-mode": "prohibited"}, gpu=0)
    first, second = uuids(root)
    runner = ChildCuda(DriverRoot.at(root))
    bad, good = await runner.run(first, deadline=PATIENT), await runner.run(second, deadline=PATIENT)
    assert (bad.passed, bad.step, bad.code, bad.compute_mode) == (False, "cuCtxCreate_v2", 46, 2)
    assert good.passed


async def test_a_full_gpu_is_told_apart(sim_root) -> None:
    root = sim_root("hgx-h100", gpus=1)
    operate.set_values(root, {"memory-used": "81000"}, gpu=0)
    outcome = await ChildCuda(DriverRoot.at(root)).run(uuids(root)[0], deadline=PATIENT)
    assert (outcome.passed, outcome.code) == (False, 2)


async def test_it_runs_on_a_mig_device(sim_root) -> None:
    root = sim_root("hgx-h100", gpus=1)
    partition(root, 0, ["1g.10gb", "2g.20gb"])
    with QuickReading(str(root)) as reading:
        parts = reading.inventory().accelerators[0].partitions
    outcome = await ChildCuda(DriverRoot.at(root)).run(parts[1].uuid, deadline=PATIENT)
    assert (outcome.passed, "MIG" in outcome.name) == (True, True), outcome


async def test_a_device_that_cuda_does_not_see(sim_root) -> None:
    root = sim_root("hgx-h100", gpus=1)
    outcome = await ChildCuda(DriverRoot.at(root)).run("GPU-none", deadline=PATIENT)
    assert (outcome.passed, outcome.code) == (False, 100)


async def test_a_root_without_libcuda(tmp_path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libcuda.so.1").write_text("this is no library")
    outcome = await ChildCuda(DriverRoot.at(tmp_path)).run("GPU-x", deadline=PATIENT)
    assert (outcome.passed, outcome.step) == (False, "load")


def test_helpers_are_found_beside_libcuda(tmp_path) -> None:
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-gpucomp.so.570.1", "libc.so.6"):
        (folder / name).write_text("x")
    library, helpers = find_cuda(DriverRoot.at(tmp_path))
    assert library == str(folder / "libcuda.so.1")
    assert [one.rpartition("/")[2] for one in helpers] == [
        "libnvidia-gpucomp.so.570.1",
        "libnvidia-ptxjitcompiler.so.1",
    ]


def child(code: str) -> list[str]:
    return [sys.executable, "-S", "-E", "-c", code]


@pytest.mark.parametrize("seed", [1, 2, 4095])
def test_each_element_of_the_vectors_is_what_the_kernel_adds(seed: int) -> None:
    left, right, total = vectors(seed)
    assert len(left) == len(right) == len(total) == ELEMENTS
    assert [a + b for a, b in zip(left, right, strict=True)] == list(total)
    assert len(set(total)) == ELEMENTS, "an element in another's place is seen"


async def test_a_child_that_hangs_is_killed_and_its_call_is_named(tmp_path) -> None:
    code = 'import time; print(\'{"step": "cuInit"}\', flush=True); time.sleep(1000)'
    begin = time.monotonic()
    for deadline in (0.5, 5.0, 50.0):  # on a busy machine it may not have come to its call by the first
        outcome = await ChildCuda(DriverRoot.at(tmp_path), command=child(code)).run("GPU-x", deadline=deadline)
        if outcome.step:
            break
    assert (outcome.passed, outcome.hung, outcome.held, outcome.step) == (False, True, False, "cuInit")
    assert time.monotonic() - begin < PATIENT


async def test_a_child_that_crashes_names_signal_and_call(tmp_path) -> None:
    code = 'import os; print(\'{"step": "cuLaunchKernel"}\', flush=True); os.kill(os.getpid(), 11)'
    outcome = await ChildCuda(DriverRoot.at(tmp_path), command=child(code)).run("GPU-x", deadline=PATIENT)
    assert (outcome.passed, outcome.signal, outcome.step) == (False, "SIGSEGV", "cuLaunchKernel")


async def test_endless_output_is_cut(tmp_path) -> None:
    code = "import sys\nwhile True: sys.stdout.write('x' * 9999)"
    outcome = await ChildCuda(DriverRoot.at(tmp_path), command=child(code)).run("GPU-x", deadline=PATIENT)
    assert (outcome.passed, len(outcome.text) <= 2000) == (False, True)


async def test_a_program_that_is_not_there(tmp_path) -> None:
    outcome = await ChildCuda(DriverRoot.at(tmp_path), command=["/nonexistent/program"]).run("GPU-x", deadline=PATIENT)
    assert (outcome.passed, "can't be started" in outcome.text) == (False, True)


async def test_a_held_process_keeps_a_second_from_being_started(tmp_path) -> None:
    runner = ChildCuda(DriverRoot.at(tmp_path), command=["/nonexistent/program"])

    class Stuck:
        pid = 7

        def poll(self) -> None:
            return None

    runner._held["GPU-x"] = Stuck()
    outcome = await runner.run("GPU-x", deadline=PATIENT)
    assert (outcome.held, outcome.hung, "process 7" in outcome.text) == (True, True, True)


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff\xfe", b'{"passed": 3}\n', b'{"passed": true}', b"[1]\n{", b'{"error": []}\n{"facts": "x"}',
     b'{"error": {"code": "x", "text": 5}}'],
)  # fmt: skip
def test_output_that_says_nothing_is_no_pass(raw) -> None:
    outcome = read_outcome(raw, hung=False, held=False, returncode=0, seconds=1.0, deadline=5.0)
    assert not outcome.passed


def test_a_pass_needs_a_clean_end() -> None:
    raw = b'{"passed": {"elements": 50000}}\n'
    outcomes = [
        read_outcome(raw, hung=False, held=False, returncode=code, seconds=1.0, deadline=5.0) for code in (0, 1, -11)
    ]
    assert [one.passed for one in outcomes] == [True, False, False]
