"""Runs containers of one node: known images as local processes beside a shim, everything else as a stand-in.

Each container has a folder of its own named by its id: ``config.json`` (what it was started with), ``state.json``
and ``exit.json`` (the shim's), links to its devices. A restarted host finds them again by id with ``adopt``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from kgpu.base import signals
from kgpu.base.errors import LabError
from kgpu.formats.cdi import CdiMount
from kgpu.formats.names import ENV_HW_STATE, ENV_LAB_CONTAINER, ENV_MPS_PIPE_DIRECTORY, HW_STATE_PATH
from kgpu.lab.nodes import container_command, container_processes, relay, shim
from kgpu.lab.nodes.container_command import CommandStreams, ContainerCommand
from kgpu.lab.nodes.oci import OciConfig
from kgpu.lab.program_cache import find_built
from kgpu.lab.samples import SCRIPTS, SampleImage

NAMESPACES: Final = "namespaces"
PLAIN: Final = "plain"
PROGRAM: Final = "program:"
HOST: Final = "host:"
START_S: Final = 120.0  # as the kubelet's runtimeRequestTimeout
_SHIM: Final = str(Path(shim.__file__))
_RELAY: Final = str(Path(relay.__file__))
_LIBRARY_PARTS: Final = ("/usr/lib", "/lib", "/usr/local/nvidia/lib")
_PROGRAM_PARTS: Final = ("/usr/bin", "/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/nvidia/bin")


class StartError(LabError):
    """The command could not be started; ``what`` is the runtime's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a container ended; ``finished`` in seconds since the epoch."""

    code: int
    finished: float
    signal: int = 0
    reason: str = ""
    """In place of the one that follows from the code."""


class Running(Protocol):
    """A container that was started."""

    id: str
    started: float
    folder: Path | None
    """Where its shim keeps its state; None without processes."""

    async def wait(self) -> Exit:
        """How it ended, once it has."""
        ...

    def kill(self, number: int) -> None:
        """Send a signal to its first process; nothing when it has ended."""
        ...

    async def execute(self, command: Sequence[str], seconds: float) -> tuple[int, str]:
        """Run a command in it: exit code and output. TimeoutError after ``seconds``."""
        ...

    async def command(self, words: Sequence[str], streams: CommandStreams) -> ContainerCommand:
        """Start a command in it for somebody who talks with it. Raises ExecError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What to start: the container's id and folder, its image's row, the finished configuration.

    ``pod`` is the pod's uid; with the container's name and the number of the attempt the container is found again.
    """

    id: str
    folder: Path
    sample: SampleImage
    args: tuple[str, ...]
    config: OciConfig
    cwd: str
    hostname: str
    log: Path
    volumes: tuple[CdiMount, ...] = ()
    termination_log: str = ""
    outside: bool = False
    """It has no file system of its own: the command is told where everything is."""
    pod: str = ""
    container: str = ""
    attempt: int = 0
    network: ContainerNetwork | None = None
    """A network of its own; None for the machine's."""


@dataclass(frozen=True, slots=True)
class ContainerNetwork:
    """Addresses of a container with a network of its own: the pod's in it, and this machine's that leads to it."""

    inside: str
    outside: str


def append_line(log: Path, line: str) -> None:
    """A line of the lab's own in a container's log."""
    out = shim.ContainerLogWriter(str(log))
    out.take("stdout", f"{line}\n".encode())
    out.end()


class StandIn:
    """A container that only pretends: it stays running until it is told to end."""

    def __init__(self, container: str, started: float, log: Path | None = None, line: str = "") -> None:
        self.id = container
        self.started = started
        self.folder: Path | None = None
        self._line = line
        self._ended = asyncio.Event()
        self._exit: Exit | None = None
        if log is not None and line:
            append_line(log, line)

    async def wait(self) -> Exit:
        await self._ended.wait()
        assert self._exit is not None
        return self._exit

    def kill(self, number: int) -> None:
        if self._exit is None:
            code = 0 if number == signal.SIGTERM else 128 + number
            self._exit = Exit(code=code, finished=time.time(), signal=0 if code == 0 else number)
            self._ended.set()

    async def execute(self, command: Sequence[str], seconds: float) -> tuple[int, str]:
        del command, seconds
        return 0, ""

    async def command(self, words: Sequence[str], streams: CommandStreams) -> ContainerCommand:
        del streams
        missing = f'exec: "{words[0] if words else ""}": executable file not found in $PATH'
        raise container_command.exec_error(f"{missing} ({self._line})" if self._line else missing)


