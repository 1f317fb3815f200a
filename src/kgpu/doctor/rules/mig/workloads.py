"""Rows MIG about pods with slices: one program spread over several, and pods that a layout change ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, messages, remedies
from kgpu.doctor.kinds import Container
from kgpu.doctor.matching import MIG_MANAGER
from kgpu.doctor.model import Evidence, Finding, Place
from kgpu.doctor.objects import at, seconds
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot

_DISTRIBUTED: Final = re.compile(
    r"torchrun|torch\.distributed|deepspeed|mpirun|horovodrun|accelerate launch|--nproc[-_]per[-_]node"
)
_STARTED: Final = re.compile(r'time="?(?P<time>\d{4}-\d\d-\d\dT[\d:.]+Z?)')
_KILL_SECONDS: Final = 180.0


@rule("MIG-17", "One program over several slices", Place.CLUSTER, explains=("NET-*",))
def many_slices(snapshot: Snapshot) -> Iterator[Finding]:
    """CUDA shows a process one MIG device, and slices can't reach each other's memory: NCCL hangs or fails."""
    for pod in snapshot.pods.values():
        for container in pod.containers:
            slices = [name for name in container.limits if matching.is_mig(str(name))]
            total = sum(_pieces(container.limits[name]) for name in slices)
            program = _DISTRIBUTED.search(" ".join(container.words))
            variable = next((key for key in container.env if key.startswith("NCCL_")), "")
            if total < 2 or not (program or variable):
                continue
            proof = (
                Evidence(str(pod), f"container {container.name}, program", program[0], pod.source)
                if program
                else matching.cite_env(pod, container, variable)
            )
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"{pod} spreads one program over {total} MIG slices in container {container.name}: a process sees "
                    "one slice only, and there is no way from slice to slice for NCCL"
                ),
                evidence=(container.cite(f"resources.limits[{slices[0]}]"), proof),
                remedy=(Remedy("ask for whole GPUs (nvidia.com/gpu) on a node without MIG, or for one larger slice"),),
                pods=(pod.path,),
                nodes=(pod.node,) if pod.node else (),
            )


def _pieces(amount: Any) -> int:
    return int(amount) if isinstance(amount, int | str) and str(amount).isdecimal() and len(str(amount)) < 6 else 0


@rule(
    "MIG-19",
    "Ended by a change of layout",
    Place.CLUSTER,
    rests_on=("NVIDIA/mig-parted v0.15.0, source",),
)
def killed_pods(snapshot: Snapshot) -> Iterator[Finding]:
    """The MIG manager stops whatever uses GPUs of the node, pods among them. Drain the node first."""
    pattern = re.compile(
        r"Shutting down (?:all )?(?:k8s |host )?GPU clients|Setting MIG mode|Applying MIG (?:mode|device) ",
        re.IGNORECASE,
    )
    for hit in messages.in_logs(snapshot, pattern, "", parts=(MIG_MANAGER,)):
        when = _STARTED.search(hit.evidence.value)
        began = seconds(when["time"]) if when else None
        node = snapshot.nodes.get(hit.node)
        if began is None or node is None:
            continue
        for pod in snapshot.pods_by_node.get(node.name, ()):
            ended = [
                container
                for container in pod.containers
                if container.exit_code not in (0, None) and _ended_near(container, began)
            ]
            if ended and matching.accelerators(pod):
                yield Finding(
                    subject=pod.subject,
                    cause=(
                        f"{pod} was ended by the change of MIG layout on node {node.name}: it had a GPU there when "
                        "the MIG manager stopped all users"
                    ),
                    evidence=(hit.evidence, ended[0].cite_status()),
                    remedy=(
                        Remedy("start it again; before the next change:"),
                        remedies.drain(node.name),
                    ),
                    nodes=(node.name,),
                    pods=(pod.path,),
                )


def _ended_near(container: Container, began: float) -> bool:
    ends = (seconds(at(container.status, f"{state}.terminated.finishedAt")) for state in ("state", "lastState"))
    return any(end is not None and 0 <= end - began <= _KILL_SECONDS for end in ends)
