"""Another node is proposed only where nothing that is there may give the pod its GPUs: else that is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import kgpu.doctor
from kgpu.doctor.model import Finding
from tests.doctor.small import EARLY, GPU, READY, container, ended, node, plugin, pod, report, waits

ANOTHER = re.compile(r"\badd (?:a |more )?(?:GPU )?nodes?\b|\bnode pool")
IN_A_ZONE = "or add GPU nodes to the volume's zone"
"""SCH-23 says of a volume that it is where no GPU is: whatever else is wrong, the node has to be there."""
RUNS = {"conditions": [READY], "seen": [container(state={"running": {}}, ready=True)]}
UNPLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": EARLY, "message": "0/2 nodes are available."}  # fmt: skip
LABELS = {
    "pci": {"feature.node.kubernetes.io/pci-10de.present": "true"},
    "gke": {"cloud.google.com/gke-accelerator": "nvidia-l4"},
    "eks": {"k8s.amazonaws.com/accelerator": "nvidia-tesla-t4"},
    "azure": {"kubernetes.azure.com/accelerator": "nvidia"},
    "karpenter": {"karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia"},
    "aws-type": {"node.kubernetes.io/instance-type": "p4d.24xlarge"},
    "gcp-type": {"node.kubernetes.io/instance-type": "a2-highgpu-8g"},
    "azure-type": {"node.kubernetes.io/instance-type": "Standard_NC24ads_A100_v4"},
    "product": {"nvidia.com/gpu.product": "NVIDIA-L4"},
}
PLAIN = node("cpu-1", have=None, labels={"kubernetes.io/os": "linux"})
SEEN = node("cpu-1", have=None, labels={"feature.node.kubernetes.io/pci-1af4.present": "true"})
"""A node that discovery has looked at."""


def taken(*, have: int = 1, annotations: Any = None) -> list[dict[str, Any]]:
    """A node of whose GPUs each has its pod."""
    one = node("gpu-1", have=have)
    one["metadata"]["annotations"] = annotations or {}
    return [one, plugin(), *(pod(f"held-{number}", **RUNS) for number in range(have))]


def daemons(desired: int, **spec: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.18.0"}
    labels = {"app": "nvidia-device-plugin-daemonset"}
    return {
        "kind": "DaemonSet", "metadata": {"name": "nvidia-device-plugin-daemonset", "namespace": "gpu-operator", "uid": "d"},
        "spec": {"template": {"metadata": {"labels": labels}, "spec": {"containers": [main], **spec}}},
        "status": {"desiredNumberScheduled": desired, "observedGeneration": 1},
    }  # fmt: skip


def discovery(part: str, *, well: bool) -> dict[str, Any]:
    crashes = {
        "seen": [container(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended(1), restartCount=9)]
    }
    made = pod(f"nfd-{part}", on="cpu-1", gpus=0, metadata={"namespace": "nfd"}, **(RUNS if well else crashes))
    made["spec"]["containers"] = [{"name": "main", "image": "nfd:v0.17", "command": [f"nfd-{part}"]}]
    made["spec"]["volumes"] = [{"name": "host", "hostPath": {"path": "/etc/kubernetes/node-feature-discovery"}}]
    return made


def by(scheduler: str) -> dict[str, Any]:
    """A pod of another scheduler, which has said nothing of it."""
    return waits(spec={"schedulerName": scheduler})


def tried(scheduler: str = "default-scheduler", **annotations: str) -> dict[str, Any]:
    made = waits(spec={"schedulerName": scheduler}, conditions=[UNPLACED])
    made["metadata"]["annotations"] = annotations
    return made


def group(name: str = "pg-train") -> dict[str, Any]:
    unplaced = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": "1/2 tasks in gang unschedulable", "lastTransitionTime": EARLY}  # fmt: skip
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": name, "namespace": "ml"},
        "spec": {"minMember": 2, "queue": "team-a", "minResources": {GPU: "2"}},
        "status": {"phase": "Inqueue", "conditions": [unplaced]},
    }  # fmt: skip


VOLCANO = pod("volcano-scheduler-1", on="cpu-1", gpus=0, **RUNS)
BARE_TAINTED = node("gpu-2", have=None) | {"spec": {"taints": [{"key": "own", "value": "x", "effect": "NoSchedule"}]}}
KAI_HOLDS = pod("gpu-reservation-gpu-1", metadata={"namespace": "kai-resource-reservation"}, **RUNS)
HAMI = {"hami.io/node-nvidia-register": "GPU-a,10,40960,100,NVIDIA-A100,0,true:"}
WORKER, MASTER = discovery("worker", well=True), discovery("master", well=True)

CASES: dict[str, tuple[list[dict[str, Any]], str]] = {
    **{f"{name}, none offered": ([node("gpu-2", have=None, labels=labels), PLAIN, tried()],
                                 "1 node with nvidia devices, and none offers nvidia.com/gpu") for name, labels in LABELS.items()},
    **{f"{name}, others taken": ([*taken(), daemons(1), node("gpu-2", have=None, labels=labels), tried()],
                                 "node gpu-2 has nvidia devices and offers none") for name, labels in LABELS.items()},
    "daemons by discovery's label": ([SEEN, daemons(0, nodeSelector={"nvidia.com/gpu.present": "true"}), tried()],
                                     "wants nodes with nvidia.com/gpu.present=true"),
    "daemons by another label": ([SEEN, daemons(0, nodeSelector={"pool": "gpus"}), tried()], "wants nodes with pool=gpus"),
    "daemons by a taint": ([SEEN, BARE_TAINTED, daemons(0), tried()], "it does not tolerate their taint own=x"),
    "daemons for no known reason": ([SEEN, daemons(0), tried()], "wants a pod on no node"),
    "worker crashes": ([PLAIN, discovery("worker", well=False), MASTER, tried()], "Pod nfd/nfd-worker of node feature discovery is not ready"),
    "master crashes": ([PLAIN, WORKER, discovery("master", well=False), tried()], "Pod nfd/nfd-master of node feature discovery is not ready"),
    "worker crashes, others taken": ([*taken(), PLAIN, discovery("worker", well=False), MASTER, tried()], "Pod nfd/nfd-worker, which finds GPU nodes, is not ready"),
    "master crashes, others taken": ([*taken(), PLAIN, WORKER, discovery("master", well=False), tried()], "Pod nfd/nfd-master, which finds GPU nodes, is not ready"),
    "no such scheduler": ([*taken(), by("volcano")], "it names the scheduler volcano, and nothing by that name runs"),
    "no such scheduler, none offered": ([SEEN, by("kai-scheduler")], "names the scheduler kai-scheduler, and nothing by that name runs"),
    "another scheduler": ([*taken(), SEEN, pod("kai-scheduler-1", on="cpu-1", gpus=0, **RUNS), tried("kai-scheduler")],
                          "scheduler kai-scheduler places it"),
    "volcano's group, taken": ([*taken(), SEEN, VOLCANO, group(), tried("volcano", **{"scheduling.k8s.io/group-name": "pg-train"})],
                               "PodGroup ml/pg-train of queue team-a is not placed"),
    "volcano's group, free": ([node(have=1), plugin(), SEEN, VOLCANO, group(), tried("volcano", **{"scheduling.volcano.sh/group-name": "pg-train"})],
                              "PodGroup ml/pg-train of queue team-a is not placed"),
    "shared by hami": ([*taken(have=2, annotations=HAMI), tried()], "HAMi shares the cards of node gpu-1"),
    "shared by kai": ([node(have=1), plugin(), KAI_HOLDS, tried()], "holds a GPU for pods that share it"),
}  # fmt: skip


def every(*objects: dict[str, Any]) -> list[Finding]:
    return [one for root in report(*objects).findings for one in root.all()]


@pytest.mark.parametrize("case", CASES)
def test_what_may_give_the_pod_its_gpus_is_named_in_place_of_another_node(case: str) -> None:
    objects, says = CASES[case]
    found = every(*objects)
    told = [one for one in found if says in one.cause]
    assert told, [one.cause for one in found]
    assert any("ml/train" in one.pods for one in told) or case == "daemons by a taint"
    assert [step for one in found for step in one.remedy if ANOTHER.search(step)] == []


@pytest.mark.parametrize("objects", [[SEEN], taken(), [*taken(), daemons(1), WORKER, MASTER, SEEN],
                                     [*taken(), SEEN, discovery("worker", well=False)]],
                         ids=["none", "taken", "all-well", "all-labelled"])  # fmt: skip
def test_where_nothing_is_left_another_node_is_proposed(objects: list[dict[str, Any]]) -> None:
    found = every(*objects, tried())
    steps = [step for one in found if "ml/train" in one.pods for step in one.remedy]
    assert any(ANOTHER.search(step) for step in steps), steps


def test_every_proposal_of_another_node_asks_for_the_rest_first() -> None:
    """A rule that writes such a step by itself would say it before anybody has looked."""
    alone = []
    for path in sorted((Path(kgpu.doctor.__file__).parent).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        behind = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and ast.unparse(one.func) == "or_a_node"]
        asked = {ast.unparse(one.args[1]) for one in behind}
        for call in (one for one in ast.walk(tree) if isinstance(one, ast.Call) and ast.unparse(one.func) == "Remedy"):
            step, name = ast.unparse(call), next((key for key, value in assigned(tree) if value is call), "")
            if ANOTHER.search(step.replace(IN_A_ZONE, "")) and not {step, name} & asked:
                alone.append(f"{path.name}: {step}")
    assert alone == []


def assigned(tree: ast.Module) -> list[tuple[str, ast.expr]]:
    made = [one for one in ast.walk(tree) if isinstance(one, ast.Assign)]
    return [(ast.unparse(one.targets[0]), one.value) for one in made]


def test_a_group_of_volcano_that_its_queue_holds_back_has_no_pods_and_is_told() -> None:
    """The Job's pods are made when the group is let into the queue."""
    held = group()
    held["status"]["phase"] = "Pending"
    said = {
        "kind": "Event", "metadata": {"name": "e", "namespace": "ml"}, "reason": "Unschedulable", "type": "Normal",
        "message": "queue resource quota insufficient: insufficient nvidia.com/gpu", "lastTimestamp": EARLY,
        "involvedObject": {"kind": "PodGroup", "namespace": "ml", "name": "pg-train"},
    }  # fmt: skip
    (found,) = [one for one in every(node(), plugin(), held, said) if one.id == "SCH-16"]
    assert "its queue lets it ask for no more" in found.cause
    assert "kubectl get queues.scheduling.volcano.sh team-a -o yaml" in found.remedy


@pytest.mark.parametrize("more", [{"phase": "Running"}, {"phase": "Completed"}])
def test_a_group_that_is_placed_is_left_alone(more: dict[str, str]) -> None:
    placed = group()
    placed["status"] |= more
    assert [one.id for one in every(node(), plugin(), placed)] == []
