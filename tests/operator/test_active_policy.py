"""Which ClusterPolicy is in force."""

from __future__ import annotations

import pytest

from kgpu.operator.active_policy import choose_policy
from kgpu.operator.model import ObservedCluster, Policy
from kgpu.operator.plan import plan
from tests.operator.world import SETTINGS, healthy_node, policy, world

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


@pytest.mark.parametrize(
    ("policies", "winner", "ignored"),
    [
        ((), None, ()),
        ((policy("b", created=OLD), policy("a", created=NEW)), "b", ("a",)),
        ((policy("a", created=NEW), policy("b", created=OLD)), "b", ("a",)),
        ((policy("b", created=OLD), policy("a", created=OLD)), "a", ("b",)),
        ((policy("a", created=""), policy("b", created=NEW)), "b", ("a",)),
        ((policy("a", created=OLD, deleting=True), policy("b", created=NEW)), "b", ()),
        ((policy("a", created=OLD, deleting=True),), None, ()),
    ],
)
def test_the_oldest_wins(policies: tuple[Policy, ...], winner: str | None, ignored: tuple[str, ...]) -> None:
    active = choose_policy(ObservedCluster(policies=policies))
    found = active.policy.name if active.policy else None
    assert (found, tuple(one.name for one in active.ignored)) == (winner, ignored)


def test_when_the_policy_goes_all_of_the_operators_goes() -> None:
    observed = world(healthy_node(), policies=(policy(),))
    leaving = ObservedCluster(nodes=observed.nodes, daemon_sets=observed.daemon_sets, policies=(policy(deleting=True),))
    made = plan(leaving, SETTINGS)
    assert (made.hold, made.objects, [dict(one.labels) for one in made.nodes]) == (False, (), [{}])
