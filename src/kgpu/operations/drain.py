"""Which pods have to leave a node, in what order they are asked, and what they wait for. Pure.

The rules are those of ``kubectl drain --ignore-daemonsets`` (kubectl's filters, in their order): if one pod may not go
when the drain begins, no pod is evicted. Two things differ. A pod that tolerates the cordon and was created after it
stays: kubectl looks once and does not see it, and evicting it would only bring the next one. A pod that is already
terminating is not evicted again; the wait for it is limited if the node's kubelet, which would end it, is down.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.printable import one_line
from kgpu.fit.selector_text import parse_selector
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import MAX_WAITING, DrainProgress, OperationDrain, WaitingPod
from kgpu.operations.model import MAX_WHY, Answer, NodePod

AT_ONCE: Final = 10
"""How many pods are evicted in one step."""
NAMED: Final = 5
"""How many pods a message names."""
STRANDED_SECONDS: Final = 60.0
"""How long after its grace period the drain waits for a pod whose node's kubelet does not answer."""
_DAEMON_SET: Final = "DaemonSet"


class Fate(enum.StrEnum):
    """What becomes of a pod when its node is emptied."""

    EVICT = "evict"
    LEAVE = "leave"
    REFUSE = "refuse"  # it may not go: its owner decides
    ASK = "ask"  # not known yet


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFate:
    """A pod, what becomes of it, and why if it does not go."""

    pod: NodePod
    fate: Fate
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """What is known besides the pods. ``answers`` are those to evictions, by the pod's uid. ``daemon_sets`` says
    whether a DaemonSet that pods name, as (namespace, name), exists; one that is missing has not been looked up yet.
    ``cordoned_at`` is when the node was cordoned, by the API server's clock. ``own_pod`` is the engine's own pod, which
    stays to give the node back. ``exchanges_driver``: the driver is unloaded next, so every pod with GPUs has to go;
    ``driver_pod`` is the uid of the one that is exchanged then.
    """

    answers: Mapping[str, Answer] = field(default_factory=dict)
    daemon_sets: Mapping[tuple[str, str], bool] = field(default_factory=dict)
    cordoned_at: float | None = None
    own_pod: tuple[str, str] = ("", "")
    exchanges_driver: bool = False
    driver_pod: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainState:
    """The state of a drain. ``refused`` pods may not go, ``evict`` are to be evicted now, ``waiting`` are all that
    still have to go. ``stranded`` were evicted, but their kubelet does not answer and the drain no longer waits for
    them. Disruption budgets refuse to evict those in ``held``; of ``forcible`` nothing else is known that refuses it.
    ``hopeless`` is why the remaining ones can never go, "" while they may. ``unsure`` is True while the fate of some
    pods is not known.
    """

    refused: tuple[PodFate, ...] = ()
    evict: tuple[NodePod, ...] = ()
    waiting: tuple[WaitingPod, ...] = ()
    stranded: tuple[WaitingPod, ...] = ()
    forcible: tuple[NodePod, ...] = ()
    held: tuple[NodePod, ...] = ()
    hopeless: str = ""
    unsure: bool = False

    @property
    def done(self) -> bool:
        """True once no pod has to go any more."""
        return not self.waiting and not self.refused


def fate(pod: NodePod, drain: OperationDrain, known: Evicted) -> PodFate:
    """What becomes of one pod."""
    kind, name = pod.owner
    if (pod.namespace, pod.name) == known.own_pod:
        return PodFate(pod=pod, fate=Fate.LEAVE, why="it is kgpu's own operator, which has to give the node back")
    if known.driver_pod and pod.uid == known.driver_pod:
        return PodFate(pod=pod, fate=Fate.LEAVE, why="it is the driver's, which is exchanged once the others have gone")
    if why := _not_meant(pod, drain, known):
        return PodFate(pod=pod, fate=Fate.LEAVE, why=why)
    if kind == _DAEMON_SET and not pod.ended:
        there = known.daemon_sets.get((pod.namespace, name))
        if there is None:
            return PodFate(pod=pod, fate=Fate.ASK, why="whether its DaemonSet is there is not known yet")
        if there:
            return PodFate(pod=pod, fate=Fate.LEAVE, why="a DaemonSet's")
        if not drain.force:
            return PodFate(pod=pod, fate=Fate.REFUSE, why=f"its DaemonSet {name:.100} is gone (force evicts it anyway)")
    if pod.mirror:
        return PodFate(pod=pod, fate=Fate.LEAVE, why="a static pod's mirror")
    if _came_later(pod, known):
        return PodFate(pod=pod, fate=Fate.LEAVE, why="it tolerates the cordon and came after it")
    if pod.empty_dirs and not pod.ended and not drain.delete_empty_dir_data:
        return PodFate(pod=pod, fate=Fate.REFUSE, why="it would lose what is in its emptyDir (deleteEmptyDirData)")
    if not kind and not pod.ended and not drain.force:
        return PodFate(pod=pod, fate=Fate.REFUSE, why="no controller would recreate it (force)")
    return PodFate(pod=pod, fate=Fate.EVICT)


