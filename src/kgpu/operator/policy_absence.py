"""Makes sure that a ClusterPolicy is gone before anything is taken down because of that.

One wrong "there is none" would stop the GPUs of a whole cluster. So two sources have to agree: the operator's watch,
which has seen the policy go, and a new list of all policies. Until then the operator changes nothing. What can look
like an absence: a server that has just started and does not serve custom resources yet, a watch that has missed
something, a proxy in front of another server, a store that was restored from a backup.
"""

from __future__ import annotations

from typing import Final

from kgpu.base.clock import Clock
from kgpu.base.errors import KubeError
from kgpu.base.plain import mapping, text
from kgpu.kube import kinds
from kgpu.kube.port import KubeApi, KubeRefusedError, Object, name_of, version_of
from kgpu.operator.model import ObservedCluster
from kgpu.operator.watching import GONE_AFTER, GONE_TIMES, POLICIES, ClusterWatching

_KIND: Final = kinds.plural_and_group(kinds.CLUSTER_POLICIES)
_NOTHING: Final = "nothing; the operator changes nothing until that is known, and asks again"


class PolicyUncertainError(KubeError):
    """It is not certain which policy is in force, so nothing may be changed."""


class PolicyAbsence:
    """Checks whether the absence of policies is certain. One per term as the leader."""

    def __init__(self, api: KubeApi, watching: ClusterWatching, *, clock: Clock) -> None:
        self._api = api
        self._watching = watching
        self._clock = clock
        self._known = 0  # the newest version of a policy that was seen
        self._last: frozenset[str] | None = None  # the policies by uid, when their number was certain last
        self._refused: tuple[int, float] | None = None  # how often the kind was not served, and since when

    async def check(self, observed: ObservedCluster) -> None:
        """Return when every policy that was there still is, or is certainly gone.

        Raises PolicyUncertainError, or the KubeError of the request.
        """
        if not self._watching.knows_policies:
            raise PolicyUncertainError(
                f"the API server does not serve {_KIND}, so that no policy is known",
                "the CustomResourceDefinitions of the chart",
                "install them (kgpu crds, or helm install); until then nothing is changed",
            )
        watched = frozenset(policy.uid for policy in observed.policies)
        if watched:
            self._known = max(_number(version_of(obj)) for obj in self._watching.objects(POLICIES).values())
        if (self._last is None and not watched) or (self._last or watched) - watched:
            await self._ask(watched)
        self._last, self._refused = watched, None

    async def _ask(self, watched: frozenset[str]) -> None:
        try:
            listing = await self._api.list(kinds.CLUSTER_POLICIES, project=_essence)
        except KubeRefusedError as refused:
            if refused.code != 404:
                raise
            self._not_served()
            return
        self._refused = None
        unseen = sorted(name_of(obj) for obj in listing.items if not obj["ends"] and obj["uid"] not in watched)
        if unseen:
            raise PolicyUncertainError(
                f"ClusterPolicy {unseen[0]} is there, but was said to be gone", "one answer of the API server", _NOTHING
            )
        if not watched and 0 < _number(listing.resource_version) < self._known:
            raise PolicyUncertainError(
                "there is no ClusterPolicy any more, but because the API server has gone back to an older state "
                f"(version {listing.resource_version} after {self._known}), as after a restored backup",
                "a state in which the policy is gone that comes after the one in which it was there",
                "apply the ClusterPolicy again, or, if there is to be none, restart the operator",
            )

    def _not_served(self) -> None:
        """The kind counts as gone together with its last object once it has been missing often and long enough."""
        times, since = self._refused or (0, self._clock.monotonic())
        self._refused = times + 1, since
        if times + 1 < GONE_TIMES or self._clock.monotonic() - since < GONE_AFTER:
            raise PolicyUncertainError(
                f"the API server does not serve {_KIND} at the moment", "the kind, or its end", _NOTHING
            )


def _essence(obj: Object) -> Object:
    metadata = mapping(obj.get("metadata"))
    kept = {key: metadata[key] for key in ("name", "resourceVersion") if key in metadata}
    return {"metadata": kept, "uid": text(metadata.get("uid")), "ends": bool(text(metadata.get("deletionTimestamp")))}


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
