"""What prometheus-adapter makes of its rules: the question that it puts to Prometheus, and the answer for each pod."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kgpu.formats import yaml

FILE: Final = Path(__file__).parents[2] / "docs" / "samples" / "prometheus-adapter.yaml"
_RESOURCES: Final = {"namespace": "namespace", "pod": "pod"}


@dataclass(frozen=True)
class AdapterRule:
    """One rule, whose labels of namespace and pod are called so."""

    metric: str
    series: str
    query: str

    @property
    def name(self) -> str:
        """Of the series."""
        return self.series.partition("{")[0]

    def asked(self, namespace: str, pods: Sequence[str]) -> str:
        """The query for some pods of a namespace, as the adapter's templates are filled in."""
        words = {
            "Series": self.name,
            "LabelMatchers": f'namespace="{namespace}",pod=~"{"|".join(pods)}"',
            "GroupBy": "pod",
        }
        return re.sub(r"<<\.(\w+)>>", lambda hit: words[hit[1]], self.query)


def rules() -> dict[str, AdapterRule]:
    """The rules of the sample, by the metric that they offer."""
    found: list[Any] = yaml.load(FILE.read_text())["rules"]
    for rule in found:
        assert {key: one["resource"] for key, one in rule["resources"]["overrides"].items()} == _RESOURCES
    return {one["name"]["as"]: AdapterRule(one["name"]["as"], one["seriesQuery"], one["metricsQuery"]) for one in found}