class ContainerProcess:
    """A container that is a local process with its shim."""

    def __init__(self, folder: Path, container: str, pid: int, shim_pid: int, started: float) -> None:
        self.id = container
        self.started = started
        self.pid = pid
        self.folder: Path | None = folder
        self._folder = folder
        self._shim = shim_pid

    async def wait(self) -> Exit:
        await pid_end(self._shim)
        if exit_of(self._folder) is None or container_processes.had_commands(self._folder):
            # Somebody killed the shim, or there are processes that it knows nothing of.
            await asyncio.to_thread(container_processes.end, self._folder)
        return exit_of(self._folder) or Exit(code=137, finished=time.time(), signal=9)

    def kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if not (self._folder / "exit.json").exists():
                os.killpg(self.pid, number)

    async def execute(self, command: Sequence[str], seconds: float) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", _SHIM, "exec", str(self._folder / "config.json"), str(self.pid), *command,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(seconds):
                out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return process.returncode or 0, out.decode(errors="replace")

    async def command(self, words: Sequence[str], streams: CommandStreams) -> ContainerCommand:
        try:
            (self._folder / container_processes.EXEC).touch()
        except OSError as error:  # it has ended, and its folder is gone
            raise container_command.exec_error("cannot exec in a stopped container") from error
        return await container_command.start(self._folder / container_processes.CONFIG, self.pid, words, streams)


