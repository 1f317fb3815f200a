"""DaemonSets: one pod on each node that the template fits, and rolling updates of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kgpu.base.errors import KubeError
from kgpu.kube.informer import Key
from kgpu.kube.port import NODES, PODS, Object, Resource, labels_of, name_of
from kgpu.lab.embedded.controllers import ownership
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController, itself
from kgpu.lab.embedded.controllers.daemonset_plan import (
    DaemonSetStep,
    ObservedDaemonSet,
    new_pod,
    plan,
    plan_status,
    plan_update,
    target_node,
)
from kgpu.lab.embedded.controllers.kinds import CONTROLLER_REVISIONS, DAEMON_SETS
from kgpu.lab.embedded.controllers.meta import deleting, is_empty_selector, key_of, spec_of, uid_of
from kgpu.lab.embedded.controllers.podcontrol import BURST, create_pods, delete_pods
from kgpu.lab.embedded.controllers.pods import is_terminal, next_available
from kgpu.lab.embedded.controllers.revisions import clean_up, hash_of, sync_history

_GATHER = 0.05  # seconds, so that a thousand starting pods take only a few syncs
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 900.0  # seconds before a failed daemon pod is replaced


class DaemonSetController(ObjectController):
    name = "daemonset-controller"

    def __init__(self, cluster: ControllerContext) -> None:
        super().__init__(cluster)
        self._sets = cluster.cache(DAEMON_SETS)
        self._pods = cluster.cache(PODS)
        self._nodes = cluster.cache(NODES)
        ownership.index_orphans(self._pods)
        self._owners = ownership.owner_keys(self._sets, "DaemonSet")
        self._failures: dict[tuple[str, str], tuple[float, float]] = {}
        """By DaemonSet's uid and node: the pause in seconds, and when (seconds since the epoch) the pod was deleted."""

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {
            DAEMON_SETS: itself,
            PODS: self._pod_keys,
            NODES: self._node_keys,
            CONTROLLER_REVISIONS: lambda *_: (),
        }

    def _pod_keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        for key in self._owners(old, new):
            self.queue.add_after(key, _GATHER)
        return ()

    def _node_keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        if old is not None and new is not None:
            taints = [spec_of(node).get("taints") for node in (old, new)]
            if labels_of(old) == labels_of(new) and taints[0] == taints[1]:
                return ()
        for ds in self._sets:
            self.queue.add_after(key_of(ds), _GATHER)
        return ()

    async def sync(self, key: Key) -> float | None:
        ds = self._sets.get(key)
        if ds is None or deleting(ds):
            return None
        if is_empty_selector(spec_of(ds).get("selector")):
            text = "This daemon set is selecting all pods. A non-empty selector is required."
            self.emit(ds, "Warning", "SelectingAll", text)
            return None
        history = await sync_history(self.cluster, DAEMON_SETS, ds)
        revision = hash_of(history.current)
        observed = await self._look(ds, revision)
        waits = self._waits(ds, observed)
        problem = await self._perform(ds, plan(observed, waits), revision)
        strategy = (spec_of(ds).get("updateStrategy") or {}).get("type", "RollingUpdate")
        if problem is None and strategy == "RollingUpdate":
            problem = await self._perform(ds, plan_update(await self._look(ds, revision)), revision)
        pods = self._pods.select("controller", uid_of(ds))
        await clean_up(self.cluster, ds, history, pods)
        await self.cluster.set_status(DAEMON_SETS, ds, plan_status(await self._look(ds, revision)))
        if problem is not None:
            raise problem
        again = [*waits.values()]
        soon = next_available(pods, observed.min_ready, self.cluster.now())
        return min([*again, *([soon] if soon is not None else [])], default=None)

    async def _look(self, ds: Object, revision: str) -> ObservedDaemonSet:
        pods = await ownership.settle_claims(
            self.cluster, DAEMON_SETS, ds, self._pods, ownership.candidates(self._pods, ds)
        )
        by_node: dict[str, list[Object]] = {}
        gone = frozenset(uid_of(pod) for pod in pods if self._pods.is_doomed(pod))
        for pod in pods:
            if not (is_terminal(pod) and uid_of(pod) in gone):
                by_node.setdefault(target_node(pod), []).append(pod)
        nodes: Sequence[Object] = sorted(self._nodes, key=name_of)
        return ObservedDaemonSet(ds, nodes, by_node, gone, revision, self.cluster.now())

    def _waits(self, ds: Object, observed: ObservedDaemonSet) -> dict[str, float]:
        """Nodes whose failed pod must stay a little longer, and for how many seconds."""
        now = observed.now.timestamp()
        waits = {}
        for node in observed.places:
            pause, at = self._failures.get((uid_of(ds), node), (0.0, 0.0))
            if now - at < pause:
                waits[node] = pause - (now - at)
        return waits

    async def _perform(self, ds: Object, step: DaemonSetStep, revision: str) -> KubeError | None:
        for kind, reason, message in step.events:
            self.emit(ds, kind, reason, message)
        for node in step.failed:
            pause, at = self._failures.get((uid_of(ds), node), (0.0, 0.0))
            now = self.cluster.now().timestamp()
            fresh = not pause or now - at > 2 * _LAST_PAUSE
            self._failures[uid_of(ds), node] = (_FIRST_PAUSE if fresh else min(_LAST_PAUSE, 2 * pause), now)
        pods = [new_pod(DAEMON_SETS, ds, node, revision) for node in step.create[:BURST]]
        _, error = await create_pods(self, ds, pods)
        problem = await delete_pods(self, ds, step.delete[:BURST])
        return error or problem
