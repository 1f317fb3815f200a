"""One reading of a node without an event loop, for programs that read once, print and end.

Starting the hardware child is what takes longest, so it starts with the object, and whatever the program does next runs
beside it. Only the undisturbed case is served here: a child that is slow, ends, or reports trouble gives None, and the
caller asks the real reader, which knows how to go on past a GPU that hangs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Self

from kgpu.formats.names import ENV_HW_STATE, NVIDIA
from kgpu.formats.simulated import state_file

if TYPE_CHECKING:
    from kgpu.hw.port import Inventory

_BOOT: Final = "import sys;sys.path[:]=sys.argv[1].split(':');from kgpu.hw.nvidia.child import main;main(sys.argv[2:])"
_INIT_PATIENCE: Final = 10.0  # seconds until the driver is there
_PATIENCE: Final = 2.0  # seconds for each GPU after that


class QuickReading:
    """Starts a child for this driver root at once; use as a context manager, which ends it."""

    def __init__(self, root: str = "/") -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._buffer = b""
        environment = dict(os.environ)
        if state := state_file(root):
            environment[ENV_HW_STATE] = state
        try:
            os.set_inheritable(theirs.fileno(), True)
            arguments = [":".join(sys.path), str(theirs.fileno()), str(os.getpid()), root]
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-S", "-E", "-c", _BOOT, *arguments],
                environment,
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.sendall(b'{"id":1,"op":"init"}\n')

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        os.kill(self._pid, signal.SIGKILL)
        # A child that a driver holds in the kernel is not waited for; init inherits it.
        for _attempt in range(100):
            if os.waitpid(self._pid, os.WNOHANG)[0]:
                return
            time.sleep(0.001)

    def inventory(self) -> Inventory | None:
        """The reading, None when anything at all was out of the ordinary."""
        # Imported while the child starts.
        from kgpu.base.typed import convert
        from kgpu.hw.nvidia import facts as judge
        from kgpu.hw.nvidia.wire import GpuReply, Init
        from kgpu.hw.port import Inventory

        try:
            init = convert(self._answer(1, _INIT_PATIENCE)[0], Init, strict=False)
            gpus = list(range(init.count))
            self._socket.sendall(json.dumps({"id": 2, "op": "gpu", "gpus": gpus}).encode() + b"\n")
            replies = [convert(data, GpuReply, strict=False) for data in self._answer(2, _PATIENCE)]
        except (OSError, ValueError, _Trouble):
            return None
        if len(replies) != init.count:
            return None
        cuda = init.cuda_version
        return Inventory(
            vendor=NVIDIA,
            driver_version=init.driver_version or "",
            accelerators=tuple(map(judge.accelerator, replies)),
            cuda_version=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
            library_version=init.nvml_version or "",
        )

    def _answer(self, number: int, patience: float) -> list[Any]:
        """The data of every frame of one answer."""
        replies: list[Any] = []
        while True:
            frame = json.loads(self._line(patience))
            if frame.get("id") != number or "error" in frame:
                raise _Trouble
            if frame.get("end"):
                return replies
            replies.append(frame["data"])

    def _line(self, patience: float) -> bytes:
        self._socket.settimeout(patience)
        while b"\n" not in self._buffer:
            more = self._socket.recv(1 << 16)
            if not more:
                raise _Trouble
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


class _Trouble(Exception):  # noqa: N818 - says what it is
    """Something that the real reader has to deal with."""
