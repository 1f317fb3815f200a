"""Writes the EndpointSlices that the plan names, and takes away those that it names no more.

Only those that kgpu's operator has made are looked at: slices that Kubernetes makes for a Service carry that Service's
labels, and are left to it. What somebody else changes of kgpu's is put right with the next change of the plan. What the
API server refuses is logged, and tried again.
"""

from __future__ import annotations

import logging
from typing import Final

from kgpu.base.clock import Clock, SystemClock
from kgpu.formats import names
from kgpu.kube.kinds import ENDPOINT_SLICES
from kgpu.kube.port import KubeApi, KubeRefusedError, Object, Selector, name_of

log = logging.getLogger(__name__)

RETRY: Final = 15.0  # seconds
_OURS: Final = Selector(labels=((names.SLICE_MANAGER_LABEL, names.OPERATOR_FIELD_MANAGER),))


class Endpoints:
    """One term's work on EndpointSlices; ``wanted``: there may be some. ``again_at`` is when to try again what was
    refused.
    """

    def __init__(self, api: KubeApi, *, namespace: str, wanted: bool, clock: Clock | None = None) -> None:
        self.again_at: float | None = None
        self._clock = clock or SystemClock()
        self._api = api
        self._namespace = namespace
        self._wanted = wanted
        self._written: tuple[Object, ...] | None = None
        self._told = ""

    async def converge(self, slices: tuple[Object, ...]) -> None:
        """Raises KubeError when the API server does not answer."""
        self.again_at = None
        if not self._wanted or slices == self._written:
            return
        self._written = None  # until all is as it should be
        try:
            live = await self._api.list(ENDPOINT_SLICES, namespace=self._namespace, selector=_OURS)
            for one in slices:
                await self._api.apply(ENDPOINT_SLICES, one, manager=names.OPERATOR_FIELD_MANAGER)
            for gone in {name_of(one) for one in live.items} - {name_of(one) for one in slices}:
                await self._api.delete(ENDPOINT_SLICES, gone, namespace=self._namespace)
        except KubeRefusedError as refused:
            said = refused.one_line()
            if said != self._told:
                log.warning("the endpoints of DeviceConfigs' Services are not as they should be: %s", said)
            self._told = said
            self.again_at = self._clock.monotonic() + RETRY
            return
        self._written, self._told = slices, ""
