"""A real cluster in which kgpu's chart repairs GPUs: the real node, three simulated full ones, and how tests see them."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kgpu.formats import gpu_report, names, validation_report
from kgpu.formats.gpu_report import GpuReport
from kgpu.hw.simulator import operate
from kgpu.lab.nodes import manage
from kgpu.lab.real.configs import PAUSE_IMAGE
from kgpu.lab.real.model import NODE_NAME
from tests.operator.real.conftest import NAMESPACE, Object, Site

T = TypeVar("T")
# Only ends what would never end: on a machine that does much else the slowest of these takes a tenth of it.
DEADLINE_S = 240.0
OPERATIONS = "/apis/kgpu.dev/v1alpha1/nodeoperations"


class NodeHistory:
    """Every state of one Node from now on, as a watch of the API server tells them."""

    def __init__(self, site: Site, name: str) -> None:
        command = [site.lab.kubectl_program, "--kubeconfig", str(site.lab.kubeconfig)]
        command += ["get", "node", name, "--watch", "-o", "json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._states: list[Object] = []
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        text = ""
        for line in self._process.stdout:
            text += line
            if line == "}\n":
                self._states.append(json.loads(text))
                text = ""

    @property
    def states(self) -> list[Object]:
        """The Node as it was, the oldest first."""
        return list(self._states)

    @property
    def is_followed(self) -> bool:
        """Whether the watch has begun, and goes on."""
        return bool(self._states) and self._process.poll() is None

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass
class Fleet:
    """The cluster with kgpu in it. ``simulated`` names the simulated nodes; ``may_begin`` is whether the budget lets any
    operation begin.
    """

    site: Site
    simulated: tuple[str, ...]
    may_begin: bool = False

    # --- waiting, and what is shown where that is in vain ---

    def until(self, condition: Callable[[], T], what: str) -> T:
        """The first true value of ``condition``; where none comes, all that explains it is printed."""
        end = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            if time.monotonic() > end:
                print(self.evidence())
                pytest.fail(f"waited {DEADLINE_S:.0f} s for {what}")
            time.sleep(0.1)
        return found

    def evidence(self) -> str:
        """Operations, nodes, pods, and the last words of the operator, every agent and the simulated kubelets."""
        kubectl = self.site.lab.kubectl_run
        agents = kubectl("-n", NAMESPACE, "get", "pods", "-l", "app=kgpu-agent", "-o", "name").stdout.split()
        asked = [
            ("get", "nodeoperations", "-o", "yaml"),
            ("get", "nodes,pods,clusterpolicies", "-A", "-o", "wide"),
            ("get", "nodes", "-o", "yaml"),
            ("get", "events", "-A", "--sort-by=.lastTimestamp"),
            ("-n", NAMESPACE, "logs", "deploy/gpu-operator", "--tail=80"),
            *(("-n", NAMESPACE, "logs", agent, "--tail=30") for agent in agents),
        ]
        shown = [f"--- kubectl {' '.join(words)}\n{(done := kubectl(*words)).stdout}{done.stderr}" for words in asked]
        log = Path(manage.status(self.site.lab.paths.root)["log"])
        return "\n".join([*shown, f"--- {log}", log.read_text(errors="replace")[-4000:]])

    # --- nodes ---

    @property
    def nodes(self) -> tuple[str, ...]:
        return (NODE_NAME, *self.simulated)

    def hardware(self, node: str) -> Path:
        """The simulated driver root of a node."""
        lab = self.site.lab
        return lab.hw_root if node == NODE_NAME else manage.hw_root(lab.paths.root, node)

    def xid(self, node: str, code: int, gpu: int) -> float:
        """Have the driver of a node report an Xid; the ``time.monotonic()`` of that."""
        operate.inject(self.hardware(node), "xid", gpu=gpu, xid=code)
        return time.monotonic()

    def gpu(self, node: str, index: int) -> dict[str, Any]:
        """A GPU as the hardware itself is now."""
        found: dict[str, Any] = operate.snapshot(self.hardware(node))["gpus"][index]
        return found

    def node(self, name: str) -> Object:
        found: Object = self.until(lambda: self.site.lab.ask(f"/api/v1/nodes/{name}"), f"an answer about {name}")
        return found

    def offers(self, node: str) -> int:
        """How many GPUs of a node pods can have."""
        return int(self.node(node)["status"]["allocatable"].get(names.GPU_RESOURCE, "0"))

    def settled(self) -> None:
        """Wait until every GPU of every node is offered, validated in its node's boot, and well, and no node is held."""
        for node in self.nodes:
            count = len(operate.snapshot(self.hardware(node))["gpus"])
            self.until(lambda node=node, count=count: is_well(self.node(node), count), f"{node} to be well")

    @contextmanager
    def followed(self, name: str) -> Iterator[NodeHistory]:
        """The history of a node while this lasts."""
        history = NodeHistory(self.site, name)
        try:
            self.until(lambda: history.is_followed, f"the watch of {name} to begin")
            yield history
            assert history.is_followed, f"the watch of {name} has ended"
        finally:
            history.close()

    # --- operations ---

    def operations(self) -> list[Object]:
        found: list[Object] = (self.site.lab.ask(OPERATIONS) or {"items": []})["items"]
        return found

    def made(self, node: str, kind: str) -> Object:
        """The one operation that is not over, once it is made: of that kind, on that node, and asked for by nobody."""
        (operation,) = self.until(
            lambda: [one for one in self.operations() if phase(one) not in {"Complete", "Failed"}],
            f"a {kind} of {node} to be made",
        )
        spec = operation["spec"]
        asked = (spec["nodeName"], spec["type"], spec["requestedBy"])
        assert asked == (node, kind, names.REMEDIATION_REQUESTER), operation
        return operation

    def record(self, operation: Object) -> Object:
        """The operation as it is now."""
        name = operation["metadata"]["name"]
        found: Object = self.until(lambda: self.site.lab.ask(f"{OPERATIONS}/{name}"), f"an answer about {name}")
        return found

    def waits(self, operation: Object, *reasons: str) -> None:
        """Wait until the operation is on record as waiting for one of these reasons."""
        self.until(
            lambda: (
                (found := self.record(operation).get("status", {})).get("phase") == "Pending"
                and found.get("reason") in reasons
            ),
            f"{operation['metadata']['name']} to wait: {' or '.join(reasons)}",
        )

    def succeeds(self, operation: Object) -> Object:
        """Wait for its end; its record, which must say that it has succeeded."""
        self.until(
            lambda: phase(self.record(operation)) in {"Complete", "Failed"}, f"{operation['metadata']['name']} to end"
        )
        found = self.record(operation)
        if found["status"].get("result") != "Succeeded":
            print(self.evidence())
            pytest.fail(f"{operation['metadata']['name']} has not succeeded: {found['status']}")
        return found

    def say(self, operation: Object, word: str) -> None:
        """Set a person's word of an operation, such as ``approved``."""
        change = json.dumps({"spec": {word: True}})
        self.site.lab.kubectl("patch", "nodeoperation", operation["metadata"]["name"], "--type=merge", "-p", change)

    def apply_with_status(self, operation: Object, status: Object) -> None:
        """Make an operation that has this status."""
        self.apply(operation)
        name, change = operation["metadata"]["name"], json.dumps({"status": status})
        self.site.lab.kubectl("patch", "nodeoperation", name, "--subresource=status", "--type=merge", "-p", change)

    def end_operations(self) -> None:
        """Have what is not over end, so that a story that has failed leaves no node held to the next one."""
        for operation in self.operations():
            if phase(operation) not in {"Complete", "Failed"}:
                self.say(operation, "cancel")

    def forget_operations(self) -> None:
        """Without records of what was done before, nothing of it counts."""
        self.site.lab.kubectl("delete", "nodeoperations", "--all")
        self.until(lambda: not self.operations(), "the records to go")

    # --- pods ---

    def apply(self, manifest: Object) -> None:
        self.site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    @contextmanager
    def deployed(self, name: str, node: str, replicas: int) -> Iterator[None]:
        """A Deployment whose pods have a GPU of that node each, and nowhere else to go."""
        self.apply(deployment(name, node, replicas))
        try:
            self.until(lambda: len(self.running(name)) == replicas, f"{replicas} pods of {name} to run")
            yield
        finally:
            self.site.lab.kubectl("delete", "deployment", name, "--wait=true")
            self.until(lambda: not self.pods(name), f"the pods of {name} to go")

    def pods(self, name: str) -> list[Object]:
        """The pods of a Deployment."""
        path = f"/api/v1/namespaces/default/pods?labelSelector=app%3D{name}"
        found: list[Object] = self.until(lambda: self.site.lab.ask(path), f"an answer about pods of {name}")["items"]
        return found

    def running(self, name: str) -> dict[str, int]:
        """By uid of its pods that run and are to stay, how often their containers were started again."""
        return {
            pod["metadata"]["uid"]: sum(one["restartCount"] for one in pod["status"]["containerStatuses"])
            for pod in self.pods(name)
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
            and all(one.get("ready") for one in pod["status"].get("containerStatuses", ()))
        }


