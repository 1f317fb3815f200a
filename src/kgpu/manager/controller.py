"""The interface of a controller, the cluster half of a component. Components implement it without importing it."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from kgpu.kube.port import KubeApi


class LeaderController(Protocol):
    """The cluster half of a component. It always watches, and works while this process leads."""

    @property
    def name(self) -> str:
        """The name for logs."""
        ...

    async def watch(self) -> None:
        """Follow the cluster until cancelled. API errors never end it; whatever does ends the process."""
        ...

    def missing(self) -> Collection[str]:
        """What has not been read from the cluster yet; once it is empty, the process is ready to lead."""
        ...

    def term(self, api: KubeApi) -> Sequence[Coroutine[Any, Any, None]]:
        """The work of one term as the leader: at least one coroutine, each of which runs until it is cancelled.

        ``api`` writes only while this process leads: a later write raises LostLeadError, which must not be caught.
        """
        ...

    def ended(self) -> None:
        """Called when the term is over, for whatever reason."""
        ...

    def failed(self, error: Exception) -> None:
        """Called when the work died of a defect; it is restarted after a moment."""
        ...

    def metrics(self) -> str:
        """The metrics in Prometheus' text format."""
        ...

    def status(self) -> Mapping[str, object]:
        """What the status page shows."""
        ...
