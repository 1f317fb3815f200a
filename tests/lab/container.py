"""A container as a simulated kubelet starts it: its folder, and the real shim with a command below it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from kgpu.lab.nodes import container_processes, shim
from kgpu.lab.nodes.leftovers import CONTAINERS


@contextlib.contextmanager
def running(
    node: Path, pod: str, *command: str, sockets: Sequence[socket.socket] = (), env: dict[str, str] | None = None
) -> Iterator[Path]:
    """Its folder, while its command runs. ``pod``: a uid; ``sockets`` are the container's, too, as if it had made them."""
    name = uuid.uuid4().hex
    folder = node / CONTAINERS / name
    folder.mkdir(parents=True)
    config = {
        "id": name, "pod": pod, "container": "c", "attempt": 0, "mode": "plain", "folder": str(folder),
        "args": list(command or ("sleep", "600")), "env": {"PATH": os.environ["PATH"], **(env or {})}, "cwd": str(folder),
        "hostname": "x", "log": str(folder / "log"), "hide": [], "termination_log": "", "mounts": [], "devices": [],
        "files": [], "plain_root": "",
    }  # fmt: skip
    (folder / container_processes.CONFIG).write_text(json.dumps(config))
    words = [sys.executable, "-I", "-S", shim.__file__, "run", str(folder / container_processes.CONFIG)]
    process = subprocess.Popen(words, pass_fds=[one.fileno() for one in sockets], start_new_session=True)
    try:
        while container_processes.read_state(folder) is None:
            assert process.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        yield folder
    finally:
        container_processes.end(folder)
        process.wait(300)
