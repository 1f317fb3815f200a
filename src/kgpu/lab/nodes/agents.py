"""The agent of a full node: one real ``kgpu agent`` process with a simulated driver root of its own, kept running."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

from kgpu.base import signals
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.boot import ENV_BOOT_ID
from kgpu.base.errors import UserError
from kgpu.base.files import write_atomic
from kgpu.formats.names import CDI_DIR, ENV_HW_STATE, ENV_MPS_FOLDER, ENV_RUN_DIR, MPS_ROOT
from kgpu.lab.nodes import boots, machine
from kgpu.lab.nodes.machine import NodeMachine
from kgpu.lab.nodes.spec import CONTAINER_DRIVER, NodeSpec, mig_rows

log = logging.getLogger(__name__)

_SOURCE: Final = str(Path(__file__).resolve().parents[3])
RUN: Final = "run"
"""In the node's folder: /run/kgpu for an agent that the host runs."""
CONFIG_FILE: Final = "config.yaml"
PID_FILE: Final = "agent.pid"
CONFIG_MAP: Final = "gpu-operator/device-plugin-config"
LOG_LIMIT: Final = 4 << 20  # bytes, after which a log starts over
STOP_S: Final = 12.0
NICE: Final = 5
_POLICY: Final = BackoffPolicy(first=0.5, cap=10.0, healthy_after=20.0)


def make_hardware(spec: NodeSpec, root: Path) -> None:
    """The node's simulated driver root, MIG layout included; an existing one is kept. Raises ConfigError, HwError."""
    if (root / "state").exists():
        return
    with _one_at_a_time:
        _make_hardware(spec, root)


def prepare(spec: NodeSpec) -> None:
    """Read the profile once on the thread that reads others: see ``_one_at_a_time``. Raises ConfigError."""
    from kgpu.hw.simulator import machines

    machines.load(spec.profile, gpus=spec.gpus)


_one_at_a_time: Final = threading.Lock()
# msgspec (0.22) looks at a type when it is first decoded, and crashes when two threads do that for the same type at
# the same moment.


def _make_hardware(spec: NodeSpec, root: Path) -> None:
    from kgpu.hw.simulator import create

    temporary = root.with_name(f".{root.name}.new")
    create.create_root(spec.profile, temporary, gpus=spec.gpus, seed=spec.name, force=True)
    if spec.driver == CONTAINER_DRIVER:
        from kgpu.hw.simulator import container_driver

        container_driver.remove_from_host(temporary)
    cut_slices(spec, temporary)
    os.rename(temporary, root)


def cut_slices(spec: NodeSpec, root: Path) -> None:
    """Make the MIG slices of the node's layout in place of those on its GPUs. Raises ConfigError, HwError."""
    from kgpu.hw.simulator import mig, operate

    for gpu, profiles in mig_rows(spec, len(operate.snapshot(root)["gpus"])) if spec.mig else ():
        mig.partition(root, gpu, mig.expand(profiles))


def command(spec: NodeSpec, folder: Path, kubelet_socket: Path, kubeconfig: Path, cdi: Path) -> list[str]:
    """The agent's command line."""
    from kgpu.hw.simulator.amd.node_file import is_amd

    root = folder / "hw"
    words = [
        sys.executable, "-m", "kgpu", "agent",
        "--roles", "deviceplugin,labels,mps" + (",device-config-manager" if is_amd(root) else ""),
        "--root", str(root),
        "--driver-root", str(root),
        "--kubeconfig", str(kubeconfig),
        "--node-name", spec.name,
        "--kubelet-socket", str(kubelet_socket),
        "--state-dir", str(folder / "agent"),
        "--cdi-dir", str(cdi),
        "--device-list-strategy", "cdi-cri",
        "--labels-sink", "node",
        "--mps-root", MPS_ROOT,
    ]  # fmt: skip
    if spec.config:
        return [*words, "--config-file", str(folder / CONFIG_FILE)]
    return [*words, "--config-map", CONFIG_MAP, "--fallback-strategies", "named,single,empty"]


async def create_files(spec: NodeSpec, its: NodeMachine) -> None:
    """Make the machine of a node whose agent, if it has one, comes in a pod; what fails is told in the log."""
    if spec.light:
        return
    try:
        if spec.has_gpus:
            prepare(spec)
            await asyncio.to_thread(make_hardware, spec, its.root)
        await asyncio.to_thread(machine.create_files, its, spec.labels)
    except UserError as error:
        log.warning("node %s: %s", spec.name, error.one_line())


async def keep_running(spec: NodeSpec, its: NodeMachine, folder: Path, kubelet_socket: Path, kubeconfig: Path) -> None:
    """Run the agent until cancelled; when it ends it is started again, with growing pauses."""
    backoff = Backoff(_POLICY)
    env = {
        **os.environ,
        ENV_HW_STATE: str(folder / "hw" / "state"),
        ENV_RUN_DIR: str(folder / RUN),
        ENV_MPS_FOLDER: str(its.find(MPS_ROOT)),
        **({ENV_BOOT_ID: boot} if (boot := boots.read(folder)) else {}),
        "PYTHONPATH": os.pathsep.join(filter(None, [_SOURCE, os.environ.get("PYTHONPATH", "")])),
        "PYTHONSAFEPATH": "1",
    }
    if spec.config:
        write_atomic(folder / CONFIG_FILE, spec.config)
    path = folder / "agent.log"
    while True:
        begun = time.monotonic()
        mode = "wb" if path.exists() and path.stat().st_size > LOG_LIMIT else "ab"
        with path.open(mode) as out:
            process = await asyncio.create_subprocess_exec(
                *signals.with_defaults(command(spec, folder, kubelet_socket, kubeconfig, its.find(CDI_DIR))),
                stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=str(folder),
            )  # fmt: skip
        with contextlib.suppress(OSError):
            # Many agents that start together must not make the API server and the nodes' host sluggish.
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        write_atomic(folder / PID_FILE, f"{process.pid}\n", flush=False)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await _stop(process)
            raise
        log.warning("node %s: its agent ended with %s; it is started again", spec.name, code)
        await asyncio.sleep(backoff.next_delay(ran_for=time.monotonic() - begun))


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def end_former(folder: Path) -> None:
    """End the agent that a killed host process left behind."""
    pid = pid_of(folder)
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pid_of(folder: Path) -> int:
    """The process of the node's agent; 0 if there is none."""
    try:
        pid = int((folder / PID_FILE).read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return 0
    return pid if str(folder / "agent").encode() in words else 0


def explain(error: BaseException) -> str:
    """One line about what went wrong."""
    return error.one_line() if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