class Runtime:
    """Starts and finds containers. ``mode`` is how they see the file system; ``hide`` are folders not for them."""

    def __init__(self, mode: str, *, hide: Sequence[Path] = (), networks: bool = False) -> None:
        """``networks``: whether a container can have one of its own."""
        self.mode = mode
        self.networks = networks and mode == NAMESPACES
        self._hide = [str(path) for path in hide]

    def runs(self, sample: SampleImage, args: Sequence[str]) -> bool:
        """Whether the command is a local process here; False for one that a stand-in takes the place of."""
        if sample.pause or (sample.isolated and self.mode != NAMESPACES):
            return False
        return built(sample) and (self.networks or not sample.needs_network(args))

    async def start(self, wanted: Start) -> Running:
        """Start the command; returns when it runs. Raises StartError."""
        folder = wanted.folder
        folder.mkdir(parents=True, exist_ok=True)
        wanted.log.parent.mkdir(parents=True, exist_ok=True)
        config = self._config(wanted)
        (folder / "config.json").write_text(json.dumps(config))
        if config["termination_log"]:
            (folder / "termination-log").touch()
        pid = _spawn([sys.executable, "-I", "-S", _SHIM, "run", str(folder / "config.json")], folder / "shim.log")
        reaper = asyncio.create_task(_reap(pid))
        _reapers.add(reaper)
        reaper.add_done_callback(_reapers.discard)
        state = await self._begun(folder, pid)
        return ContainerProcess(folder, wanted.id, state["pid"], pid, state["started"])

    async def _begun(self, folder: Path, pid: int) -> dict[str, Any]:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            lives = container_processes.is_alive(pid)  # first: a short command has begun and ended between two looks
            for name in ("state.json", "exit.json"):
                content = container_processes.read_json(folder / name)
                if content is not None and content.get("problem"):
                    raise StartError(
                        "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
                        "runc create failed: unable to start container process: error during container init: "
                        f"{content['problem']}",
                        "a command that the image has",
                        "correct the container's command or image",
                    )
                if content is not None and name == "state.json":
                    return content
            if not lives:
                text = (folder / "shim.log").read_text(errors="replace").strip()[-400:]
                raise StartError(f"the container's shim ended: {text}", "a running shim", "report this as a bug")
            await asyncio.sleep(0.01)
        # It would run beside the next try.
        await asyncio.to_thread(container_processes.end, folder)
        raise StartError(f"the container did not start within {START_S:g} s", "a started command", "try again")

    def adopt(self, folder: Path, container: str) -> Running | Exit | None:
        """A container of an earlier host process: still running, ended, or never started by a shim."""
        ended = exit_of(folder)
        if ended is not None:
            return ended
        state = container_processes.read_state(folder)
        if state is None:
            return None
        if container_processes.is_alive(state.shim) and container_processes.is_shim(state.shim, folder):
            return ContainerProcess(folder, container, state.pid, state.shim, state.started)
        container_processes.end(folder)
        return Exit(code=137, finished=time.time(), signal=9)

    def _config(self, wanted: Start) -> dict[str, Any]:
        config, folder = wanted.config, wanted.folder
        contents = wanted.sample.files.items()
        files = [
            {"source": _content(source), "target": target} for target, source in contents if not source.startswith(HOST)
        ]
        # Mounted, not copied: who is not root may not write into the machine's folders, not even on a layer over them.
        own = [
            {"source": program, "target": target, "read_only": True}
            for target, source in contents
            if source.startswith(HOST) and (program := shutil.which(source.removeprefix(HOST)))
        ]
        mounts = [
            {"source": m.host_path, "target": m.container_path, "read_only": "ro" in m.options}
            for m in (*config.mounts, *wanted.volumes)
        ]
        shim_config: dict[str, Any] = {
            "id": wanted.id,
            "pod": wanted.pod,
            "container": wanted.container,
            "attempt": wanted.attempt,
            "mode": self.mode,
            "folder": str(folder),
            "args": list(wanted.args),
            "env": {**config.env, "KGPU_LAB_PYTHON": sys.executable, ENV_LAB_CONTAINER: wanted.id},
            "cwd": wanted.cwd,
            "hostname": wanted.hostname,
            "log": str(wanted.log),
            "hide": self._hide,
            "termination_log": wanted.termination_log,
            "mounts": [*own, *mounts, *_python_mounts()],
            "devices": [{"source": node.host_path or node.path, "target": node.path} for node in config.devices],
            "files": files,
            "plain_root": str(folder / "root"),
        }
        if wanted.network is not None:
            shim_config["network"] = {
                "inside": wanted.network.inside,
                "outside": wanted.network.outside,
                "relay": _RELAY,
            }
        if wanted.outside:
            return {**shim_config, "mode": PLAIN, "cwd": str(folder), "mounts": [], "devices": [], "files": []}
        return shim_config if self.mode == NAMESPACES else _plain(shim_config)


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """The same without namespaces: links below ``root``, found through the environment."""
    root = Path(config["plain_root"])
    environment = dict(config["env"])
    for row in (*config["mounts"], *config["devices"], *config["files"]):
        place = root / row["target"].lstrip("/")
        if row["target"] != HW_STATE_PATH:
            _link(row["source"], place)
    state = next((row["source"] for row in config["mounts"] if row["target"] == HW_STATE_PATH), "")
    hardware = Path(config["folder"]) / "hw"
    (hardware / "dev").mkdir(parents=True, exist_ok=True)
    for row in config["devices"]:
        if row["target"].startswith("/dev/"):
            _link(row["source"], hardware / row["target"].lstrip("/"))
    if state:
        _link(state, hardware / "state")
        environment[ENV_HW_STATE] = str(hardware / "state")
    else:
        # Without a state of its own the library would look for the machine's.
        environment[ENV_HW_STATE] = str(hardware / "none")
    places = {row["target"]: row["source"] for row in config["mounts"]}
    if (pipe := environment.get(ENV_MPS_PIPE_DIRECTORY)) in places:
        environment[ENV_MPS_PIPE_DIRECTORY] = places[pipe]
    targets = list(places)
    libraries = {os.path.dirname(path) for path in targets if path.startswith(_LIBRARY_PARTS) and ".so" in path}
    programs = [str(root) + part for part in _PROGRAM_PARTS if (root / part.lstrip("/")).is_dir()]
    search = [environment.get("PATH", ""), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    environment["PATH"] = ":".join([*programs, *filter(None, search)])
    if libraries:
        ordered = [str(root) + path for path in sorted(libraries)]
        environment["LD_LIBRARY_PATH"] = ":".join([*ordered, *filter(None, [environment.get("LD_LIBRARY_PATH")])])
    return {**config, "env": environment, "cwd": str(root / config["cwd"].lstrip("/"))}


def _link(source: str, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if place.is_symlink() or place.is_file():
            place.unlink()
    place.symlink_to(source)


def built(sample: SampleImage) -> bool:
    """Whether the programs of its image that are built when asked for are there."""
    wanted = [source.removeprefix(PROGRAM) for source in sample.files.values() if source.startswith(PROGRAM)]
    return all(find_built(name) is not None for name in wanted)


def _content(source: str) -> str:
    kind, _, name = source.partition(":")
    if kind == "script":
        return str(SCRIPTS / name)
    if source.startswith(PROGRAM):
        return str(find_built(name) or name)
    from kgpu.hw.simulator.build import native_dir

    return str(native_dir() / name)


def _python_mounts() -> list[dict[str, Any]]:
    """The interpreter's folders, for scripts that use it where nothing else can do their work."""
    folders = dict.fromkeys((sys.base_prefix, sys.prefix))
    return [
        {"source": path, "target": path, "read_only": True}
        for path in folders
        if path not in {"/usr", "/"} and os.path.isdir(path)
    ]


def detect_mode(folder: Path) -> str:
    """Whether this user may make namespaces here, found by trying it once in ``folder``."""
    return NAMESPACES if _tried(folder, {}) else PLAIN


def detect_networks(folder: Path) -> bool:
    """Whether a container may have a network of its own, found in the same way."""
    return _tried(folder, {"network": {"inside": "10.244.0.1", "outside": "127.0.0.1", "relay": _RELAY}})


def _tried(folder: Path, more: Mapping[str, Any]) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "mode": NAMESPACES, "folder": str(folder), "args": ["/bin/true"], "env": {"PATH": "/usr/bin:/bin"},
        "cwd": "/", "hostname": "probe", "log": str(folder / "log"), "hide": [], "termination_log": "",
        "mounts": [], "devices": [], "files": [], "plain_root": "", **more,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-I", "-S", _SHIM, "run", str(folder / "config.json")]
    try:
        subprocess.run(command, check=False, timeout=30, capture_output=True)
        ended = exit_of(folder)
    except (OSError, subprocess.TimeoutExpired):
        ended = None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ended is not None and ended.code == 0


def environment_of(sample: SampleImage, pod_env: Mapping[str, str]) -> dict[str, str]:
    """The image's environment with the pod's over it."""
    return {**sample.env, **pod_env}


async def pid_end(pid: int) -> None:
    """Return when the process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _spawn(command: Sequence[str], log: Path) -> int:
    """Start a program that outlives this process, in a session of its own; its pid."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    actions: list[Any] = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(
        command[0], list(command), os.environ, file_actions=actions, setsid=True, setsigmask=(), setsigdef=signals.ALL
    )


async def _reap(pid: int) -> None:
    await pid_end(pid)
    _forget(pid)


def _forget(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


_reapers: set[asyncio.Task[None]] = set()


def exit_of(folder: Path) -> Exit | None:
    """How the container of that folder ended, as its shim has told; None while it has not."""
    recorded = container_processes.read_json(folder / container_processes.EXIT)
    if recorded is None:
        return None
    return Exit(
        code=int(recorded.get("code") or 0),
        finished=recorded.get("finished") or time.time(),
        signal=recorded.get("signal", 0),
    )
