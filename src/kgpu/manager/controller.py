"""A controller is the cluster half of a component. Components have its methods and do not import it."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from kgpu.kube.port import KubeApi


class LeaderController(Protocol):
    """The cluster half of a component. It watches all the time, and works while this process leads."""

    @property
    def name(self) -> str:
        """For logs."""
        ...

    async def watch(self) -> None:
        """Follow the cluster until cancelled. API errors never end it; whatever does ends the process."""
        ...

    def missing(self) -> Collection[str]:
        """What of the cluster has not been read yet; who has read all is ready to lead."""
        ...

    def term(self, api: KubeApi) -> Sequence[Coroutine[Any, Any, None]]:
        """The work of one term as the leader: at least one coroutine, each of which runs until it is cancelled.

        ``api`` writes only while this process leads: a write after that raises LostLeadError, which has to pass.
        """
        ...

    def ended(self) -> None:
        """The term is over, for whatever reason."""
        ...

    def failed(self, error: Exception) -> None:
        """The work died of a defect; it begins anew after a moment."""
        ...

    def metrics(self) -> str:
        """In Prometheus' text format."""
        ...

    def status(self) -> Mapping[str, object]:
        """For the page that says all."""
        ...
