"""Pure: what somebody may not see is taken out before anything is sorted, filtered or counted by it.

Sums stay. A pod of a namespace that may not be seen has neither a name nor a namespace, so that no filter finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from kgpu.overview.model import HIDDEN, KnownCluster, PendingPod, Sees, ToldFinding
from kgpu.top.model import GpuInstance, GpuNode, GpuUser, ShownGpu


def namespaces_in(gathered: KnownCluster) -> frozenset[str]:
    """Every namespace that anything is told of."""
    users = {user.namespace for node in gathered.nodes for gpu in node.gpus for user in gpu.everybody}
    waiting = {pod.namespace for pod in gathered.waiting.value}
    limited = {limit.namespace for limit in gathered.limits.value}
    idle = {row.who.partition("/")[0] for row in gathered.idleness.value.idle if "/" in row.who}
    findings = gathered.report.value.findings
    told = (name for finding in findings for name in (*namespaces_of(finding), *_cited(finding)))
    return frozenset({*users, *waiting, *limited, *idle, *told} - {""})


def _cited(finding: ToldFinding) -> Iterator[str]:
    """The namespaces of the objects that a finding quotes."""
    for row in finding.evidence:
        space, slash, _ = row.object.partition(" ")[2].partition("/")
        if slash:
            yield space
    for under in finding.consequences:
        yield from _cited(under)


def may_see(sees: Sees, namespace: str) -> bool:
    """Whether the pods of a namespace may be seen."""
    return sees is None or namespace in sees


def seen_nodes(nodes: Iterable[GpuNode], sees: Sees) -> tuple[GpuNode, ...]:
    """The nodes without the names of those who may not be seen."""
    if sees is None:
        return tuple(nodes)
    return tuple(replace(node, gpus=tuple(_seen_gpu(gpu, sees) for gpu in node.gpus)) for node in nodes)


def _seen_gpu(gpu: ShownGpu, sees: frozenset[str]) -> ShownGpu:
    if all(user.namespace in sees for user in gpu.everybody) and not gpu.processes:
        return gpu
    parts = tuple(_seen_part(part, sees) for part in gpu.parts)
    return replace(gpu, users=_seen_users(gpu.users, sees), parts=parts, processes=())


def _seen_part(part: GpuInstance, sees: frozenset[str]) -> GpuInstance:
    return replace(part, users=_seen_users(part.users, sees))


def _seen_users(users: Iterable[GpuUser], sees: frozenset[str]) -> tuple[GpuUser, ...]:
    return tuple(
        user if user.namespace in sees else GpuUser(namespace="", pod=HIDDEN, memory_mib=user.memory_mib)
        for user in users
    )


def namespaces_of(finding: ToldFinding) -> Iterator[str]:
    """The namespaces of what a finding and what is folded under it are about."""
    _, _, name = finding.subject.partition(" ")
    for path in (name, *finding.pods):
        space, slash, _ = path.partition("/")
        if slash:
            yield space
    for under in finding.consequences:
        yield from namespaces_of(under)


def may_read(finding: ToldFinding, sees: Sees, hidden: Iterable[str]) -> bool:
    """Whether a finding may be told: it is about nobody, and quotes nobody, of ``hidden``, which are namespaces and
    the names of pods.
    """
    if sees is None:
        return True
    return all(space in sees for space in namespaces_of(finding)) and not quotes(finding, tuple(hidden))


def quotes(finding: ToldFinding, hidden: tuple[str, ...]) -> bool:
    """Whether it, or what is folded under it, has one of the names anywhere."""
    quoted = (text for row in finding.evidence for text in (row.value, row.object, row.field, row.file))
    texts = "\n".join((finding.subject, finding.cause, finding.expected, *finding.remedy, *quoted))
    return any(name in texts for name in hidden) or any(quotes(under, hidden) for under in finding.consequences)


def hidden_names(gathered: KnownCluster, sees: Sees) -> frozenset[str]:
    """The namespaces and pods that may not be seen, as far as they are known."""
    if sees is None:
        return frozenset()
    spaces = namespaces_in(gathered) - sees
    users = (user for node in gathered.nodes for gpu in node.gpus for user in gpu.everybody)
    pods: Iterable[GpuUser | PendingPod] = (*users, *gathered.waiting.value)
    names = {pod.pod if isinstance(pod, GpuUser) else pod.name for pod in pods if pod.namespace in spaces}
    return frozenset(name for name in spaces | names if name)
