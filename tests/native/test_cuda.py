"""The simulated libcuda.so.1 and the vector-add sample, through the real C ABI in other processes.

Each test makes a simulated driver root and starts programs on it: the sample, or a few lines of Python that call the
library by ctypes. What they do is checked from outside, in the state that all processes share.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kgpu.hw.simulator.create import environment
from kgpu.hw.simulator.state import EVENT_XID, DriverState

MIB = 1 << 20
Root = Callable[..., Path]

# What every driver script begins with: `cu` calls a function and gives its code, `out` prints the answer.
PRELUDE = """
import ctypes, json, os, sys, time
lib = ctypes.CDLL("libcuda.so.1")
u32, u64, size = ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_size_t
def cu(name, *args): return getattr(lib, name)(*args)
def out(**values): print(json.dumps(values), flush=True)
def alloc(n):
    p = u64(); code = cu("cuMemAlloc_v2", ctypes.byref(p), size(n)); return code, p.value
def context(device=0):
    c = ctypes.c_void_p(); return cu("cuCtxCreate_v2", ctypes.byref(c), 0, device)
def count():
    n = ctypes.c_int(-1); cu("cuDeviceGetCount", ctypes.byref(n)); return n.value
def name(device):
    b = ctypes.create_string_buffer(200); cu("cuDeviceGetName", b, 200, device); return b.value.decode()
def attribute(which, device=0):
    v = ctypes.c_int(-1); cu("cuDeviceGetAttribute", ctypes.byref(v), which, device); return v.value
def bus_id(device):
    b = ctypes.create_string_buffer(32); cu("cuDeviceGetPCIBusId", b, 32, device); return b.value.decode()
def free_memory():
    f, t = size(), size(); cu("cuMemGetInfo_v2", ctypes.byref(f), ctypes.byref(t)); return f.value, t.value
def load(text):
    m = ctypes.c_void_p(); log = ctypes.create_string_buffer(2048)
    options = (ctypes.c_int * 2)(5, 6); values = (ctypes.c_void_p * 2)(ctypes.addressof(log), 2048)
    code = cu("cuModuleLoadDataEx", ctypes.byref(m), text.encode(), 2, options, values); return code, m, log.value.decode()
