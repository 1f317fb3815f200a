"""Writes the statuses of ClusterPolicies and NVIDIADrivers.

A status is written when it differs from the live one, at most twice a second, so that a starting fleet does not flood
its own policy. ``ready`` is taken back at once, before the operator changes anything, since users may start workloads
because of it. Where the cluster's definition of the kind is older than the operator and does not declare a field, as
NVIDIA's own declares none of kgpu's, the rest is written and advice says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.clock import Clock
from kgpu.base.plain import items, mapping, text
from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.kube.port import KubeApi, KubeRefusedError, Object, Resource, version_of
from kgpu.operator import conditions, projections
from kgpu.operator.model import ClusterPlan
from kgpu.operator.watching import DEVICE_CONFIGS, ClusterWatching

log = logging.getLogger(__name__)

NOT_BEFORE: Final = 0.5  # seconds between two writes of one status
DEFINED_ANEW: Final = 600.0  # seconds until a change makes fields that the definition did not declare tried again
# feed, kind, the plan's statuses
STATUSES: Final[tuple[tuple[str, Resource, Callable[[ClusterPlan], Mapping[str, Object]]], ...]] = (
    ("policies", kinds.CLUSTER_POLICIES, lambda plan: plan.policy_status),
    ("drivers", kinds.NVIDIA_DRIVERS, lambda plan: plan.driver_status),
    (DEVICE_CONFIGS, kinds.DEVICE_CONFIGS, lambda plan: plan.device_config_status),
)
_UNDECLARED: Final = "field not declared in schema"
"""The API server's words in refusing a server-side apply, after the field's path and a colon."""


def _identity(obj: Object) -> Object:
    metadata = obj["metadata"]
    return {key: metadata[key] for key in ("name", "namespace", "uid") if metadata.get(key)}


def key_of(name: str) -> tuple[str, str]:
    """Namespace and name of an object as plans name it: ``namespace/name``, or a name alone."""
    namespace, _, bare = name.rpartition("/")
    return namespace, bare


class Statuses:
    """Writes whole statuses, server-side, under a field manager of their own."""

    def __init__(
        self, api: KubeApi, watching: ClusterWatching, *, clock: Clock, count: Callable[[str], None],
        now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._api = api
        self._watching = watching
        self._clock = clock
        self._count = count
        self._now = now
        self._written: dict[tuple[str, str], tuple[str, str, float]] = {}
        self._undeclared: dict[tuple[str, str], frozenset[str]] = {}
        self.again_at: float | None = None
        """When to write again, None for never."""

    async def take_back(self, plan: ClusterPlan) -> None:
        """Write those that still say ``ready`` and no longer should. Raises as ``write`` does."""
        for resource, name, status, known in self._differing(plan):
            if known["value"].status.get("state") == conditions.STATE_READY != status.get("state"):
                await self._write(resource, name, status, known, at_once=True)

    async def write(self, plan: ClusterPlan) -> None:
        """Write what differs. Raises KubeUnreachableError; a refusal is logged, and retried after the next change."""
        self.again_at = None
        for resource, name, status, known in self._differing(plan):
            await self._write(resource, name, status, known)

    def _differing(self, plan: ClusterPlan) -> Iterator[tuple[Resource, str, Object, Object]]:
        """Yield kind, name, wanted status and live object of the statuses that differ."""
        for feed, resource, statuses in STATUSES:
            live = self._watching.objects(feed)
            for name, status in sorted(statuses(plan).items()):
                known = live.get(key_of(name))
                if known is not None and not same(known["value"].status, status):
                    yield resource, name, status, known

    async def _write(
        self, resource: Resource, name: str, status: Object, known: Object, *, at_once: bool = False
    ) -> None:
        key, wanted, now = (resource.kind, name), projections.digest(status), self._clock.monotonic()
        done, version, at = self._written.get(key, ("", "", now - NOT_BEFORE))
        tried = (done, version) == (wanted, version_of(known))
        if tried and not (self._undeclared.get(key) and now >= at + DEFINED_ANEW):
            return  # the server has changed what was written; writing it again would not help
        if now < at + NOT_BEFORE and not at_once:
            self.again_at = min(self.again_at or at + NOT_BEFORE, at + NOT_BEFORE)
            return
        stamp = stamp_of(self._now())
        body: Object = {
            "metadata": _identity(known),
            "status": conditions.stamp(status, stamp),
        }
        self._count(f"{resource.kind}/status")
        try:
            applied, lacks = await apply_declared(self._api, resource, body)
        except KubeRefusedError as refused:
            if refused.code != 404 and not refused.conflict:
                log.warning("the status of %s/%s: %s", resource.kind, name, refused.one_line())
            self._written[key] = (wanted, version_of(known), now)
            return
        declared = body["status"].keys() - lacks
        self._undeclared[key] = (self._undeclared.get(key, frozenset()) - declared) | lacks
        self._written[key] = (wanted, version_of(applied), now)
        await self._watching.learn(resource, applied)

    def advice(self) -> tuple[Advice, ...]:
        """Warnings about fields that the definitions in the cluster do not declare."""
        by_kind: dict[str, set[str]] = {}
        for (kind, _), fields in self._undeclared.items():
            by_kind.setdefault(kind, set()).update(fields)
        return tuple(_old_definition(kind, fields) for kind, fields in sorted(by_kind.items()) if fields)


async def apply_declared(api: KubeApi, resource: Resource, body: Object) -> tuple[Object, frozenset[str]]:
    """Apply those fields of a status that the cluster's definition of its kind declares.

    Returns the object and the names of the other fields. Raises as KubeApi.apply does.
    """
    left_out: frozenset[str] = frozenset()
    while True:  # an API server may name one field at a time
        status = {key: value for key, value in body["status"].items() if key not in left_out}
        try:
            applied = await api.apply(
                resource, {**body, "status": status}, manager=names.OPERATOR_STATUS_MANAGER, subresource="status"
            )
        except KubeRefusedError as refused:
            lacks = {key for key in status if _is_undeclared(key, refused.what)}
            if not lacks:
                raise
            left_out |= lacks
        else:
            return applied, left_out


def _is_undeclared(key: str, message: str) -> bool:
    """Whether the API server says that a field of the status is not declared, or one in it; never for conditions."""
    if _UNDECLARED not in message or key == "conditions":
        return False
    return any(f".status.{key}{end}" in message for end in ":.[")


def _old_definition(kind: str, lacks: set[str]) -> Advice:
    fields = ", ".join(f"status.{key}" for key in sorted(lacks))
    return Advice(
        what=f"{fields} of {kind} can't be written",
        why="the CustomResourceDefinition in the cluster is older than the operator, or another program's",
        remedy="helm show crds CHART | kubectl apply --server-side --force-conflicts -f - (Helm does it where "
        "operator.upgradeCRD is true)",
        severity=Severity.WARNING,
        reason="OldDefinition",
    )


def same(live: Mapping[str, Any], wanted: Object) -> bool:
    """True when the live status has what is wanted; what others have added to it does not count."""
    by_type = {text(entry.get("type")): entry for entry in map(mapping, items(live.get("conditions")))}
    if items(live.get(conditions.REFUSED)) != items(wanted.get(conditions.REFUSED)):
        return False
    return all(live.get(key) == value for key, value in wanted.items() if key != "conditions") and all(
        by_type.get(entry["type"]) == entry for entry in items(wanted.get("conditions"))
    )
