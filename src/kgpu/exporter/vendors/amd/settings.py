"""What is in effect of the configuration of AMD's exporter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RocmConfig:
    """What is in effect. ``fields`` None is all; ``pod_labels`` are (label, the pod's label). ``health_service``: it is
    served; ``debug_api``: errors may be pretended there.
    """

    port: int | None = None
    prefix: str = ""
    fields: frozenset[str] | None = None
    labels: frozenset[str] = frozenset()
    custom: tuple[tuple[str, str], ...] = ()
    pod_labels: tuple[tuple[str, str], ...] = ()
    health_service: bool = True
    debug_api: bool = False

    @property
    def asks_pods(self) -> bool:
        """Whether it needs uids or labels of pods, which the API server alone has."""
        return bool(self.pod_labels) or "pod_uuid" in self.labels

    def wants(self, field: str) -> bool:
        """Whether a metric is exported."""
        return self.fields is None or field in self.fields
