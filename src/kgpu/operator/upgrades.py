"""Which nodes run another driver than the one that is asked for, and how far each one's upgrade is. Pure.

A node's driver is the one that its driver pod was made for. It needs an upgrade when the digest in that pod differs
from the digest in its DaemonSet's template, never because anything else of the template differs. A pod without a digest
of the present version (the replaced operator's, an older kgpu's) is compared by its image alone, so that the first
start after an update of kgpu adopts every node as it is. The engine (``kgpu.operations``) exchanges drivers; what it
has to do is in ``upgrade_operations``. States are those of the replaced operator's label
``nvidia.com/gpu-driver-upgrade-state``, which is written for those who read it and never read.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.plain import mapping, text
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import WAITING_FOR_PODS, OperationPhase, Result
from kgpu.formats.driver_revision import DriverRevision, release_of, revision_of
from kgpu.operator.model import ClusterNode, NodeDriverPod, Object, UpgradeOperation
from kgpu.operator.node_selectors import DriverSets, is_driver, node_selector


class UpgradeState(enum.StrEnum):
    """How far a node's driver upgrade is, in the replaced operator's words."""

    REQUIRED = "upgrade-required"
    CORDON = "cordon-required"
    WAIT_FOR_JOBS = "wait-for-jobs-required"
    POD_DELETION = "pod-deletion-required"
    DRAIN = "drain-required"
    POD_RESTART = "pod-restart-required"
    VALIDATION = "validation-required"
    UNCORDON = "uncordon-required"
    DONE = "upgrade-done"
    FAILED = "upgrade-failed"


AT_REST: Final = frozenset({UpgradeState.REQUIRED, UpgradeState.DONE, UpgradeState.FAILED})
"""The states in which nothing is done to the node."""
ENDED: Final = frozenset({OperationPhase.COMPLETE, OperationPhase.FAILED})
"""Phases of operations that are over."""
AGAIN: Final = frozenset({Result.SUCCEEDED, Result.SUPERSEDED})
"""Results after which a node that needs an upgrade again gets another one by itself."""
_PHASES: Final[Mapping[str, UpgradeState]] = {
    OperationPhase.PENDING: UpgradeState.REQUIRED,
    OperationPhase.CORDONING: UpgradeState.CORDON,
    OperationPhase.DRAINING: UpgradeState.POD_DELETION,
    OperationPhase.ACTING: UpgradeState.POD_RESTART,
    OperationPhase.VERIFYING: UpgradeState.VALIDATION,
    OperationPhase.RESTORING: UpgradeState.UNCORDON,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedDriver:
    """What a DaemonSet's template asks for. ``version`` says how the digest is made; ``release`` is "" if the image's
    tag has none. ``owner`` is the name of its NVIDIADriver, "" if it is the ClusterPolicy's.
    """

    namespace: str
    daemon_set: str
    digest: str
    version: str
    image: str
    owner: str = ""

    @property
    def release(self) -> str:
        """The driver's release."""
        return release_of(self.image)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUpgrade:
    """A node with a driver DaemonSet: what is wanted, what its pod was made for, and how far its upgrade is.

    ``running`` is the release, or else the image, of what runs, "" where nothing does: the wanted driver only does once
    its pod is Ready. ``unsure``: that pod is Ready since its upgrade has failed, and not for long yet. ``former``: that
    is the pod of another DaemonSet of drivers, or of none any more. ``state`` is None without a pod to judge by.
    ``operation`` is the newest one about the wanted driver, or whichever holds the node. ``stranger`` is the pod of
    another controller that keeps the wanted driver's from the node: no upgrade ends that.
    """

    node: str
    node_uid: str
    wanted: WantedDriver
    running: str = ""
    unsure: bool = False
    former: bool = False
    needed: bool = False
    skipped: bool = False
    state: UpgradeState | None = None
    operation: UpgradeOperation | None = None
    stranger: NodeDriverPod | None = None

    @property
    def waits(self) -> bool:
        """Whether a person has to approve it."""
        return self.needed and self.operation is not None and is_pending(self.operation) and not self.operation.approved


def is_pending(operation: UpgradeOperation) -> bool:
    """Whether it has not begun."""
    return operation.phase == OperationPhase.PENDING


def is_over(operation: UpgradeOperation) -> bool:
    """Whether it has ended."""
    return operation.phase in ENDED


def node_upgrades(
    nodes: Iterable[ClusterNode],
    daemon_sets: Mapping[str, Object],
    pods: Iterable[NodeDriverPod],
    operations: Iterable[UpgradeOperation],
) -> dict[str, NodeUpgrade]:
    """The state of every node that exactly one of these DaemonSets installs a driver on, by the node's name."""
    wanted = {name: driver for name, each in daemon_sets.items() if (driver := wanted_driver(each)) is not None}
    if not wanted:
        return {}
    fitting = DriverSets({name: daemon_sets[name] for name in wanted})
    pods_on: dict[str, list[NodeDriverPod]] = {}
    for pod in pods:
        pods_on.setdefault(pod.node, []).append(pod)
    known: dict[str, list[UpgradeOperation]] = {}
    for operation in operations:
        known.setdefault(operation.node, []).append(operation)
    upgrades = {}
    controllers = frozenset({"", *daemon_sets})
    for node in nodes:
        mine = fitting.of(node)
        if len(mine) == 1:
            of_node = [one for one in known.get(node.name, ()) if one.node_uid in ("", node.uid)]
            upgrades[node.name] = _upgrade(node, wanted[mine[0]], pods_on.get(node.name, []), of_node, controllers)
    return upgrades


