"""Driver pods of a cluster in memory: a DaemonSet controller that makes them anew, and containers that load a driver.

A pod is Ready some looks after it was made, unless its machine fails: then it ends in the phase that is asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kgpu.formats import names
from kgpu.kube.port import PODS, Object

NAMESPACE: Final = "gpu-operator"
DAEMON_SET: Final = "nvidia-driver-daemonset"
RELEASES: Final = {"1": "550.90.07", "2": "570.86.15", "3": "580.95.05"}
"""The release of each digest."""


def image(digest: str) -> str:
    return f"nvcr.io/nvidia/driver:{RELEASES[digest]}-ubuntu24.04"


def wanted(digest: str = "2", before: str = "1") -> dict[str, str]:
    """``spec.driver`` of an operation."""
    return {
        "namespace": NAMESPACE, "daemonSet": DAEMON_SET, "digest": digest, "image": image(digest),
        "version": RELEASES[digest], "fromVersion": RELEASES[before],
    }  # fmt: skip


@dataclass
class SimDriver:
    """The driver of one machine. ``fails`` is the phase in which the next ones fail: image, manager or install; ``looks``
    is how long one takes.
    """

    fails: str = ""
    looks: int = 2
    loaded: str = ""
    """The digest of the driver that is loaded."""
    failed_of: tuple[str, ...] = ("2", "3")
    """The digests that fail."""


class SimDrivers:
    """The drivers' pods. ``template`` is the digest in the DaemonSet's template."""

    def __init__(self, put: Callable[[Any, Object], Object], pods: Callable[[], list[Object]]) -> None:
        self._put = put
        self._pods = pods
        self.template = "1"
        self.rules = names.THIS_DRIVER_DIGEST_VERSION
        self.of: dict[str, SimDriver] = {}
        self.made: list[tuple[str, str]] = []
        """The pods that were made, as node and digest."""
        self._numbers = itertools.count(1)

    def on(self, node: str, digest: str = "1", **given: Any) -> SimDriver:
        """Let a node run a driver by a pod of the DaemonSet."""
        self.of[node] = SimDriver(loaded=digest, **given)
        self._make(node, digest, ready=True)
        return self.of[node]

    def pod(self, node: str) -> Object | None:
        """The node's driver pod."""
        return next((pod for pod in self.pods() if pod["spec"]["nodeName"] == node), None)

    def pods(self) -> list[Object]:
        return [pod for pod in self._pods() if pod["metadata"]["namespace"] == NAMESPACE and _is_driver(pod)]

    def digest(self, node: str) -> str:
        """The digest of the node's driver pod, "" without one."""
        pod = self.pod(node)
        return str(pod["spec"]["containers"][0]["env"][0]["value"]) if pod is not None else ""

    def look(self) -> None:
        """The controller makes pods that are missing; those that are there get on."""
        there = {pod["spec"].get("nodeName"): pod for pod in reversed(self.pods())}
        for node, driver in self.of.items():
            pod = there.get(node)
            if pod is None:
                self._make(node, self.template)
            elif "deletionTimestamp" not in pod["metadata"]:
                self._run(pod, driver)

    def _make(self, node: str, digest: str, *, ready: bool = False) -> None:
        number = next(self._numbers)
        owner = {"kind": "DaemonSet", "name": DAEMON_SET, "uid": "ds", "controller": True}
        container = {"name": names.DRIVER_CONTAINER, "image": image(digest),
                     "env": [{"name": names.ENV_DRIVER_CONFIG_DIGEST, "value": digest}]}  # fmt: skip
        metadata = {
            "namespace": NAMESPACE, "name": f"driver-{number}", "uid": f"driver-{number}", "ownerReferences": [owner],
            "labels": {names.COMPONENT_LABEL: names.DRIVER_COMPONENT}, "annotations": {"looks": "0"},
            "creationTimestamp": f"2023-11-14T22:13:{20 + number % 30}Z",
        }  # fmt: skip
        if self.rules:
            metadata["annotations"][names.DRIVER_DIGEST_VERSION] = self.rules  # type: ignore[index]
        self.made.append((node, digest))
        spec = {"nodeName": node, "containers": [container], "initContainers": [{"name": "k8s-driver-manager"}]}
        status = _ready() if ready else {"phase": "Pending"}
        self._put(PODS, {"metadata": metadata, "spec": spec, "status": status})

    def _run(self, pod: Object, driver: SimDriver) -> None:
        if _is_ready(pod):
            return
        annotations = pod["metadata"]["annotations"]
        looks = int(annotations["looks"]) + 1
        digest = str(pod["spec"]["containers"][0]["env"][0]["value"])
        if driver.fails and digest in driver.failed_of:
            status = _failing(driver.fails, looks)
        elif looks >= driver.looks:
            driver.loaded, status = digest, _ready()
        else:
            status = {"phase": "Pending", "initContainerStatuses": [_running("k8s-driver-manager")]}
        if looks == 1:
            driver.loaded = ""
        metadata = {**pod["metadata"], "annotations": {**annotations, "looks": str(looks)}}
        self._put(PODS, {**pod, "metadata": metadata, "status": status})


def _is_driver(pod: Object) -> bool:
    return (pod["metadata"].get("labels") or {}).get(names.COMPONENT_LABEL) == names.DRIVER_COMPONENT


def _is_ready(pod: Object) -> bool:
    return any(row == {"type": "Ready", "status": "True"} for row in pod["status"].get("conditions") or ())


def _ready() -> Object:
    return {
        "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{**_running(names.DRIVER_CONTAINER), "ready": True}],
    }  # fmt: skip


def _running(name: str) -> Object:
    return {
        "name": name,
        "ready": False,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2023-11-14T22:13:20Z"}},
    }


def _failing(phase: str, looks: int) -> Object:
    if phase == "image":
        said = 'Back-off pulling image "nvcr.io/nvidia/driver:1": not found'
        waits = {"waiting": {"reason": "ImagePullBackOff" if looks % 2 else "ErrImagePull", "message": said}}
        return {
            "phase": "Pending",
            "containerStatuses": [{"name": names.DRIVER_CONTAINER, "restartCount": 0, "state": waits}],
        }
    last = {
        "terminated": {
            "exitCode": 1,
            "message": "nvidia is in use by pid 77 (python3)" if phase == "manager" else "no headers",
        }
    }
    name = "k8s-driver-manager" if phase == "manager" else names.DRIVER_CONTAINER
    row = {"name": name, "restartCount": looks, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": last}
    return {"phase": "Pending", "initContainerStatuses" if phase == "manager" else "containerStatuses": [row]}
