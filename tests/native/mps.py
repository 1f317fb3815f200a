"""An MPS control daemon of a simulated driver root, and CUDA programs that a test drives line by line."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kgpu.hw.simulator.create import environment
from tests.child import child
from tests.polling import holds

MIB = 1 << 20
WAIT_S = 120


def eventually(condition: Callable[[], object]) -> None:
    assert holds(condition, seconds=WAIT_S, pause=0.02)


# Answers each line, a Python expression, with its value as JSON.
SCRIPT = """
import ctypes, json, os, sys
lib = ctypes.CDLL("libcuda.so.1"); size, u64 = ctypes.c_size_t, ctypes.c_ulonglong
def context(device=0):
    return lib.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, device)
def alloc(mib):
    return lib.cuMemAlloc_v2(ctypes.byref(u64()), size(mib << 20))
def memory():
    f, t = size(), size(); return [lib.cuMemGetInfo_v2(ctypes.byref(f), ctypes.byref(t)), f.value >> 20, t.value >> 20]
def count():
    n = ctypes.c_int(-1); return n.value if lib.cuDeviceGetCount(ctypes.byref(n)) == 0 else -1
def sms(device=0):
    v = ctypes.c_int(-1); lib.cuDeviceGetAttribute(ctypes.byref(v), 16, device); return v.value
def uuid(device=0):
    b = ctypes.create_string_buffer(16); lib.cuDeviceGetUuid_v2(b, device); return b.raw.hex()
def crash():
    text = b'''.version 7.0
.target sm_50
.address_size 64
.entry k() { .reg .b64 %rd<2>; .reg .b32 %r<2>; mov.u64 %rd0, 64; mov.u32 %r0, 1; st.global.u32 [%rd0], %r0; ret; }'''
    m, f = ctypes.c_void_p(), ctypes.c_void_p()
    assert lib.cuModuleLoadData(ctypes.byref(m), text) == 0 and lib.cuModuleGetFunction(ctypes.byref(f), m, b"k") == 0
    lib.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, None, None, None); return lib.cuCtxSynchronize()
def forked():
    if (pid := os.fork()) == 0: os._exit(lib.cuCtxSynchronize())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
init = lambda: lib.cuInit(0)
sync = lib.cuCtxSynchronize
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""


@contextmanager
def ended(pid: int) -> Iterator[int]:
    """A handle of a process that is told to end: it is dead after the block, and has no socket and no lock any more.

    A killed process keeps both until it has run once more, and under load that is after who has killed it.
    """
    handle = os.pidfd_open(pid)
    try:
        yield handle
        assert select.select([handle], [], [], WAIT_S)[0], f"process {pid} has not ended"
    finally:
        os.close(handle)


class Program:
    """A CUDA program of its own process: `program("context()")` is what the expression gives there."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def ask(self, expression: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def __call__(self, expression: str) -> Any:
        self.ask(expression)
        return self.answer()

    def end(self) -> None:
        self.process.communicate(timeout=WAIT_S)


class Mps:
    """The MPS programs of a driver root, with folders of their own."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.pipe, self.log = root, folder / "p", folder / "l"
        self.program = root / "usr/bin/nvidia-cuda-mps-control"
        self.env = {
            **os.environ, **environment(root),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log),
        }  # fmt: skip

    def start(self, **env: str) -> None:
        done = self.run("-d", **env)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def run(self, *options: str, text: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *options], env=self.env | env, input=text, capture_output=True, text=True,
            timeout=WAIT_S, check=False,
        )  # fmt: skip

    def command(self, text: str, code: int = 0) -> str:
        """What a command answers."""
        done = self.run(text=text + "\n")
        assert (done.returncode, done.stderr) == (code, ""), done.stdout
        return done.stdout.rstrip("\n")

    def server(self) -> int:
        """The PID of the one server."""
        return int(self.command("get_server_list"))

    def daemon(self) -> int:
        return int((self.pipe / "nvidia-cuda-mps-control.pid").read_text())

    def lines(self, log: str = "control") -> list[str]:
        """What stands in a log after `[time program PID] `."""
        return [line.split("] ", 1)[1] for line in (self.log / f"{log}.log").read_text().splitlines() if "] " in line]

    @contextmanager
    def client(self, **env: str) -> Iterator[Program]:
        """A program that has not called CUDA yet."""
        with child(
            [sys.executable, "-c", SCRIPT], env=self.env | env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            yield Program(process)

    def smi(self, *options: str) -> str:
        return subprocess.run(
            [self.root / "usr/bin/nvidia-smi", *options], env=self.env, capture_output=True, text=True, timeout=WAIT_S,
            check=True,
        ).stdout  # fmt: skip

    def kill(self) -> None:
        """Kill the daemon, which is dead then."""
        with ended(self.daemon()) as daemon:
            signal.pidfd_send_signal(daemon, signal.SIGKILL)

    def end(self) -> None:
        """Ends daemon and server, whatever state they are in."""
        with suppress(OSError, ValueError):
            pid = self.daemon()
            # A daemon that was killed has left its pid file, and its pid may be another process's by now.
            if Path(f"/proc/{pid}/exe").samefile(self.program):
                with ended(pid) as daemon:
                    signal.pidfd_send_signal(daemon, signal.SIGTERM)
