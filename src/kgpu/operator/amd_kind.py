"""The shell around AMD's DeviceConfigs: makes their kind where it is missing, and takes AMD's finalizer off.

The kind may be AMD's own, which is left as it is; kgpu never removes it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kgpu.formats import names
from kgpu.formats.crd.definitions import amd_crds
from kgpu.kube.definitions import define
from kgpu.kube.kinds import DEVICE_CONFIGS
from kgpu.kube.port import KubeApi, KubeRefusedError
from kgpu.operator import watching
from kgpu.operator.model import DeviceConfig

log = logging.getLogger(__name__)


class AmdKind:
    """One term's work on DeviceConfigs; ``wanted``: they are followed."""

    def __init__(self, api: KubeApi, followed: watching.ClusterWatching, *, wanted: bool) -> None:
        self._api = api
        self._watching = followed
        self._undefined = wanted

    async def converge(self, released: Iterable[DeviceConfig]) -> None:
        """Raises KubeError when the API server does not answer; a refusal is logged, and tried again later."""
        if self._undefined:
            try:
                await define(self._api, amd_crds())
                self._undefined = False
            except KubeRefusedError as refused:
                log.warning("the kind DeviceConfig can't be made: %s", refused.one_line())
        for config in released:
            await self._release(config)

    async def _release(self, config: DeviceConfig) -> None:
        known = self._watching.objects(watching.DEVICE_CONFIGS).get((config.namespace, config.name))
        if known is None or known["metadata"].get("uid") != config.uid:
            return
        left = [finalizer for finalizer in config.finalizers if finalizer != names.AMD_DEVICECONFIG_FINALIZER]
        version = known["metadata"].get("resourceVersion")
        change = {"metadata": {"finalizers": left, "resourceVersion": version}}
        try:
            await self._api.patch(DEVICE_CONFIGS, config.name, change, namespace=config.namespace)
        except KubeRefusedError as refused:
            if refused.code != 404 and not refused.conflict:
                log.warning("the finalizer of DeviceConfig %s stays: %s", config.key, refused.one_line())
