"""Rules that the replaced operator's chart brings with ``nfd.nodefeaturerules``, as rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kgpu.discovery.rules.model import RuleSource
from kgpu.formats.crd.nodefeatures import FeatureMatcherTerm, FeatureRule, MatchExpression
from kgpu.formats.names import NVIDIA_DOMAIN

NAME: Final = "nvidia-kernel-modules"
MODULES: Final = (("gdrdrv", "gdrcopy.capable"), ("nvidia_fs", "gds.capable"), ("nvidia_peermem", "peermem.capable"))
"""A kernel module, and the label that says that it is loaded."""


def _rule(module: str, label: str) -> FeatureRule:
    term = FeatureMatcherTerm(feature="kernel.loadedmodule", match_expressions={module: MatchExpression(op="Exists")})
    labels = {f"{NVIDIA_DOMAIN}/{label}": "true"}
    return FeatureRule(name=f"kernel-module-{module}", labels=labels, match_features=(term,))


BUILT_IN: Final = RuleSource(name=NAME, rules={place: _rule(*row) for place, row in enumerate(MODULES)})


def with_built_in(sources: Iterable[RuleSource]) -> list[RuleSource]:
    """The cluster's rules, and those built in unless the cluster has an object of their name."""
    found = list(sources)
    return found if any(source.name == NAME for source in found) else [*found, BUILT_IN]
