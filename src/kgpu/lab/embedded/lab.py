"""One embedded cluster: bring it up, look at it, take it down; the same shape as the real lab.

``up`` may be called again at any time and does what is missing: a server that has died is started anew on its old
port, with its kept data if it was made with some. ``down`` ends the processes that the state file names and removes
what ``up`` made, except a kept data folder. Both hold a lock, so that two of them come one after the other.
"""

from __future__ import annotations

import fcntl
import importlib.util
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import msgspec

from kgpu.base import signals
from kgpu.base.errors import LabError
from kgpu.base.typed import decode
from kgpu.lab import lock, operator, processes
from kgpu.lab.common import FIRST_NODE, VOLUMES_FOLDER, labs_root
from kgpu.lab.embedded import model, ready
from kgpu.lab.embedded.model import DEFAULT_PROFILE, EmbeddedState, FirstNode
from kgpu.lab.embedded.server import HOST, LOCK_FILE, reserve
from kgpu.lab.nodes import manage
from kgpu.lab.nodes.folder import give_to_operator, has_operator
from kgpu.lab.nodes.spec import CONTAINER_DRIVER, CPU_PROFILE, HOST_DRIVER
from kgpu.lab.port import EMBEDDED, About, NodeHardware
from kgpu.lab.processes import ProcessRecord
from kgpu.lab.progress import PlainProgress, Progress
from kgpu.lab.real import build, namespaces
from kgpu.lab.real.model import LabPaths as RealPaths
from kgpu.lab.scenarios.run import LocalBackend

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?")
_POLL_S: Final = 0.05
_API_S: Final = 180.0
_NODE_S: Final = 120.0
_LOCK_S: Final = 180.0
_END_S: Final = 10.0  # for a process to end by itself, then it is killed
_MODULES: Final = ("uvicorn", "httptools", "cryptography", "cel_expr_python")
_OWN: Final = ("pki", "logs", "nodes", "kubeconfig", "tokens.csv", LOCK_FILE, VOLUMES_FOLDER)


