"""What a cluster says of its drivers, and what is so, looked at once a second while they are exchanged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, Self

from kgpu.base.errors import HwError
from kgpu.formats.names import GPU_OPERATOR_NAMESPACE, GPU_RESOURCE
from kgpu.hw.simulator import operate
from kgpu.lab.real.server import ApiServerConnection

EACH_S: Final = 1.0
POLICY: Final = "/apis/nvidia.com/v1/clusterpolicies/cluster-policy"
DRIVERS: Final = "app.kubernetes.io/component=nvidia-driver"
Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSample:
    """The cluster at one moment, ``at`` seconds after the first one. The policy was read before all else.

    ``state`` is the policy's, ``heeded`` whether that is about what is wanted, until all was read. By node: ``loaded`` is the release
    that its machine has loaded, ``served`` that of its Ready driver pod, "" for none; ``pods`` are the uids of the pods
    of users that run there with a GPU; ``cordoned`` names those that take none.
    """

    at: float
    state: str
    heeded: bool
    wanted: str
    loaded: Mapping[str, str]
    served: Mapping[str, str]
    pods: Mapping[str, frozenset[str]]
    cordoned: frozenset[str]

    def behind(self) -> list[str]:
        """The nodes that do not run the wanted driver."""
        return [name for name, have in self.loaded.items() if (have, self.served[name]) != (self.wanted, self.wanted)]


@dataclass(slots=True)
class DriverSampler:
    """Takes samples from when it is entered until it is left. ``machines`` are the simulated driver roots by node."""

    kubeconfig: Path
    machines: Mapping[str, Path]
    samples: list[DriverSample] = field(default_factory=list)
    unanswered: int = 0
    """How often the API server gave no answer."""
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *failed: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def false_readiness(self) -> list[DriverSample]:
        """The samples in which the policy is ready for what is wanted, and a node does not run it."""
        return [sample for sample in self.samples if sample.state == "ready" and sample.heeded and sample.behind()]

    def unheeded(self) -> list[DriverSample]:
        """Those in which it is still ready for what was wanted before: the operator has not read it yet."""
        return [sample for sample in self.samples if sample.state == "ready" and not sample.heeded]

    def first(self, so: Callable[[DriverSample], bool]) -> float:
        """When that was so for the first time. Raises AssertionError if it never was."""
        found = next((sample.at for sample in self.samples if so(sample)), None)
        assert found is not None, self.samples[-1]
        return found

    def _run(self) -> None:
        ask = ApiServerConnection(self.kubeconfig)
        start = time.monotonic()
        try:
            while not self._over.is_set():
                began = time.monotonic()
                try:
                    self.samples.append(self._look(ask, began - start))
                except (OSError, HTTPException):
                    self.unanswered += 1
                self._over.wait(max(0.0, began + EACH_S - time.monotonic()))
        finally:
            ask.close()

    def _look(self, ask: ApiServerConnection, at: float) -> DriverSample:
        policy = _answer(ask, POLICY)
        pods = _answer(ask, f"/api/v1/namespaces/{GPU_OPERATOR_NAMESPACE}/pods?labelSelector={DRIVERS}")["items"]
        users = _answer(ask, "/api/v1/namespaces/default/pods")["items"]
        nodes = _answer(ask, "/api/v1/nodes")["items"]
        status = policy.get("status", {})
        seen = {row.get("observedGeneration") for row in status.get("conditions", ()) if row["type"] == "Ready"}
        now = {name: loaded(root) for name, root in self.machines.items()}
        # Where the wish has changed while this was read, the machines may be what the next one makes of them.
        seen.add(_answer(ask, POLICY)["metadata"]["generation"])
        return DriverSample(
            at=round(at, 1), state=status.get("state", ""), heeded=seen == {policy["metadata"]["generation"]},
            wanted=policy["spec"]["driver"]["version"],
            loaded=now,
            served={name: _served(pods, name) for name in self.machines},
            pods={name: frozenset(_users(users, name)) for name in self.machines},
            cordoned=frozenset(one["metadata"]["name"] for one in nodes if one["spec"].get("unschedulable")),
        )  # fmt: skip


def _answer(ask: ApiServerConnection, path: str) -> Object:
    """Raises OSError where there is none."""
    status, found = ask("GET", path)
    if status != 200:
        raise OSError(f"{path}: {status}")
    return dict(found)


def loaded(machine: Path) -> str:
    """The driver release that a machine has loaded, "" for none."""
    try:
        found = operate.snapshot(machine)
    except HwError:  # it is being exchanged at this moment
        return ""
    return str(found["driver_version"]) if found["driver_loaded"] else ""


def _served(pods: list[Object], node: str) -> str:
    for pod in pods:
        ready = any(row["type"] == "Ready" and row["status"] == "True" for row in pod["status"].get("conditions", ()))
        if pod["spec"].get("nodeName") == node and ready and "deletionTimestamp" not in pod["metadata"]:
            return str(pod["spec"]["containers"][0]["image"]).rpartition(":")[2].rpartition("-")[0]
    return ""


def _users(pods: list[Object], node: str) -> list[str]:
    """The uids of the pods that run on a node with a GPU."""
    return [
        pod["metadata"]["uid"]
        for pod in pods
        if pod["spec"].get("nodeName") == node
        and pod["status"].get("phase") == "Running"
        and any(row.get("resources", {}).get("limits", {}).get(GPU_RESOURCE) for row in pod["spec"]["containers"])
    ]
