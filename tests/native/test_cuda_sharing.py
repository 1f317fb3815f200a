"""Many at once on one simulated GPU: processes that race for its memory, threads, time-sliced samples, sudden deaths."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kgpu.hw.simulator.create import environment
from kgpu.hw.simulator.state import DriverState
from tests.child import child

Root = Callable[..., Path]
MIB = 1 << 20

# Takes memory (argv[1] bytes) when told to, says whether it got it, and keeps it until stdin closes.
TAKER = """
import ctypes, sys
c = ctypes.CDLL("libcuda.so.1"); x, p = ctypes.c_void_p(), ctypes.c_ulonglong()
assert c.cuInit(0) == 0 and c.cuCtxCreate_v2(ctypes.byref(x), 0, 0) == 0
print("ready", flush=True); sys.stdin.readline()
print(c.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(int(sys.argv[1]))), flush=True); sys.stdin.readline()
"""

THREADS = """
import ctypes, threading
c = ctypes.CDLL("libcuda.so.1"); c.cuInit(0); bad = []
text = b'''.version 7.0
.target sm_50
.address_size 64
.global .u32 start = 7;
.entry k(.param .u64 p) { .reg .b64 %rd<3>; .reg .b32 %r<3>; ld.param.u64 %rd0, [p]; mov.u32 %r0, %tid.x;
 mul.wide.u32 %rd1, %r0, 4; add.u64 %rd0, %rd0, %rd1; ld.global.u32 %r1, [start]; add.u32 %r0, %r0, %r1;
 st.global.u32 [%rd0], %r0; ret; }'''
def work(device):
    for i in range(40):
        x, m, f, p = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_ulonglong()
        codes = [c.cuCtxCreate_v2(ctypes.byref(x), 0, device), c.cuModuleLoadData(ctypes.byref(m), text),
                 c.cuModuleGetFunction(ctypes.byref(f), m, b"k"), c.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(128 + i))]
        params = (ctypes.c_void_p * 1)(ctypes.addressof(p)); out = (ctypes.c_uint * 32)()
        codes += [c.cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, None, params, None), c.cuMemcpyDtoH_v2(out, p, ctypes.c_size_t(128))]
        codes.append(c.cuCtxDestroy_v2(x))
        if any(codes) or list(out) != list(range(7, 39)): bad.append((codes, list(out)))
threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(6)]
for t in threads: t.start()
for t in threads: t.join()
print(bad[:1])
"""


def start(root: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, **environment(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_the_last_memory_goes_to_one(sim_root: Root) -> None:
    """Eight race for 20 GiB each of an 80 GiB GPU: three get it, whatever the order."""
    root = sim_root(gpus=1)
    takers = [start(root, TAKER, str(20 << 30)) for _ in range(8)]
    try:
        assert [line(taker) for taker in takers] == ["ready"] * 8
        for taker in takers:
            go(taker)
        assert sorted(line(taker) for taker in takers) == ["0"] * 3 + ["2"] * 5
        with DriverState.open(root / "state") as state:
            held = [slot.memory for slot in state.processes(0)]
            assert (len(held), sum(memory > 20 << 30 for memory in held)) == (8, 3)
            assert sum(held) <= state.gpu(0).mem_total - state.gpu(0).mem_reserved
    finally:
        for taker in takers:
            taker.communicate()
    with DriverState.open(root / "state") as state:
        assert not [slot for slot in state.gpu(0).process if slot.used]


def test_threads_with_their_own_contexts(sim_root: Root) -> None:
    root = sim_root(gpus=2)
    with start(root, THREADS) as process:
        assert line(process) == "[]"
    with DriverState.open(root / "state") as state:
        assert [(state.processes(i), state.gpu(i).load_target) for i in range(2)] == [([], 0)] * 2


def test_ten_samples_share_a_gpu(sim_root: Root) -> None:
    root = sim_root("t4", gpus=1)
    program = root / "usr/share/kgpu/vectoradd"
    env = {**os.environ, **environment(root)}
    pods = [
        subprocess.Popen([program, "--bytes", str(500 * MIB)], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    assert [pod.communicate(timeout=120)[0].splitlines()[-2] for pod in pods] == ["Test PASSED"] * 10
    with DriverState.open(root / "state") as state:
        assert state.processes(0) == []


def test_sudden_deaths_leave_nothing(sim_root: Root) -> None:
    """Samples killed at random moments: no lock stays held, no memory stays taken, the next one passes."""
    root = sim_root(gpus=1)
    program = root / "usr/share/kgpu/vectoradd"
    env = {**os.environ, **environment(root)}
    moments = random.Random(5)
    for _ in range(20):
        victim = subprocess.Popen([program, "--seconds", "60"], env=env, stdout=subprocess.DEVNULL)
        time.sleep(moments.uniform(0, 0.03))
        victim.kill()
        victim.wait()
    done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-2:] == ["Test PASSED", "Done"]
    with DriverState.open(root / "state") as state:
        assert not [slot for slot in state.gpu(0).process if slot.used]
        assert state.gpu(0).load_target == 0


def test_the_sample_ends_when_asked(sim_root: Root) -> None:
    root = sim_root(gpus=1)
    program = root / "usr/share/kgpu/vectoradd"
    env = {**os.environ, **environment(root)}
    with child([program, "--hold", "600"], env=env, stdout=subprocess.PIPE, text=True) as sample:
        while line(sample) != "Copy output data from the CUDA device to the host memory":
            assert sample.poll() is None
        sample.send_signal(signal.SIGTERM)
        assert sample.wait(timeout=30) == 143
