"""Adding, removing and listing the simulated nodes of a lab, and the host process that runs them: what the CLI calls.

Everything is in ``LAB/nodes``: a folder with a ``node.json`` for each node. ``add`` and ``remove`` change the folder;
the host follows it. The host is a detached process that is recorded with its start time, so that nobody else is
signalled. A node whose ``node.json`` can't be read is told by ``broken``, can be removed, and hides no other.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from kgpu.base import signals
from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.formats.mig_geometry import GEOMETRIES
from kgpu.hw.simulator import machines, profiles
from kgpu.lab import lock
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.folders import kind_of
from kgpu.lab.nodes import agents, boots, container_processes, driver_programs, host_folder, spec
from kgpu.lab.nodes import folder as node_folder
from kgpu.lab.nodes.folder import NodeFolder, has_operator, mark_for_removal
from kgpu.lab.nodes.host_folder import RECORD, make_private
from kgpu.lab.nodes.spec import CPU_PROFILE, SPEC_FILE, NodeSpec, NodeTaint
from kgpu.lab.port import NodeHardware
from kgpu.lab.processes import ProcessRecord, alive, record, signal_process

NODES: Final = "nodes"
HOST: Final = "host"
START_S: Final = 180.0
END_S: Final = 30.0
LOCK_S: Final = 120.0
_POLL_S: Final = 0.05
_started: list[subprocess.Popen[bytes]] = []
"""Hosts that this process started; they live on without it."""


def nodes_dir(lab: Path) -> Path:
    """Where a lab's nodes are."""
    return lab / NODES


def place(lab: Path) -> tuple[Path, str]:
    """The kubeconfig of the lab in that folder, and the address at which its API server reaches this machine."""
    from kgpu.lab.real import model, state

    kubeconfig = lab / "kubeconfig"
    if not kubeconfig.exists() or not kind_of(lab):
        raise LabError(f"there is no lab in {lab}", "a lab that is up", "`kgpu lab up`, or give its --name")
    real = state.load(model.LabPaths(lab).state)
    return kubeconfig, "127.0.0.1" if real is None else model.LabNetwork(real.network_index).host_ip


def known_profiles() -> tuple[str, ...]:
    """Every profile that a node can have."""
    return (*machines.names(), CPU_PROFILE)


def add(
    lab: Path, profile: str, count: int = 1, *, name_prefix: str = "", gpus: int | None = None,
    mig: Sequence[str] = (), light: bool = False, labels: Mapping[str, str] | None = None,
    taints: Iterable[NodeTaint] = (), config: str = "", cpu: str = "", memory: str = "", time_scale: float = 1.0,
    agent: bool = True, driver: str = spec.HOST_DRIVER,
) -> list[str]:  # fmt: skip
    """Make ``count`` nodes of a profile (a file's path works too); their names. Raises LabError, ConfigError.

    ``config`` is a device plugin config file's text; without one the ConfigMap of the cluster is followed. Where the
    operator runs the agents (``folder.has_operator``), the lab runs none on full nodes.
    """
    agent = agent and (light or not has_operator(nodes_dir(lab)))
    if not 1 <= count <= spec.MAX_NODES_AT_ONCE:
        raise LabError(f"{count} nodes", f"1 to {spec.MAX_NODES_AT_ONCE}", "give another --count")
    shape = None if profile == CPU_PROFILE else machines.load(profile, gpus=gpus)
    if shape is not None and not isinstance(shape, profiles.Profile):
        _check_files_alone(profile, mig=mig, light=light, driver=driver)
    folder = nodes_dir(lab)
    prefix = name_prefix or re.sub(r"[^a-z0-9]+", "-", Path(profile).stem.lower()).strip("-")
    # A node that is just going away still has its folder.
    names = spec.free_names(prefix, count, {entry.name for entry in folder.iterdir()} if folder.is_dir() else ())
    if mig and not config:
        config = "version: v1\nflags:\n  migStrategy: mixed\n"
    specs = [
        NodeSpec(
            name=name, profile=str(Path(profile).absolute()) if "/" in profile else profile, gpus=gpus, light=light,
            labels=dict(labels or {}), taints=tuple(taints), mig=tuple(mig), config=config, cpu=cpu, memory=memory,
            time_scale=time_scale, agent=agent, driver=driver,
        )
        for name in names
    ]  # fmt: skip
    if isinstance(shape, profiles.Profile) and mig:
        check_mig(specs[0], shape)
        with tempfile.TemporaryDirectory(prefix="kgpu-mig-") as trial:  # whether the slices have room
            agents.make_hardware(specs[0], Path(trial, "hw"))
    if config:
        from kgpu.formats.plugin_config_parse import parse_config

        parse_config(config, source="--config")
    try:
        make_private(folder, parents=True)
        for node in specs:
            spec.save(folder / node.name, node)
    except OSError as error:
        raise LabError(
            f"{folder} can't be written: {error.strerror}", "a lab of this user", "bring a lab up as this user"
        ) from error
    return names


