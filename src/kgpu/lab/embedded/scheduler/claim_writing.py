"""Writes what pods' claims are granted before the pods are bound, and takes reservations back, as kube-scheduler does.

Source: dynamicresources.go of Kubernetes 1.35: bindClaim, Unreserve, PostFilter.
"""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from kgpu.base.errors import KubeError
from kgpu.fit import PodView, read
from kgpu.fit.claims import NAME
from kgpu.fit.devices.reservations import ClaimGrant, claim_of_extended, claim_status
from kgpu.fit.extended import ExtendedClaim
from kgpu.fit.model import ClaimView
from kgpu.formats.names import CLAIM_FINALIZER
from kgpu.kube.port import PODS, KubeApi, KubeRefusedError, Object, Patch, version_of
from kgpu.lab.embedded.controllers.cluster import wall_clock
from kgpu.lab.embedded.controllers.controller import refusal_text
from kgpu.lab.embedded.controllers.kinds import RESOURCE_CLAIMS
from kgpu.lab.embedded.controllers.meta import stamp

log = logging.getLogger(__name__)

_TRIES: Final = 5  # client-go's DefaultRetry


class ClaimWritingError(Exception):
    """A claim that can't be written; the words are the scheduler's."""

    def __init__(self, words: str) -> None:
        super().__init__(f'running PreBind plugin "{NAME}": {words}')


