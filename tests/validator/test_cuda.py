"""CUDA in a child: real sums on the simulated driver, and every way in which a child can go wrong."""

from __future__ import annotations

import asyncio
import os

import pytest

from kgpu.host.root import DriverRoot
from kgpu.hw.quick import QuickReading
from kgpu.hw.simulator import operate
from kgpu.hw.simulator.mig import partition
from kgpu.validator import cuda as cuda_
from kgpu.validator import forking as forking_
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


@pytest.fixture
def reaped_in_time(monkeypatch) -> None:
    """A busy machine may need longer to end what was killed; only a driver that holds it would need for ever."""
    monkeypatch.setattr(cuda_, "_REAP_S", PATIENT)
    monkeypatch.setattr(forking_, "REAP_SECONDS", PATIENT)


def forking(body: str) -> str:
    """The forking process's program with another test: the statements ``body``."""
    return f"""from kgpu.validator.cuda_fork import serve
import json, os, signal, time
def body(arguments):
    {body}
    return 0
sys.exit(serve(sys.argv[2:], body))"""


@pytest.mark.parametrize("seed", [1, 2, 4095])
def test_each_element_of_the_vectors_is_what_the_kernel_adds(seed: int) -> None:
    left, right, total = vectors(seed)
    assert len(left) == len(right) == len(total) == ELEMENTS
    assert [a + b for a, b in zip(left, right, strict=True)] == list(total)
    assert len(set(total)) == ELEMENTS, "an element in another's place is seen"


async def test_a_child_that_hangs_is_killed_and_its_call_is_named(tmp_path, reaped_in_time) -> None:
    body = 'print(\'{"step": "cuInit"}\', flush=True); time.sleep(1000)'
    for deadline in (0.5, 5.0, 50.0):  # on a busy machine it may not have come to its call by the first
        outcome = await ChildCuda(DriverRoot.at(tmp_path), boot=forking(body)).run("GPU-x", deadline=deadline)
        if outcome.step:
            break
    assert (outcome.passed, outcome.hung, outcome.held, outcome.step) == (False, True, False, "cuInit")


async def test_a_child_that_crashes_names_signal_and_call(tmp_path) -> None:
    body = 'print(\'{"step": "cuLaunchKernel"}\', flush=True); os.kill(os.getpid(), 11)'
    outcome = await ChildCuda(DriverRoot.at(tmp_path), boot=forking(body)).run("GPU-x", deadline=PATIENT)
    assert (outcome.passed, outcome.signal, outcome.step) == (False, "SIGSEGV", "cuLaunchKernel")


async def test_endless_output_is_cut(tmp_path) -> None:
    body = "while True: os.write(1, b'x' * 9999)"
    outcome = await ChildCuda(DriverRoot.at(tmp_path), boot=forking(body)).run("GPU-x", deadline=PATIENT)
    assert (outcome.passed, len(outcome.text) <= 2000) == (False, True)


async def test_a_forking_process_that_ends_at_once(tmp_path) -> None:
    outcome = await ChildCuda(DriverRoot.at(tmp_path), boot="sys.exit(3)").run("GPU-x", deadline=PATIENT)
    assert (outcome.passed, "can't be started" in outcome.text) == (False, True)


async def test_a_forking_process_that_never_answers(tmp_path) -> None:
    boot = "import time; time.sleep(1000)"
    outcome = await ChildCuda(DriverRoot.at(tmp_path), boot=boot).run("GPU-x", deadline=0.2)
    assert (outcome.passed, outcome.hung) == (False, True)


async def test_a_held_process_keeps_a_second_from_being_started(tmp_path) -> None:
    boot = """from kgpu.validator import cuda_fork
import os, time
cuda_fork.os.kill = lambda pid, number: None  # as if the driver kept the process in the kernel
sys.exit(cuda_fork.serve(sys.argv[2:], lambda arguments: time.sleep(1000)))"""
    runner = ChildCuda(DriverRoot.at(tmp_path), boot=boot)
    first = await runner.run("GPU-x", deadline=1.0)
    second = await runner.run("GPU-x", deadline=1e6)  # which nobody waits for
    other = await runner.run("GPU-y", deadline=0.1)
    assert (first.hung, first.held) == (True, True)
    assert (second.held, second.hung, "is still held" in second.text) == (True, True, True)
    assert "is still held" not in other.text, "another GPU is tested"


async def test_tests_run_beside_each_other_and_the_forking_process_ends_when_idle(
    tmp_path, monkeypatch, reaped_in_time
) -> None:  # fmt: skip
    monkeypatch.setattr(forking_, "IDLE_SECONDS", 0.1)
    body = "print(json.dumps({'passed': {'elements': 1}, 'facts': {'name': os.environ['CUDA_VISIBLE_DEVICES']}}))"
    runner = ChildCuda(DriverRoot.at(tmp_path), boot=forking(f"{body}; sys.stdout.flush()"))
    outcomes = await asyncio.gather(*(runner.run(f"MIG-{number}", deadline=PATIENT) for number in range(20)))
    assert [(outcome.passed, outcome.name) for outcome in outcomes] == [(True, f"MIG-{n}") for n in range(20)]
    forker = runner._forker
    await asyncio.wait_for(asyncio.gather(forker._task, return_exceptions=True), PATIENT)
    assert not forker.open
    assert forker._process.poll() is not None
    assert (await runner.run("MIG-0", deadline=PATIENT)).passed, "a later round starts another"


async def test_a_forking_process_that_is_killed_costs_one_repetition(tmp_path) -> None:
    marker = tmp_path / "killed"
    body = f"""
    if not os.path.exists({str(marker)!r}):
        open({str(marker)!r}, "w").close()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)
    os.write(1, b'{{"passed": {{"elements": 1}}}}\\n')"""
    outcome = await ChildCuda(DriverRoot.at(tmp_path), boot=forking(body)).run("GPU-x", deadline=PATIENT)
    assert outcome.passed, outcome
    always = forking("os.kill(os.getppid(), signal.SIGKILL); time.sleep(1000)")
    outcome = await ChildCuda(DriverRoot.at(tmp_path), boot=always).run("GPU-x", deadline=PATIENT)
    # Killed before it could say that it has begun, it looks like one that can't be started.
    assert not outcome.passed
    assert "killed twice" in outcome.text or "the process that starts the tests has ended" in outcome.text, outcome


async def test_nothing_is_left_when_a_test_is_cancelled(tmp_path, reaped_in_time) -> None:
    marker = tmp_path / "pid"
    body = f"open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
    runner = ChildCuda(DriverRoot.at(tmp_path), boot=forking(body))
    run = asyncio.create_task(runner.run("GPU-x", deadline=PATIENT))
    async with asyncio.timeout(PATIENT):
        while not (marker.exists() and marker.read_text()):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


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