def add_to_running(lab: Path, profile: str, count: int = 1, **about: Any) -> list[str]:
    """``add``, then the host is started; nobody else adds, or brings the lab up or down, at the same time.

    Raises LabError, ConfigError; LabError when there is no lab. Not for callers that hold the lab's lock.
    """
    with _held(lab):
        kubeconfig, address = place(lab)
        names = add(lab, profile, count, **about)
        start_host(lab, kubeconfig, address=address)
    return names


@contextmanager
def _held(lab: Path) -> Iterator[None]:
    """Hold the lab, which is there. Raises LabError."""
    place(lab)
    with lock.held(lab, lab.name, wait_s=LOCK_S):
        try:
            place(lab)
        except LabError:  # it went while this waited
            lock.release_folder(lab)
            raise
        yield


def _check_files_alone(profile: str, *, mig: Sequence[str], light: bool, driver: str) -> None:
    """Raises LabError for what nodes of other vendors than NVIDIA do not have."""
    for asked, what, instead in (
        (mig, "a MIG layout", "`kgpu lab hw partition` on a node that is up and has AMD GPUs"),
        (light, "--light", "full nodes"),
        (driver == spec.CONTAINER_DRIVER, "--driver container", "the driver on the host"),
    ):
        if asked:
            raise LabError(f"{what} for a node without NVIDIA GPUs ({profile:.80})", instead, "leave it out")


def check_mig(node: NodeSpec, shape: profiles.Profile) -> None:
    """Raises LabError when the profile's GPUs can't be cut so."""
    for gpu, wanted in spec.mig_rows(node, len(shape.gpus)):
        if gpu >= len(shape.gpus):
            raise LabError(f"there is no GPU {gpu}", f"0 to {len(shape.gpus) - 1}", "correct --mig")
        family = shape.gpus[gpu].model.mig
        if not family:
            raise LabError(f"{shape.gpus[gpu].model.name} has no MIG", "a GPU with MIG", "choose another profile")
        known = {row.name.removeprefix("MIG ") for row in GEOMETRIES[family].rows}
        for name in wanted:
            if name.partition("c.")[2] not in known and name not in known:
                raise LabError(
                    f'{shape.gpus[gpu].model.name} has no MIG profile "{name}"', f"one of {', '.join(sorted(known))}",
                    "correct --mig",
                )  # fmt: skip


def remove(lab: Path, names: Sequence[str], *, wait: float = END_S) -> list[str]:
    """Take nodes away, their pods and Node objects too; the names. Raises LabError for unknown ones."""
    folder = nodes_dir(lab)
    existing = _taken(folder)
    missing = [name for name in names if name not in existing]
    if missing:
        raise LabError(
            f"there is no simulated node {', '.join(missing)}",
            f"one of: {_some(existing)}",
            "see `kgpu lab node list`",
        )
    try:
        for name in names:
            mark_for_removal(folder / name)
        if not _host_for_removal(lab):  # there is nobody to tell
            for name in names:
                shutil.rmtree(folder / name, ignore_errors=True)
    except OSError as error:
        raise LabError(
            f"{folder} can't be changed: {error}", "a lab of this user", "run as the user who made the lab"
        ) from error
    _wait(lambda: not any((folder / name).exists() for name in names), wait + 0.05 * len(names), "the nodes to go")
    return list(names)


def _host_for_removal(lab: Path) -> bool:
    """Have a host that removes nodes; False when the lab is down."""
    if host_running(nodes_dir(lab)):
        return True
    try:
        kubeconfig, address = place(lab)
    except LabError:
        return False
    with _held(lab):
        try:
            start_host(lab, kubeconfig, address=address)
        except LabError:  # its API server does not answer
            return False
    return True


def reboot(lab: Path, names: Sequence[str]) -> list[str]:
    """Have the machines of nodes rebooted; the names. Returns at once. Raises LabError.

    What happens then: ``kgpu.lab.nodes.reboot``. One that is just rebooting does so once.
    """
    if there := off(lab, names):
        raise LabError(f"node {there[0]} is switched off", "a machine that runs", f"kgpu lab node start {there[0]}")
    return _order(lab, names, node_folder.ask_for_reboot)


def stop(lab: Path, names: Sequence[str]) -> list[str]:
    """Cut the power of nodes' machines until ``start``; the names. Returns at once. Raises LabError."""
    return _order(lab, names, node_folder.switch_off)


def start(lab: Path, names: Sequence[str]) -> list[str]:
    """Switch the machines of nodes on; those that were off. Returns at once. Raises LabError."""
    found = off(lab, names)
    _order(lab, names, node_folder.switch_on)
    return found