def _not_meant(pod: NodePod, drain: OperationDrain, known: Evicted) -> str:
    """Why the drain is not about this pod, "" if it is. NVIDIA's upgrade policy has these rules."""
    if pod.uses_gpus and known.exchanges_driver:
        return ""
    if drain.only_gpu_pods and not pod.uses_gpus:
        return "it asks for no GPU (onlyGpuPods)"
    if not parse_selector(drain.pod_selector).matches(pod.labels):
        return "it does not have the labels that are meant (podSelector)"
    if known.exchanges_driver and pod.labels.get(names.DRIVER_UPGRADE_DRAIN_SKIP) == "true":
        return f"it stays by its label {names.DRIVER_UPGRADE_DRAIN_SKIP}"
    return ""


def _came_later(pod: NodePod, known: Evicted) -> bool:
    """Whether a pod was created after its node was cordoned; both times are the API server's."""
    if not pod.tolerates_cordon or pod.ended or known.cordoned_at is None or pod.created is None:
        return False
    return pod.created > known.cordoned_at


def drain_state(
    pods: Sequence[NodePod], drain: OperationDrain, known: Evicted, *, node_ready: bool, now: float, monotonic: float
) -> DrainState:
    """The state of the drain of the node that these pods are on."""
    fates = [fate(pod, drain, known) for pod in sorted(pods, key=lambda pod: pod.where)]
    refused = tuple(row for row in fates if row.fate is Fate.REFUSE and row.pod.deleted_at is None)
    asked = [row.pod for row in fates if row.fate is not Fate.LEAVE and row.pod.deleted_at is not None]
    stranded = [] if node_ready else [pod for pod in asked if now > (pod.deleted_at or 0.0) + STRANDED_SECONDS]
    ending = [pod for pod in asked if pod not in stranded]
    asking = [row.pod for row in fates if row.fate is Fate.EVICT and row.pod.deleted_at is None]
    unknown = [row for row in fates if row.fate is Fate.ASK and row.pod.deleted_at is None]
    due = [pod for pod in asking if _due(pod, known, monotonic)]
    answers = [known.answers[pod.uid] for pod in asking if pod.uid in known.answers]
    fatal = [answer for answer in answers if answer.fatal]
    held = [pod for pod in asking if pod.uid in known.answers and known.answers[pod.uid].by_budget]
    return DrainState(
        refused=refused,
        evict=tuple(due[:AT_ONCE]),
        waiting=(
            *(_waiting(pod, _why(pod, known, node_ready=node_ready, now=now)) for pod in (*asking, *ending)),
            *(_waiting(row.pod, row.why) for row in unknown),
        ),
        stranded=tuple(_waiting(pod, "it may still run, as its node's kubelet does not answer") for pod in stranded),
        forcible=tuple(pod for pod in asking if pod in held or not _is_fatal(pod, known)),
        held=tuple(held),
        unsure=bool(unknown),
        # The others go first, as in kubectl.
        hopeless=fatal[0].why if fatal and len(fatal) == len(asking) and not (ending or unknown) else "",
    )  # fmt: skip


def _waiting(pod: NodePod, why: str) -> WaitingPod:
    return WaitingPod(namespace=pod.namespace, name=pod.name, why=why)


def _is_fatal(pod: NodePod, known: Evicted) -> bool:
    answer = known.answers.get(pod.uid)
    return answer is not None and answer.fatal


def _due(pod: NodePod, known: Evicted, now: float) -> bool:
    answer = known.answers.get(pod.uid)
    return answer is None or (not answer.fatal and now >= answer.again_at)


def _why(pod: NodePod, known: Evicted, *, node_ready: bool, now: float) -> str:
    """What a pod that has to go waits for."""
    if pod.deleted_at is None:
        answer = known.answers.get(pod.uid)
        return one_line(answer.why, MAX_WHY) if answer is not None else "it is about to be asked"
    if not node_ready:
        return "it ends once its node's kubelet answers again"
    if now <= pod.deleted_at:
        return "it is ending"
    if pod.finalizers:
        return f"it is kept by its finalizer {pod.finalizers[0]:.100}"
    return "it should have ended by now"


def progress(state: DrainState, before: DrainProgress | None) -> DrainProgress:
    """The drain's progress for the record. ``gone`` never falls, whatever pods appear later."""
    blocked = tuple(_waiting(row.pod, row.why) for row in state.refused)
    rows = (*blocked, *state.waiting, *state.stranded)
    remaining = len(rows)
    total = before.total if before is not None else remaining
    gone = max(before.gone if before is not None else 0, total - remaining)
    return DrainProgress(total=gone + remaining, gone=gone, waiting=rows[:MAX_WAITING])


def named(pods: Sequence[PodFate | WaitingPod]) -> str:
    """The first ``NAMED`` pods with their reasons, for a message."""
    rows = [
        (row.pod.where, row.why) if isinstance(row, PodFate) else (f"{row.namespace}/{row.name}", row.why)
        for row in pods
    ]
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return "; ".join(f"{where}: {why}" for where, why in rows[:NAMED]) + more
