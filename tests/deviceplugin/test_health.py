"""Which Xids make which devices unhealthy, and when they recover."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.health import (
    QUIET_SECONDS,
    DeviceHealth,
    XidRules,
    on_event,
    on_reading,
    on_verdicts,
    rules_from_env,
)
from kgpu.deviceplugin.model import GpuUnit
from kgpu.deviceplugin.plan import plan
from kgpu.formats.gpu_remedies import REPLACE, words
from kgpu.hw.nvidia.facts import unreachable
from kgpu.hw.port import EventKind, HardwareEvent, HardwareFinding, Problem
from kgpu.hw.verdicts import GpuVerdict
from tests.deviceplugin.nodes import broken, gpus, with_mig

DISABLE, ENABLE = "DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"
NODES = gpus(2)
RULES = XidRules()


def units(nodes=NODES, strategy: str = "none") -> list[GpuUnit]:
    return [d.unit for r in plan(nodes, PluginSettings(mig_strategy=strategy)).resources for d in r.devices]


def xid(code: int, gpu=NODES[0], gi: int | None = None, ci: int | None = None) -> HardwareEvent:
    return HardwareEvent(kind=EventKind.XID, uuid=gpu and gpu.uuid, code=code, gpu_instance=gi, compute_instance=ci)


@pytest.mark.parametrize(
    ("env", "critical", "ignored"),
    [
        ({}, {79, 48, 109, 1}, {13, 31, 43, 45, 68, 94}),
        ({DISABLE: "79"}, {48}, {79, 13}),
        ({DISABLE: "79, 48 ,x"}, {95}, {79, 48, 13}),
        ({DISABLE: "all"}, set(), {79, 13}),
        ({DISABLE: "XIDS"}, set(), {79, 13}),
        ({DISABLE: "48,xids"}, set(), {79, 48}),
        ({ENABLE: "13"}, {13, 79}, {31}),
        ({ENABLE: "all"}, {13, 31, 79}, set()),
        ({DISABLE: "all", ENABLE: "79"}, {79}, {48, 13}),
        ({DISABLE: "all", ENABLE: "xids"}, {79, 13}, set()),
        ({DISABLE: "79", ENABLE: "79"}, {79}, {13}),
        ({DISABLE: "", ENABLE: ""}, {79}, {13}),
        ({DISABLE: ",,,", ENABLE: "-5,1.5"}, {79}, {13}),
        ({DISABLE: "9" * 5000}, {79}, {13}),
    ],
)
def test_the_environment_chooses_xids(env: dict[str, str], critical: set[int], ignored: set[int]) -> None:
    rules, _ = rules_from_env(env)
    assert {code for code in critical | ignored if rules.critical(code)} == critical


def test_words_that_mean_nothing_are_told() -> None:
    _, advice = rules_from_env({DISABLE: "79,foo", ENABLE: "1e3"})
    assert [record.subject for record in advice] == [DISABLE, ENABLE]


def test_one_xid_marks_its_gpu_and_no_other() -> None:
    health, advice = on_event(DeviceHealth(), xid(79), RULES, 0)
    assert [health.reason(unit) for unit in units()] == ["Xid 79", ""]
    assert f"device marked unhealthy: {NODES[0].uuid}" in advice[0].what


def test_an_xid_and_what_is_then_found_are_one_warning_that_names_the_gpu_once() -> None:
    lost = (broken(NODES[0], Problem.LOST), NODES[1])
    ill, first = on_event(DeviceHealth(), xid(79), RULES, 0, NODES)
    _, second = on_reading(ill, lost, RULES, 1)
    assert [advice.severity.notable for advice in (*first, *second)] == [True, False]
    found, first = on_reading(DeviceHealth(), lost, RULES, 0)
    _, second = on_event(found, xid(79), RULES, 1, lost)
    assert [advice.severity.notable for advice in (*first, *second)] == [True, False]
    for advice in (*first, *second):
        assert advice.one_line().count(NODES[0].uuid) == 1
        assert f"[GPU {NODES[0].index}]" in advice.one_line()


def test_one_xid_marks_every_slice_of_its_gpu() -> None:
    node = (with_mig(NODES[0], ("1g.10gb", 3)), with_mig(NODES[1], ("1g.10gb", 2)))
    health, _ = on_event(DeviceHealth(), xid(79), RULES, 0)
    assert [bool(health.reason(unit)) for unit in units(node, "single")] == [True] * 3 + [False] * 2


def test_an_xid_of_a_slice_marks_that_slice() -> None:
    node = (with_mig(NODES[0], ("1g.10gb", 3)),)
    health, _ = on_event(DeviceHealth(), xid(95, gi=2, ci=0), RULES, 0)
    assert [bool(health.reason(unit)) for unit in units(node, "single")] == [False, True, False]
    whole_instance, _ = on_event(DeviceHealth(), xid(95, gi=2), RULES, 0)
    assert [bool(whole_instance.reason(unit)) for unit in units(node, "single")] == [False, True, False]
    # Strategy none offers the GPU whole: an error in a slice of it is an error of what is offered.
    assert health.reason(units(node, "none")[0])


def test_application_errors_are_told_once() -> None:
    health, first = on_event(DeviceHealth(), xid(31), RULES, 0)
    health, second = on_event(health, xid(31), RULES, 1)
    assert not health.illnesses
    assert (len(first), second) == (1, [])


def test_an_xid_without_a_device_marks_nobody() -> None:
    health, advice = on_event(DeviceHealth(), xid(79, gpu=None), RULES, 0)
    assert health == DeviceHealth()
    assert advice[0].reason == "XidWithoutDevice"


@pytest.mark.parametrize("kind", [kind for kind in EventKind if kind is not EventKind.XID])
def test_other_events_alone_mark_nobody(kind: EventKind) -> None:
    assert on_event(DeviceHealth(), HardwareEvent(kind=kind, uuid=NODES[0].uuid, code=79), RULES, 0) == (
        DeviceHealth(),
        [],
    )


def sick(now: float = 0.0) -> DeviceHealth:
    return on_event(DeviceHealth(), xid(79), RULES, now)[0]


def read(health: DeviceHealth, node, now: float) -> DeviceHealth:
    return on_reading(health, node, RULES, now)[0]


def test_without_a_recovery_action_health_returns_after_a_quiet_time() -> None:
    unit = units()[0]
    old_driver = (replace(NODES[0], recovery_action="unknown"), NODES[1])
    health = read(sick(), old_driver, QUIET_SECONDS - 1)
    assert health.reason(unit)
    health, _ = on_event(health, xid(79), RULES, QUIET_SECONDS - 1)
    assert read(health, old_driver, QUIET_SECONDS + 1).reason(unit)
    assert not read(health, old_driver, 2 * QUIET_SECONDS).reason(unit)


def test_a_recovery_action_that_is_done_ends_it_at_once() -> None:
    unit = units()[0]
    pending = (replace(NODES[0], recovery_action="reset"), NODES[1])
    health = read(sick(), pending, 1)
    health = read(health, pending, 1000)
    assert health.reason(unit)
    after, advice = on_reading(health, NODES, RULES, 1001)
    assert not after.reason(unit)
    assert [record.reason for record in advice] == ["DeviceRecovered"]


@pytest.mark.parametrize("problem", [Problem.LOST, Problem.HUNG, Problem.CRASHED, Problem.NEEDS_RESET, Problem.MISSING])
def test_findings_make_a_gpu_unhealthy_and_go(problem: Problem) -> None:
    unit, other = units()
    lost, advice = on_reading(DeviceHealth(), (broken(NODES[0], problem), NODES[1]), RULES, 0)
    assert problem.value in lost.reason(unit)
    assert not lost.reason(other)
    assert advice[0].remedy == "heal"
    again, silence = on_reading(lost, (broken(NODES[0], problem), NODES[1]), RULES, 1)
    assert (again, silence) == (lost, [])
    well, told = on_reading(lost, NODES, RULES, 2)
    assert not well.reason(unit)
    assert told[0].reason == "DeviceRecovered"


def test_a_reading_that_fails_alone_is_no_illness() -> None:
    health = read(DeviceHealth(), (broken(NODES[0], Problem.UNREADABLE), NODES[1]), 0)
    assert not health.reason(units()[0])


def test_an_xid_and_a_lost_gpu_recover_together_and_are_told_once() -> None:
    health = read(sick(), (broken(NODES[0]), NODES[1]), 1)
    assert len(health.illnesses) == 1
    after, advice = on_reading(health, NODES, RULES, 2)
    assert not after.reason(units()[0])
    assert len(advice) == 1
    assert "Xid 79" in advice[0].why


def test_a_slice_that_was_taken_down_takes_its_illness_along() -> None:
    node = (with_mig(NODES[0], ("1g.10gb", 3)), NODES[1])
    health, _ = on_event(DeviceHealth(), xid(95, gi=2, ci=0), RULES, 0)
    assert read(health, node, 1).illnesses
    assert not read(health, (with_mig(NODES[0], ("1g.10gb", 1)), NODES[1]), 1).illnesses


def test_all_checks_off_leaves_only_what_is_not_there() -> None:
    rules, _ = rules_from_env({DISABLE: "all"})
    unit = units()[0]
    assert not on_reading(DeviceHealth(), (broken(NODES[0], Problem.LOST),), rules, 0)[0].reason(unit)
    assert on_reading(DeviceHealth(), (broken(NODES[0], Problem.MISSING),), rules, 0)[0].reason(unit)
    xids_only, _ = rules_from_env({DISABLE: "xids"})
    assert on_reading(DeviceHealth(), (broken(NODES[0], Problem.LOST),), xids_only, 0)[0].reason(unit)


def test_a_gpu_that_can_not_be_read_does_not_get_well() -> None:
    unit = units()[0]
    finding = HardwareFinding(
        subject=NODES[0].uuid, problem=Problem.UNREADABLE, what="error 999", expected="", remedy=""
    )
    silent = (unreachable(NODES[0], 0, finding), NODES[1])
    health = read(read(sick(), silent, 1), silent, 10 * QUIET_SECONDS)
    assert health.reason(unit)
    assert read(health, NODES, 10 * QUIET_SECONDS + 1).reason(unit)
    assert not read(health, NODES, 11 * QUIET_SECONDS).reason(unit)


def test_a_driver_without_recovery_actions_that_hung_for_a_moment_is_not_well_at_once() -> None:
    unit = units()[0]
    silent = replace(broken(NODES[0], Problem.HUNG), recovery_action="unknown")
    health = read(sick(), (silent, NODES[1]), 1)
    back = (replace(NODES[0], recovery_action="unknown"), NODES[1])
    assert read(health, back, 2).reason(unit)
    assert not read(health, back, 1 + QUIET_SECONDS).reason(unit)


def verdict(gpu=NODES[0], *causes: str, withdraws: bool = True) -> GpuVerdict:
    return GpuVerdict(
        uuid=gpu.uuid,
        withdraws=withdraws,
        causes=causes,
        action="reset-gpu" if withdraws else "restart-app",
        what="why",
    )


def judged(*verdicts: GpuVerdict, rules: XidRules = RULES, health: DeviceHealth | None = None) -> DeviceHealth:
    return on_verdicts(health or DeviceHealth(), {one.uuid: one for one in verdicts}, rules)[0]


def test_a_verdict_takes_a_gpu_away_and_gives_it_back() -> None:
    ill, told = on_verdicts(DeviceHealth(), {NODES[0].uuid: verdict(NODES[0], "xid:109")}, RULES)
    assert [ill.reason(unit) for unit in units()] == ["why (reset-gpu)", ""]
    # The health role has written the Event.
    assert [(one.reason, one.severity.notable) for one in told] == [("DeviceUnhealthy", False)]
    assert on_verdicts(ill, {NODES[0].uuid: verdict(NODES[0], "xid:109")}, RULES) == (ill, [])
    well, told = on_verdicts(ill, {NODES[0].uuid: verdict(withdraws=False)}, RULES)
    assert [well.reason(unit) for unit in units()] == ["", ""]
    assert [one.reason for one in told] == ["VerdictOver"]


@pytest.mark.parametrize(("key", "remedy"), [(REPLACE, words(REPLACE)), ("check/none", ""), ("", "")])
def test_a_verdicts_remedy_is_looked_up_by_its_key(key: str, remedy: str) -> None:
    given = structs.replace(verdict(NODES[0], "xid:79"), remedy="run this script", remedy_key=key)
    (told,) = on_verdicts(DeviceHealth(), {NODES[0].uuid: given}, RULES)[1]
    assert told.remedy == remedy


def test_where_there_are_verdicts_they_say_what_an_xid_means() -> None:
    well = judged(verdict(withdraws=False))
    assert on_event(well, xid(79), RULES, 0) == (well, [])
    # Of the other GPU nobody says anything.
    assert on_event(well, xid(79, NODES[1]), RULES, 0)[0].illnesses
    # Nobody gives verdicts any more: Xids count here again.
    alone, _ = on_verdicts(well, None, RULES)
    assert on_event(alone, xid(79), RULES, 0)[0].illnesses


def test_an_xid_that_was_heard_before_the_verdict_does_not_outlive_it() -> None:
    ill, _ = on_event(DeviceHealth(), xid(79), RULES, 0)
    assert judged(verdict(withdraws=False), health=ill).reason(units()[0]) == ""


def test_what_the_driver_says_is_broken_counts_whatever_the_verdict() -> None:
    found, _ = on_reading(judged(verdict(withdraws=False)), (broken(NODES[0], Problem.LOST), NODES[1]), RULES, 0)
    assert found.reason(units()[0]).startswith("lost")


@pytest.mark.parametrize(
    ("env", "causes", "withdrawn"),
    [
        ({}, ("xid:109",), True),
        ({DISABLE: "109"}, ("xid:109",), False),
        ({DISABLE: "109"}, ("xid:109@7.0",), False),
        ({DISABLE: "109"}, ("xid:109", "driver:lost"), True),
        ({DISABLE: "109"}, ("xid:109", "xid:79"), True),
        ({DISABLE: "xids"}, ("xid:109", "xid:79"), False),
        ({DISABLE: "xids"}, ("xid:79", "remapped-rows:failed"), True),
        ({DISABLE: "xids", ENABLE: "79"}, ("xid:79",), True),
        ({DISABLE: "all"}, ("remapped-rows:failed",), False),
        ({DISABLE: "all", ENABLE: "79"}, ("remapped-rows:failed",), False),
    ],
)
def test_the_environment_is_obeyed_with_verdicts_too(
    env: dict[str, str], causes: tuple[str, ...], withdrawn: bool
) -> None:
    rules, _ = rules_from_env(env)
    assert bool(judged(verdict(NODES[0], *causes), rules=rules).withdrawn) is withdrawn


def test_an_xid_that_somebody_named_counts_whatever_the_verdict() -> None:
    rules, _ = rules_from_env({ENABLE: "13"})
    ill, _ = on_event(judged(verdict(withdraws=False), rules=rules), xid(13), rules, 0)
    assert ill.reason(units()[0]) == "Xid 13"
