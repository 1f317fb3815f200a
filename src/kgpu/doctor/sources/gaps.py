"""What a file or folder that somebody has put together does not have, and the command that gets it.

An archive of ``kgpu collect`` says so itself. The words are those of a look at a running cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kgpu.doctor import matching
from kgpu.doctor.kinds import Pod
from kgpu.doctor.model import Missing
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources.logs import host_gaps, nodes_that_matter, worth_reading

MAX_LOGS: Final = 20
"""Containers whose logs are named one by one."""
MAX_PENDING: Final = 3
_KINDS: Final = (("nodes", "kubectl get nodes -o yaml"), ("pods", "kubectl get pods -A -o yaml"),
                 ("events", "kubectl get events -A -o yaml"))  # fmt: skip


def gaps(snapshot: Snapshot) -> Iterator[Missing]:
    """In the order of weight: kinds, what can't be judged without them, hosts, logs."""
    counts = snapshot.counts()
    pending = [pod for pod in snapshot.pods.values() if _pending(pod)] if not snapshot.nodes else []
    if pending:
        names = ", ".join(pod.path for pod in pending[:MAX_PENDING])
        more = f" and {len(pending) - MAX_PENDING} more" if len(pending) > MAX_PENDING else ""
        why = "it can't be judged while no nodes are known"
        yield Missing(f"why pods are Pending: {names}{more}", why, is_verdict=True)
    for plural, command in _KINDS:
        if not counts[plural]:
            yield Missing(
                f"{plural} of the cluster", "what was given has none", f"{command}, into a file of the same folder"
            )
    yield from host_gaps(snapshot, nodes_that_matter(snapshot), "they are not in what was given")
    yield from _logs(snapshot)


def _pending(pod: Pod) -> bool:
    return pod.phase == "Pending" and not pod.node and matching.uses_accelerators(pod)


def _logs(snapshot: Snapshot) -> Iterator[Missing]:
    left = 0
    for pod, container, previous in worth_reading(snapshot):
        logs = snapshot.logs.get(pod.key, ())
        if any(log.container in ("", container) and log.previous == previous for log in logs):
            continue
        left += 1
        if left <= MAX_LOGS:
            command = f"kubectl -n {pod.namespace} logs {pod.name} -c {container}" + (" --previous" if previous else "")
            before = " before its last restart" if previous else ""
            yield Missing(f"the log of {pod.path}, container {container}{before}", "it was not given", command)
    if left > MAX_LOGS:
        yield Missing(f"logs of {left - MAX_LOGS} more containers", "they were not given", "kgpu collect")
