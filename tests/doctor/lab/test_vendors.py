"""Agents on their own, without an operator, on nodes of AMD, Gaudi and Intel: what breaks there is named from the API.

Each node's agent is a pod of the DaemonSet ``kgpu-agent`` with the roles that a stand-alone agent has; what it says of
its node is in its log and in annotations. A pod asks for more than is left, so that it waits for what is broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kgpu.hw.simulator import modules
from kgpu.kube.port import Object
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.nodes import manage
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import build
from tests.doctor.lab.breaking import Break, Fault, Ground, Step, Undo, Until, healthy, play, until
from tests.doctor.lab.labs import space
from tests.doctor.lab.things import SPACE, make, obj, pod, says

HOME = "kgpu"
NODES = {
    "amd.com/gpu": ("mi300x", "mi300x-1"),
    "habana.ai/gaudi": ("gaudi2", "gaudi2-1"),
    "gpu.intel.com/xe": ("arc", "arc-1"),
}
FOLDERS = ("/", "/dev", "/var/lib/kubelet/device-plugins", "/var/lib/kgpu")


def agents() -> Object:
    """The DaemonSet, as somebody without an operator writes it."""
    volumes = [{"name": f"v{at}", "hostPath": {"path": path}} for at, path in enumerate(FOLDERS)]
    mounts = [{"name": f"v{at}", "mountPath": path if path != "/" else "/host"} for at, path in enumerate(FOLDERS)]
    main = {
        "name": "agent", "image": "kgpu.dev/kgpu:0.1.0",
        "args": [
            "agent", "--roles", "deviceplugin,labels,health,probe", "--labels-sink", "node", "--root", "/host",
            "--driver-root", "/host",
        ],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "KGPU_HOST_ROOT", "value": "/host"},
        ],
        "securityContext": {"privileged": True}, "volumeMounts": mounts,
    }  # fmt: skip
    spec = {"containers": [main], "volumes": volumes, "hostPID": True}
    template = {"metadata": {"labels": {"app": "kgpu-agent"}}, "spec": spec}
    return obj(
        "DaemonSet", "kgpu-agent", HOME, spec={"selector": {"matchLabels": {"app": "kgpu-agent"}}, "template": template}
    )


def rights() -> Object:
    return obj(
        "ClusterRoleBinding", "agents-alone",
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        subjects=[{"kind": "ServiceAccount", "name": "default", "namespace": HOME}],
    )  # fmt: skip


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    if not build.find_kubectl():
        pytest.skip("no kubectl here")
    lab = EmbeddedLab("vendors", tmp_path_factory.mktemp("vendors") / "lab", QuietProgress())
    found = None
    try:
        lab.up()
        for profile, _ in NODES.values():
            manage.add_to_running(lab.folder, profile, gpus=2, agent=False)
        found = Ground(lab)
        for name in (HOME, SPACE):
            space(found, name)
        make(rights(), agents()).do(found)
        ready = found
        until(lambda: all(_offers(ready, resource) for resource in NODES), "every node offers its two")
        found.settled = found.offered()
        healthy(found)
        yield found
    finally:
        if found is not None:
            found.close()
        lab.down()


def _offers(ground: Ground, resource: str) -> bool:
    return ground.offered().get(NODES[resource][1], {}).get(resource) == "2"


@dataclass(frozen=True, slots=True)
class Unloaded:
    """The driver's modules are gone, as after rmmod."""

    node: str

    def do(self, ground: Ground) -> Undo:
        root = ground.hardware(self.node)
        modules.unload(root)
        return lambda: str(modules.load(root)) and None


@dataclass(frozen=True, slots=True)
class Mode:
    """A device file of a node has another mode, as by a rule of udev's."""

    node: str
    path: str
    mode: int

    def do(self, ground: Ground) -> Undo:
        place = ground.hardware(self.node) / self.path
        before = place.stat().st_mode
        place.chmod(self.mode)
        return lambda: place.chmod(before)


def waits(resource: str, step: Step, first: str, what: str) -> Break:
    """A pod that needs both of a node's devices while something is wrong with one, or with the driver."""
    node = NODES[resource][1]
    left = "0" if isinstance(step, Unloaded) else "1"
    withdrawn = Until("Node", node, ("status", "allocatable", resource), left)
    return Break(
        what=f"{what} on {node}", first=first, names=node,
        steps=(step, withdrawn, make(pod(gpus={resource: 2}, restartPolicy="Never"))), target=f"pod {SPACE}/broken",
    )  # fmt: skip


BREAKS = [
    *[
        waits(resource, Unloaded(NODES[resource][1]), first, "the driver is not loaded")
        for resource, first in (
            ("amd.com/gpu", "AMD-01"),
            ("habana.ai/gaudi", "GAU-01"),
            ("gpu.intel.com/xe", "INT-04"),
        )
    ],
    *[
        waits(resource, Fault(NODES[resource][1], fault, {"gpu": 1}), first, fault)
        for resource in NODES
        for fault, first in (("lost", "HW-01"), ("hang", "HW-12"), ("ecc", "HW-14"))
        if (resource, fault) != ("gpu.intel.com/xe", "ecc")  # its driver counts no errors
    ],
    Break(
        what="the node lets only one group open its device files",
        first="AMD-17",
        names=f"{SPACE}/broken",
        steps=(
            Mode(NODES["amd.com/gpu"][1], "dev/kfd", 0o600),
            make(
                pod(
                    gpus={"amd.com/gpu": 1},
                    restartPolicy="Never",
                    command=says("Unable to open /dev/kfd read-write: Permission denied"),
                )
            ),
        ),
    ),
]


@pytest.mark.parametrize("broken", BREAKS, ids=str)
def test_a_waiting_pod_is_told_what_is_wrong_with_its_vendors_node(*, ground: Ground, broken: Break) -> None:
    report = play(ground, broken)
    steps = "\n".join(str(step) for step in report.findings[0].remedy)
    assert "nvidia-smi" not in steps
