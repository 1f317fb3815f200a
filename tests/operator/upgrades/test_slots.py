"""How many upgrades may begin now: the formula of NVIDIA's operator, row by row."""

from __future__ import annotations

import dataclasses

import pytest

from kgpu.base.advice import Advice
from kgpu.operator.upgrade_rules import UpgradeRules
from kgpu.operator.upgrade_slots import upgrade_slots
from kgpu.operator.upgrades import NodeUpgrade, UpgradeState, WantedDriver

REQUIRED, AT_WORK, CORDON, DONE = (
    UpgradeState.REQUIRED, UpgradeState.POD_RESTART, UpgradeState.CORDON, UpgradeState.DONE,
)  # fmt: skip


def rules(parallel: int = 1, share: int | str = "25%", *, auto: bool = True, name: str = "p") -> UpgradeRules:
    given = {"name": name, "maxParallel": parallel, "maxUnavailable": share}
    return UpgradeRules(asked_by=f"ClusterPolicy {name}", auto=auto, rollout=given)


def nodes(*states: UpgradeState, daemon_set: str = "d", first: int = 1) -> list[NodeUpgrade]:
    wanted = WantedDriver(namespace="n", daemon_set=daemon_set, digest="2", version="1", image="i")
    return [
        NodeUpgrade(node=f"n{number}", node_uid=f"u{number}", wanted=wanted, state=state)
        for number, state in enumerate(states, start=first)
    ]


@pytest.mark.parametrize(
    ("parallel", "share", "states", "down", "slots"),
    [
        (1, "25%", [REQUIRED] * 4, (), 1),
        (1, "25%", [REQUIRED] * 4, ("n4",), 0),  # one node that is not Ready holds up a cluster of four
        (1, "25%", [REQUIRED] * 4, ("other",), 1),
        (1, "50%", [REQUIRED, REQUIRED, REQUIRED, AT_WORK], ("n4",), 0),
        (2, "50%", [REQUIRED, REQUIRED, REQUIRED, AT_WORK], ("n4",), 1),
        (0, "100%", [REQUIRED, REQUIRED, DONE], (), 2),
        (0, "34%", [REQUIRED] * 3, (), 2),  # rounded up
        (0, 2, [REQUIRED] * 8, ("n1",), 1),
        (5, 2, [REQUIRED] * 8, (), 2),
        (5, 8, [REQUIRED, CORDON], (), 4),  # more may be down than there are: they aren't subtracted
        (5, 2, [REQUIRED, REQUIRED, CORDON], (), 1),
        (5, 2, [REQUIRED, REQUIRED, CORDON], ("n3",), 1),  # counted once
        (1, 8, [AT_WORK, AT_WORK], (), 0),
        (3, 0, [REQUIRED] * 3, (), 0),
        (1, "25%", [DONE] * 4, (), 1),
    ],
)
def test_the_formula(
    parallel: int, share: int | str, states: list[UpgradeState], down: tuple[str, ...], slots: int
) -> None:
    assert upgrade_slots(nodes(*states), {"d": rules(parallel, share)}, down) == slots


def test_each_policy_has_slots_of_its_own_and_what_upgrades_nothing_has_none() -> None:
    rows = [*nodes(REQUIRED, REQUIRED), *nodes(REQUIRED, REQUIRED, daemon_set="e", first=3)]
    own = {"d": rules(1, 1), "e": rules(2, 2, name="q")}
    assert upgrade_slots(rows, own, ()) == 3
    assert upgrade_slots(rows, {"d": rules(1, 1), "e": rules(1, 1)}, ()) == 1
    assert upgrade_slots(rows, {**own, "e": rules(2, 2, auto=False, name="q")}, ()) == 1
    broken = dataclasses.replace(own["e"], problem=Advice(what="w", remedy="r"))
    assert upgrade_slots(rows, {**own, "e": broken}, ()) == 1
    assert upgrade_slots(rows, {}, ()) == 0
