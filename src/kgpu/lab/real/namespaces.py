"""From the machine into the node: start the keeper, give it orders, run commands beside it, find its processes.

The node's namespaces live exactly as long as the keeper does; nothing is pinned in the file system.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kgpu.base import signals
from kgpu.base.errors import LabError
from kgpu.lab.real.model import NODE_LINK, LabNetwork, LabPaths
from kgpu.lab.real.plan import CONTROL_SOCKET

_ORDER_TIMEOUT_S: Final = 30.0


def start_keeper(paths: LabPaths) -> int:
    """Start the keeper on ``paths.plan``; its pid on this machine. Raises LabError."""
    log = paths.logs / "keeper.log"
    command = signals.with_defaults([sys.executable, "-m", "kgpu.lab.real.keeper", str(paths.plan), str(log)])
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=child_env())
    try:
        return int(done.stdout)
    except ValueError:
        raise LabError(
            f"the node's namespaces can't be made: {done.stderr.strip() or 'no message'}",
            "leave to make PID, mount and network namespaces",
            "run as root outside of unprivileged containers (in Docker: --privileged)",
        ) from None


def child_env() -> dict[str, str]:
    """The environment for a child, so that it finds the same ``kgpu`` package as we did."""
    source = str(Path(__file__).resolve().parents[3])
    path = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [source, path]))}


def link_node(keeper: int, network: LabNetwork) -> int:
    """Make a veth pair: one end here, the other as the node's link; the number of the one here. Raises LabError.

    The kernel removes it with the node's namespace.
    """
    for command in (
        ("link", "add", network.host_link, "type", "veth", "peer", "name", NODE_LINK, "netns", str(keeper)),
        ("address", "replace", f"{network.host_ip}/{network.subnet.prefixlen}", "dev", network.host_link),
        ("link", "set", network.host_link, "up"),
    ):
        done = subprocess.run(["ip", *command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LabError(
                f"ip {' '.join(command)}: {done.stderr.strip()}",
                "a veth pair between this machine and the node",
                "check that the kernel has veth, and that no firewall manager removed the link",
            )
    return link_number(network)


def link_number(network: LabNetwork) -> int:
    """The number of the link here that has the name for this network, 0 where there is none."""
    try:
        return int(Path("/sys/class/net", network.host_link, "ifindex").read_text())
    except (OSError, ValueError):
        return 0


def unlink_node(number: int, network: LabNetwork) -> None:
    """Remove the link with that number, if it is still there: both ends go.

    A network namespace can outlive its processes: by what looks into it, and by connections to pods that have gone,
    which the kernel closes in a minute or two. Not while other labs make links (``lock.machine``).
    """
    if number and link_number(network) == number:
        subprocess.run(["ip", "link", "delete", network.host_link], capture_output=True, check=False)


def enter(keeper: int, command: Sequence[str]) -> list[str]:
    """The command line that runs ``command`` in the node's namespaces."""
    # Not "ip netns exec": it mounts a fresh /sys that hides the cgroups.
    flags = ["--mount", "--net", "--pid", "--uts", "--ipc"]
    return ["nsenter", "--target", str(keeper), *flags, "--", *command]


def order(keeper: int, verb: str, name: str = "") -> Any:
    """Give the keeper an order and return its answer. Raises LabError when it does not answer or refuses."""
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_ORDER_TIMEOUT_S)
            line.connect(f"/proc/{keeper}/root{CONTROL_SOCKET}")
            line.sendall(json.dumps({"do": verb, "name": name}).encode() + b"\n")
            answer = json.loads(line.makefile().readline())
    except (OSError, ValueError) as error:
        raise LabError(
            f"the lab's keeper (pid {keeper}) does not answer: {error}",
            "a running lab",
            'look into logs/keeper.log in the lab\'s folder, or "kgpu lab down" and start anew',
        ) from error
    if isinstance(answer, Mapping) and "error" in answer:
        raise LabError(f"the keeper refused: {answer['error']}", "a process of the lab", "see kgpu lab status")
    return answer


def answers(keeper: int) -> bool:
    """Whether the keeper takes orders yet."""
    with contextlib.suppress(LabError):
        order(keeper, "status")
        return True
    return False


def machine_pids(keeper: int) -> dict[int, int]:
    """Every process in the keeper's PID namespace: its pid in there -> its pid on this machine."""
    with contextlib.suppress(OSError):
        namespace = os.readlink(f"/proc/{keeper}/ns/pid")
        return {
            inner: pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if (inner := _pid_inside(pid, namespace))
        }
    return {}


def _pid_inside(pid: int, namespace: str) -> int:
    """The pid of ``pid`` in the PID namespace, 0 when it is not in that one."""
    with contextlib.suppress(OSError):
        if os.readlink(f"/proc/{pid}/ns/pid") != namespace:
            return 0
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0