def phase(operation: Object) -> str:
    return str(operation.get("status", {}).get("phase", ""))


def report(node: Object) -> GpuReport | None:
    """What the agent says of a Node's GPUs."""
    return gpu_report.of_node(node["metadata"].get("annotations", {}))


def boot(node: Object) -> str:
    return str(node["status"]["nodeInfo"]["bootID"])


def is_cordoned(node: Object) -> bool:
    return bool(node["spec"].get("unschedulable"))


def condition(node: Object, kind: str) -> str:
    """The status of one of a Node's conditions, "" where it has none."""
    rows: Sequence[Object] = node["status"].get("conditions", ())
    return next((str(row["status"]) for row in rows if row["type"] == kind), "")


def is_validated(node: Object) -> bool:
    """Whether every GPU of a Node has passed CUDA's test in the boot that it has."""
    found = validation_report.of_node(node["metadata"].get("annotations", {}))
    return found is not None and found.boot == boot(node) and condition(node, names.VALIDATED_CONDITION) == "True"


def is_well(node: Object, gpus: int) -> bool:
    """Whether a Node offers so many GPUs, all of them well and validated, and is held by nobody."""
    held = {names.CORDON_ANNOTATION, names.OPERATION_ANNOTATION} & set(node["metadata"].get("annotations", {}))
    return (
        not (is_cordoned(node) or held)
        and node["status"]["allocatable"].get(names.GPU_RESOURCE) == str(gpus)
        and is_validated(node)
        and condition(node, names.GPUS_HEALTHY_CONDITION) == "True"
    )


def deployment(name: str, node: str, replicas: int) -> Object:
    """The manifest of a Deployment whose pods have a GPU of that node each."""
    labels = {"app": name}
    container = {"name": "c", "image": PAUSE_IMAGE, "resources": {"limits": {names.GPU_RESOURCE: 1}}}
    spec = {
        "terminationGracePeriodSeconds": 1, "nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container],
    }  # fmt: skip
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip
