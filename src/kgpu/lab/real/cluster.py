"""One real Kubernetes cluster with one node of simulated GPUs: bring it up, look at it, disturb it, take it down.

``RealLab`` is what the command line, the scenarios and the tests use. ``up`` may be called again at any time and
finishes what is missing; ``down`` removes what the state file names, and works after a crash or a half-finished ``up``.
"""

from __future__ import annotations

import functools
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.lab import lock, port, processes
from kgpu.lab.common import labs_root
from kgpu.lab.nodes import manage
from kgpu.lab.port import REAL, About, NodeHardware
from kgpu.lab.processes import ProcessRecord
from kgpu.lab.progress import PlainProgress, Progress
from kgpu.lab.real import bootstrap, cgroups, hosttools, mountpoints, namespaces, routes, state
from kgpu.lab.real.build import ensure_binaries
from kgpu.lab.real.model import NODE_DIRS, NODE_NAME, LabNetwork, LabPaths, LabSpec, plan_network
from kgpu.lab.real.plan import AGENT, make_plan
from kgpu.lab.real.server import ApiServerConnection
from kgpu.lab.real.state import LabState
from kgpu.lab.scenarios.run import LocalBackend

_POLL_S: Final = 0.1
_NODE_PATH: Final = f"/api/v1/nodes/{NODE_NAME}"
_KEEPER_S: Final = 120.0
_API_S: Final = 120.0
_NODE_S: Final = 180.0
_END_S: Final = 30.0


