"""Whose logs are worth reading, in which order, and what nodes say of themselves in them (the agent's role ``probe``).

Pure, and the same for a running cluster and for files. Logs are hostile: facts count only from a pod of kgpu's own
DaemonSet that runs on the node that they are about, of the node's present boot, and for two hours; what is older is
told as missing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kgpu.base.plain import mapping, text
from kgpu.doctor import host_facts, matching
from kgpu.doctor.kinds import Node, Pod
from kgpu.doctor.model import Missing, Subject
from kgpu.doctor.objects import seconds
from kgpu.doctor.privileges import is_mighty
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources.probed import FRESH
from kgpu.formats import names

MAX_NODES: Final = 50
"""Nodes whose own facts are looked for first."""
DAEMON_SETS: Final = frozenset({names.AGENT_DAEMON_SET, names.VALIDATOR_DAEMON_SET})
"""Whose pods have the role ``probe``: the agents, or, where operands have pods of their own, the validators."""
AHEAD: Final = 60.0
"""Seconds that a node's clock may be ahead of the clock of who looks."""
_FIELDS: Final = frozenset(host_facts.HostFacts.__struct_encode_fields__)
_SHOWN: Final = 3
_HOW: Final = "kgpu doctor --host, run on the node; kgpu's agents tell it by themselves (role probe)"
_SIGNS: Final = (names.VALIDATED_CONDITION, names.GPUS_HEALTHY_CONDITION)


def worth_reading(
    snapshot: Snapshot, nodes: frozenset[str] = frozenset(), target: Subject | None = None
) -> list[tuple[Pod, str, bool]]:
    """Containers, and whether what they said before their last restart is meant: of a GPU stack, of pods that fail and
    ask for GPUs, and of the pods of ``target``, however they are. First these, then the agents of ``nodes``, then what
    runs badly. After all of them those that fail and may look for a GPU without having asked for one.
    """
    target_pods = {pod.key for pod in _pods_of(snapshot, target) if pod.node}

    def rank(pod: Pod, previous: bool) -> int:
        if pod.key in target_pods or (pod.node in nodes and not previous and is_agent(snapshot, pod)):
            return 0
        return 1 if previous or not pod.ready else 2

    rows = snapshot.once(_containers)
    known = {pod.key for pod, _, _ in rows}
    more = [row for key in sorted(target_pods - known) for row in _of_pod(snapshot.pods[key])]
    first = sorted([*rows, *more], key=lambda row: (rank(row[0], row[2]), row[0].key))
    return [*first, *(row for row in snapshot.once(_without_request) if row[0].key not in target_pods)]


def of_ready_holders(snapshot: Snapshot, target: Subject | None = None) -> list[list[tuple[Pod, str, bool]]]:
    """For each Ready pod that holds accelerators the containers to read, the newest pod first: a program that does
    without the GPU that it was given runs on, and only its log says so.
    """
    target_pods = {pod.key for pod in _pods_of(snapshot, target)}
    return [rows for rows in snapshot.once(_of_ready_holders) if rows[0][0].key not in target_pods]


def _pods_of(snapshot: Snapshot, target: Subject | None) -> list[Pod]:
    """The pods that a target is, or has made."""
    obj = snapshot.get(target.kind, target.name, target.namespace) if target is not None else None
    return [] if obj is None else [obj] if isinstance(obj, Pod) else snapshot.pods_of(obj)


def _containers(snapshot: Snapshot) -> list[tuple[Pod, str, bool]]:
    rows: list[tuple[Pod, str, bool]] = []
    for pod in snapshot.pods.values():
        parts = matching.parts_of_pod(snapshot, pod)
        if not pod.node or (
            not parts and (pod.ready or pod.phase == "Succeeded" or not matching.uses_accelerators(pod))
        ):
            continue
        rows += _of_pod(pod)
    return rows


