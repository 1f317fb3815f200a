"""A process that uses the simulated NVML through pynvml, for tests to talk to.

Loading a driver library into the test process would make its faults the test's, so each `Nvml` is a child with the
library path and state of a simulated root. `n("expression")` evaluates with every pynvml name at hand and returns the
JSON value; an NVML error is raised as `NvmlFailure` with its code. `n.run("statement")` keeps names for later.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

WORKER = """
import ctypes, json, os, sys, threading, time, pynvml
from pynvml import *
names = dict(vars(pynvml), pynvml=pynvml, ctypes=ctypes, os=os, time=time, threading=threading)

def plain(value):
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, ctypes.Structure):
        return {f[0]: getattr(value, f[0]) for f in value._fields_}
    if isinstance(value, ctypes.Array):
        return list(value)
    return repr(value)

for line in sys.stdin:
    kind, text = json.loads(line)
    try:
        answer = {"value": eval(text, names) if kind == "eval" else exec(text, names)}
        out = json.dumps(answer, default=plain)
    except pynvml.NVMLError as error:
        out = json.dumps({"nvml": error.value})
    except Exception as error:
        out = json.dumps({"error": repr(error)})
    print(out, flush=True)
"""


class NvmlFailure(Exception):
    """A call answered an nvmlReturn other than success."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Nvml:
    """A child process on the simulated driver root `root`; initialised unless told otherwise."""

    def __init__(self, root: Path, *, init: bool = True, state: Path | None = None) -> None:
        env = {
            **os.environ,
            "KGPU_HW_STATE": str(state or root / "state"),
            "LD_LIBRARY_PATH": str(root / "usr/lib/x86_64-linux-gnu"),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        if init:
            self("nvmlInit()")

    def send(self, text: str, kind: str = "eval") -> None:
        """Start a call without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([kind, text]) + "\n")
        self.process.stdin.flush()

    def answered(self, seconds: float) -> bool:
        """Is there an answer within `seconds`?"""
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def receive(self, seconds: float = 120) -> Any:
        """The answer of the call that was sent."""
        assert self.process.stdout is not None
        assert self.answered(seconds), "no answer from the NVML process"
        line = self.process.stdout.readline()
        assert line, f"the NVML process died: {self.process.wait()}"
        answer = json.loads(line)
        if "nvml" in answer:
            raise NvmlFailure(answer["nvml"])
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def __call__(self, text: str) -> Any:
        self.send(text)
        return self.receive()

    def run(self, text: str) -> None:
        self.send(text, "exec")
        self.receive()

    def code(self, text: str) -> int:
        """The nvmlReturn of a call: 0, or the error's."""
        try:
            self(text)
        except NvmlFailure as failure:
            return failure.code
        return 0

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