def off(lab: Path, names: Iterable[str] | None = None) -> list[str]:
    """The nodes, of these ones, whose machines are switched off."""
    return [name for name in (listing(lab) if names is None else names) if node_folder.is_off(nodes_dir(lab) / name)]


def _order(lab: Path, names: Sequence[str], give: Callable[[Path], None]) -> list[str]:
    """Tell the host of nodes, by their folders, what to do with their machines."""
    there, problems = listing(lab), broken(lab)
    for name in names:
        if name in problems:
            raise problems[name]
        if (nodes_dir(lab) / name / node_folder.LEAVING).exists():
            raise LabError(f"node {name} is being removed", "a node that stays", "add another one: `kgpu lab node add`")
        if name not in there:
            raise LabError(
                f"there is no simulated node {name}", f"one of: {_some(list(there))}", "see `kgpu lab node list`"
            )
    with _held(lab):
        kubeconfig, address = place(lab)
        try:
            for name in names:
                give(nodes_dir(lab) / name)
        except OSError as error:
            raise LabError(
                f"{nodes_dir(lab)} can't be changed: {error}", "a lab of this user", "run as the user who made the lab"
            ) from error
        start_host(lab, kubeconfig, address=address)
    return list(names)


def wait_until_booted(lab: Path, names: Sequence[str], seconds: float) -> dict[str, str]:
    """Wait until the machines are up again; the ids of their boots by node. Raises LabError."""
    folder = nodes_dir(lab)
    _wait(lambda: not _rebooting(folder, names), seconds, "the machines to be up again")
    return {name: boots.read(folder / name) for name in names}


def wait_until_off(lab: Path, names: Sequence[str], seconds: float) -> None:
    """Wait until nothing of the machines runs any more. Raises LabError."""
    folder = nodes_dir(lab)
    _wait(lambda: all((folder / name / node_folder.POWERED_DOWN).exists() for name in names), seconds,
          "the machines to be off")  # fmt: skip


def _rebooting(folder: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if (folder / name / node_folder.REBOOT).exists()]


def listing(lab: Path) -> dict[str, NodeSpec]:
    """The nodes by name, those that can be read."""
    specs = NodeFolder(nodes_dir(lab)).look().specs if nodes_dir(lab).is_dir() else {}
    return {name: specs[name] for name in sorted(specs, key=_natural)}


def broken(lab: Path) -> dict[str, LabError]:
    """What is wrong with the nodes that can't be read, by name."""
    return dict(NodeFolder(nodes_dir(lab)).look().problems) if nodes_dir(lab).is_dir() else {}


def hw_root(lab: Path, name: str) -> Path:
    """The simulated driver root of a node. Raises LabError when it has none."""
    node = listing(lab).get(name)
    root = nodes_dir(lab) / name / "hw"
    if node is None or node.light or not node.has_gpus:
        have = [name for name, node in listing(lab).items() if not node.light and node.has_gpus]
        raise LabError(
            f"node {name} has no simulated hardware to change", f"one of: {_some(have)}",
            "see `kgpu lab node list`",
        )  # fmt: skip
    return root


def hardware(lab: Path) -> tuple[NodeHardware, ...]:
    """The simulated driver roots that exist, by node. Raises LabError."""
    roots = ((node, nodes_dir(lab) / name / "hw") for name, node in listing(lab).items() if node.has_gpus)
    return tuple(
        NodeHardware(node.name, root, sliced=bool(node.mig)) for node, root in roots if not node.light and root.exists()
    )


def for_stories(machines: Iterable[NodeHardware], vendor: str = "") -> list[NodeHardware]:
    """Those with whole accelerators of a vendor, "" for any."""
    from kgpu.hw.simulator.others import vendor_of

    return [one for one in machines if not one.sliced and vendor in ("", vendor_of(one.root))]


def story_node(lab: Path, vendor: str = "") -> str:
    """The node that scenarios use: whole GPUs of a vendor ("" for any), the more the better; of the same the first; ""
    when there is no node.
    """
    full = {machine.node: machine.root for machine in for_stories(hardware(lab), vendor)}
    best = max(full, key=lambda name: (gpu_count(full[name]), name == FIRST_NODE), default="")
    return best or next(iter(listing(lab)), "")


def gpu_count(root: Path) -> int:
    """How many accelerators a simulated driver root has."""
    from kgpu.hw.simulator import operate

    return len(operate.snapshot(root)["gpus"])


def take_down(lab: Path) -> None:
    """End the host, the agents and the containers of the lab's nodes, and remove their folders. Raises LabError."""
    folder = nodes_dir(lab)
    if not folder.is_dir():
        return
    stop_host(lab)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise LabError(
            f"{error.filename or folder} could not be removed: {error.strerror}",
            "files that belong to whoever takes the lab down",
            "remove it by hand, or run as the user who made the lab",
        ) from error


