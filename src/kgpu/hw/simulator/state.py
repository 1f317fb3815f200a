"""The simulated driver's state file, mapped into this process.

`DriverState.create` makes the file atomically, `DriverState.open` maps an existing one; what one process writes,
every other sees
at once. Writers hold `locked()` (an open-file-description lock on byte 0, which the kernel drops when its holder
dies); readers take no lock. `push_event` wakes whoever waits in the native library. Every trouble with the file is an
`HwError` that says what to do.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from kgpu.base.errors import HwError
from kgpu.formats.names import ENV_HW_STATE, HW_STATE_PATH
from kgpu.formats.simulated import MAGIC
from kgpu.hw.simulator import load_model, schema

DEFAULT_PATH: Final = Path(HW_STATE_PATH)

EVENT_SINGLE_BIT_ECC: Final = 0x1
EVENT_DOUBLE_BIT_ECC: Final = 0x2
EVENT_XID: Final = 0x8
EVENT_MIG_CHANGE: Final = 0x100
EVENT_UNAVAILABLE: Final = 0x4000
EVENT_RECOVERY_ACTION: Final = 0x8000

_F_OFD_GETLK: Final = 36
_F_OFD_SETLKW: Final = 38
_FUTEX_WAKE: Final = 1
_SYS_FUTEX: Final = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine, 202)
_FLOCK: Final = "hhqqi4x"


def _bad(path: Path, why: str) -> HwError:
    return HwError(
        f"the simulated driver's state {path} can't be used: {why}",
        f"a state file of version {schema.VERSION}, {schema.STATE_SIZE} bytes, made by this version of kgpu",
        "make it again with `kgpu lab hw create PROFILE --root DIR`, and point KGPU_HW_STATE at DIR/state",
    )


def default_path() -> Path:
    """The state file that programs of this environment use: KGPU_HW_STATE, else /run/kgpu/hw/state."""
    return Path(os.environ.get(ENV_HW_STATE) or DEFAULT_PATH)


class DriverState:
    """One node's simulated driver.

    `view` is the whole map as a ctypes struct (fields: `schema.STRUCTS`); its attributes are typed Any. Use as a
    context manager, or call `close()`. An instance may be shared by threads.
    """

    def __init__(self, path: Path, fd: int, *, writable: bool) -> None:
        self.path = path
        self.writable = writable
        self._fd = fd
        self._mutex = threading.RLock()
        self._depth = 0
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_COPY
        self._map = mmap.mmap(fd, schema.STATE_SIZE, access=access)
        self.view: Any = schema.CLASSES["kg_state"].from_buffer(self._map)

    @classmethod
    def create(
        cls,
        path: Path | str,
        *,
        driver_version: str = "550.54.15",
        nvml_version: str = "",
        cuda_version: int = 12040,
        profile: str = "",
        hostname: str = "",
        fill: Callable[[DriverState], None] | None = None,
    ) -> DriverState:
        """Make the file at `path` (replacing one that is there) and map it.

        `fill` gets the new state and writes the GPUs before anybody else can see the file. `nvml_version` defaults to
        the CUDA major version and the driver version joined, as the real library reports it.
        """
        target = Path(path)
        temporary = ""
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fd, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
            os.ftruncate(fd, schema.STATE_SIZE)
            os.fchmod(fd, 0o666)
        except OSError as error:
            raise _bad(target, error.strerror or str(error)) from error
        state = cls(target, fd, writable=True)
        try:
            view = state.view
            view.magic, view.version, view.size = MAGIC, schema.VERSION, schema.STATE_SIZE
            view.driver_version = driver_version.encode()
            view.nvml_version = (nvml_version or f"{cuda_version // 1000}.{driver_version}").encode()
            view.cuda_version = cuda_version
            view.profile, view.hostname = profile.encode(), (hostname or os.uname().nodename).encode()[:63]
            view.boot_us = time.time_ns() // 1000
            view.generation = 1
            load_model.write_profiles(view)
            if fill is not None:
                fill(state)
            for index in range(state.gpu_count):
                gpu = state.gpu(index)
                gpu.load_prev = gpu.load_target = load_model.load_target(gpu)
                gpu.load_since_ns = load_model.now_ns(gpu)
            os.replace(temporary, target)
        except BaseException:
            state.close()
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        return state

    @classmethod
    def open(cls, path: Path | str | None = None, *, writable: bool = True) -> DriverState:
        """Map the file at `path` (default: `default_path()`). Raises HwError when it isn't a good state file."""
        target = Path(path) if path is not None else default_path()
        try:
            fd = os.open(target, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        except OSError as error:
            raise _bad(target, error.strerror or str(error)) from error
        try:
            head = os.pread(fd, 16, 0)
            size = os.fstat(fd).st_size
            magic, version, stated = struct.unpack("=QII", head) if len(head) == 16 else (0, 0, 0)
            if magic != MAGIC:
                raise _bad(target, "it is not a state file")
            if version != schema.VERSION:
                raise _bad(target, f"it has version {version}")
            if size != schema.STATE_SIZE or stated != schema.STATE_SIZE:
                raise _bad(target, f"it has {size} bytes and says {stated}")
            state = cls(target, fd, writable=writable)
        except OSError as error:
            os.close(fd)
            raise _bad(target, error.strerror or str(error)) from error
        except HwError:
            os.close(fd)
            raise
        if state.view.gpu_count > schema.MAX_GPUS:
            count = state.view.gpu_count
            state.close()
            raise _bad(target, f"it names {count} GPUs")
        return state

    def close(self) -> None:
        """Unmap. `view` must not be used afterwards."""
        if self._fd < 0:
            return
        self.view = None
        with suppress(BufferError):  # somebody still holds a sub-view: the map goes with it
            self._map.close()
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def gpu_count(self) -> int:
        """Number of GPUs, never more than the table holds."""
        return min(int(self.view.gpu_count), schema.MAX_GPUS)

    def gpu(self, index: int) -> Any:
        """The GPU struct at `index` (PCI order). Raises HwError when there is none."""
        if not 0 <= index < self.gpu_count:
            raise HwError(
                f"there is no GPU {index} in {self.path}",
                f"an index from 0 to {self.gpu_count - 1}" if self.gpu_count else "a node with GPUs",
                "list the GPUs with `kgpu lab hw show`",
            )
        return self.view.gpu[index]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the node's write lock. Re-entrant within a thread; bumps the generation on the way out."""
        with self._mutex:
            if self._depth == 0:
                self._flock(fcntl.F_WRLCK)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.bump()
                    self._flock(fcntl.F_UNLCK)

    def _flock(self, kind: int) -> None:
        request = struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 1, 0)
        while True:
            try:
                fcntl.fcntl(self._fd, _F_OFD_SETLKW, request)
            except InterruptedError:
                continue
            except OSError as error:
                raise _bad(self.path, f"it can't be locked: {error.strerror}") from error
            return

    def bump(self) -> None:
        """Note that something changed. Call with the lock held."""
        self.view.generation = (self.view.generation + 1) & 0xFFFFFFFFFFFFFFFF

    def wake(self) -> None:
        """Wake every process that waits for events (they look at events and faults again)."""
        view = self.view
        view.event_futex = (view.event_futex + 1) & 0xFFFFFFFF
        address = ctypes.addressof(view) + schema.CLASSES["kg_state"].event_futex.offset
        libc = ctypes.CDLL(None, use_errno=True)
        result = libc.syscall(_SYS_FUTEX, ctypes.c_void_p(address), _FUTEX_WAKE, 0x7FFFFFFF, None, None, 0)
        if result < 0 and ctypes.get_errno() not in {errno.EINVAL, errno.ENOSYS}:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def push_event(
        self,
        gpu: int,
        kind: int,
        data: int = 0,
        *,
        gi_id: int = schema.NO_INSTANCE,
        ci_id: int = schema.NO_INSTANCE,
    ) -> int:
        """Append an event (`kind` is an nvmlEventType bit, `data` the Xid for Xid events) and wake the waiters.

        Returns its sequence number. Waiters that registered before now get it exactly once each.
        """
        self.gpu(gpu)
        with self.locked():
            view = self.view
            seq = int(view.event_head) + 1
            slot = view.event[(seq - 1) % schema.C["EVENT_RING"]]
            slot.seq = 0  # a reader that looks now sees "not yet"
            slot.gpu, slot.type, slot.data = gpu, kind, data
            slot.gi_id, slot.ci_id, slot.time_us = gi_id, ci_id, load_model.now_ns(view) // 1000
            slot.seq = seq
            view.event_head = seq
            self.wake()
        return seq

    def inject_xid(
        self, gpu: int, xid: int, *, gi_id: int = schema.NO_INSTANCE, ci_id: int = schema.NO_INSTANCE
    ) -> int:
        """Report an Xid on a GPU (or on one of its instances)."""
        with self.locked():
            target = self.gpu(gpu)
            target.xid_last = xid
            target.xid_count += 1
            return self.push_event(gpu, EVENT_XID, xid, gi_id=gi_id, ci_id=ci_id)

    def set_load(self, gpu: int, percent: int) -> None:
        """Let a GPU be `percent` busy from now on, besides what running processes cause."""
        with self.locked():
            target = self.gpu(gpu)
            with load_model.load_change(target):
                target.load_set = max(0, min(100, percent))

    def set_fault(self, gpu: int | None, **faults: int) -> None:
        """Set fault fields of one GPU (lost, hang, slow_us, reset_required, init_error, temp_offset,
        throttle_forced, recovery_action) or, with gpu None, of the node (init_error, slow_us, hang_all).
        """
        with self.locked():
            target = self.view if gpu is None else self.gpu(gpu)
            for name, value in faults.items():
                if name == "throttle_forced":
                    load_model.fold_throttle(target)
                setattr(target, name, value)
            self.wake()

    def clear_faults(self, gpu: int | None = None) -> None:
        """Take every fault off one GPU, or off all GPUs and the node."""
        with self.locked():
            if gpu is None:
                self.view.init_error = self.view.slow_us = self.view.hang_all = 0
            for index in range(self.gpu_count) if gpu is None else (gpu,):
                record = self.gpu(index)
                record.lost = record.hang = record.slow_us = record.reset_required = record.init_error = 0
                load_model.fold_throttle(record)
                record.recovery_action = record.temp_offset = record.throttle_forced = 0
                record.xid_last = record.failing = record.next_reset = 0
            self.wake()

    def reset(self, gpu: int) -> None:
        """Reset a GPU for a change of its modes: pending MIG and ECC modes take effect, volatile counters and pending
        repairs clear, faults that a reset cures go. `nvidia-smi -r` does more, and refuses more: native/nvml/reset.c.
        Raises HwError while a process uses the GPU.
        """
        with self.locked():
            target = self.gpu(gpu)
            if self.processes(gpu):
                raise HwError(
                    f"GPU {gpu} can't be reset: In use by another client",
                    "no process on the GPU",
                    "end the processes that `nvidia-smi` lists, then reset again",
                )
            if target.mig_current != target.mig_pending:
                target.mig_current = target.mig_pending
                self.push_event(gpu, EVENT_MIG_CHANGE)
            ctypes.memset(ctypes.addressof(target.gi), 0, ctypes.sizeof(target.gi))
            ctypes.memset(ctypes.addressof(target.ci), 0, ctypes.sizeof(target.ci))
            ctypes.memset(ctypes.addressof(target.ecc_volatile), 0, ctypes.sizeof(target.ecc_volatile))
            target.ecc_current = target.ecc_pending
            target.remap_pending = target.retired_pending = 0
            target.remap_corrected_inactive = target.remap_uncorrected_inactive = 0
            target.lost = target.hang = target.reset_required = target.recovery_action = 0
            target.resets += 1
            self.wake()

    def processes(self, gpu: int) -> list[Any]:
        """The process slots of a GPU whose owner is alive (or that were set by hand)."""
        target = self.gpu(gpu)
        slots = []
        for number, slot in enumerate(target.process):
            if slot.used and (not slot.live or self._owner(gpu, number)):
                slots.append(slot)
        return slots

    def reap(self, gpu: int) -> None:
        """Drop the slots of a GPU whose owner has died, so that their memory and load end."""
        target = self.gpu(gpu)
        slots = enumerate(target.process)
        dead = [slot for number, slot in slots if slot.used and slot.live and not self._owner(gpu, number)]
        if dead:
            with load_model.load_change(target):
                for slot in dead:
                    ctypes.memset(ctypes.addressof(slot), 0, ctypes.sizeof(slot))

    def has_client(self, gpu: int) -> bool:
        """Whether a process has NVML open on a GPU."""
        return self._locked(schema.C["CLIENT_LOCK_BASE"] + gpu)

    def _owner(self, gpu: int, slot: int) -> bool:
        return self._locked(schema.C["PROC_LOCK_BASE"] + gpu * schema.C["MAX_PROCESSES"] + slot)

    def _locked(self, offset: int) -> bool:
        """Whether another open file has a lock on this byte."""
        request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
        answer = fcntl.fcntl(self._fd, _F_OFD_GETLK, request)
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