def _without_request(snapshot: Snapshot) -> list[tuple[Pod, str, bool]]:
    """The containers of pods that fail and ask for no accelerators, on nodes that have some or with a program that
    wants some. The newest pod comes first; of work that has since been done again nothing is told.
    """
    gpu_nodes = {node.name for node in matching.gpu_nodes(snapshot)}
    pods = [
        pod
        for pod in snapshot.pods.values()
        if pod.node
        and not (pod.ready or pod.phase == "Succeeded" or matching.uses_accelerators(pod))
        and (pod.node in gpu_nodes or matching.looks_for_gpus(pod))
        and not matching.parts_of_pod(snapshot, pod)
        and not matching.superseded(snapshot, pod)
    ]
    return [row for pod in _newest_first(pods) for row in _of_pod(pod)]


def _of_ready_holders(snapshot: Snapshot) -> list[list[tuple[Pod, str, bool]]]:
    pods = [
        pod
        for pod in snapshot.pods.values()
        if pod.node and pod.ready and matching.uses_accelerators(pod) and not matching.parts_of_pod(snapshot, pod)
    ]
    return [rows for pod in _newest_first(pods) if (rows := list(_of_pod(pod)))]


def _newest_first(pods: list[Pod]) -> list[Pod]:
    return sorted(pods, key=lambda pod: (-(seconds(pod.created) or 0.0), pod.key))


def _of_pod(pod: Pod) -> Iterator[tuple[Pod, str, bool]]:
    """The containers that have written anything that may tell more."""
    for container in pod.containers:
        if container.state in ("", "waiting") and not container.restarts:
            continue
        if container.init and container.exit_code == 0 and container.state == "terminated":
            continue
        yield pod, container.name, False
        if container.restarts and not container.ready:
            yield pod, container.name, True