class EmbeddedLab:
    """The embedded lab of one name, in ``folder`` (default: ``labs_root()/NAME``). Construction has no effects."""

    def __init__(
        self, name: str = "lab", folder: Path | None = None, progress: Progress | None = None, *,
        data: Path | None = None, port: int = 0, first: FirstNode | None = None, operator: bool = False,
        gates: str = "", usage: bool = False,
    ) -> None:  # fmt: skip
        """``data`` keeps objects over restarts; ``port`` 0 takes the last run's port, or a free one.

        ``first`` is the lab's first node; None for none, or for the one of an existing lab. ``operator``: kgpu's own
        operator runs the agents. ``gates``: feature gates that are off by default, as ``NAME=true``. ``usage``: what
        GPUs are used for is recorded, which takes the operator.
        """
        if not _NAME.fullmatch(name):
            raise LabError(
                f"\"{name[:60]}\" can't be a lab's name",
                "small letters, digits and dashes, at most 42",
                "choose another --name",
            )
        self.name = name
        self.folder = (folder or labs_root() / name).absolute()
        self.progress: Progress = progress or PlainProgress()
        self._data = data.absolute() if data else None
        self._port = port
        self._first = first
        self._operator = operator or usage
        self._gates = gates
        self._usage = usage

    # --- up -------------------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Bring the API up until it answers, and its first node until it offers its GPUs. Raises LabError."""
        require_platform()
        self._refuse_real()
        self._refuse_mixed_data()
        self._check_first()
        with self._only_one():
            lock.refuse_foreign(self.folder, (model.STATE_FILE, LOCK_FILE))
            state = self._load()
            if state is not None and state.server is not None and processes.alive(state.server):
                self._refuse_other(state)
                self._wait_for_api(state.server)
            else:
                if state is not None:
                    with self.progress.step("clean up after a lab that did not end well"):
                        self._end_processes(state)
                with self.progress.step("start the API server"):
                    state = self._start(state)
            self._start_nodes(state)
            if not state.complete:
                model.save(self.folder, msgspec.structs.replace(state, complete=True))

    def _check_first(self) -> None:
        """A profile that can't be simulated is refused before anything is made. Raises ConfigError."""
        if self._first is not None and self._first.driver == CONTAINER_DRIVER and not self._operator:
            raise LabError(
                "a driver in a container without the operator", "--operator, which runs that container",
                "add --operator, or leave out --driver container",
            )  # fmt: skip
        if self._first is not None and self._first.profile != CPU_PROFILE:
            from kgpu.hw.simulator import machines

            machines.load(self._first.profile, gpus=self._first.gpus)

    def _start(self, old: EmbeddedState | None) -> EmbeddedState:
        # The port is reserved until the server listens, as other processes look for free ports, too.
        with self._free_port(old) as kept:
            return self._start_at(kept.getsockname()[1], old)

    def _start_at(self, port: int, old: EmbeddedState | None) -> EmbeddedState:
        data = str(self._data) if self._data else (old.data if old else "")
        first = self._first or (old.first if old else None)
        state = EmbeddedState(
            name=self.name, port=port, data=data, profile=first.profile if first else "",
            gpus=first.gpus if first else None, agent=first.agent if first else True,
            driver=first.driver if first else HOST_DRIVER, gates=self._gates or (old.gates if old else ""),
            usage=self._usage or (old.usage if old else False),
        )  # fmt: skip
        model.save(self.folder, state)
        if self._operator:  # before anything that can be interrupted
            give_to_operator(self.nodes)
        self.logs.mkdir(parents=True, exist_ok=True)
        self._keep_volumes(data)
        command = [sys.executable, "-m", "kgpu.lab.embedded.server", "--dir", str(self.folder), "--name", self.name]
        command += ["--port", str(state.port), *(["--data", data] if data else [])]
        command += ["--feature-gates", state.gates] if state.gates else []
        process = self._spawn(command, "server")
        state = msgspec.structs.replace(state, server=process)
        model.save(self.folder, state)
        self._wait_for_api(process)
        return state

    def _keep_volumes(self, data: str) -> None:
        """With the objects go what their volumes have: both are where ``--data`` says."""
        place = self.folder / VOLUMES_FOLDER
        if data:
            kept = Path(data) / VOLUMES_FOLDER
            kept.mkdir(parents=True, exist_ok=True)
            if not place.is_symlink() and not place.exists():
                place.symlink_to(kept)

    def _start_nodes(self, state: EmbeddedState) -> None:
        """The lab's own objects, its first node if that is missing, and the host of all nodes if there are any."""
        first = state.first
        nodes = manage.listing(self.folder)
        if not state.complete:
            ready.apply_lab_objects(self.kubeconfig)
            if self._operator:
                give_to_operator(self.nodes)
            if has_operator(self.nodes):
                with self.progress.step("install the operator"):
                    driver = first is not None and first.driver == CONTAINER_DRIVER
                    operator.install(self.kubeconfig, driver=driver, usage=state.usage)
            if first is not None and FIRST_NODE not in nodes:
                prefix = FIRST_NODE.rpartition("-")[0]
                manage.add(
                    self.folder, first.profile, name_prefix=prefix, gpus=first.gpus, agent=first.agent,
                    driver=first.driver,
                )  # fmt: skip
            nodes = manage.listing(self.folder)
        if not nodes:
            return
        if not manage.host_running(self.nodes):
            with self.progress.step("start the simulated nodes"):
                manage.start_host(self.folder, self.kubeconfig)
        dark = manage.off(self.folder, nodes)
        for name in dark:
            self.progress.note(f"node {name} is switched off; `kgpu lab node start {name}`")
        if first is not None and FIRST_NODE in nodes and FIRST_NODE not in dark:
            with self.progress.step(f"wait for node {FIRST_NODE} to offer its GPUs"):
                gpus = first.agent and nodes[FIRST_NODE].has_gpus
                if gpus:  # kept data of a former run may show the node as ready before it is started again
                    ready.wait_for_hardware(self.nodes / FIRST_NODE / "hw", _NODE_S, self.nodes)
                self._wait_for_node(gpus=gpus)

    def _wait_for_node(self, *, gpus: bool) -> None:
        try:
            ready.wait_for_nodes(self.kubeconfig, {FIRST_NODE: gpus}, _NODE_S, self.nodes)
        except LabError as error:
            problem = operator.problem(self.kubeconfig) if has_operator(self.nodes) else ""
            if not problem:
                raise
            raise LabError(f"{error.what}\n    the operator: {problem}", error.expected, error.remedy) from error

    def _free_port(self, old: EmbeddedState | None) -> socket.socket:
        """Reserve the requested port, else the last run's if it is still free, else any. Raises LabError."""
        wanted = self._port or (old.port if old else 0)
        try:
            return reserve(HOST, wanted)
        except LabError:
            if self._port:
                if old is None:  # remove the folder of a lab that could not be started
                    lock.release_folder(self.folder)
                raise
            kept = reserve(HOST, 0)
            port = kept.getsockname()[1]
            self.progress.note(f"  port {wanted} is taken by now; the API listens on {port} instead")
            return kept

    def _spawn(self, command: Sequence[str], log: str) -> ProcessRecord:
        """Start a process that outlives this one; its output goes to ``logs/LOG.log``."""
        with (self.logs / f"{log}.log").open("ab") as out:
            process = subprocess.Popen(
                signals.with_defaults(command), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True, cwd="/", env=namespaces.child_env(),
            )  # fmt: skip
        _children.append(process)
        try:
            return processes.record(process.pid)
        except OSError as error:
            raise self._failed(f"{log} ended at once", log) from error

    def _wait_for_api(self, process: ProcessRecord) -> None:
        until = time.monotonic() + _API_S
        while not self._answers():
            if not processes.alive(process):
                raise self._failed("the API server ended while it was starting", "server")
            if time.monotonic() > until:
                raise self._failed(f"the API server has not answered for {_API_S:.0f} s", "server")
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        """Whether /readyz answers 200, over TLS with the lab's own CA."""
        import http.client
        import ssl

        state = self._load()
        if state is None:
            return False
        try:
            context = ssl.create_default_context(cafile=str(self.folder / "pki" / "ca.crt"))
            connection = http.client.HTTPSConnection(HOST, state.port, timeout=2, context=context)
            try:
                connection.request("GET", "/readyz")
                return connection.getresponse().status == 200
            finally:
                connection.close()
        except (OSError, http.client.HTTPException):
            return False

    def _failed(self, what: str, log: str) -> LabError:
        return LabError(
            f"{what}\n{self.log_tail(log)}".rstrip(),
            "an API server that answers",
            f'look into {self.logs / f"{log}.log"}; then "kgpu lab down --name {self.name}" and try again',
        )

    def _refuse_real(self) -> None:
        if RealPaths(self.folder).state.exists():
            raise LabError(
                f'there is a real lab "{self.name}" in {self.folder}',
                "a name that no other lab has",
                f'choose another --name, or "kgpu lab down --name {self.name}" first',
            )

    def _refuse_mixed_data(self) -> None:
        """``down`` removes the lab's folder but not the data: neither may be inside the other. Raises LabError."""
        if self._data is None:
            return
        data, folder = self._data.resolve(), self.folder.resolve()
        if data.is_relative_to(folder) or folder.is_relative_to(data):
            raise LabError(
                f"--data {self._data} and the lab's folder {self.folder} are in each other",
                "a folder of its own for the data, which stays when the lab is taken down",
                "choose another --data",
            )

    def _refuse_other(self, state: EmbeddedState) -> None:
        wanted = str(self._data) if self._data else state.data
        adds_usage = self._usage and not state.usage
        adds_operator = self._operator and not has_operator(self.nodes) and state.complete
        if (
            adds_operator
            or adds_usage
            or wanted != state.data
            or self._port not in (0, state.port)
            or self._gates not in ("", state.gates)
            or (self._first or state.first) != state.first
        ):
            profile, gpus = state.profile or "none", state.gpus or "all"
            raise LabError(
                f'the lab "{self.name}" is already up with other settings: profile {profile}, gpus {gpus}, '
                f"port {state.port}, data folder '{state.data}'{_lacks(adds_operator, adds_usage)}",
                "the same settings, or no such lab",
                f'"kgpu lab down --name {self.name}" first, or choose another --name',
            )

    # --- looking --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> EmbeddedState:
        """The lab's state; LabError when it is not up."""
        state = self._load()
        if state is None or state.server is None or not processes.alive(state.server):
            raise LabError(
                f'there is no running lab "{self.name}" in {self.folder}',
                "a lab that is up",
                f'"kgpu lab up --name {self.name}"',
            )
        return state

    @property
    def exists(self) -> bool:
        """Whether there is a state file, running or not."""
        return (self.folder / model.STATE_FILE).exists()

    @property
    def running(self) -> bool:
        """Whether the server is alive."""
        state = self._load()
        return state is not None and state.server is not None and processes.alive(state.server)

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def nodes(self) -> Path:
        """The simulated nodes' folders."""
        return self.folder / "nodes"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    @property
    def url(self) -> str:
        """Where the API is; LabError when the lab is not up."""
        return f"https://{HOST}:{self.state.port}"

    @property
    def kubectl_program(self) -> str:
        """The machine's own kubectl, else the one that was built for the real lab. Raises LabError."""
        return find_kubectl()

    def kubectl_run(
        self, *arguments: str, stdin: str | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl against this cluster; the caller looks at the exit status. LabError when the lab is not up."""
        _ = self.state
        command = [self.kubectl_program, "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=timeout)

    def backend(self, name: str = EMBEDDED, *, vendor: str = "", node: str = "") -> LocalBackend:
        """The lab as a place to play scenarios on; ``node`` is the one that they use (default: the best for them)."""
        chosen = node or manage.story_node(self.folder, vendor) or FIRST_NODE
        return LocalBackend(
            name or EMBEDDED,
            kubeconfig=self.kubeconfig,
            kubectl=self.kubectl_program,
            hw_root=self.nodes / chosen / "hw",
            node=chosen,
        )

    def hardware(self) -> tuple[NodeHardware, ...]:
        """The simulated driver roots of its nodes."""
        return manage.hardware(self.folder)

    @property
    def about(self) -> About:
        state = self._load()
        return About(
            name=self.name, kind=EMBEDDED, folder=self.folder, kubeconfig=self.kubeconfig,
            kubectl=build.find_kubectl(), complete=bool(state and state.complete) and not self._host_missing(),
            up_words=tuple(self._up_words(state)),
            url=f"https://{HOST}:{state.port}" if state else "",
        )  # fmt: skip

    def _up_words(self, state: EmbeddedState | None) -> list[str]:
        """The options that make this lab: as it was made, else as it was asked for."""
        first = state.first if state else self._first
        data, gates = (state.data, state.gates) if state else (str(self._data or ""), self._gates)
        usage = state.usage if state else self._usage
        options: tuple[tuple[str, object, object], ...] = (
            ("--no-node", first is None, ""),
            ("--profile", first and first.profile != DEFAULT_PROFILE, first and first.profile),
            ("--gpus", first and first.gpus, first and first.gpus),
            ("--no-agent", first and not first.agent, ""),
            ("--driver", first and first.driver != HOST_DRIVER, first and first.driver),
            ("--usage", usage, ""),
            ("--operator", not usage and (self._operator or has_operator(self.nodes)), ""),
            ("--data", data, data),
            ("--feature-gates", gates, gates),
            ("--port", self._port and not state, self._port),  # a lab keeps the port that it once had
        )
        return [str(word) for name, given, value in options if given for word in (name, value) if word]

    def _host_missing(self) -> bool:
        return not manage.host_running(self.nodes) and bool(manage.listing(self.folder))

    def report(self) -> dict[str, Any]:
        """See ``kgpu.lab.embedded.report``."""
        from kgpu.lab.embedded.report import report

        return report(self)

    def answers(self) -> bool:
        """Whether the API server is ready."""
        return self._answers()

    def log_tail(self, name: str, lines: int = 8) -> str:
        """The last lines of a process's log, indented."""
        try:
            text = (self.logs / f"{name}.log").read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(f"    {name}: {line[:240]}" for line in text.splitlines()[-lines:])

    # --- down -----------------------------------------------------------------------------------------------------

    def down(self) -> bool:
        """End everything of the lab and remove its files; False when there was nothing. Raises LabError."""
        if not self.folder.exists() or not (self.exists or self._stray() is not None):
            return False
        with self._only_one(), self.progress.step(f'take down the lab "{self.name}"'):
            try:
                state = self._load()
            except LabError:
                state = None  # the state file is unreadable, but the lock file still names the server
            self._end_processes(state)
            self._remove_files()
            lock.release_folder(self.folder)  # stays if it has other files
        return True

    def _end_processes(self, state: EmbeddedState | None) -> None:
        manage.stop_host(self.folder)
        for process in [state.server if state else None, self._stray()]:
            if process is None or not processes.signal_process(process, signal.SIGTERM):
                continue
            if not self._ended(process, _END_S):
                processes.signal_process(process, signal.SIGKILL)
                if not self._ended(process, _END_S):
                    raise LabError(
                        f"process {process.pid} does not end",
                        "every process of the lab to end",
                        'look what it waits for, then "kgpu lab down" again',
                    )

    def _stray(self) -> ProcessRecord | None:
        """A server that holds this folder's lock but may be in no state file, as after a kill at the wrong moment."""
        try:
            with (self.folder / LOCK_FILE).open("rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return decode(lock.read(), ProcessRecord)
        except (OSError, msgspec.MsgspecError):
            pass
        return None

    def _ended(self, process: ProcessRecord, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while processes.alive(process):
            if time.monotonic() > until:
                return False
            _reap()
            time.sleep(_POLL_S)
        return True

    def _remove_files(self) -> None:
        for name in _OWN:
            path = self.folder / name
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            except OSError as error:
                raise LabError(
                    f"{error.filename or path} could not be removed: {error.strerror}",
                    "files that belong to whoever takes the lab down",
                    "remove it by hand, or run as the user who made the lab",
                ) from error
        # Last, so that an interrupted ``down`` can be repeated.
        (self.folder / model.STATE_FILE).unlink(missing_ok=True)

    # --- helpers --------------------------------------------------------------------------------------------------

    def _load(self) -> EmbeddedState | None:
        return model.load(self.folder, self.name)

    def _only_one(self) -> AbstractContextManager[None]:
        message = f'another kgpu is bringing the lab "{self.name}" up or down; waiting for it'
        return lock.held(self.folder, self.name, wait_s=_LOCK_S, waiting=lambda: self.progress.step(message))


def require_platform() -> None:
    """Raises LabError where the lab can't run."""
    if sys.platform != "linux":
        raise LabError(
            f"the lab can't run on {sys.platform}",
            "Linux: the simulated driver is a Linux library",
            "use a Linux machine, a virtual one (WSL 2, Lima) or a container",
        )
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise LabError(
            f"Python packages are missing: {', '.join(missing)}",
            'kgpu with its extra "lab"',
            'pip install "kgpu[lab]"',
        )


def _lacks(operator: bool, usage: bool) -> str:
    """What a lab is up without, as a part of a sentence."""
    missing = [name for name, lacks in (("the operator", operator), ("usage recorded", usage)) if lacks]
    return f", without {' and '.join(missing)}" if missing else ""


_children: list[subprocess.Popen[bytes]] = []


def _reap() -> None:
    """Take the exit status of children of ours, so that they do not stay as zombies while this process lives."""
    _children[:] = [child for child in _children if child.poll() is None]


def find_kubectl() -> str:
    """The kubectl on PATH, else the newest that was built here. Raises LabError."""
    if program := build.find_kubectl():
        return program
    raise LabError(
        "there is no kubectl",
        "kubectl on PATH, or built by kgpu",
        'install it from kubernetes.io, or "kgpu lab build --embedded"',
    )