class RealLab:
    """The lab of one name, in ``folder`` (default: ``labs_root()/NAME``); nothing is done before ``up``."""

    def __init__(
        self, spec: LabSpec | None = None, *, folder: Path | None = None, progress: Progress | None = None
    ) -> None:
        self.spec = spec or LabSpec()
        self.paths = LabPaths((folder or labs_root() / self.spec.name).absolute())
        self.progress: Progress = progress or PlainProgress()

    # --- up -------------------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Bring the cluster up: the node Ready and, with an agent, its GPUs allocatable. Raises LabError."""
        hosttools.require_platform()
        bootstrap.check_hardware(self.spec)
        hosttools.require_host_tools()
        self._refuse_other_spec()
        bin_dir = ensure_binaries(self.progress)
        with self._only_one():
            lab_state = state.load(self.paths.state)
            if lab_state is None:
                lock.refuse_foreign(self.paths.root, ())
            if lab_state and (lab_state.keeper is None or not processes.alive(lab_state.keeper)):
                with self.progress.step("clean up after a lab that did not end well"):
                    manage.take_down(self.paths.root)
                    self._remove(lab_state)
                lab_state = None
            if lab_state is None:
                try:
                    with lock.machine():
                        lab_state = self._create(bin_dir)
                except BaseException:
                    self._forget_unborn()
                    raise
            if not lab_state.complete:
                self._finish(lab_state)
            if manage.listing(self.paths.root) and not manage.host_running(manage.nodes_dir(self.paths.root)):
                with self.progress.step("start the simulated nodes"):
                    manage.start_host(self.paths.root, self.kubeconfig, address=self.network.host_ip)

    def _forget_unborn(self) -> None:
        """After a failed ``_create``: when no process was started, nothing is left of it."""
        lab_state = state.load(self.paths.state)
        if lab_state is not None and lab_state.keeper is None:
            self._remove(lab_state)
        if not self.paths.state.exists():
            lock.release_folder(self.paths.root)

    def _refuse_other_spec(self) -> None:
        up = state.load(self.paths.state)
        if up is None or up.keeper is None or not processes.alive(up.keeper):
            return
        have, want = (
            (up.profile, up.gpus, up.agent),
            (self.spec.profile, self.spec.gpus, self.spec.agent),
        )
        if have != want:
            raise LabError(
                f'the lab "{up.name}" is already up with other settings: profile {have[0]}, gpus {have[1] or "all"}',
                f"the same settings, or no such lab; asked for: profile {want[0]}, gpus {want[1] or 'all'}",
                f'"kgpu lab down --name {up.name}" first, or choose another --name',
            )

    def _create(self, bin_dir: Path) -> LabState:
        """Everything up to running processes. What is about to exist is written down first."""
        network = plan_network(routes.used_networks())
        lab_state = LabState(
            name=self.spec.name,
            profile=self.spec.profile,
            gpus=self.spec.gpus,
            agent=self.spec.agent,
            network_index=network.index,
            bin_dir=str(bin_dir),
            mountpoints=tuple(mountpoints.claim(NODE_DIRS)),
            cgroups=tuple(str(tree / self.spec.cgroup(network)) for tree in cgroups.trees()),
        )
        state.save(self.paths.state, lab_state)
        with self.progress.step(f"simulate the GPUs of {self.spec.profile}"):
            bootstrap.create_hardware(self.spec, self.paths)
        with self.progress.step("write keys, certificates and configs"):
            bootstrap.write_files(self.spec, self.paths, network, bin_dir)
            plan = make_plan(self.spec, self.paths, network, bin_dir=bin_dir, environ=namespaces.child_env())
            write_atomic(self.paths.plan, msgspec.json.format(msgspec.json.encode(plan)))
        mountpoints.make(lab_state.mountpoints)
        cgroups.create(self.spec.cgroup(network))
        with self.progress.step(f"start the node at {network.node_ip}"):
            pid = namespaces.start_keeper(self.paths)
            lab_state = msgspec.structs.replace(lab_state, keeper=processes.record(pid))
            state.save(self.paths.state, lab_state)
            lab_state = msgspec.structs.replace(lab_state, link=namespaces.link_node(pid, network))
            state.save(self.paths.state, lab_state)
            self._wait(lambda: namespaces.answers(pid), _KEEPER_S, "the node's keeper to take orders", "keeper")
        return lab_state

    def _finish(self, lab_state: LabState) -> None:
        """Images, a Ready node, the lab's own objects, the agent."""
        with self.progress.step("make and import the images"):
            bootstrap.import_images(self)
        with self.progress.step("wait for the API server"):
            self._wait(self._api_ready, _API_S, "the API server to be ready", "kube-apiserver")
        with self.progress.step(f"wait for node {NODE_NAME} to be Ready"):
            self._wait(self._node_ready, _NODE_S, "the node to be Ready", "kubelet")
        with self.progress.step("apply the lab's own objects"):
            bootstrap.apply_objects(self)
        if lab_state.agent:
            with self.progress.step("start the kgpu agent"):
                bootstrap.write_cdi_spec(self)
                self.order("start", AGENT)
                self._wait(self._gpus_allocatable, _NODE_S, "the node to offer its GPUs", AGENT)
        state.save(self.paths.state, msgspec.structs.replace(lab_state, complete=True))

    def _api_ready(self) -> bool:
        return self.ask("/readyz") is not None

    def _node_ready(self) -> bool:
        node = self.ask(_NODE_PATH)
        if node is None:
            return False
        conditions = node["status"].get("conditions", [])
        ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
        # Without its service account, which a controller makes, no pod is admitted.
        return ready and self.ask("/api/v1/namespaces/default/serviceaccounts/default") is not None

    def _gpus_allocatable(self) -> bool:
        allocatable = (self.ask(_NODE_PATH) or {"status": {}})["status"].get("allocatable", {})
        return any("/" in name and count not in {"0", ""} for name, count in allocatable.items())

    def ask(self, path: str) -> Any:
        """What the API server says to a GET; None when it refuses, or is not there (yet)."""
        try:
            status, body = self.server("GET", path)
        except (OSError, HTTPException):
            return None
        return body if status == HTTPStatus.OK else None

    @functools.cached_property
    def server(self) -> ApiServerConnection:
        """The API server, for what is asked often."""
        return ApiServerConnection(self.kubeconfig)

    # --- looking and disturbing -----------------------------------------------------------------------------------

    @property
    def about(self) -> About:
        spec, lab_state = self.spec, state.load(self.paths.state)
        words = ["--real", *(["--profile", spec.profile] if spec.profile != LabSpec().profile else [])]
        words += [*(["--gpus", str(spec.gpus)] if spec.gpus else []), *([] if spec.agent else ["--no-agent"])]
        return About(
            name=spec.name, kind=REAL, folder=self.paths.root, kubeconfig=self.kubeconfig,
            kubectl=self.kubectl_program, complete=bool(lab_state and lab_state.complete), up_words=tuple(words),
            url=LabNetwork(lab_state.network_index).api_url if lab_state else "",
        )  # fmt: skip

    def hardware(self) -> tuple[NodeHardware, ...]:
        """The node's simulated GPUs, then those of simulated nodes that were added."""
        return (NodeHardware(NODE_NAME, self.hw_root), *manage.hardware(self.paths.root))

    def report(self) -> dict[str, Any]:
        """See ``kgpu.lab.real.status``."""
        from kgpu.lab.real import status

        return status.report(self)

    @property
    def state(self) -> LabState:
        """The lab's state; LabError when it is not up."""
        lab_state = state.load(self.paths.state)
        if lab_state is None or lab_state.keeper is None or not processes.alive(lab_state.keeper):
            raise LabError(
                f'there is no running lab "{self.spec.name}" in {self.paths.root}',
                "a lab that is up",
                f'"kgpu lab up --real --name {self.spec.name}"',
            )
        return lab_state

    def require_running(self) -> None:
        """Raises LabError when the lab is not up."""
        _ = self.state

    @property
    def running(self) -> bool:
        """Whether the lab's keeper is alive."""
        lab_state = state.load(self.paths.state)
        return lab_state is not None and lab_state.keeper is not None and processes.alive(lab_state.keeper)

    @property
    def keeper(self) -> int:
        """The pid of the node's first process on this machine."""
        process = self.state.keeper
        assert process is not None
        return process.pid

    @property
    def hw_root(self) -> Path:
        """The simulated driver root of the node."""
        return self.paths.hw

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, usable from this machine."""
        return self.paths.kubeconfig

    @property
    def network(self) -> LabNetwork:
        return LabNetwork(self.state.network_index)

    @property
    def kubectl_program(self) -> str:
        """The kubectl that was built with the cluster, or the machine's own."""
        lab_state = state.load(self.paths.state)
        built = Path(lab_state.bin_dir, "kubectl") if lab_state else None
        return str(built) if built and built.exists() else shutil.which("kubectl") or "kubectl"

    def kubectl_run(
        self, *arguments: str, stdin: str | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl against this cluster; the caller looks at the exit status. LabError when the lab is not up."""
        # Without the lab's link its address would be looked for in the networks outside.
        self.require_running()
        command = [self.kubectl_program, "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=timeout)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
        """What kubectl prints. Raises LabError with kubectl's message when it fails."""
        return port.kubectl(self, *arguments, stdin=stdin, timeout=timeout)

    def node(self) -> Any:
        """The Node object, decoded. Raises LabError."""
        self.require_running()
        node = self.ask(_NODE_PATH)
        if node is None:
            raise LabError(
                f"the API server has no answer about the node {NODE_NAME}",
                "the Node object",
                f"look into {self.paths.logs}/kube-apiserver.log and kubelet.log",
            )
        return node

    def backend(self, name: str = REAL, *, vendor: str = "") -> LocalBackend:
        """The lab as a place to play scenarios on: on its first node, unless that is of another vendor."""
        fitting = manage.for_stories(self.hardware(), vendor)
        chosen = fitting[0] if fitting else NodeHardware(NODE_NAME, self.hw_root)
        return LocalBackend(
            name or REAL, kubeconfig=self.kubeconfig, kubectl=self.kubectl_program, hw_root=chosen.root,
            node=chosen.node,
        )  # fmt: skip

    def in_node(self, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` in the node's namespaces."""
        return namespaces.enter(self.keeper, command)

    def order(self, verb: Literal["start", "stop", "restart", "status"], name: str = "") -> Any:
        """Give the keeper an order."""
        return namespaces.order(self.keeper, verb, name)

    def processes(self) -> list[dict[str, Any]]:
        """The kept processes: name, ``pid`` (of this machine; 0 when down), starts, started, last_exit."""
        pids = namespaces.machine_pids(self.keeper)
        return [{**entry, "pid": pids.get(entry["pid"], 0)} for entry in self.order("status")]

    def pid_of(self, name: str) -> int:
        """The pid on this machine of a kept process, 0 when it is down right now."""
        return next((int(entry["pid"]) for entry in self.processes() if entry["name"] == name), 0)

    @property
    def agent_pid(self) -> int:
        return self.pid_of(AGENT)

    def kill(self, name: str, number: int = signal.SIGKILL) -> ProcessRecord:
        """Send a signal to a kept process, as a crash would; the keeper starts it again. The process that was hit."""
        pid = self.pid_of(name)
        try:
            target = processes.record(pid)
        except OSError:
            target = None
        if not pid or target is None or not processes.signal_process(target, number):
            raise LabError(f"{name} is not running", "a running process", 'see "kgpu lab status"')
        return target

    def kill_agent(self) -> ProcessRecord:
        """SIGKILL the agent."""
        return self.kill(AGENT)

    def restart_kubelet(self) -> None:
        """Stop the kubelet in the usual way and start it again; returns when the new one runs."""
        self.order("restart", "kubelet")

    # --- down -----------------------------------------------------------------------------------------------------

    def down(self) -> bool:
        """Take everything away that ``up`` made; False when there was nothing. Raises LabError when something stays."""
        lab_state = state.load(self.paths.state)
        if lab_state is None:
            return False
        hosttools.require_platform()
        with self._only_one(), self.progress.step(f'take down the lab "{lab_state.name}"'):
            lab_state = state.load(self.paths.state) or lab_state  # it may have changed before the lock was ours
            manage.take_down(self.paths.root)
            self._remove(lab_state)
            lock.release_folder(self.paths.root)
        return True

    def _remove(self, lab_state: LabState) -> None:
        if "server" in self.__dict__:
            self.server.close()
            del self.server  # another cluster has other keys
        own, network = "", LabNetwork(lab_state.network_index)
        ended_here = False
        if lab_state.keeper:
            keeper = lab_state.keeper
            ended_here = processes.alive(keeper)
            own = mountpoints.namespace(str(keeper.pid)) if ended_here else ""
            # The first process of a PID namespace takes every other one with it, and they the mounts and links.
            processes.signal_process(keeper, signal.SIGKILL)
            self._wait(lambda: not processes.alive(keeper), _END_S, "the lab's processes to end", "keeper")
        left = cgroups.remove(lab_state.cgroups)
        with lock.machine():
            left += mountpoints.remove(lab_state.mountpoints, own=own)
            if ended_here:  # long after the node's end the number may be another link's: the machine has rebooted
                namespaces.unlink_node(lab_state.link, network)
        if left:
            raise LabError(
                f"these could not be removed: {', '.join(left)}",
                "nothing that uses them any more",
                'look what uses them, then "kgpu lab down" again',
            )
        if lab_state.link:  # a link of that name may be another lab's by now
            gone = f"the link {network.host_link} to go away"
            self._wait(lambda: namespaces.link_number(network) != lab_state.link, _END_S, gone, "keeper")
        for entry in sorted(self.paths.root.iterdir(), key=lambda path: path == self.paths.state):
            if entry in self._own_entries():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _own_entries(self) -> set[Path]:
        own = self.paths
        folders = {own.pki, own.config, own.logs, own.node, own.etcd, own.images, own.hw}
        return folders | {own.state, own.plan, own.kubeconfig}

    # --- helpers --------------------------------------------------------------------------------------------------

    def _only_one(self) -> AbstractContextManager[None]:
        return lock.held(self.paths.root, self.spec.name)

    def _wait(self, condition: Callable[[], bool], deadline_s: float, what: str, log: str) -> None:
        until = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > until:
                raise LabError(
                    f"waited {deadline_s:.0f} s for {what}\n{self.log_tail(log)}",
                    f"{what} within {deadline_s:.0f} s",
                    f'look into {self.paths.logs}/{log}.log; then "kgpu lab down" and try again',
                )
            time.sleep(_POLL_S)

    def log_tail(self, name: str, lines: int = 8) -> str:
        """The last lines of a process's log, indented."""
        try:
            text = (self.paths.logs / f"{name}.log").read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(f"    {name}: {line[:240]}" for line in text.splitlines()[-lines:])