def status(lab: Path) -> dict[str, Any]:
    """What is known without asking the API server: nodes, the host's pid (0 when it is down) and its log.

    ``problems`` are one line each for the nodes that can't be read; ``rebooting`` and ``off`` name nodes whose machines
    are.
    """
    folder = nodes_dir(lab)
    process = _record(folder)
    nodes = listing(lab)
    return {
        "host": process.pid if process is not None and alive(process) else 0,
        "log": str(folder / HOST / host_folder.LOG),
        "nodes": [spec.to_builtins(node) for node in nodes.values()],
        "rebooting": [name for name in _rebooting(folder, nodes) if not node_folder.is_off(folder / name)],
        "off": off(lab, nodes),
        "problems": [problem.one_line() for problem in broken(lab).values()],
    }


def _taken(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted((entry.name for entry in folder.iterdir() if (entry / SPEC_FILE).exists()), key=_natural)


def _some(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more or "there are none"


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (1 << 30, part) for part in re.split(r"(\d+)", name) if part]


# --- the host process ---


def start_host(lab: Path, kubeconfig: Path, *, address: str = "127.0.0.1", containers: str = "") -> int:
    """Start the host of the lab's nodes unless it runs; its pid. Raises LabError."""
    own = nodes_dir(lab) / HOST
    try:
        make_private(nodes_dir(lab))  # not its parents: a lab that was taken down does not come back
        own.mkdir(exist_ok=True)
        with (own / "start").open("w") as starting:  # two that add nodes at the same moment start one host
            fcntl.flock(starting, fcntl.LOCK_EX)
            return _start_host(nodes_dir(lab), own, kubeconfig, address, containers)
    except OSError as error:
        raise LabError(
            f"the host of simulated nodes can't be started: {error}",
            "a lab of this user",
            "bring a lab up as this user",
        ) from error


def _start_host(folder: Path, own: Path, kubeconfig: Path, address: str, containers: str) -> int:
    if host_running(folder):
        return _pid(folder)
    ready = own / "ready"
    ready.unlink(missing_ok=True)
    source = str(Path(__file__).resolve().parents[3])
    modules = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "kgpu.lab.nodes", "--dir", str(folder), "--kubeconfig", str(kubeconfig)]
    command += ["--address", address, *(["--containers", containers] if containers else [])]
    with (own / host_folder.LOG).open("ab") as out:
        process = subprocess.Popen(
            signals.with_defaults(command), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            cwd="/", env={**os.environ, "PYTHONPATH": modules},
        )  # fmt: skip
    _started.append(process)
    try:
        write_atomic(own / RECORD, msgspec.json.encode(record(process.pid)), mode=0o600)
    except BaseException:  # nobody could find it
        process.kill()
        process.wait()
        raise
    deadline = time.monotonic() + START_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            if (running := host_folder.recorded(own)) is not None and alive(running):
                return running.pid  # whoever started that one was killed before it could record it
            tail = "\n".join((own / host_folder.LOG).read_text(errors="replace").splitlines()[-6:])
            raise LabError(f"the host of simulated nodes did not start:\n{tail}", "a running host", f"see {own}/log")
        time.sleep(_POLL_S)
    return process.pid


def stop_host(lab: Path) -> bool:
    """End the host and every container of its nodes; False when nothing ran. The nodes stay for the next start."""
    folder = nodes_dir(lab)
    process = _record(folder)
    was_running = process is not None and alive(process)
    if process is not None and was_running:
        signal_process(process, signal.SIGTERM)
        deadline = time.monotonic() + END_S
        while alive(process) and time.monotonic() < deadline:
            _reap(process.pid)
            time.sleep(_POLL_S)
        signal_process(process, signal.SIGKILL)
        _reap(process.pid)
    if folder.is_dir():
        end_leftovers(folder)
        host_folder.remove_links(folder / HOST)
    return was_running


def end_leftovers(folder: Path) -> None:
    """End agents, containers and programs of drivers that a killed host left."""
    from kgpu.lab.nodes.agents import end_former

    container_processes.end_all(*folder.iterdir())
    for entry in folder.iterdir():
        end_former(entry)
    driver_programs.end(*folder.iterdir())


def _reap(pid: int) -> None:
    """It may be a child of this very process."""
    _started[:] = [process for process in _started if process.poll() is None]
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def host_running(folder: Path) -> bool:
    """Whether the host of these nodes is alive."""
    process = _record(folder)
    return process is not None and alive(process)


def _pid(folder: Path) -> int:
    process = _record(folder)
    return process.pid if process is not None else 0


def _record(folder: Path) -> ProcessRecord | None:
    return host_folder.recorded(folder / HOST)


def _wait(condition: Any, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"waited {seconds:.0f} s for {what}", f"{what}", "see the host's log")
        time.sleep(_POLL_S)
