"""Makes the cluster's objects what the plan says: applies them server-side, reverts drift, prunes the rest.

An object is applied when what is wanted differs from what was applied last, when it is gone, or when the operator no
longer owns fields that it had applied, because somebody else has changed them. Otherwise nothing is written. An object
that the API server refuses does not stop the others; it is retried with growing pauses. An API server that does not
answer ends the pass with its error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock
from kgpu.base.plain import items, mapping, strings, text
from kgpu.formats import names
from kgpu.formats.operands import OPERANDS
from kgpu.kube import kinds
from kgpu.kube.port import (
    KubeApi,
    KubeRefusedError,
    Object,
    Resource,
    name_of,
    namespace_of,
    version_of,
)
from kgpu.operator import projections
from kgpu.operator.leaving import outliving_policy
from kgpu.operator.model import ClusterPlan, OperatorSettings
from kgpu.operator.watching import ClusterWatching

log = logging.getLogger(__name__)

Id = tuple[Resource, str, str]
"""Kind, namespace ("" for none) and name."""

CONCURRENCY: Final = 8
RETRY: Final = 15.0  # seconds; the controller of DaemonSets by itself waits up to 17 minutes
LOOK_AGAIN: Final = 60.0  # seconds until an object of another owner is looked at again
_REFUSED: Final = BackoffPolicy(first=0.1, cap=3.0, factor=2.0, jitter=0.3, healthy_after=60.0)
_FOUGHT_OVER: Final = BackoffPolicy(first=0.2, cap=30.0, factor=2.0, jitter=0.3, healthy_after=60.0)
# Applied after all others, in turn: a binding is refused while its role is not there, and a DaemonSet comes after what
# its pods use.
_LATER: Final = ((kinds.ROLE_BINDINGS, kinds.CLUSTER_ROLE_BINDINGS), (kinds.DAEMON_SETS,))
# Kinds whose objects may have been made by a cluster's installer under the very name that the operator uses.
_SHARED: Final = (kinds.RUNTIME_CLASSES,)
_REPLACED_COMPONENT: Final = "gpu-operator"  # what the replaced operator's RuntimeClasses are labelled with
_POLICY_KINDS: Final = frozenset({"ClusterPolicy", "NVIDIADriver"})


@dataclass(slots=True)
class AppliedObject:
    """What was applied last to one object. ``stranger``: another owner's object with the wanted content, left alone."""

    wanted: str
    uid: str
    owned: str
    at: float
    stranger: bool = False


@dataclass(slots=True)
class ApplyTrouble:
    """An object that can't be applied now: when to try again, and the digest of the content that was refused."""

    backoff: Backoff
    wanted: str = ""
    until: float = 0.0