def is_agent(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether a pod is one of kgpu's agents, and none that somebody has given their looks: its DaemonSet has the name,
    and is in the namespace that the ClusterPolicy tells, which only administrators write.
    """
    owner = _daemon_set(pod)
    name = text(owner.get("name"))
    if name not in DAEMON_SETS or pod.namespace not in snapshot.once(_homes):
        return False
    known = snapshot.get("DaemonSet", name, pod.namespace)
    return known.uid == text(owner.get("uid")) if known is not None else not snapshot.knows("DaemonSet")


def _daemon_set(pod: Pod) -> Mapping[str, Any]:
    """The pod's reference to the DaemonSet that controls it. Whoever makes a pod may write any."""
    owners = (one for one in pod.maps("metadata.ownerReferences") if one.get("controller") is True)
    return mapping(next((one for one in owners if one.get("kind") == "DaemonSet"), None))


def _homes(snapshot: Snapshot) -> frozenset[str]:
    """Namespaces where kgpu's DaemonSets are. Where there is no ClusterPolicy, as with agents that no operator runs,
    the only one with any whose pods have a folder of their node, as agents have and no tenant's: of two, one may be a
    forger's.
    """
    policies = [policy for policy in snapshot.all("ClusterPolicy") if policy.source not in snapshot.texts]
    operator_spaces = {policy.text("status.namespace") for policy in policies} - {""}
    if operator_spaces or policies:
        return frozenset(operator_spaces)
    daemon_spaces = {
        daemons.namespace
        for daemons in snapshot.all("DaemonSet")
        if daemons.name in DAEMON_SETS and daemons.source not in snapshot.texts and is_mighty(daemons)
    }
    return frozenset(daemon_spaces if len(daemon_spaces) == 1 else ())


def is_silent(node: Node | None) -> bool:
    """Whether a node's kubelet has not been heard of for a while: what it would have to answer will not come."""
    ready = node.condition("Ready") if node else None
    return ready is not None and ready.status == "Unknown"


def nodes_that_matter(snapshot: Snapshot, target: Subject | None = None) -> tuple[str, ...]:
    """The nodes whose own facts may tell why something does not work: those of the target, then those in trouble."""
    return tuple(dict.fromkeys(_that_matter(snapshot, target)))[:MAX_NODES]


def _that_matter(snapshot: Snapshot, target: Subject | None) -> Iterator[str]:
    if target is not None:
        obj = snapshot.get(target.kind, target.name, target.namespace)
        if isinstance(obj, Node):
            yield obj.name
        yield from (pod.node for pod in _pods_of(snapshot, target) if pod.node)
    for pod, _, _ in snapshot.once(_containers):
        if not pod.ready and pod.phase != "Succeeded":
            yield pod.node
    yield from (node.name for node in matching.gpu_nodes(snapshot) if _in_trouble(node))


def _in_trouble(node: Node) -> bool:
    if not node.ready or any(
        condition.type in _SIGNS and condition.status == "False" for condition in node.conditions()
    ):
        return True
    offered = [name for name in node.resources() if matching.is_accelerator(name)]
    counts = [(node.capacity(name) or 0, node.allocatable(name) or 0) for name in offered]
    return not any(free for _, free in counts) or any(free < all_ for all_, free in counts)


def take_facts(snapshot: Snapshot, facts: Mapping[str, Any], pod: Pod | None, said_in: str, *, latest: float) -> None:
    """Put a node's facts from a log to the snapshot, or tell why they do not count.

    ``pod`` is whose log it is; None only for a log that the user has named himself. ``latest`` is the time, in seconds
    since 1970, after which nobody can have said anything yet.
    """
    name, when = text(facts.get("node")), text(facts.get("taken"))
    if pod is not None and pod.node != name:
        return
    if pod is not None and not is_agent(snapshot, pod):
        if text(_daemon_set(pod).get("name")) in DAEMON_SETS and not snapshot.once(_homes):
            why = "neither a ClusterPolicy nor DaemonSets tell which agents are kgpu's own"
            snapshot.missing.append(Missing(_of([name]), why, _HOW))
        return
    taken, node = seconds(when), snapshot.nodes.get(name)
    if not name or taken is None or (node is None and snapshot.nodes):
        return
    known = snapshot.hosts.get(name)
    if known is not None and (seconds(known.taken) or 0.0) >= taken:
        return
    booted = text(node.at("status.nodeInfo.bootID")) if node else ""
    age = snapshot.taken - taken if snapshot.taken else 0.0
    why = f"its agent has said nothing newer than {when}" if age > FRESH else ""
    if booted and booted != facts.get("bootId"):
        why = f"the node was started anew after its agent said it ({when})"
    if taken > latest + AHEAD:
        why = f"its agent says it of a time that has not come yet ({when})"
    if why:
        snapshot.missing.append(Missing(_of([name]), why, _HOW))
        return
    known_fields = {field: value for field, value in facts.items() if field in _FIELDS}
    head = {"apiVersion": host_facts.API_VERSION, "kind": host_facts.KIND, "metadata": {"name": name}}
    snapshot.add({**known_fields, **head, "node": name, "toldBy": said_in}, said_in)


def host_gaps(snapshot: Snapshot, matter: tuple[str, ...], why: str) -> Iterator[Missing]:
    """Which nodes' own facts are missing; where none is known and none matters most, that of one in general."""
    known_gaps = {gap.what for gap in snapshot.missing}
    without = [name for name in matter if name not in snapshot.hosts and _of([name]) not in known_gaps]
    if snapshot.hosts and without:
        yield Missing(_of(without), why, _HOW)
    elif not snapshot.hosts and (nodes := without or _some(snapshot)):
        what = "what the nodes' own files, kernel logs and drivers say"
        yield Missing(what, why, f"{_HOW} (for example {', '.join(nodes[:_SHOWN])})", slight=not without)
    rows: dict[tuple[str, str], list[str]] = {}
    for host in snapshot.hosts.values():
        for what, problem in host.missing.items() if host.told_by else ():
            rows.setdefault((what, problem), []).append(host.node)
    for (what, problem), nodes in sorted(rows.items()):
        how = "kgpu doctor --host, run as root on the node"
        yield Missing(f"{what} of {listed(sorted(nodes))}", problem, how, slight=host_facts.is_slight(what, problem))


def _some(snapshot: Snapshot) -> list[str]:
    """A node with accelerators, as far as one is known of."""
    users = (pod.node for pod in snapshot.pods.values() if pod.node and matching.uses_accelerators(pod))
    return [one.name for one in matching.gpu_nodes(snapshot)[:1]] or list(itertools.islice(users, 1))


def _of(nodes: list[str]) -> str:
    return f"what the own files, kernel log and driver of {listed(sorted(nodes))} say"


def listed(nodes: list[str]) -> str:
    """The first of these nodes, and how many more there are."""
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes[:_SHOWN])}{more}"
