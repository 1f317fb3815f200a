"""From a ClusterPolicy and a few nodes to what the operator makes of them, for rows about either."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from kgpu.base.advice import Advice
from kgpu.operator.model import ClusterPlan, NodeLayout, Object
from kgpu.operator.plan import plan
from tests.operator.world import SETTINGS, condition_of, node_object, policy, report, world

AS_OPERANDS = dataclasses.replace(SETTINGS, layout=NodeLayout.OPERANDS)


def planned(
    spec: Mapping[str, Any], *nodes: Object, layout: NodeLayout = NodeLayout.AGENT, **fields: Any
) -> ClusterPlan:
    """The plan for a settled cluster of these nodes under a ClusterPolicy with that spec."""
    settings = dataclasses.replace(SETTINGS, layout=layout)
    return plan(world(*nodes, settings=settings, policies=(policy(spec=dict(spec)),), **fields), settings)


def daemon_sets(made: ClusterPlan) -> dict[str, Object]:
    return {one["metadata"]["name"]: one for one in made.objects if one["kind"] == "DaemonSet"}


def why(made: ClusterPlan, kind: str) -> tuple[str, str]:
    """Status and reason of one of the policy's conditions."""
    found = condition_of(made, kind)
    return found["status"], found["reason"]


def told(made: ClusterPlan, reason: str) -> list[Advice]:
    """What becomes Events and log lines, with this reason."""
    return [one for one in made.advice if one.reason == reason]


def lacks(text: str, *words: str) -> list[str]:
    """Which of these a text does not say."""
    return [word for word in words if word not in text]


def bare_node(name: str = "n1", **changes: Any) -> Object:
    """A GPU node whose agent has found no driver."""
    said = msgspec.structs.replace(report(), driver="", driver_source="", cuda="")
    return node_object(name, report=said, **changes)
