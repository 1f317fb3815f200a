"""Which objects belong to an owner, by selector and owner reference: orphans that match are adopted, others released.

``claim`` decides, ``settle_claims`` writes. An owner that is being deleted adopts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kgpu.kube.port import KubeRefusedError, Object, Resource, labels_of, namespace_of
from kgpu.lab.embedded.controllers.cache import Cache
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.meta import (
    controller_of,
    deleting,
    key_of,
    owner_reference,
    owners_of,
    selects,
    spec_of,
    uid_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The owner's objects, those to adopt and those to release."""

    owned: tuple[Object, ...]
    adopt: tuple[Object, ...]
    release: tuple[Object, ...]


def claim(owner: Object, candidates: Iterable[Object]) -> Claims:
    """Sort ``candidates`` (the owner's by reference, and those without a controller in its namespace)."""
    selector, uid = spec_of(owner).get("selector"), uid_of(owner)
    owned, adopt, release = [], [], []
    for obj in candidates:
        holder = controller_of(obj)
        matches = selects(selector, labels_of(obj))
        if holder is not None:
            if holder.get("uid") != uid:
                continue
            if matches:
                owned.append(obj)
            elif not deleting(owner):
                release.append(obj)
        elif matches and not deleting(owner) and not deleting(obj):
            adopt.append(obj)
    return Claims(owned=tuple(owned), adopt=tuple(adopt), release=tuple(release))


def index_orphans(cache: Cache) -> None:
    """Add the index by which ``candidates`` finds objects without a controller."""
    cache.index("orphans", lambda obj: () if controller_of(obj) or deleting(obj) else (namespace_of(obj),))


def candidates(cache: Cache, owner: Object) -> list[Object]:
    """The objects that ``claim`` must decide about."""
    return [*cache.select("controller", uid_of(owner)), *cache.select("orphans", namespace_of(owner))]


async def settle_claims(
    cluster: ControllerContext,
    owner_kind: Resource,
    owner: Object,
    cache: Cache,
    candidates: Iterable[Object],
    *,
    finalizer: str = "",
) -> list[Object]:
    """Claim, adopt (adding ``finalizer``) and release; returns the owner's objects. Raises KubeError."""
    claims = claim(owner, candidates)
    owned = list(claims.owned)
    reference = owner_reference(owner_kind, owner)
    for obj in claims.adopt:
        more = [finalizer] if finalizer else []
        adopted = await _set_owners(cluster, cache, obj, [*owners_of(obj), reference], more)
        if adopted is not None:
            owned.append(adopted)
    for obj in claims.release:
        rest = [owner_ref for owner_ref in owners_of(obj) if owner_ref.get("uid") != uid_of(owner)]
        await _set_owners(cluster, cache, obj, rest, [])
    return owned


async def _set_owners(
    cluster: ControllerContext, cache: Cache, obj: Object, owners: list[Object], finalizers: list[str]
) -> Object | None:
    change: Object = {
        "metadata": {
            "uid": uid_of(obj),
            "resourceVersion": obj["metadata"]["resourceVersion"],
            "ownerReferences": owners or None,
        }
    }
    if finalizers:
        have = obj["metadata"].get("finalizers") or ()
        change["metadata"]["finalizers"] = list(dict.fromkeys([*have, *finalizers]))
    try:
        return await cluster.patch(cache.resource, key_of(obj), change)
    except KubeRefusedError as refused:
        if refused.code != 404:
            raise
        return None


def owner_keys(cache: Cache, kind: str) -> Callable[[Object | None, Object | None], list[tuple[str, str]]]:
    """Map a dependent's change to the keys of the owners (of ``kind``, all in ``cache``) that it concerns."""

    def keys(old: Object | None, new: Object | None) -> list[tuple[str, str]]:
        owners = []
        holders = [controller_of(obj) if obj is not None else None for obj in (old, new)]
        for obj, holder in zip((old, new), holders, strict=True):
            if obj is not None and holder is not None and holder.get("kind") == kind:
                owners.append((namespace_of(obj), str(holder.get("name"))))
        if new is None or holders[1] is not None or deleting(new):
            return list(dict.fromkeys(owners))
        if old is None or holders[0] is not None or labels_of(old) != labels_of(new):
            labels = labels_of(new)
            owners += [
                key_of(owner)
                for owner in cache.select("namespace", namespace_of(new))
                if selects(spec_of(owner).get("selector"), labels)
            ]
        return list(dict.fromkeys(owners))

    return keys
