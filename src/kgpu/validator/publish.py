"""The Node as the validator uses it: writes the condition ``kgpu.dev/Validated``, reads resources and runtime."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from kgpu.base.errors import KubeError
from kgpu.formats.names import (
    ACCELERATOR_DOMAINS,
    VALIDATED_CONDITION,
    VALIDATION_ANNOTATION,
    VALIDATOR_FIELD_MANAGER,
)
from kgpu.formats.validation_report import encode
from kgpu.kube.conditions import NodeConditionWriter
from kgpu.kube.nodes import get_node
from kgpu.kube.port import KubeApi
from kgpu.validator.checks.plugin import NodeResources
from kgpu.validator.plan import ValidatedCondition

_MAX_COUNT: Final = 1 << 40


class ConditionPublisher(Protocol):
    """Writes this node's condition and the report."""

    async def publish(self, condition: ValidatedCondition) -> None:
        """Raises KubeError."""
        ...


@dataclass
class MemoryNode:
    """The fake of both ports: keeps what was published and returns ``node``; ``refuse`` makes both fail."""

    node: NodeResources = field(default_factory=NodeResources)
    published: list[ValidatedCondition] = field(default_factory=list)
    refuse: KubeError | None = None

    async def publish(self, condition: ValidatedCondition) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.published.append(condition)

    async def facts(self) -> NodeResources:
        if self.refuse is not None:
            raise self.refuse
        return self.node


class NodeObject:
    """Both ports over the API server."""

    def __init__(self, api: KubeApi, *, node: str, now: Callable[[], float] = time.time) -> None:
        self._api = api
        self._node = node
        self._condition = NodeConditionWriter(
            api, node=node, kind=VALIDATED_CONDITION, manager=VALIDATOR_FIELD_MANAGER, now=now
        )

    async def publish(self, condition: ValidatedCondition) -> None:
        """Raises KubeError."""
        data = {VALIDATION_ANNOTATION: encode(condition.report)}
        await self._condition.write(condition.status, condition.reason, condition.message, annotations=data)

    async def withdraw(self) -> None:
        """Remove condition and annotation. Raises KubeError."""
        await self._condition.withdraw()

    async def facts(self) -> NodeResources:
        """What the Node shows. Raises KubeError."""
        status = _dict((await get_node(self._api, self._node)).get("status"))
        runtime = _dict(status.get("nodeInfo")).get("containerRuntimeVersion")
        return NodeResources(
            capacity=_counts(status.get("capacity")),
            allocatable=_counts(status.get("allocatable")),
            runtime=runtime if isinstance(runtime, str) else "",
        )


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _counts(value: object) -> dict[str, int]:
    """The extended resources of accelerators, whose counts come as strings."""
    return {
        name: min(int(count), _MAX_COUNT)
        for name, count in _dict(value).items()
        if name.partition("/")[0] in ACCELERATOR_DOMAINS
        and isinstance(count, str)
        and count.isdecimal()
        and count.isascii()
    }