def launch(body, pointer=0):
    text = ".version 7.0\\n.target sm_50\\n.address_size 64\\n.visible .entry k(.param .u64 p) {.reg .b64 %rd<4>; .reg .b32 %r<4>;"
    code, module, log = load(text + "ld.param.u64 %rd0, [p];" + body + "}")
    assert code == 0, log
    f = ctypes.c_void_p(); assert cu("cuModuleGetFunction", ctypes.byref(f), module, b"k") == 0
    value = u64(pointer); params = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    first = cu("cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, None, params, None)
    return first, cu("cuCtxSynchronize")
"""


def start(root: Path, script: str, **env: str) -> subprocess.Popen[str]:
    """A process that runs a driver script on a root; `wait` on a line of stdin keeps it where the test wants it."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script],
        env={**os.environ, **environment(root), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(root: Path, script: str, **env: str) -> Any:
    """The one answer of a driver script."""
    with start(root, script, **env) as process:
        text, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(text)


@contextmanager
def holding(root: Path, script: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """A driver script that has answered and now waits, until the block ends."""
    process = start(root, script + "\nsys.stdin.readline()", **env)
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def sample(root: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the vector-add sample."""
    program = root / "usr/share/kgpu/vectoradd"
    return subprocess.run(
        [program, *arguments],
        env={**os.environ, **environment(root), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another process is about to do."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def xids(state: DriverState) -> list[tuple[int, int]]:
    """(GPU, Xid) of the event ring, oldest first."""
    return [(e.gpu, e.data) for e in list(state.view.event)[: state.view.event_head] if e.type == EVENT_XID]


# ---- the sample ----


def test_the_sample_passes_on_every_device(sim_root: Root) -> None:
    done = sample(sim_root(gpus=3))
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0] == "[Vector addition of 50000 elements]"
    assert lines[-2:] == ["Test PASSED", "Done"]
    assert [line for line in lines if line.startswith("Device ")] == [
        f"Device {i}: NVIDIA H100 80GB HBM3, compute capability 9.0, 81007 MiB" for i in range(3)
    ]


def test_the_sample_fails_aloud(sim_root: Root) -> None:
    root = sim_root(gpus=1)
    for arguments, env, code, said in (
        (["--device", "1"], {}, 1, "CUDA_ERROR_INVALID_DEVICE"),
        (["--bytes", "1e12"], {}, 1, "CUDA_ERROR_OUT_OF_MEMORY"),
        ([], {"CUDA_VISIBLE_DEVICES": ""}, 1, "CUDA_ERROR_NO_DEVICE"),
        ([], {"LD_LIBRARY_PATH": "/nonexistent"}, 1, "cannot load the CUDA driver"),
        (["--frob"], {}, 2, "Usage: vectoradd"),
    ):
        done = sample(root, *arguments, **env)
        assert (done.returncode, said in done.stderr) == (code, True), (arguments, done.stderr)
        assert ("Test FAILED" in done.stdout) == (code == 1)
        assert "PASSED" not in done.stdout


# ---- starting up ----


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, 0),
        ({"init_error": 9}, 100),
        ({"init_error": 18}, 803),
        ({"init_error": 999}, 999),
    ],
)
def test_init(sim_root: Root, change: dict[str, int], code: int) -> None:
    root = sim_root(gpus=1)
    with DriverState.open(root / "state") as state:
        state.set_fault(None, **change)
    assert ask(root, "out(bad=cu('cuInit', 1), before=cu('cuCtxSynchronize'), code=cu('cuInit', 0))") == {
        "bad": 1,
        "before": 3,
        "code": code,
    }


def test_init_waits_for_the_fabric_manager(sim_root: Root) -> None:
    root = sim_root("hgx-h100", gpus=8)
    with DriverState.open(root / "state") as state:
        assert state.gpu(0).fabric_state == 3
        state.gpu(5).fabric_state = 2
    assert ask(root, "out(code=cu('cuInit', 0))") == {"code": 802}


def test_without_driver_there_is_no_device(sim_root: Root, tmp_path: Path) -> None:
    root = sim_root(gpus=1)
    assert ask(root, "out(code=cu('cuInit', 0))", KGPU_HW_STATE=str(tmp_path / "none")) == {"code": 100}
    (tmp_path / "garbage").write_bytes(b"no state" * 4096)
    assert ask(root, "out(code=cu('cuInit', 0))", KGPU_HW_STATE=str(tmp_path / "garbage")) == {"code": 100}
    (root / "dev/nvidiactl").unlink()
    assert ask(root, "out(code=cu('cuInit', 0))") == {"code": 100}


def test_identity_and_attributes_follow_the_state(sim_root: Root) -> None:
    root = sim_root("t4", gpus=2)
    script = """
cu("cuInit", 0); uuid = (ctypes.c_ubyte * 16)(); cu("cuDeviceGetUuid_v2", uuid, 1); v = ctypes.c_int(); cu("cuDriverGetVersion", ctypes.byref(v))
total = size(); cu("cuDeviceTotalMem_v2", ctypes.byref(total), 1)
out(name=name(1), uuid=bytes(uuid).hex(), bus=bus_id(1), cc=[attribute(75, 1), attribute(76, 1)], sm=attribute(16, 1), total=total.value,
    pci=attribute(33, 1), cuda=v.value, unknown=cu("cuDeviceGetAttribute", ctypes.byref(v), 9999, 1), none=cu("cuDeviceGetName", None, 0, 7))
"""
    answer = ask(root, script)
    with DriverState.open(root / "state") as state:
        gpu = state.gpu(1)
        assert answer == {
            "name": gpu.name.decode(),
            "uuid": gpu.uuid.decode().removeprefix("GPU-").replace("-", ""),
            "bus": f"{gpu.pci.domain:04X}:{gpu.pci.bus:02X}:{gpu.pci.device:02X}.{gpu.pci.function:X}",
            "cc": [7, 5],
            "sm": gpu.sm_count,
            "total": gpu.mem_total - gpu.mem_reserved,
            "pci": gpu.pci.bus,
            "cuda": state.view.cuda_version,
            "unknown": 1,
            "none": 101,
        }


def test_entry_points_are_found_by_name(sim_root: Root) -> None:
    script = """
found = {}
for base, version in (("cuInit", 12000), ("cuMemAlloc", 12000), ("cuCtxCreate", 12000), ("cuCtxCreate", 13000), ("cuDeviceGetUuid", 11000), ("cuNoSuch", 12000)):
    p = ctypes.c_void_p(); s = ctypes.c_int(-1)
    code = cu("cuGetProcAddress_v2", base.encode(), ctypes.byref(p), version, u64(0), ctypes.byref(s))
    names = [n for n in (base, base + "_v2", base + "_v4") if hasattr(lib, n) and ctypes.cast(getattr(lib, n), ctypes.c_void_p).value == p.value]
    found[f"{base} {version}"] = [code, s.value, names[-1] if names else None]
out(**found)
"""
    assert ask(sim_root(gpus=1), script) == {
        "cuInit 12000": [0, 0, "cuInit"],
        "cuMemAlloc 12000": [0, 0, "cuMemAlloc_v2"],
        "cuCtxCreate 12000": [0, 0, "cuCtxCreate_v2"],
        "cuCtxCreate 13000": [0, 0, "cuCtxCreate_v4"],
        "cuDeviceGetUuid 11000": [0, 0, "cuDeviceGetUuid"],
        "cuNoSuch 12000": [0, 1, None],
    }


# ---- which devices ----

SEEN = "code = cu('cuInit', 0); out(code=code, seen=[bus_id(i) for i in range(count())] if code == 0 else [])"


@pytest.mark.parametrize(
    ("listed", "seen"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        ("1,9,2", [1]),
        ("-1", []),
        ("", []),
        ("3,-1,0", [3]),
        ("0,0", []),
        ("nonsense", []),
        ("{uuid2},{uuid0}", [2, 0]),
        ("{prefix3}", [3]),
        ("GPU-", []),
        ("1, {uuid3}", [1, 3]),
    ],
)
def test_cuda_visible_devices(sim_root: Root, listed: str | None, seen: list[int]) -> None:
    root = sim_root(gpus=4)
    with DriverState.open(root / "state") as state:
        gpus = [state.gpu(i) for i in range(4)]
        buses = [f"{g.pci.domain:04X}:{g.pci.bus:02X}:{g.pci.device:02X}.0" for g in gpus]
        words = {f"uuid{i}": g.uuid.decode() for i, g in enumerate(gpus)}
        words |= {f"prefix{i}": g.uuid.decode()[:12] for i, g in enumerate(gpus)}
    env = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed.format(**words)}
    assert ask(root, SEEN, **env) == {"code": 0 if seen else 100, "seen": [buses[i] for i in seen]}


def test_only_gpus_with_a_device_node_are_there(sim_root: Root) -> None:
    root = sim_root(gpus=4)
    everything = ask(root, SEEN)["seen"]
    (root / "dev/nvidia2").unlink()
    assert ask(root, SEEN)["seen"] == [bus for i, bus in enumerate(everything) if i != 2]


def test_a_lost_gpu_is_left_out(sim_root: Root) -> None:
    root = sim_root(gpus=2)
    everything = ask(root, SEEN)["seen"]
    with DriverState.open(root / "state") as state:
        state.set_fault(0, lost=1)
    assert ask(root, SEEN)["seen"] == everything[1:]


def test_a_forked_child_must_not_go_on(sim_root: Root) -> None:
    script = """
cu("cuInit", 0); context(); pid = os.fork()
if pid == 0: os._exit(cu("cuCtxSynchronize") if count() == -1 else 99)
out(child=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), parent=cu("cuCtxSynchronize"), free=free_memory()[0] > 0)
"""
    assert ask(sim_root(gpus=1), script) == {"child": 3, "parent": 0, "free": True}


# ---- MIG ----


def slices(root: Path, gpu: int, *profiles: str) -> None:
    """Put a GPU in MIG mode and make instances of the named profiles, with the driver's own program."""
    smi = str(root / "usr/bin/nvidia-smi")
    env = {**os.environ, **environment(root)}
    subprocess.run([smi, "-i", str(gpu), "-mig", "1"], env=env, check=True, capture_output=True, timeout=60)
    if profiles:
        subprocess.run(
            [smi, "mig", "-i", str(gpu), "-cgi", ",".join(profiles), "-C"],
            env=env,
            check=True,
            capture_output=True,
            timeout=60,
        )


def test_one_slice_and_nothing_else(sim_root: Root) -> None:
    root = sim_root(gpus=2)
    slices(root, 1, "1g.10gb", "2g.20gb")
    script = "cu('cuInit', 0); context(); out(n=count(), name=name(0), sm=attribute(16), total=free_memory()[1])"
    with DriverState.open(root / "state") as state:
        uuids = [ci.uuid.decode() for ci in state.gpu(1).ci if ci.used]
        whole = state.gpu(0).uuid.decode()
    small = {"n": 1, "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "sm": 16, "total": 9984 * MIB}
    middle = {"n": 1, "name": "NVIDIA H100 80GB HBM3 MIG 2g.20gb", "sm": 32, "total": 20096 * MIB}
    chosen = [ask(root, script, CUDA_VISIBLE_DEVICES=uuid) for uuid in uuids]
    assert sorted(answer["sm"] for answer in chosen) == [16, 32]
    assert all(answer in (small, middle) for answer in chosen)
    assert ask(root, script) in (small, middle)
    assert ask(root, script, CUDA_VISIBLE_DEVICES=",".join(uuids))["n"] == 1
    assert ask(root, script, CUDA_VISIBLE_DEVICES=whole)["name"] == "NVIDIA H100 80GB HBM3"


def test_mig_mode_without_slices_is_no_device(sim_root: Root) -> None:
    root = sim_root(gpus=1)
    slices(root, 0)
    assert ask(root, SEEN) == {"code": 100, "seen": []}


def test_a_slice_has_its_own_memory(sim_root: Root) -> None:
    root = sim_root(gpus=1)
    slices(root, 0, "1g.10gb", "1g.10gb")
    with DriverState.open(root / "state") as state:
        first, second = [ci.uuid.decode() for ci in state.gpu(0).ci if ci.used]
        take = f"cu('cuInit', 0); context(); out(code=alloc(9000 * {MIB})[0])"
        with holding(root, take, CUDA_VISIBLE_DEVICES=first) as (_, got):
            assert got == {"code": 0}
            assert ask(root, take, CUDA_VISIBLE_DEVICES=first) == {"code": 2}
            assert ask(root, take, CUDA_VISIBLE_DEVICES=second) == {"code": 0}
            (process,) = state.processes(0)
            assert process.gi_id != 0xFFFFFFFF


# ---- memory and processes ----


def test_memory_is_shared_and_given_back(sim_root: Root) -> None:
    """Two processes on one GPU: what one holds the other cannot get, and it is free again however the holder ends."""
    root = sim_root(gpus=1)
    hold = f"cu('cuInit', 0); context(); before = free_memory()[0]; code, p = alloc(50000 * {MIB}); out(code=code, took=before - free_memory()[0])"
    with DriverState.open(root / "state") as state, holding(root, hold) as (process, got):
        assert got == {"code": 0, "took": 50000 * MIB}
        (entry,) = state.processes(0)
        assert entry.pid == process.pid
        assert 50000 * MIB < entry.memory < 51000 * MIB
        other = f"cu('cuInit', 0); context(); out(big=alloc(50000 * {MIB})[0], small=alloc(1000 * {MIB})[0])"
        assert ask(root, other) == {"big": 2, "small": 0}
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert state.processes(0) == []
        assert ask(root, other) == {"big": 0, "small": 0}
        assert state.processes(0) == []


def test_allocations(sim_root: Root) -> None:
    """Bounds of host copies, addresses that are no host memory, and freeing what is not there."""
    script = """
cu("cuInit", 0); context(); data = bytes(range(200)) * 5; start = free_memory()[0]
code, p = alloc(1000); buffer = ctypes.create_string_buffer(1000)
r = dict(code=code, put=cu("cuMemcpyHtoD_v2", u64(p), data, size(1000)), over=cu("cuMemcpyHtoD_v2", u64(p + 1), data, size(1000)),
  fill=cu("cuMemsetD32_v2", u64(p + 4), 0xAABBCCDD, size(2)), odd=cu("cuMemsetD32_v2", u64(p + 2), 0, size(2)),
  get=cu("cuMemcpyDtoH_v2", buffer, u64(p), size(1000)), zero=alloc(0)[0], bad=cu("cuMemFree_v2", u64(p + 8)), free=cu("cuMemFree_v2", u64(p)), again=cu("cuMemFree_v2", u64(p)))
r["same"] = buffer.raw == data[:4] + bytes.fromhex("ddccbbaa") * 2 + data[12:]
blocks = [alloc(n)[1] for n in (1, 511, 512, 513, 3 << 20, 100)]
r["apart"] = len(set(blocks)) == 6 and all(b % 256 == 0 for b in blocks)
pid = os.fork()
if pid == 0: ctypes.string_at(blocks[4], 1); os._exit(0)
r["host"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
for b in blocks: cu("cuMemFree_v2", u64(b))
r["all"] = free_memory()[0] == start
out(**r)
"""
    assert ask(sim_root(gpus=1), script) == {
        "code": 0, "put": 0, "over": 1, "fill": 0, "odd": 1, "get": 0, "zero": 1, "bad": 1, "free": 0, "again": 1,
        "same": True, "apart": True, "all": True, "host": -signal.SIGSEGV,
    }  # fmt: skip


def test_exclusive_process_mode(sim_root: Root) -> None:
    root = sim_root(gpus=1)
    with DriverState.open(root / "state") as state:
        state.gpu(0).compute_mode = 3
    script = "cu('cuInit', 0); out(code=context())"
    with holding(root, script) as (_, got):
        assert got == {"code": 0}
        assert ask(root, script) == {"code": 46}
    assert ask(root, script) == {"code": 0}


# ---- kernels that go wrong, GPUs that go wrong ----


@pytest.mark.parametrize(
    ("body", "code", "xid"),
    [
        ("add.u64 %rd0, %rd0, 4096; ld.global.u32 %r0, [%rd0]; ret;", 700, 31),
        ("mov.u64 %rd0, 64; st.global.u32 [%rd0], 1; ret;", 700, 31),
        ("ld.global.u32 %r0, [%rd0+2]; ret;", 716, 13),
        ("trap;", 719, 43),
    ],
)
def test_a_fault_ends_the_context_and_tells_an_xid(sim_root: Root, body: str, code: int, xid: int) -> None:
    root = sim_root(gpus=2)
    script = f"cu('cuInit', 0); context(1); p = alloc(4096)[1]; r = launch({body!r}, p); out(r=r, next=alloc(16)[0], fresh=context(0))"
    assert ask(root, script) == {"r": [0, code], "next": code, "fresh": 0}
    with DriverState.open(root / "state") as state:
        assert xids(state) == [(1, xid)]
        assert (state.gpu(1).xid_last, state.gpu(0).xid_last) == (xid, 0)


def test_good_kernels_tell_nothing(sim_root: Root) -> None:
    root = sim_root(gpus=1)
    script = """
cu("cuInit", 0); context(); p = alloc(4)[1]; r = launch("st.global.u32 [%rd0], 42; ret;", p); v = u32()
cu("cuMemcpyDtoH_v2", ctypes.byref(v), u64(p), size(4)); out(r=r, value=v.value)
"""
    assert ask(root, script) == {"r": [0, 0], "value": 42}
    with DriverState.open(root / "state") as state:
        assert (xids(state), state.gpu(0).process[0].used) == ([], 0)


def test_bad_modules_say_why(sim_root: Root) -> None:
    script = r"""
head = ".version %s\n.target %s\n.address_size 64\n.entry k() { %s }"
cu("cuInit", 0); context(); r = []
for args in (("7.0", "sm_50", "wmma.mma.sync.foo;"), ("9.9", "sm_50", "ret;"), ("7.0", "sm_99", "ret;"), ("7.0", "sm_50", "ret;")):
    code, module, log = load(head % args); r.append([code, log])
f = ctypes.c_void_p(); r.append(cu("cuModuleGetFunction", ctypes.byref(f), module, b"none")); r.append(load("\x7fELF")[0])
out(r=r)
"""
    unsupported, version, target, good, missing, binary = ask(sim_root(gpus=1), script)["r"]
    assert unsupported[0] == 218
    assert "line 4; error   : instruction 'wmma' is not supported by the simulated GPU" in unsupported[1]
    assert (version[0], "Unsupported .version 9.9" in version[1]) == (222, True)
    assert (target[0], "SM version" in target[1]) == (218, True)
    assert (good, missing, binary) == ([0, ""], 500, 209)


def test_load_moves_while_a_kernel_runs(sim_root: Root) -> None:
    root = sim_root(gpus=2)
    busy = "cu('cuInit', 0); context(1); out(ready=1); launch('LOOP: bra LOOP;')"
    with DriverState.open(root / "state") as state, holding(root, busy) as (process, _):
        until(lambda: state.gpu(1).load_target == 100_000)
        assert (state.gpu(0).load_target, [slot.sm_util for slot in state.processes(1)]) == (0, [100])
        process.kill()
        process.wait()
        ask(root, "cu('cuInit', 0); context(1); out()")  # whoever comes next finds the dead process's slot and drops it
        assert state.gpu(1).load_target == 0


def test_a_hung_gpu_blocks_calls_until_it_is_cured(sim_root: Root) -> None:
    root = sim_root(gpus=2)
    script = "cu('cuInit', 0); context(0); out(ready=1); sys.stdin.readline(); out(other=cu('cuDeviceGetName', ctypes.create_string_buffer(9), 9, 1)); out(code=alloc(16)[0])"
    with DriverState.open(root / "state") as state, start(root, script) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"ready": 1}
        state.set_fault(0, hang=1)
        process.stdin.write("\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"other": 0}
        (slot,) = state.processes(0)
        held = slot.memory
        assert (process.poll(), slot.memory) == (None, held)
        state.set_fault(0, hang=0)
        assert json.loads(process.stdout.readline()) == {"code": 0}


def test_losing_the_gpu_ends_running_programs(sim_root: Root) -> None:
    root = sim_root(gpus=1)
    script = "cu('cuInit', 0); context(); out(ready=1); r = launch('LOOP: bra LOOP;'); out(r=r, again=context())"
    with DriverState.open(root / "state") as state, start(root, script) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"ready": 1}
        until(lambda: [slot.sm_util for slot in state.processes(0)] == [100])
        state.set_fault(0, lost=1)
        assert json.loads(process.stdout.readline()) == {"r": [0, 719], "again": 46}
