"""The lab's first process: PID 1 of the node's own PID, mount and network namespaces.

It mounts the node's folders, brings its link up, starts the processes of the plan, restarts what ends, reaps what is
orphaned, and takes orders on a socket (one JSON line in, one out). When it is killed, the kernel ends every process
of the lab and takes mounts and links along: that is how ``kgpu lab down`` leaves nothing behind.

``python -m kgpu.lab.real.keeper PLAN`` makes the namespaces, prints the keeper's pid on the machine and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kgpu.base import signals
from kgpu.base.typed import decode
from kgpu.lab.real.plan import CONTROL_SOCKET, RUN_DIR, KeeperPlan, PlannedProcess

_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWUTS: Final = 0x04000000
_CLONE_NEWIPC: Final = 0x08000000
_CLONE_NEWPID: Final = 0x20000000
_CLONE_NEWNET: Final = 0x40000000
_LINK_DEADLINE_S: Final = 120.0
_POLL_S: Final = 0.05
_FIRST_DELAY_S: Final = 0.1
_LAST_DELAY_S: Final = 5.0
_STEADY_S: Final = 3.0  # a process that lived this long is restarted without extra delay
_STOP_GRACE_S: Final = 10.0
_LOG_LIMIT: Final = 32 << 20


@dataclass(slots=True)
class KeptProcess:
    """One kept process. ``wanted`` False means that it was stopped on purpose."""

    process: PlannedProcess
    pid: int = 0
    started: float = 0.0
    starts: int = 0
    wanted: bool = True
    last_exit: int | None = None
    delay: float = _FIRST_DELAY_S
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def report(self) -> dict[str, Any]:
        return {
            "name": self.process.name,
            "pid": self.pid,
            "starts": self.starts,
            "started": self.started,
            "wanted": self.wanted,
            "last_exit": self.last_exit,
        }


class ProcessKeeper:
    """Keeps the plan's processes running until it is killed."""

    def __init__(self, plan: KeeperPlan) -> None:
        self.children = {process.name: KeptProcess(process, wanted=process.autostart) for process in plan.processes}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        await asyncio.start_unix_server(self._serve, CONTROL_SOCKET)
        for child in self.children.values():
            self._spawn_task(self._keep(child))
        await asyncio.Event().wait()

    def _spawn_task(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self, child: KeptProcess) -> None:
        """Start ``child`` whenever it is wanted and not there."""
        for need in child.process.needs:
            await until(functools.partial(satisfied, need), _POLL_S)
        while True:
            if child.wanted and not child.pid:
                start(child)
            child.changed.clear()
            await child.changed.wait()
            if child.wanted and not child.pid:
                child.delay = next_delay(child.delay, time.time() - child.started, child.last_exit)
                await asyncio.sleep(child.delay if child.starts else 0)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self.children.values():
                if child.pid == pid:
                    child.pid, child.last_exit = 0, os.waitstatus_to_exitcode(status)
                    say(f"{child.process.name} (pid {pid}) ended with {child.last_exit}")
                    child.changed.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
            order = json.loads(await reader.readuntil(b"\n"))
            try:
                answer: Any = await self._obey(order)
            except (KeyError, TypeError) as error:
                answer = {"error": f"can't do {order!r}: {error!r}"}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _obey(self, order: dict[str, str]) -> Any:
        verb = order["do"]
        if verb == "status":
            return [child.report() for child in self.children.values()]
        child = self.children[order["name"]]
        if verb in {"stop", "restart"}:
            await self._stop(child)
        if verb in {"start", "restart"}:
            child.wanted, child.delay = True, _FIRST_DELAY_S / 2
            if child.starts == 0 or not child.pid:
                child.changed.set()
            await until(lambda: child.pid != 0, _POLL_S / 5)
        return child.report()

    async def _stop(self, child: KeptProcess) -> None:
        child.wanted = False
        deadline = time.monotonic() + _STOP_GRACE_S
        if child.pid:
            os.kill(child.pid, signal.SIGTERM)
        while child.pid:
            await asyncio.sleep(_POLL_S / 5)
            if child.pid and time.monotonic() > deadline:
                os.kill(child.pid, signal.SIGKILL)