def wanted_driver(daemon_set: Object) -> WantedDriver | None:
    """What a DaemonSet of drivers asks for, None for another DaemonSet, or one without a digest."""
    if not is_driver(daemon_set):
        return None
    metadata, template = mapping(daemon_set.get("metadata")), mapping(mapping(daemon_set.get("spec")).get("template"))
    made_for = revision_of(template)
    if not made_for.image:
        return None
    return WantedDriver(
        namespace=text(metadata.get("namespace")),
        daemon_set=text(metadata.get("name")),
        digest=made_for.digest,
        version=made_for.rules,
        image=made_for.image,
        owner=node_selector(daemon_set).get(names.LABEL_DRIVER_OWNER, ""),
    )


def _upgrade(
    node: ClusterNode, wanted: WantedDriver, pods: list[NodeDriverPod], operations: list[UpgradeOperation],
    known: frozenset[str],
) -> NodeUpgrade:  # fmt: skip
    """``known`` are the controllers whose pods an upgrade takes away: DaemonSets of drivers, and none."""
    there = [pod for pod in pods if not pod.leaving]
    own = max(
        (pod for pod in there if pod.daemon_set == wanted.daemon_set),
        key=lambda pod: (pod.placed, pod.made, pod.name), default=None,
    )  # fmt: skip
    other = _in_the_way(own, there)
    stranger = other is not None and other.daemon_set not in known
    needed = other is not None or (own is not None and _differs(own, wanted))
    holding = next((one for one in operations if not is_pending(one) and not is_over(one)), None)
    newest = max(
        (one for one in operations if _is_for(one, wanted)), key=lambda one: (one.created, one.name), default=None
    )
    unsure = own is not None and own.fresh and not needed and has_failed(newest)
    up = own is not None and own.ready and not unsure
    return NodeUpgrade(
        node=node.name,
        node_uid=node.uid,
        wanted=wanted,
        running=_driver_of(other or own) if needed or up else "",
        unsure=unsure,
        former=other is not None and not stranger,
        needed=needed,
        skipped=node.labels.get(names.DRIVER_UPGRADE_SKIP) == "true",
        state=_state(needed, own, holding, newest, up=up),
        operation=holding or newest,
        stranger=other if stranger else None,
    )


def _driver_of(pod: NodeDriverPod | None) -> str:
    return "" if pod is None else release_of(pod.image) or pod.image


def _in_the_way(own: NodeDriverPod | None, pods: Iterable[NodeDriverPod]) -> NodeDriverPod | None:
    """The driver's pod that keeps the DaemonSet's own from the node, as they repel each other; None if there is none,
    or its own is there already. One without a controller comes first: an upgrade takes it away.
    """
    if own is not None and own.placed:
        return None
    others = (pod for pod in pods if pod is not own and pod.placed)
    return min(others, key=lambda pod: (bool(pod.daemon_set), pod.name), default=None)


def _differs(pod: NodeDriverPod, wanted: WantedDriver) -> bool:
    """Whether a pod was made for another driver than is wanted."""
    made_for = DriverRevision(digest=pod.digest, rules=pod.digest_version, image=pod.image)
    return not made_for.is_same(DriverRevision(digest=wanted.digest, rules=wanted.version, image=wanted.image))


def _is_for(operation: UpgradeOperation, wanted: WantedDriver) -> bool:
    return (operation.daemon_set, operation.digest) == (wanted.daemon_set, wanted.digest)


def has_failed(operation: UpgradeOperation | None) -> bool:
    """Whether it has ended without the driver that it was to bring, and nobody has cancelled it."""
    return operation is not None and is_over(operation) and operation.result not in {*AGAIN, Result.CANCELLED}


def _state(
    needed: bool, own: NodeDriverPod | None, holding: UpgradeOperation | None, newest: UpgradeOperation | None, *,
    up: bool,
) -> UpgradeState | None:  # fmt: skip
    if holding is not None:
        return state_of(holding)
    # A driver that has come up by itself after all is as good as one that an upgrade has brought.
    if has_failed(newest) and (needed or not up):
        return UpgradeState.FAILED
    if needed:
        return UpgradeState.REQUIRED
    return UpgradeState.DONE if own is not None else None


def state_of(operation: UpgradeOperation) -> UpgradeState:
    """The state of a node whose upgrade has begun."""
    if operation.phase == OperationPhase.DRAINING:
        if operation.reason == WAITING_FOR_PODS:
            return UpgradeState.WAIT_FOR_JOBS
        drain = mapping(operation.spec.get("drain"))
        return UpgradeState.POD_DELETION if drain.get("onlyGpuPods") is True else UpgradeState.DRAIN
    return _PHASES.get(operation.phase, UpgradeState.REQUIRED)
