"""Makes the cluster's objects what the plan says: server-side apply, drift put back, the rest pruned.

An object is applied when what is wanted differs from what was applied last, when it is gone, or when the fields that
the operator had applied are no longer its own: somebody else has changed them. Otherwise nothing is written. One object
that the API server refuses does not stop the others; it is tried again with growing pauses. An API server that does not
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
from kgpu.operator import seen
from kgpu.operator.leaving import outliving
from kgpu.operator.model import ClusterPlan, OperatorSettings
from kgpu.operator.watching import ClusterWatching

log = logging.getLogger(__name__)

Id = tuple[Resource, str, str]
"""Kind, namespace ("" for none) and name."""

CONCURRENCY: Final = 8
RETRY: Final = 15.0  # seconds; the controller of DaemonSets by itself waits up to 17 minutes
LOOK_AGAIN: Final = 60.0  # seconds until an object that is a stranger's is looked at again
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
    """What was applied last to one object. ``stranger``: it is somebody else's and as wanted, and is left alone."""

    wanted: str
    uid: str
    owned: str
    at: float
    stranger: bool = False


@dataclass(slots=True)
class ApplyTrouble:
    """An object that can't be applied now: until when it is left alone, and for which wish."""

    backoff: Backoff
    wanted: str = ""
    until: float = 0.0


