"""Events and faults through the C ABI: Xids to every process, lost, hanging and slow GPUs, dying processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from kgpu.hw.simulator import schema
from kgpu.hw.simulator.state import EVENT_DOUBLE_BIT_ECC, EVENT_XID, DriverState
from tests.hw.simulator.nvml_process import Nvml

RootMaker = Callable[..., Path]
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
TIMEOUT = pynvml.NVML_ERROR_TIMEOUT

HELPERS = """
s = nvmlEventSetCreate()
def register(types=8, gpus=None):
    for i in range(nvmlDeviceGetCount()) if gpus is None else gpus:
        nvmlDeviceRegisterEvents(nvmlDeviceGetHandleByIndex(i), types, s)

def wait(ms=20000):
    e = nvmlEventSetWait_v2(s, ms)
    return [nvmlDeviceGetIndex(ctypes.cast(e.device, c_nvmlDevice_t)), e.eventType, e.eventData, e.gpuInstanceId]
"""


def listener(root: Path) -> Nvml:
    n = Nvml(root)
    n.run(HELPERS)
    return n


@pytest.fixture
def root(sim_root: RootMaker) -> Path:
    return sim_root("hgx-h100", gpus=4)


@pytest.fixture
def state(root: Path) -> Iterator[DriverState]:
    with DriverState.open(root / "state") as opened:
        yield opened


def test_every_process_gets_every_xid_once(root: Path, state: DriverState) -> None:
    processes = [listener(root) for _ in range(3)]
    try:
        for n in processes:
            n.run("register()")
            n.send("[wait() for _ in range(3)]")
        for gpu, xid in ((1, 79), (3, 31), (1, 48)):
            state.inject_xid(gpu, xid)
        whole = schema.NO_INSTANCE
        for n in processes:
            assert n.receive() == [[1, EVENT_XID, 79, whole], [3, EVENT_XID, 31, whole], [1, EVENT_XID, 48, whole]]
            assert n.code("wait(0)") == TIMEOUT
    finally:
        for n in processes:
            n.close()


def test_only_events_after_registration_and_of_registered_kinds(root: Path, state: DriverState) -> None:
    with listener(root) as n:
        state.inject_xid(0, 13)
        n.run("register(gpus=[0])")
        state.inject_xid(1, 14)
        state.push_event(0, EVENT_DOUBLE_BIT_ECC)
        assert n.code("wait(0)") == TIMEOUT
        n.run("register(types=2, gpus=[0])")
        state.push_event(0, EVENT_DOUBLE_BIT_ECC)
        state.inject_xid(0, 63)
        assert n("wait()")[1:3] == [EVENT_DOUBLE_BIT_ECC, 0]
        assert n("wait()")[1:3] == [EVENT_XID, 63]


def test_two_sets_of_one_process_each_get_the_event(root: Path, state: DriverState) -> None:
    with listener(root) as n:
        n.run("register(); first = s; s = nvmlEventSetCreate(); register()")
        state.inject_xid(2, 74)
        assert n("wait()")[2] == 74
        n.run("s = first")
        assert n("wait()")[2] == 74


def test_an_xid_names_its_instance(root: Path, state: DriverState) -> None:
    with listener(root) as n:
        n.run("register()")
        state.inject_xid(0, 43, gi_id=2, ci_id=0)
        assert n("wait()") == [0, EVENT_XID, 43, 2]


def test_more_events_than_the_ring_keeps_are_dropped_oldest_first(root: Path, state: DriverState) -> None:
    with listener(root) as n:
        n.run("register()")
        for xid in range(300):
            state.inject_xid(0, xid)
        ring = schema.C["EVENT_RING"]
        assert n(f"[wait(0)[2] for _ in range({ring})]") == list(range(300 - ring, 300))
        assert n.code("wait(0)") == TIMEOUT


def test_freed_and_foreign_sets_are_refused(root: Path) -> None:
    with listener(root) as n:
        n.run("nvmlEventSetFree(s)")
        assert n.code("nvmlEventSetWait_v2(s, 0)") == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert n.code("nvmlEventSetFree(s)") == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert n.code("register()") == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_a_shutdown_ends_a_wait(root: Path) -> None:
    with listener(root) as n:
        n.run("register()")
        n.run(
            "codes = []\ndef waiter():\n    try:\n        nvmlEventSetWait_v2(s, 600000)\n"
            "    except NVMLError as e:\n        codes.append(e.value)"
        )
        n.run("t = threading.Thread(target=waiter); t.start(); nvmlShutdown(); t.join(20)")
        assert n("codes") == [pynvml.NVML_ERROR_UNINITIALIZED]


def test_mig_changes_are_events(root: Path) -> None:
    with listener(root) as n, Nvml(root) as other:
        n.run("register(types=0x100)")
        other.run("h = nvmlDeviceGetHandleByIndex(2); nvmlDeviceSetMigMode(h, 1)")
        assert n("wait()")[:2] == [2, 0x100]
        other.run("gi = nvmlDeviceCreateGpuInstance(h, 9)")
        assert n("wait()") == [2, 0x100, 0, other("nvmlGpuInstanceGetInfo(gi).id")]


def test_a_lost_gpu_stays_counted_and_leaves_its_neighbours(root: Path, state: DriverState) -> None:
    with Nvml(root) as n:
        n.run("hs = [nvmlDeviceGetHandleByIndex(i) for i in range(4)]")
        state.set_fault(1, lost=1)
        assert n("nvmlDeviceGetCount()") == 4
        assert n.code("nvmlDeviceGetHandleByIndex(1)") == LOST
        assert [n.code(f"nvmlDeviceGetTemperature(hs[{i}], 0)") for i in range(4)] == [0, LOST, 0, 0]
        state.clear_faults(1)
        assert n.code("nvmlDeviceGetTemperature(hs[1], 0)") == 0


def test_a_hanging_gpu_blocks_its_callers_until_it_is_cleared(root: Path, state: DriverState) -> None:
    with Nvml(root) as stuck, Nvml(root) as free:
        stuck.run("h = nvmlDeviceGetHandleByIndex(2)")
        free.run("h = nvmlDeviceGetHandleByIndex(1)")
        state.set_fault(2, hang=1)
        stuck.send("nvmlDeviceGetUUID(h)")
        assert not stuck.answered(0.3)
        assert free("nvmlDeviceGetUUID(h)").startswith("GPU-")
        state.clear_faults()
        assert stuck.receive().startswith("GPU-")
        state.set_fault(None, hang_all=1)
        free.send("nvmlDeviceGetUUID(h)")
        assert not free.answered(0.3)
        state.clear_faults()
        free.receive()


def test_a_slow_gpu_delays_each_call(root: Path, state: DriverState) -> None:
    with Nvml(root) as n:
        n.run("h = nvmlDeviceGetHandleByIndex(0)")
        state.set_fault(0, slow_us=200_000)
        begin = time.monotonic()
        n.run("nvmlDeviceGetUUID(h); nvmlDeviceGetUUID(h)")
        assert time.monotonic() - begin >= 0.4


def test_init_errors(root: Path, state: DriverState) -> None:
    state.set_fault(None, init_error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    with Nvml(root, init=False) as n:
        assert n.code("nvmlInit()") == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        state.clear_faults()
        assert n.code("nvmlInit()") == 0
        state.set_fault(3, init_error=pynvml.NVML_ERROR_UNKNOWN)
        assert n.code("nvmlDeviceGetHandleByIndex(3)") == pynvml.NVML_ERROR_UNKNOWN


HOLD = """
import ctypes, fcntl, struct
fd = os.open(os.environ['KGPU_HW_STATE'], os.O_RDWR)
fcntl.fcntl(fd, 38, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 1, 0))
"""


def test_a_process_that_dies_with_the_lock_blocks_nobody(root: Path) -> None:
    with Nvml(root) as holder, Nvml(root) as other:
        other.run("h = nvmlDeviceGetHandleByIndex(0)")
        holder.run(HOLD)
        other.send("nvmlDeviceSetPersistenceMode(h, 0)")
        assert not other.answered(0.3), "the lock keeps writers out"
        holder.kill()
        other.receive()
        assert other("nvmlDeviceGetPersistenceMode(h)") == 0


def test_a_dead_process_leaves_the_process_list(root: Path, tmp_path: Path, sim_libs: Path) -> None:
    """Through the table's own locks: the owner of a slot is whoever holds its lock byte."""
    add = """
import ctypes, fcntl, struct
from kgpu.hw.simulator import schema
from kgpu.hw.simulator.state import DriverState
st = DriverState.open(os.environ['KGPU_HW_STATE'])
with st.locked():
    p = st.gpu(0).process[5]
    p.used, p.live, p.pid, p.kind, p.memory, p.sm_util = 1, 1, os.getpid(), 1, 2 << 30, 80
    p.gi_id = p.ci_id = schema.NO_INSTANCE
    at = schema.C['PROC_LOCK_BASE'] + 5
    fcntl.fcntl(st._fd, fcntl.F_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, at, 1, 0))
"""
    with Nvml(root) as owner, Nvml(root) as n:
        n.run("h = nvmlDeviceGetHandleByIndex(0)")
        before = n("nvmlDeviceGetMemoryInfo(h).used")
        owner.run(add)
        assert n("[p.pid for p in nvmlDeviceGetComputeRunningProcesses(h)]") == [owner.process.pid]
        assert owner("[p.pid for p in nvmlDeviceGetComputeRunningProcesses(nvmlDeviceGetHandleByIndex(0))]") == [
            owner.process.pid
        ]
        assert n("nvmlDeviceGetMemoryInfo(h).used") - before == 2 << 30
        owner.kill()
        assert n("nvmlDeviceGetComputeRunningProcesses(h)") == []
        assert n("nvmlDeviceGetMemoryInfo(h).used") == before
        assert n("nvmlDeviceGetUtilizationRates(h).gpu") == 0