def say(text: str) -> None:
    """One line into the keeper's log."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def until(condition: Callable[[], bool], pause_s: float) -> None:
    """Look every ``pause_s`` seconds until the condition holds; nothing tells when a socket begins to listen."""
    while True:
        if condition():
            return
        await asyncio.sleep(pause_s)


def next_delay(delay: float, lived: float, last_exit: int | None) -> float:
    """Seconds to wait before a restart: longer each time for what fails soon, short for what was killed."""
    # An engine is told by a hangup to read its config: it ends, and whoever keeps it starts it again.
    if lived > _STEADY_S or last_exit in {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP}:
        return _FIRST_DELAY_S
    return min(delay * 2, _LAST_DELAY_S)


def satisfied(need: str) -> bool:
    """Whether a start condition of the plan holds now."""
    kind, _, where = need.partition(":")
    if kind == "file":
        return Path(where).exists()
    try:
        if kind == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(where)
        else:
            host, _, port = where.rpartition(":")
            socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def start(child: KeptProcess) -> None:
    """Start the child's program in a session of its own, its output appended to its log."""
    process = child.process
    log = Path(process.log)
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.replace(log.with_suffix(".log.1"))
    with log.open("ab") as out:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, out.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, out.fileno(), 2),
        ]
        try:
            child.pid = os.posix_spawn(
                process.argv[0], process.argv, {**os.environ, **process.env},
                file_actions=actions, setsid=True, setsigmask=(), setsigdef=signals.ALL,
            )  # fmt: skip
        except OSError as error:
            say(f"{process.name} can't be started: {error}")
            child.last_exit = 127
            asyncio.get_running_loop().call_later(_LAST_DELAY_S, child.changed.set)
    child.started = time.time()
    child.starts += 1


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def prepare_node(plan: KeeperPlan) -> None:
    """Mounts, host name and link of the node; everything is visible in its namespaces only."""
    _mount("--make-rprivate", "/")
    _mount("-t", "proc", "-o", "nosuid,nodev,noexec", "proc", "/proc")
    # The node's own /run: sockets, pod network namespaces, CDI specs and lock files.
    _mount("-t", "tmpfs", "-o", "mode=755", "kgpu-lab", "/run")
    for folder in (RUN_DIR, "/run/lock", "/run/cdi", "/run/netns"):
        os.makedirs(folder, exist_ok=True)
    if not os.path.islink("/var/run"):
        _mount("--rbind", "/run", "/var/run")
    for bind in plan.binds:
        # A tunable that this kernel does not have need not be hidden.
        if Path(bind.target).exists():
            _mount("--bind", bind.source, bind.target)
    # Containers take part in mount propagation, as on a node of its own.
    _mount("--make-rshared", "/")
    socket.sethostname(plan.hostname)
    deadline = time.monotonic() + _LINK_DEADLINE_S
    while f"{plan.link}:" not in Path("/proc/net/dev").read_text():
        if time.monotonic() > deadline:
            raise SystemExit(f"no link {plan.link} in the node's network namespace after {_LINK_DEADLINE_S:.0f} s")
        time.sleep(_POLL_S)
    for command in (
        ("link", "set", "lo", "up"),
        ("address", "replace", plan.address, "dev", plan.link),
        ("link", "set", plan.link, "up"),
        ("route", "replace", "default", "via", plan.gateway),
    ):
        subprocess.run(["ip", *command], check=True)
    for switch in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"):
        with contextlib.suppress(OSError):
            Path("/proc/sys", switch).write_text("1")


def _launch(plan_file: str, log_file: str) -> int:
    """Make the namespaces, leave the keeper as their first process, and print its pid as this machine knows it."""
    plan = decode(Path(plan_file).read_bytes(), KeeperPlan)
    os.setsid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWUTS | _CLONE_NEWIPC) != 0:
        sys.stderr.write(f"unshare: {os.strerror(ctypes.get_errno())}\n")
        return 1
    pid = os.fork()
    if pid:
        say(str(pid))
        return 0
    os.chdir("/")
    out = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    prepare_node(plan)
    asyncio.run(ProcessKeeper(plan).run())
    return 1


if __name__ == "__main__":
    raise SystemExit(_launch(*sys.argv[1:3]))
