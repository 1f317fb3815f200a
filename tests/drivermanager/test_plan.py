"""Which steps the driver manager takes, what it holds of its Node and what it gives back."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from kgpu.drivermanager import plan
from kgpu.drivermanager.model import MachineState, ManagedNode, ManagerAction
from kgpu.formats.names import DRIVER_MANAGER_ANNOTATION, DRIVER_UPGRADE_ENABLED, LABEL_DEPLOY_PREFIX
from tests.drivermanager.made import LOADED, PAUSED, PLUGIN, SETTINGS, VALIDATOR

FREE = ManagedNode(name="gpu-1", version="7")
OPERATED = replace(FREE, annotations={DRIVER_UPGRADE_ENABLED: "true"})
EMPTIED = replace(OPERATED, unschedulable=True)
STOP = [ManagerAction.HOLD, ManagerAction.OPERANDS]
REINSTALL = [
    *STOP,
    ManagerAction.EVICT,
    ManagerAction.CLAIMS,
    ManagerAction.UNLOAD,
    ManagerAction.UNMOUNT,
    ManagerAction.GIVE_BACK,
]
UNEVICTED = [action for action in REINSTALL if action is not ManagerAction.EVICT]
FAST = [*STOP, ManagerAction.UNMOUNT, ManagerAction.GIVE_BACK]
FRESH = [ManagerAction.UNMOUNT, ManagerAction.GIVE_BACK]


def actions(machine: MachineState, node: ManagedNode = FREE, **settings: object) -> list[ManagerAction]:
    return [step.action for step in plan.steps(replace(SETTINGS, **settings), machine, node)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("machine", "node", "settings", "expected"),
    [
        (MachineState(host_driver="550.54.15", loaded=True), FREE, {}, [ManagerAction.MARK_PRE_INSTALLED]),
        (MachineState(), FREE, {}, FRESH),
        (MachineState(nouveau=True), FREE, {}, [ManagerAction.UNMOUNT, ManagerAction.NOUVEAU, ManagerAction.GIVE_BACK]),
        (LOADED, FREE, {}, REINSTALL),
        (replace(LOADED, nouveau=True), FREE, {}, [*REINSTALL[:-1], ManagerAction.NOUVEAU, ManagerAction.GIVE_BACK]),
        (LOADED, FREE, {"digest": "1"}, FAST),
        (LOADED, FREE, {"digest": "1", "reinstall": True}, REINSTALL),
        (replace(LOADED, digest=""), FREE, {"digest": ""}, REINSTALL),
        (LOADED, EMPTIED, {}, UNEVICTED),
        (LOADED, OPERATED, {}, [ManagerAction.UNUSED, *STOP, ManagerAction.UNUSED, *UNEVICTED[len(STOP):]]),
        (LOADED, OPERATED, {"digest": "1"}, FAST),
        (LOADED, OPERATED, {"evict_gpu_pods": False}, UNEVICTED),
        (MachineState(), OPERATED, {}, FRESH),
        (LOADED, FREE, {"evict_gpu_pods": False}, UNEVICTED),
        (MachineState(mellanox=True), FREE, {}, FRESH),
        (MachineState(), FREE, {"rdma": True}, FRESH),
        (MachineState(mellanox=True), FREE, {"rdma": True}, [ManagerAction.UNMOUNT, ManagerAction.MOFED, ManagerAction.GIVE_BACK]),
    ],
)  # fmt: skip
def test_the_steps_follow_from_the_machine_the_node_and_the_settings(
    machine: MachineState, node: ManagedNode, settings: dict[str, object], expected: list[ManagerAction]
) -> None:
    assert actions(machine, node, **settings) == expected


def test_every_step_of_every_machine_says_why() -> None:
    for loaded, nouveau, mellanox, digest in itertools.product((False, True), (False, True), (False, True), ("", "2")):
        machine = MachineState(loaded=loaded, nouveau=nouveau, mellanox=mellanox, digest=digest)
        steps = plan.steps(replace(SETTINGS, rdma=True), machine, FREE)
        assert all(step.why for step in steps)
        assert steps[-1].action is ManagerAction.GIVE_BACK


def test_only_labels_that_are_true_are_paused_and_exactly_these_are_given_back() -> None:
    labels = {
        PLUGIN: "true", VALIDATOR: "false", f"{LABEL_DEPLOY_PREFIX}dcgm": "", f"{LABEL_DEPLOY_PREFIX}nvsm": "mine",
        f"{LABEL_DEPLOY_PREFIX}driver": "true", "other": "true",
    }  # fmt: skip
    node = replace(FREE, labels=labels)
    hold, patch = plan.take(SETTINGS, node)
    assert hold == plan.Hold(cordoned=True, paused=(PLUGIN,))
    assert patch["metadata"]["labels"] == {PLUGIN: PAUSED}
    assert patch["metadata"]["resourceVersion"] == "7"
    assert patch["spec"] == {"unschedulable": True}
    held = replace(
        node, labels={**labels, PLUGIN: PAUSED}, unschedulable=True,
        annotations={DRIVER_MANAGER_ANNOTATION: plan.encode(hold)},
    )  # fmt: skip
    back = plan.give_back(held)
    assert back["metadata"]["labels"] == {PLUGIN: "true"}
    assert back["metadata"]["annotations"] == {DRIVER_MANAGER_ANNOTATION: None}
    assert back["spec"] == {"unschedulable": None}


def test_a_node_that_somebody_else_has_cordoned_stays_so() -> None:
    hold, patch = plan.take(SETTINGS, replace(FREE, unschedulable=True))
    assert not hold.cordoned
    assert "spec" not in patch
    held = replace(FREE, unschedulable=True, annotations={DRIVER_MANAGER_ANNOTATION: plan.encode(hold)})
    assert "spec" not in plan.give_back(held)


def test_an_operator_that_upgrades_drivers_cordons_by_itself() -> None:
    hold, patch = plan.take(SETTINGS, OPERATED)
    assert not hold.cordoned
    assert "spec" not in patch


def test_what_a_manager_left_that_died_is_the_next_ones_to_give_back() -> None:
    former = plan.Hold(cordoned=True, paused=(VALIDATOR,))
    node = replace(
        FREE, unschedulable=True, labels={VALIDATOR: PAUSED, PLUGIN: PAUSED},
        annotations={DRIVER_MANAGER_ANNOTATION: plan.encode(former)},
    )  # fmt: skip
    hold, _ = plan.take(SETTINGS, node)
    assert hold == plan.Hold(cordoned=True, paused=(VALIDATOR, PLUGIN))


def test_what_somebody_has_changed_meanwhile_is_not_given_back() -> None:
    hold = plan.Hold(cordoned=True, paused=(PLUGIN, VALIDATOR))
    node = replace(
        FREE, labels={PLUGIN: "false", VALIDATOR: PAUSED},
        annotations={DRIVER_MANAGER_ANNOTATION: plan.encode(hold)},
    )  # fmt: skip
    back = plan.give_back(node)
    assert back["metadata"]["labels"] == {VALIDATOR: "true"}
    assert "spec" not in back


@pytest.mark.parametrize(
    "text", ["{", "[]", "[" * 5000, '{"cordoned": "yes", "paused": "all"}', '{"paused": [1, "x"]}']
)
def test_a_hold_that_nobody_can_read_harms_nothing(text: str) -> None:
    node = replace(FREE, unschedulable=True, annotations={DRIVER_MANAGER_ANNOTATION: text})
    assert not plan.hold_of(node).cordoned
    assert plan.give_back(node)["metadata"]["labels"] == {}


def test_labels_stay_paused_by_nobody_where_the_record_is_broken() -> None:
    node = replace(FREE, labels={PLUGIN: PAUSED}, annotations={DRIVER_MANAGER_ANNOTATION: "{"})
    assert plan.give_back(node)["metadata"]["labels"] == {PLUGIN: "true"}


def test_the_label_of_a_program_of_ones_own_is_paused_too() -> None:
    extra = "example.com/monitor"
    hold, _ = plan.take(replace(SETTINGS, extra_label=extra), replace(FREE, labels={extra: "true"}))
    assert hold.paused == (extra,)
