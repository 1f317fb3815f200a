"""The process that forks a ``cuda_child`` for each test it is asked for: 56 slices pay for one start of Python.

It never loads the driver itself: what a test does to its own process stays there, and this one can't hang or crash in
it. A test ends with this process, and this process with its parent. It uses only the standard library.

Messages, one JSON object each, on a SOCK_SEQPACKET socket. The parent sends ``{"test": N, "arguments": [...],
"environment": {...}}`` with the descriptor that the test writes to, and ``{"kill": N}``. Answers: ``{"test": N, "pid":
P}``, then ``{"test": N, "ended": CODE}``, where a negative code is the signal that ended it; ``{"test": N, "error":
TEXT}`` when it could not be forked.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import traceback

from kgpu.base.parent import end_with
from kgpu.validator.cuda_child import main as add_vectors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_MESSAGE = 1 << 16


def serve(arguments: list[str], test: Callable[[list[str]], int] = add_vectors) -> int:
    """Fork tests until the parent closes its end. ``arguments`` are the socket's descriptor and the parent's pid."""
    descriptor, parent = map(int, arguments)
    end_with(parent)
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    server = _Server(socket.socket(fileno=descriptor), (woken, wake), test)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        ready = {at for at, _ in poll.poll()}
        if woken in ready:
            os.read(woken, 512)
            server.reap()
        if descriptor in ready and not server.answer():
            return 0


class _Server:
    def __init__(self, control: socket.socket, pipe: tuple[int, int], test: Callable[[list[str]], int]) -> None:
        self._control = control
        self._pipe = pipe
        self._test = test
        self._tests: dict[int, int] = {}  # pid -> number

    def answer(self) -> bool:
        """One message of the parent; False once it has closed."""
        raw, descriptors, _flags, _address = socket.recv_fds(self._control, MAX_MESSAGE, 1)
        if not raw:
            return False
        message = json.loads(raw)
        if "kill" in message:
            for pid in [pid for pid, number in self._tests.items() if number == message["kill"]]:
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so that the pid is still this test's
            return True
        try:
            self._fork(message, descriptors[0])
        except OSError as error:
            self._say({"test": message["test"], "error": str(error)})
        finally:
            os.close(descriptors[0])
        return True

    def reap(self) -> None:
        """Tell of every test that has ended."""
        while self._tests:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._say({"test": self._tests.pop(pid), "ended": os.waitstatus_to_exitcode(status)})

    def _fork(self, message: dict[str, Any], out: int) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._run(message, out, parent)
        self._tests[pid] = message["test"]
        self._say({"test": message["test"], "pid": pid})

    def _run(self, message: dict[str, Any], out: int, parent: int) -> None:
        """In the forked process: the test, and its end."""
        code = 1
        try:
            end_with(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            for descriptor in self._pipe:
                os.close(descriptor)
            os.dup2(out, 1)  # the driver's own messages
            os.dup2(out, 2)
            os.environ.update(message["environment"])
            code = self._test([str(out), *message["arguments"]])
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def _say(self, answer: dict[str, Any]) -> None:
        self._control.send(json.dumps(answer).encode())