class Applier:
    """The hands for everything but Nodes and statuses. Not shared between two passes at once."""

    def __init__(
        self,
        api: KubeApi,
        watching: ClusterWatching,
        settings: OperatorSettings,
        *,
        clock: Clock,
        count: Callable[[str], None],
    ) -> None:
        """``count`` is told of every write, with the kind."""
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
        """When to come again although nothing may have changed; None for never."""

    async def converge(self, plan: ClusterPlan) -> None:
        """Apply and prune. Raises KubeUnreachableError; what is refused is in ``errors``."""
        self.again_at = None
        wanted = {self._id(obj): outliving(obj, self._owner) for obj in plan.objects}
        self.errors = {key: said for key, said in self.errors.items() if key in {_shown(one) for one in wanted}}
        for turn in _in_turn(wanted):
            await self._each(turn.items())
        await self._prune(frozenset(wanted), plan)
        await self._retry(plan.retry)

    async def _each(self, pairs: Iterable[tuple[Id, Object]]) -> None:
        due = [(one, obj) for one, obj in pairs if self._needs(one, obj)]
        limit = asyncio.Semaphore(CONCURRENCY)

        async def apply(one: Id, obj: Object) -> None:
            async with limit:
                await self._apply(one, obj, self._id_digest(obj))

        async with asyncio.TaskGroup() as group:
            for one, obj in due:
                group.create_task(apply(one, obj))

    def _needs(self, one: Id, obj: Object) -> bool:
        """True when the object has to be applied now; otherwise what there is to wait for is in ``again_at``."""
        wanted, live, record = self._id_digest(obj), self._watching.live(*one), self._records.get(one)
        now = self._clock.monotonic()
        if live is not None and live["metadata"].get("deletionTimestamp"):
            return False  # its end is news, and then it is made anew
        trouble = self._troubles.get(one)
        if trouble is not None and trouble.wanted == wanted and now < trouble.until:
            self._come_at(trouble.until)
            return False
        if record is None or record.wanted != wanted:
            return True
        if record.stranger:
            self._come_at(record.at + LOOK_AGAIN)
            return now >= record.at + LOOK_AGAIN
        if live is not None and live["metadata"].get("uid") == record.uid and live[seen.OWNED] == record.owned:
            self._troubles.pop(one, None)
            return False
        return self._put_back(one, live, now)

    def _put_back(self, one: Id, live: Object | None, now: float) -> bool:
        """Drift: at once the first time, with growing pauses where somebody does it again and again."""
        fight = self._fights.setdefault(one, ApplyTrouble(Backoff(_FOUGHT_OVER)))
        if now < fight.until:
            self._come_at(fight.until)
            return False
        quiet = now - fight.until if fight.until else 0.0
        fight.until = now + fight.backoff.next_delay(ran_for=quiet)
        what = "is gone and is made again" if live is None else "was changed and is put back"
        log.log(logging.INFO if fight.backoff.failures < 3 else logging.WARNING, "%s %s", _shown(one), what)
        return True

    async def _apply(self, one: Id, obj: Object, wanted: str) -> None:
        resource, namespace, name = one
        try:
            if resource in _SHARED and self._watching.live(*one) is None and await self._is_strangers(one, obj, wanted):
                return
            body = {**obj, "metadata": {**obj["metadata"], **({"namespace": namespace} if namespace else {})}}
            self._count(resource.kind)
            made = await self._api.apply(resource, body, manager=names.OPERATOR_FIELD_MANAGER)
        except KubeRefusedError as refused:
            if await self._replaced(one, refused):
                return
            self._refused(one, wanted, refused.what)
        else:
            uid = text(mapping(made.get("metadata")).get("uid"))
            self._records[one] = AppliedObject(wanted, uid, seen.owned(made), self._clock.monotonic())
            self._troubles.pop(one, None)
            self.errors.pop(_shown(one), None)
            log.debug("applied %s/%s, now %s", resource.kind, name, version_of(made))
            await self._watching.learn(resource, made)

    async def _is_strangers(self, one: Id, obj: Object, wanted: str) -> bool:
        """True when somebody else has made an object of that name: it is left alone, and in order if it does the same.

        A RuntimeClass ``nvidia`` is part of some distributions; taking it over would remove it at the end.
        """
        resource, namespace, name = one
        found = await self._api.get(resource, name, namespace=namespace)
        labels = strings(mapping((found or {}).get("metadata")).get("labels"))
        if found is None or is_operators(found) or labels.get(names.COMPONENT_LABEL) == _REPLACED_COMPONENT:
            return False
        if all(found.get(key) == value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")):
            uid = text(found["metadata"].get("uid"))
            self._records[one] = AppliedObject(wanted, uid, "", self._clock.monotonic(), stranger=True)
            self._troubles.pop(one, None)
            self.errors.pop(_shown(one), None)
        else:
            self._refused(one, wanted, f"{_shown(one)} is there already, made by somebody else, and is another")
        return True

    async def _replaced(self, one: Id, refused: KubeRefusedError) -> bool:
        """An operator's object whose fixed fields differ is removed, to be made anew; True when that was done."""
        resource, namespace, name = one
        live = self._watching.live(*one)
        if refused.code != 422 or "immutable" not in refused.what or live is None or not is_operators(live):
            return False
        log.info("%s can't be changed and is made anew: %s", _shown(one), refused.what)
        self._count(resource.kind)
        uid = text(live["metadata"].get("uid"))
        await self._api.delete(resource, name, namespace=namespace, uid=uid, propagation="Background")
        self._records.pop(one, None)
        self._come_at(self._clock.monotonic())
        return True

    def _refused(self, one: Id, wanted: str, said: str) -> None:
        trouble = self._troubles.setdefault(one, ApplyTrouble(Backoff(_REFUSED)))
        if trouble.wanted != wanted:
            trouble.backoff.reset()
        if self.errors.get(_shown(one)) != said:
            log.warning("%s: %s", _shown(one), said)
        self.errors[_shown(one)] = said
        trouble.wanted = wanted
        trouble.until = self._clock.monotonic() + trouble.backoff.next_delay()
        self._come_at(trouble.until)

    async def _retry(self, refused: frozenset[str]) -> None:
        """Touch DaemonSets whose pods are refused: only news makes their controller try again soon."""
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
                with contextlib.suppress(KubeRefusedError):  # it is another one by now, or gone
                    await self._api.patch(kinds.DAEMON_SETS, name, change, namespace=self._namespace)
                self._retried[name] = now
                due = now + RETRY
            self._come_at(due)

    async def _prune(self, wanted: frozenset[Id], plan: ClusterPlan) -> None:
        """Delete what carries the operator's mark and is not wanted, users of a thing before the thing."""
        for resource, live in reversed(list(self._watching.managed())):
            metadata = live["metadata"]
            one = (resource, namespace_of(live), name_of(live))
            state = strings(metadata.get("labels")).get(names.LABEL_OPERATOR_STATE)
            if one in wanted or metadata.get("deletionTimestamp") or not is_operators(live) or state in plan.keep:
                continue
            if self._is_used(one):
                continue
            await self._delete(one, metadata, orphan=name_of(live) in plan.orphan)
        await self._take_back_labels(wanted)
        for one in self._records.keys() - wanted:
            del self._records[one]
            self._troubles.pop(one, None)
            self._fights.pop(one, None)

    def _is_used(self, one: Id) -> bool:
        """True while pods of an operand that goes still run: they take back what they have published."""
        resource, _, name = one
        users = [row.daemon_set for row in OPERANDS if row.role and row.account == name]
        if resource not in kinds.ACCOUNTS or not users:
            return False
        return any(pod["owner"] in users for pod in self._watching.objects("pods").values())

    async def _take_back_labels(self, wanted: frozenset[Id]) -> None:
        """The operator's own Namespace stays when it is not wanted any more; what was applied to it goes."""
        one = (kinds.NAMESPACES, "", self._namespace)
        live = self._watching.live(*one)
        if live is not None and live[seen.OWNED] and one not in wanted:
            body: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._namespace}}
            await self._apply(one, body, seen.digest(body))

    async def _delete(self, one: Id, metadata: Mapping[str, object], *, orphan: bool) -> None:
        resource, namespace, name = one
        trouble = self._troubles.get(one)
        if trouble is not None and trouble.wanted == "" and self._clock.monotonic() < trouble.until:
            self._come_at(trouble.until)
            return
        log.info("%s is not wanted any more and is deleted", _shown(one))
        self._count(resource.kind)
        try:
            await self._api.delete(
                resource, name, namespace=namespace, uid=text(metadata.get("uid")),
                propagation="Orphan" if orphan else "Background",
            )  # fmt: skip
        except KubeRefusedError as refused:
            if not refused.conflict:  # it is another object by now, of which there will be news
                self._refused(one, "", refused.what)

    def _id(self, obj: Object) -> Id:
        resource = kinds.resource_of(obj)
        assert resource is not None, f"{obj.get('apiVersion')} {obj.get('kind')} is no kind that the operator manages"
        return resource, (namespace_of(obj) or self._namespace) if resource.namespaced else "", name_of(obj)

    @staticmethod
    def _id_digest(obj: Object) -> str:
        return seen.digest(obj)

    def _come_at(self, when: float) -> None:
        self.again_at = when if self.again_at is None else min(self.again_at, when)


def _in_turn(wanted: Mapping[Id, Object]) -> Iterable[dict[Id, Object]]:
    """What can be applied side by side, one after the other."""
    later = [resource for turn in _LATER for resource in turn]
    yield {one: obj for one, obj in wanted.items() if one[0] not in later}
    for turn in _LATER:
        yield {one: obj for one, obj in wanted.items() if one[0] in turn}


def is_operators(live: Object) -> bool:
    """True for what this operator made, or the one that it replaces: by label, or by the policy that owns it."""
    metadata = mapping(live.get("metadata"))
    if names.LABEL_OPERATOR_STATE in strings(metadata.get("labels")):
        return True
    owners = map(mapping, items(metadata.get("ownerReferences")))
    return any(
        owner.get("kind") in _POLICY_KINDS and text(owner.get("apiVersion")).startswith(names.NVIDIA_DOMAIN + "/")
        for owner in owners
    )


def _shown(one: Id) -> str:
    return f"{one[0].kind}/{one[2]}"
