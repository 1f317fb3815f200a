"""Makes kinds that an API server lacks."""

from __future__ import annotations

from collections.abc import Iterable

from kgpu.kube.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kgpu.kube.port import KubeApi, KubeRefusedError, Object, name_of


async def define(api: KubeApi, definitions: Iterable[Object]) -> None:
    """Make those definitions that are missing; those that others have made stay as they are. Raises KubeError."""
    for definition in definitions:
        if await api.get(CUSTOM_RESOURCE_DEFINITIONS, name_of(definition)) is None:
            try:
                await api.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
            except KubeRefusedError as refused:
                if not refused.conflict:
                    raise
