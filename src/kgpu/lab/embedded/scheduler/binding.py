"""Waits until the devices of a pod's claims are attached to its node, as kube-scheduler does before it binds the pod.

Source: PreBind and isPodReadyForBinding of dynamicresources.go, Kubernetes 1.35. It looks every five seconds, this at
each change of a claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from kgpu.fit.binding import BINDING_TIMEOUT_S
from kgpu.fit.model import ClaimView, Key
from kgpu.fit.snapshot import ClusterSnapshot
from kgpu.lab.embedded.scheduler.claim_writing import ClaimWritingError


class BindingWait:
    """Of one scheduler. ``changed`` is to be called at every change of a claim."""

    def __init__(self, snapshot: ClusterSnapshot, timeout: float = BINDING_TIMEOUT_S) -> None:
        self._snapshot = snapshot
        self._timeout = timeout
        self._waiting: set[asyncio.Event] = set()

    def changed(self) -> None:
        for event in self._waiting:
            event.set()

    async def attached(self, keys: Iterable[Key], begins: Callable[[], None]) -> None:
        """Return once the claims' devices are attached; ``begins`` is called before a wait.

        Raises ClaimWritingError, in the scheduler's words, when a device can't be attached or takes too long.
        """
        wanted = list(keys)
        if not any(claim.binding is not None for claim in self._claims(wanted)):
            return
        begins()
        news = asyncio.Event()
        self._waiting.add(news)
        try:
            async with asyncio.timeout(self._timeout):
                while not self._ready(wanted):
                    await news.wait()
                    news.clear()
        except TimeoutError:
            raise ClaimWritingError("device binding timeout") from None
        finally:
            self._waiting.discard(news)

    def _ready(self, keys: Iterable[Key]) -> bool:
        now = self._snapshot.now()
        for claim in self._claims(keys):
            if claim.binding is None or claim.binding.ready:
                continue
            if claim.binding.failure:
                raise ClaimWritingError(claim.binding.failure)
            if claim.binding.late(now):
                raise ClaimWritingError(f"claim {claim.name} binding timeout")
            return False
        return True

    def _claims(self, keys: Iterable[Key]) -> list[ClaimView]:
        """Raises ClaimWritingError for one that is gone."""
        found = []
        for key in keys:
            claim = self._snapshot.shelf.claims.get(key)
            if claim is None:
                raise ClaimWritingError(f'resourceclaim.resource.k8s.io "{key[1]}" not found')
            found.append(claim)
        return found
