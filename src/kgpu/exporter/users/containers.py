"""Which container a process of this node is in: its cgroup has the container's id, and the kubelet's links to container
logs say whose it is, so that neither the container engine nor the API server need be asked.

A container without a link (a very long pod name cuts the id off, or there is no such folder) is looked up in the API
server's pods of this node, if there is an API server, and no more often than ``ASK_SECONDS``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.exporter.model import PodKey
from kgpu.exporter.users.shares import GONE, NO_NAME, NO_POD, OWN, ProcessHolder
from kgpu.formats.names import CONTAINER_LOGS, ENV_LAB_CONTAINER, VALIDATOR_DAEMON_SET
from kgpu.host.cgroups import ContainerPlace, container_place
from kgpu.kube.port import PODS, KubeApi, Object, Selector

ASK_SECONDS: Final = 30.0
FILE_BYTES: Final = 1 << 16
GENERATIONS: Final = 4
"""How many parents of a process are checked for this one: a check of a GPU is a grandchild of the agent."""
_LINK: Final = re.compile(r"([a-z0-9.-]{1,253})_([a-z0-9-]{1,63})_([a-z0-9-]{1,63})-([0-9a-f]{64})\.log", re.ASCII)
_STATUSES: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")

Ask: TypeAlias = Callable[[], Awaitable[Mapping[str, PodKey]]]
"""Every container of this node by its id. Raises KubeError."""


class Containers:
    """Finds the containers of processes. ``proc`` and ``root`` are the node's /proc and / as this process sees them.

    ``simulated``: the containers of a simulated node have no cgroups of their own; their processes have an environment
    variable with the container instead. ``namespace`` is that of kgpu's own pods, "" where that is not known.
    """

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        root: Path = Path("/"),
        ask: Ask | None = None,
        simulated: bool = False,
        namespace: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._proc = proc
        self._validator = (namespace, VALIDATOR_DAEMON_SET)
        self._logs = root / CONTAINER_LOGS.lstrip("/")
        self._ask = ask
        self._simulated = simulated
        self._clock = clock or SystemClock()
        self._linked: dict[str, PodKey] = {}
        self._told: dict[str, PodKey] = {}
        self._asked = float("-inf")

    async def place(self, pids: Iterable[int]) -> tuple[dict[int, ProcessHolder], KubeError | None]:
        """Return the holder of each process, and the API server's error if it was asked in vain.

        Pids are reused, so nothing is cached by pid.
        """
        failed: KubeError | None = None
        holders: dict[int, ProcessHolder] = {}
        inside: dict[int, str] = {}
        for pid in dict.fromkeys(pids):
            place = self._where(pid)
            if isinstance(place, ProcessHolder):
                holders[pid] = place
            else:
                inside[pid] = place.container
        wanted = {container for container in inside.values() if container}
        if wanted - self._linked.keys() - self._told.keys():
            self._linked = _links(self._logs)
        if wanted - self._linked.keys() - self._told.keys() and self._ask is not None:
            now = self._clock.monotonic()
            if now - self._asked >= ASK_SECONDS:
                self._asked = now
                try:
                    self._told = dict(await self._ask())
                except KubeError as error:
                    failed = error
        for pid, container in inside.items():
            key = self._linked.get(container) or self._told.get(container)
            tests = key is not None and (key[0], key[2]) == self._validator
            holders[pid] = ProcessHolder(None, OWN) if tests else ProcessHolder(key, "" if key else NO_NAME)
        return holders, failed

    def _where(self, pid: int) -> ContainerPlace | ProcessHolder:
        if self._is_own(pid):
            return ProcessHolder(None, OWN)
        try:
            place = container_place(_read(self._proc / str(pid) / "cgroup"))
            if place is None and self._simulated:
                place = _marked(_read(self._proc / str(pid) / "environ"))
        except (FileNotFoundError, ProcessLookupError):
            return ProcessHolder(None, GONE)
        except OSError:
            return ProcessHolder(None, NO_POD)
        return ProcessHolder(None, NO_POD) if place is None else place

    def _is_own(self, pid: int) -> bool:
        """Whether this process has started ``pid``: the validator's checks run on every GPU and hold none."""
        for _ in range(GENERATIONS):
            if pid == os.getpid():
                return True
            pid = _parent(self._proc / str(pid) / "stat")
        return False


async def ask_api(api: KubeApi, node: str) -> dict[str, PodKey]:
    """Every container of the node's pods by its id. Raises KubeError."""
    listing = await api.list(PODS, selector=Selector(fields=(("spec.nodeName", node),)), project=_containers)
    return {
        row["id"]: (pod["metadata"]["namespace"], pod["metadata"]["name"], row["name"])
        for pod in listing.items
        for row in pod["containers"]
    }


def _containers(pod: Object) -> Object:
    about, status = pod["metadata"], pod.get("status") or {}
    rows: list[Any] = [row for name in _STATUSES for row in status.get(name) or () if row.get("containerID")]
    return {
        "metadata": {name: str(about.get(name) or "") for name in ("namespace", "name", "resourceVersion")},
        "containers": [
            {"name": str(row.get("name") or ""), "id": str(row["containerID"]).rpartition("//")[2]} for row in rows
        ],
    }


def _links(folder: Path) -> dict[str, PodKey]:
    """Pods by container id, from links such as ``pod_namespace_container-id.log``; empty without the folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    return {match[4]: (match[2], match[1], match[3]) for match in map(_LINK.fullmatch, names) if match}


def _marked(text: str) -> ContainerPlace | None:
    start = f"{ENV_LAB_CONTAINER}="
    container = next((word.removeprefix(start) for word in text.split("\0") if word.startswith(start)), "")
    return ContainerPlace("", container) if container else None


def _parent(stat: Path) -> int:
    """The parent's pid by proc(5): the second word after the command, which may hold brackets itself; 0 for none."""
    try:
        words = _read(stat).rpartition(")")[2].split()
        return int(words[1])
    except (OSError, IndexError, ValueError):
        return 0


def _read(path: Path) -> str:
    """A file of /proc. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        read = b""
        while len(read) < FILE_BYTES and (more := file.read(FILE_BYTES - len(read))):
            read += more
    return read.decode("utf-8", "replace")