class Applier:
    """Writes every object but Nodes and statuses. Two passes may not use it at the same time."""

    def __init__(
        self,
        api: KubeApi,
        watching: ClusterWatching,
        settings: OperatorSettings,
        *,
        clock: Clock,
        count: Callable[[str], None],
    ) -> None:
        """``count`` is called with the kind of every object written."""
        self._api = api
        self._watching = watching
        self._namespace = settings.namespace
        self._owner = settings.owner
        self._clock = clock
        self._count = count
        self._records: dict[Id, AppliedObject] = {}
        self._troubles: dict[Id, ApplyTrouble] = {}
        self._fights: dict[Id, ApplyTrouble] = {}
        self._retried: dict[str, float] = {}
        self.errors: dict[str, str] = {}
        """What the API server refused last, by ``Kind/name``."""
        self.again_at: float | None = None
        """When to run the next pass even if nothing changes; None for never."""

    async def converge(self, plan: ClusterPlan) -> None:
        """Apply and prune. Raises KubeUnreachableError; what is refused is in ``errors``."""
        self.again_at = None
        wanted = {self._id(obj): outliving_policy(obj, self._owner) for obj in plan.objects}
        self.errors = {
            key: message for key, message in self.errors.items() if key in {_shown(object_id) for object_id in wanted}
        }
        for turn in _in_turn(wanted):
            await self._each(turn.items())
        await self._prune(frozenset(wanted), plan)
        await self._retry(plan.retry)

    async def _each(self, pairs: Iterable[tuple[Id, Object]]) -> None:
        due = [(object_id, obj) for object_id, obj in pairs if self._needs(object_id, obj)]
        limit = asyncio.Semaphore(CONCURRENCY)

        async def apply(object_id: Id, obj: Object) -> None:
            async with limit:
                await self._apply(object_id, obj, self._id_digest(obj))

        async with asyncio.TaskGroup() as group:
            for object_id, obj in due:
                group.create_task(apply(object_id, obj))

    def _needs(self, object_id: Id, obj: Object) -> bool:
        """True when the object has to be applied now; otherwise sets ``again_at`` if there is something to wait for."""
        wanted, live, record = self._id_digest(obj), self._watching.live(*object_id), self._records.get(object_id)
        now = self._clock.monotonic()
        if live is not None and live["metadata"].get("deletionTimestamp"):
            return False  # once it is gone, the watch says so and it is created again
        trouble = self._troubles.get(object_id)
        if trouble is not None and trouble.wanted == wanted and now < trouble.until:
            self._come_at(trouble.until)
            return False
        if record is None or record.wanted != wanted:
            return True
        if record.stranger:
            self._come_at(record.at + LOOK_AGAIN)
            return now >= record.at + LOOK_AGAIN
        if live is not None and live["metadata"].get("uid") == record.uid and live[projections.OWNED] == record.owned:
            self._troubles.pop(object_id, None)
            return False
        return self._put_back(object_id, live, now)

    def _put_back(self, object_id: Id, live: Object | None, now: float) -> bool:
        """Whether to revert drift now: at once the first time, then with growing pauses while it keeps happening."""
        fight = self._fights.setdefault(object_id, ApplyTrouble(Backoff(_FOUGHT_OVER)))
        if now < fight.until:
            self._come_at(fight.until)
            return False
        quiet = now - fight.until if fight.until else 0.0
        fight.until = now + fight.backoff.next_delay(ran_for=quiet)
        what = "is gone and is made again" if live is None else "was changed and is put back"
        log.log(logging.INFO if fight.backoff.failures < 3 else logging.WARNING, "%s %s", _shown(object_id), what)
        return True

    async def _apply(self, object_id: Id, obj: Object, wanted: str) -> None:
        resource, namespace, name = object_id
        try:
            if (
                resource in _SHARED
                and self._watching.live(*object_id) is None
                and await self._is_strangers(object_id, obj, wanted)
            ):
                return
            body = {**obj, "metadata": {**obj["metadata"], **({"namespace": namespace} if namespace else {})}}
            self._count(resource.kind)
            applied = await self._api.apply(resource, body, manager=names.OPERATOR_FIELD_MANAGER)
        except KubeRefusedError as refused:
            if await self._replaced(object_id, refused):
                return
            self._refused(object_id, wanted, refused.what)
        else:
            uid = text(mapping(applied.get("metadata")).get("uid"))
            self._records[object_id] = AppliedObject(wanted, uid, projections.owned(applied), self._clock.monotonic())
            self._troubles.pop(object_id, None)
            self.errors.pop(_shown(object_id), None)
            log.debug("applied %s/%s, now %s", resource.kind, name, version_of(applied))
            await self._watching.learn(resource, applied)

    async def _is_strangers(self, object_id: Id, obj: Object, wanted: str) -> bool:
        """True when somebody else has created an object of that name: it is left alone, and fine with the same content.

        Some distributions ship a RuntimeClass ``nvidia``; taking it over would remove it when kgpu is uninstalled.
        """
        resource, namespace, name = object_id
        live = await self._api.get(resource, name, namespace=namespace)
        labels = strings(mapping((live or {}).get("metadata")).get("labels"))
        if live is None or is_operators(live) or labels.get(names.COMPONENT_LABEL) == _REPLACED_COMPONENT:
            return False
        if all(live.get(key) == value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")):
            uid = text(live["metadata"].get("uid"))
            self._records[object_id] = AppliedObject(wanted, uid, "", self._clock.monotonic(), stranger=True)
            self._troubles.pop(object_id, None)
            self.errors.pop(_shown(object_id), None)
        else:
            self._refused(
                object_id, wanted, f"{_shown(object_id)} is there already with other content, and was not made by kgpu"
            )
        return True

    async def _replaced(self, object_id: Id, refused: KubeRefusedError) -> bool:
        """Delete an operator's object whose immutable fields differ, so that it is created again; True when deleted."""
        resource, namespace, name = object_id
        live = self._watching.live(*object_id)
        if refused.code != 422 or "immutable" not in refused.message or live is None or not is_operators(live):
            return False
        log.info("%s can't be changed and is made anew: %s", _shown(object_id), refused.what)
        self._count(resource.kind)
        uid = text(live["metadata"].get("uid"))
        await self._api.delete(resource, name, namespace=namespace, uid=uid, propagation="Background")
        self._records.pop(object_id, None)
        self._come_at(self._clock.monotonic())
        return True

    def _refused(self, object_id: Id, wanted: str, message: str) -> None:
        trouble = self._troubles.setdefault(object_id, ApplyTrouble(Backoff(_REFUSED)))
        if trouble.wanted != wanted:
            trouble.backoff.reset()
        if self.errors.get(_shown(object_id)) != message:
            log.warning("%s: %s", _shown(object_id), message)
        self.errors[_shown(object_id)] = message
        trouble.wanted = wanted
        trouble.until = self._clock.monotonic() + trouble.backoff.next_delay()
        self._come_at(trouble.until)

    async def _retry(self, refused: frozenset[str]) -> None:
        """Touch DaemonSets whose pods are refused: only a change makes their controller try again soon."""
        self._retried = {name: at for name, at in self._retried.items() if name in refused}
        now = self._clock.monotonic()
        for name in sorted(refused):
            live = self._watching.live(kinds.DAEMON_SETS, self._namespace, name)
            due = self._retried.setdefault(name, now) + RETRY
            if live is not None and now >= due:
                change: Object = {
                    "metadata": {
                        "uid": live["metadata"].get("uid"),
                        "annotations": {names.RETRIED_ANNOTATION: datetime.now(UTC).isoformat(timespec="seconds")},
                    }
                }
                self._count("DaemonSet")
                with contextlib.suppress(KubeRefusedError):  # replaced by another one, or gone
                    await self._api.patch(kinds.DAEMON_SETS, name, change, namespace=self._namespace)
                self._retried[name] = now
                due = now + RETRY
            self._come_at(due)

    async def _prune(self, wanted: frozenset[Id], plan: ClusterPlan) -> None:
        """Delete the operator's objects that are not wanted, each after those that use it."""
        for resource, live in reversed(list(self._watching.managed())):
            metadata = live["metadata"]
            object_id = (resource, namespace_of(live), name_of(live))
            state = strings(metadata.get("labels")).get(names.LABEL_OPERATOR_STATE)
            orphan = resource == kinds.DAEMON_SETS and name_of(live) in plan.orphan
            kept = state in plan.keep and not orphan
            if object_id in wanted or metadata.get("deletionTimestamp") or not is_operators(live) or kept:
                continue
            if self._is_used(object_id):
                continue
            await self._delete(object_id, metadata, orphan=orphan)
        await self._take_back_labels(wanted)
        for object_id in self._records.keys() - wanted:
            del self._records[object_id]
            self._troubles.pop(object_id, None)
            self._fights.pop(object_id, None)

    def _is_used(self, object_id: Id) -> bool:
        """True while pods of a removed operand still run: they need their account to take back what they published."""
        resource, _, name = object_id
        users = [row.daemon_set for row in OPERANDS if row.role and row.account == name]
        if resource not in kinds.ACCOUNTS or not users:
            return False
        return any(pod["owner"] in users for pod in self._watching.objects("pods").values())

    async def _take_back_labels(self, wanted: frozenset[Id]) -> None:
        """Remove the labels that were applied to the operator's own Namespace, which itself stays."""
        object_id = (kinds.NAMESPACES, "", self._namespace)
        live = self._watching.live(*object_id)
        if live is not None and live[projections.OWNED] and object_id not in wanted:
            body: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._namespace}}
            await self._apply(object_id, body, projections.digest(body))

    async def _delete(self, object_id: Id, metadata: Mapping[str, object], *, orphan: bool) -> None:
        resource, namespace, name = object_id
        trouble = self._troubles.get(object_id)
        if trouble is not None and trouble.wanted == "" and self._clock.monotonic() < trouble.until:
            self._come_at(trouble.until)
            return
        log.info("%s is not wanted any more and is deleted", _shown(object_id))
        self._count(resource.kind)
        try:
            await self._api.delete(
                resource, name, namespace=namespace, uid=text(metadata.get("uid")),
                propagation="Orphan" if orphan else "Background",
            )  # fmt: skip
        except KubeRefusedError as refused:
            if not refused.conflict:  # replaced by another object, which the watch will show
                self._refused(object_id, "", refused.what)

    def _id(self, obj: Object) -> Id:
        resource = kinds.resource_of(obj)
        assert resource is not None, f"{obj.get('apiVersion')} {obj.get('kind')} is no kind that the operator manages"
        return resource, (namespace_of(obj) or self._namespace) if resource.namespaced else "", name_of(obj)

    @staticmethod
    def _id_digest(obj: Object) -> str:
        return projections.digest(obj)

    def _come_at(self, when: float) -> None:
        self.again_at = when if self.again_at is None else min(self.again_at, when)


def _in_turn(wanted: Mapping[Id, Object]) -> Iterable[dict[Id, Object]]:
    """Yield groups of objects in the order to apply them; those of one group can be applied concurrently."""
    later = [resource for turn in _LATER for resource in turn]
    yield {object_id: obj for object_id, obj in wanted.items() if object_id[0] not in later}
    for turn in _LATER:
        yield {object_id: obj for object_id, obj in wanted.items() if object_id[0] in turn}


def is_operators(live: Object) -> bool:
    """True for objects of this operator or the one that it replaces: by label, or by the policy that owns them."""
    metadata = mapping(live.get("metadata"))
    if names.LABEL_OPERATOR_STATE in strings(metadata.get("labels")):
        return True
    owners = map(mapping, items(metadata.get("ownerReferences")))
    return any(
        owner.get("kind") in _POLICY_KINDS and text(owner.get("apiVersion")).startswith(names.NVIDIA_DOMAIN + "/")
        for owner in owners
    )


def _shown(object_id: Id) -> str:
    return f"{object_id[0].kind}/{object_id[2]}"