class ClaimWriter:
    """``learn`` is told of every claim as it was written."""

    def __init__(
        self, api: KubeApi, learn: Callable[[Object], Awaitable[None]], now: Callable[[], dt.datetime] = wall_clock
    ) -> None:
        self._api = api
        self._now = now
        self._learn = learn
        self._made: dict[str, ClaimView] = {}
        """Claims for extended resources of pods that are not bound yet, by the pod's uid."""

    def made(self, pod: PodView) -> ClaimView | None:
        """The claim that was made for the pod's extended resources, while it is not bound."""
        return self._made.get(pod.uid)

    async def grant(self, pod: PodView, grants: Sequence[ClaimGrant]) -> None:
        """Write allocations and reservations. Raises ClaimWritingError; what was written before stays."""
        for grant in grants:
            if grant.extended is not None:
                await self._make(pod, grant, grant.extended)
            elif pod.uid not in grant.claim.reserved_for:
                await self._retried(pod, grant)

    async def _make(self, pod: PodView, grant: ClaimGrant, extended: ExtendedClaim) -> None:
        try:
            made = await self._api.create(RESOURCE_CLAIMS, claim_of_extended(extended, pod))
        except KubeError as error:
            words = f"create claim for extended resources {pod.namespace}/: {refusal_text(error)}"
            raise ClaimWritingError(words) from error
        view = read.claim(made)
        assert view is not None
        self._made[pod.uid] = view
        await self._retried(pod, replace(grant, claim=view))
        status = {"resourceClaimName": view.name, "requestMappings": list(extended.mappings)}
        change = {"metadata": {"uid": pod.uid}, "status": {"extendedResourceClaimStatus": status}}
        try:
            await self._api.patch(
                PODS, pod.name, change, namespace=pod.namespace, subresource="status", kind=Patch.STRATEGIC
            )
        except KubeError as error:
            words = f"update pod {pod} ExtendedResourceClaimStatus: {refusal_text(error)}"
            raise ClaimWritingError(words) from error

    async def _retried(self, pod: PodView, grant: ClaimGrant) -> None:
        """Once more with the claim as it is now when another has written it meanwhile."""
        for attempt in range(_TRIES):
            try:
                await self._write(pod, grant)
            except KubeRefusedError as refused:
                if refused.code != 409 or attempt == _TRIES - 1:
                    raise ClaimWritingError(_failed(grant, refused)) from refused
            except KubeError as error:
                raise ClaimWritingError(_failed(grant, error)) from error
            else:
                return

    async def _write(self, pod: PodView, grant: ClaimGrant) -> None:
        view = grant.claim
        claim = await self._api.get(RESOURCE_CLAIMS, view.name, namespace=view.namespace)
        shown = f"{view.namespace}/{view.name}"
        if claim is None or claim["metadata"].get("uid") != view.uid or claim["metadata"].get("deletionTimestamp"):
            raise ClaimWritingError(f"claim {shown} got deleted in the meantime")
        status = claim.get("status") or {}
        if grant.allocation is not None:
            if status.get("allocation") is not None:
                raise ClaimWritingError(f"claim {shown} got allocated elsewhere in the meantime")
            claim = await self._protected(claim)
        await self._learn(
            await self._patch(
                claim, {"status": claim_status(grant, status, pod, _share_id, stamp(self._now()))}, subresource="status"
            )
        )

    async def _protected(self, claim: Object) -> Object:
        finalizers = claim["metadata"].get("finalizers") or []
        if CLAIM_FINALIZER in finalizers:
            return claim
        try:
            return await self._patch(claim, {"metadata": {"finalizers": [*finalizers, CLAIM_FINALIZER]}})
        except KubeRefusedError as refused:
            if refused.code == 409:
                raise
            named = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
            raise ClaimWritingError(f"add finalizer to claim {named}: {refusal_text(refused)}") from refused

    async def _patch(self, claim: Object, change: Object, subresource: str = "") -> Object:
        """Fails if the claim has changed meanwhile."""
        metadata = {**change.get("metadata", {}), "resourceVersion": version_of(claim)}
        about = claim["metadata"]
        return await self._api.patch(
            RESOURCE_CLAIMS, about["name"], {**change, "metadata": metadata}, namespace=about["namespace"],
            subresource=subresource,
        )  # fmt: skip

    async def take_back(self, pod: PodView, grants: Sequence[ClaimGrant]) -> None:
        """The pod is not bound after all: it no longer uses the claims, which keep their devices."""
        for grant in grants:
            if grant.extended is None:
                await self._changed(grant.claim, lambda status: _without(status, pod.uid))
        made = self._made.pop(pod.uid, None)
        if made is not None:
            await self.remove(made)

    def bound(self, pod: PodView) -> None:
        """The pod has its node: its claims are no more the scheduler's concern."""
        self._made.pop(pod.uid, None)

    async def remove(self, view: ClaimView) -> None:
        """Delete a claim that was made for extended resources."""
        try:
            claim = await self._api.get(RESOURCE_CLAIMS, view.name, namespace=view.namespace)
            if claim is None or claim["metadata"].get("uid") != view.uid:
                return
            left = [name for name in claim["metadata"].get("finalizers") or () if name != CLAIM_FINALIZER]
            await self._patch(claim, {"metadata": {"finalizers": left}})
            await self._api.delete(RESOURCE_CLAIMS, view.name, namespace=view.namespace, uid=view.uid)
        except KubeError as error:
            log.warning("claim %s/%s: %s", view.namespace, view.name, error.one_line())

    async def deallocate(self, view: ClaimView) -> None:
        """Give the claim's devices back, as it is of no use where it is."""
        await self._changed(view, lambda _: {"reservedFor": None, "allocation": None, "devices": None})

    async def _changed(self, view: ClaimView, change: Callable[[Object], Object | None]) -> None:
        """Change the claim's status; a refusal is logged, as the next attempt comes here again."""
        try:
            claim = await self._api.get(RESOURCE_CLAIMS, view.name, namespace=view.namespace)
            status = change(claim.get("status") or {}) if claim is not None else None
            if claim is not None and status is not None and claim["metadata"].get("uid") == view.uid:
                await self._learn(await self._patch(claim, {"status": status}, subresource="status"))
        except KubeError as error:
            log.warning("claim %s/%s: %s", view.namespace, view.name, error.one_line())


def _without(status: Object, uid: str) -> Object | None:
    users = status.get("reservedFor") or []
    left = [user for user in users if user.get("uid") != uid]
    return {"reservedFor": left or None} if len(left) < len(users) else None


def _failed(grant: ClaimGrant, error: KubeError) -> str:
    what = "reservation" if grant.allocation is None else "allocation and reservation"
    return f"add {what} to claim {grant.claim.namespace}/{grant.claim.name}: {refusal_text(error)}"


def _share_id() -> str:
    return str(uuid.uuid4())
