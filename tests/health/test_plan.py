"""From evidence to one verdict: order of trust, hysteresis, resets, boots, repeats, maintenance, a person's word."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.advice import Severity
from kgpu.formats.xid.action import Action
from kgpu.formats.xid.catalogue import guidance, xids
from kgpu.health.config import HealthConfig
from kgpu.health.model import EvidenceSource, Fault, HealthReading, HealthVerdict, RememberedGpu
from kgpu.health.plan import judge, on_boot, on_fault, on_reading, on_reset, set_healthy, set_maintenance

T = 1_800_000_000.0
GPU = "GPU-00000000-0000-0000-0000-000000000001"
CONFIG = HealthConfig()
NEW = RememberedGpu(gpu=GPU, index=0)
WELL = HealthReading(at=T, recovery="none")


def xid(code: int, at: float = T, text: str = "x", **more: object) -> Fault:
    return Fault(code=code, at=at, text=text, **more)  # type: ignore[arg-type]


def verdict(memory: RememberedGpu, at: float = T, config: HealthConfig = CONFIG) -> HealthVerdict:
    return judge(memory, config, at)[1]


def faults(*codes: int, memory: RememberedGpu = NEW, at: float = T, config: HealthConfig = CONFIG) -> RememberedGpu:
    for code in codes:
        memory = on_fault(memory, xid(code, at), config)
    return memory


def read(memory: RememberedGpu, *readings: HealthReading, config: HealthConfig = CONFIG) -> RememberedGpu:
    for reading in readings:
        memory = on_reading(memory, reading, config)
    return memory


def held(reading: HealthReading, seconds: float, step: float = 10.0) -> list[HealthReading]:
    return [replace(reading, at=T + step * number) for number in range(int(seconds / step) + 1)]


def test_a_gpu_without_evidence_is_well() -> None:
    found = verdict(read(NEW, WELL))
    assert (found.action, found.healthy, found.severity, found.evidence) == (Action.IGNORE, True, Severity.INFO, ())
    assert found.what == f"GPU {GPU} is well"
    assert found.advice().reason == "GPUHealthy"


@pytest.mark.parametrize("code", range(1, 173))
def test_one_xid_alone_calls_for_what_the_catalogue_says(code: int) -> None:
    found = verdict(faults(code))
    expected = guidance(code).action if code != 154 else Action.IGNORE
    assert found.action is expected
    assert found.healthy is not expected.withdraws
    assert bool(found.remedy) is (expected is not Action.IGNORE)


def test_the_strongest_evidence_comes_first() -> None:
    found = verdict(faults(13, 63, 95, 54))
    assert found.action is Action.RESET_GPU
    assert found.evidence[0].key == "95"
    assert len(found.evidence) == 4
    assert "Xid 95" in found.what


@pytest.mark.parametrize(
    ("beside", "action", "healthy"),
    [((), Action.RESET_GPU, False), ((94,), Action.RESET_GPU, True), ((94, 63), Action.RESET_GPU, True),
     ((94, 95), Action.RESET_GPU, False), ((94, 64), Action.RESET_GPU, False), ((63,), Action.RESET_GPU, False)],
)  # fmt: skip
def test_a_double_bit_error_is_judged_with_those_beside_it(beside, action, healthy) -> None:
    found = verdict(faults(48, *beside))
    assert (found.action, found.healthy) == (action, healthy)
    assert next(one for one in found.evidence if one.key == "48").urgent is not healthy


def test_a_contained_error_long_before_does_not_soften_a_double_bit_error() -> None:
    memory = on_fault(faults(94, at=T - 500), xid(48), CONFIG)
    assert not verdict(memory).healthy


# --- the driver's own verdict ---


@pytest.mark.parametrize(
    ("recovery", "action", "healthy"),
    [("none", Action.IGNORE, True), ("reset", Action.RESET_GPU, False), ("reboot", Action.REBOOT, False),
     ("drain", Action.DRAIN, False), ("drain-reset", Action.RESET_GPU, False), ("imex", Action.INSPECT, True),
     ("unknown", Action.IGNORE, True)],
)  # fmt: skip
def test_the_driver_says_what_it_needs(recovery, action, healthy) -> None:
    found = verdict(read(NEW, replace(WELL, recovery=recovery)))
    assert (found.action, found.healthy) == (action, healthy)


def test_the_driver_beats_the_catalogue_where_it_gives_a_verdict() -> None:
    memory = faults(95, memory=replace(NEW, driver=570))
    assert verdict(memory).action is Action.RESET_GPU
    late = T + 60
    assert verdict(read(memory, replace(WELL, at=late)), late).action is Action.IGNORE
    asked = read(memory, replace(WELL, at=late, recovery="reboot"))
    assert verdict(asked, late).action is Action.REBOOT
    told = replace(CONFIG, driver_first=False)
    assert verdict(read(memory, replace(WELL, at=late)), late, told).action is Action.RESET_GPU


@pytest.mark.parametrize(("code", "driver"), [(95, 550), (46, 570), (95, None)])
def test_a_driver_that_gives_no_verdict_on_it_beats_nothing(code: int, driver: int | None) -> None:
    memory = read(faults(code, memory=replace(NEW, driver=driver)), replace(WELL, at=T + 60))
    assert verdict(memory, T + 60).action is Action.RESET_GPU


def test_the_driver_is_given_time_for_its_verdict() -> None:
    memory = read(faults(95, memory=replace(NEW, driver=570)), replace(WELL, at=T + 1))
    assert verdict(memory, T + 1).action is Action.RESET_GPU


def test_a_driver_that_says_nothing_since_beats_nothing() -> None:
    memory = read(faults(95, memory=read(replace(NEW, driver=570), replace(WELL, at=T - 5))), replace(WELL, at=T + 1))
    silent = read(memory, *(replace(WELL, at=T + 30 * number, recovery="unknown") for number in range(1, 9)))
    assert verdict(silent, T + 240).action is Action.RESET_GPU
    assert verdict(read(silent, replace(WELL, at=T + 270)), T + 270).action is Action.IGNORE
    line = on_fault(silent, xid(154, T + 270, recovery="none"), CONFIG)
    assert verdict(line, T + 270).action is Action.IGNORE


def test_xid_154_is_the_verdict_before_nvml_gives_it() -> None:
    memory = on_fault(NEW, xid(154, recovery="reset"), CONFIG)
    assert verdict(memory).action is Action.RESET_GPU
    memory = on_fault(memory, xid(154, T + 50, recovery="none"), CONFIG)
    assert verdict(memory, T + 50).action is Action.IGNORE


def test_a_line_older_than_the_last_reading_says_nothing_new() -> None:
    memory = on_fault(read(NEW, WELL), xid(154, T - 1, recovery="reboot"), CONFIG)
    assert verdict(memory).action is Action.IGNORE


# --- what ends evidence ---


def test_a_reset_ends_what_calls_for_a_reset() -> None:
    memory = read(faults(46, 119), replace(WELL, at=T + 5, recovery="reset"), replace(WELL, at=T + 90))
    assert verdict(memory, T + 90).action is Action.IGNORE


def test_an_ecc_counter_that_starts_anew_is_a_reset() -> None:
    memory = read(faults(46), replace(WELL, ecc_uncorrected=3, rows_failed=False))
    assert verdict(memory).action is Action.RESET_GPU
    memory = read(memory, replace(WELL, at=T + 9, ecc_uncorrected=0, rows_failed=False))
    assert verdict(memory, T + 9).action is Action.IGNORE


def test_time_alone_cures_only_programs() -> None:
    later = T + CONFIG.app_forget + 1
    assert verdict(faults(13), later).evidence == ()
    assert verdict(faults(46), later).action is Action.RESET_GPU
    assert verdict(faults(79), T + 10 * CONFIG.inspect_forget).action is Action.REBOOT
    assert verdict(faults(54), later).action is Action.INSPECT
    assert verdict(faults(54), T + CONFIG.inspect_forget + 1).evidence == ()


def test_a_reset_does_not_end_what_calls_for_a_reboot_and_a_boot_does() -> None:
    memory = on_reset(faults(79), T + 5)
    assert verdict(memory, T + 5).action is Action.REBOOT
    assert verdict(on_boot(memory, T + 50), T + 60).evidence == ()


def test_lines_from_before_the_boot_are_history() -> None:
    memory = on_fault(on_boot(NEW, T), xid(79, T - 10), CONFIG)
    assert verdict(memory).evidence == ()
    assert len(memory.episodes) == 1


# --- what comes back ---


def test_more_than_three_lost_gpus_in_a_month_call_for_another_gpu() -> None:
    memory, day = NEW, 86400.0
    for number in range(4):
        at = T + number * day
        memory = on_fault(on_boot(memory, at), xid(79, at + 1), CONFIG)
        expected = Action.REBOOT if number < 3 else Action.REPLACE
        memory, found = judge(memory, CONFIG, at + 2)
        assert found.action is expected
    assert "4 times" in found.what
    memory = on_boot(memory, T + 40 * day)
    memory = on_fault(memory, xid(79, T + 40 * day + 1), CONFIG)
    assert verdict(memory, T + 40 * day + 2).action is Action.REBOOT


def test_a_reset_that_does_not_help_is_followed_by_a_reboot() -> None:
    memory = NEW
    for number in range(3):
        at = T + 1000.0 * number
        memory = on_fault(on_reset(memory, at), xid(46, at + 1), CONFIG)
    assert verdict(memory, T + 2002).action is Action.REBOOT


def test_rows_that_wait_for_a_reset_never_call_for_more() -> None:
    memory = NEW
    for number in range(9):
        at = T + 1000.0 * number
        memory = read(memory, replace(WELL, at=at, rows_pending=True), replace(WELL, at=at + 9, rows_pending=False))
    memory = read(memory, replace(WELL, at=T + 9000, rows_pending=True))
    found = verdict(memory, T + 9000)
    assert (found.action, found.healthy) == (Action.RESET_GPU, True)


def test_a_burst_is_one_trouble() -> None:
    memory = NEW
    for number in range(50):
        memory = on_fault(memory, xid(79, T + number), CONFIG)
    found = verdict(memory, T + 60)
    assert found.action is Action.REBOOT
    assert found.evidence[0].count == 50
    assert len(memory.episodes) == 1


def test_the_log_and_the_drivers_event_are_one_xid() -> None:
    memory = on_fault(NEW, xid(79, text=""), CONFIG)
    memory = on_fault(memory, xid(79, T + 0.3, text="GPU has fallen off the bus."), CONFIG)
    memory = on_fault(memory, xid(79, T + 0.6, text=""), CONFIG)
    (found,) = verdict(memory, T + 1).evidence
    assert (found.count, found.text) == (1, "GPU has fallen off the bus.")


# --- slices ---


def test_an_xid_of_a_slice_leaves_the_other_slices_alone() -> None:
    memory = on_fault(NEW, xid(13, gpu_instance=3, compute_instance=0), CONFIG)
    memory = on_fault(memory, xid(13, gpu_instance=4, compute_instance=0), CONFIG)
    found = verdict(memory)
    assert {one.gpu_instance for one in found.evidence} == {3, 4}
    assert found.healthy


def test_a_slice_that_calls_for_a_reset_takes_the_gpu_along() -> None:
    assert not verdict(on_fault(NEW, xid(95, gpu_instance=3), CONFIG)).healthy


# --- checks ---


@pytest.mark.parametrize(
    ("change", "source", "action", "healthy"),
    [
        ({"problems": (("lost", "gone"),)}, EvidenceSource.DRIVER, Action.REBOOT, False),
        ({"problems": (("needs-reset", ""),)}, EvidenceSource.DRIVER, Action.RESET_GPU, False),
        ({"problems": (("unproven", "CUDA fails"),)}, EvidenceSource.DRIVER, Action.INSPECT, True),
        ({"ecc_uncorrected": 1}, EvidenceSource.ECC, Action.RESET_GPU, False),
        ({"sram_exceeded": True}, EvidenceSource.ECC, Action.REPLACE, False),
        ({"unrepairable": True}, EvidenceSource.ECC, Action.REPLACE, False),
        ({"rows_failed": True}, EvidenceSource.ROWS, Action.REPLACE, False),
        ({"rows_pending": True}, EvidenceSource.ROWS, Action.RESET_GPU, True),
        ({"rows_uncorrectable": 512}, EvidenceSource.ROWS, Action.INSPECT, True),
        ({"pages_pending": True}, EvidenceSource.PAGES, Action.RESET_GPU, True),
        ({"pages_retired": 63}, EvidenceSource.PAGES, Action.REPLACE, False),
    ],
)
def test_facts_that_count_at_once(change, source, action, healthy) -> None:
    found = verdict(read(NEW, replace(WELL, **change)))
    assert (found.action, found.healthy, found.evidence[0].source) == (action, healthy, source)
    ignoring = replace(CONFIG, ignore_checks=frozenset({source}))
    assert verdict(read(NEW, replace(WELL, **change), config=ignoring), config=ignoring).evidence == ()


@pytest.mark.parametrize(
    "change",
    [{"ecc_corrected": 10**6}, {"ecc_uncorrected": 5, "rows_failed": False}, {"rows_correctable": 500},
     {"rows_uncorrectable": 511}, {"pages_retired": 62}, {"links_active": 0}, {"slowdown": 0x5},
     {"pcie_width": 16, "pcie_width_max": 16}, {"pcie_generation": 1, "pcie_generation_max": 5, "busy": False},
     {"fabric_state": "not-supported"}, {"fabric_state": "completed", "fabric_health": ("route-recovery",)},
     {"margin_c": 4.0}],
)  # fmt: skip
def test_facts_that_are_no_trouble(change) -> None:
    memory = read(NEW, *held(replace(WELL, **change), 3600))
    assert verdict(memory, T + 3600).evidence == ()


@pytest.mark.parametrize(
    ("change", "key", "action"),
    [
        ({"links_active": 17}, "down", Action.RESET_GPU),
        ({"pcie_width": 8, "pcie_width_max": 16}, "width", Action.INSPECT),
        ({"pcie_generation": 3, "pcie_generation_max": 5, "busy": True}, "speed", Action.INSPECT),
        ({"margin_c": -2.0}, "margin", Action.INSPECT),
        ({"memory_margin_c": 0.0}, "memory_margin", Action.INSPECT),
        ({"fabric_state": "in-progress"}, "state", Action.INSPECT),
        ({"fabric_state": "completed", "fabric_health": ("route-unhealthy",)}, "health", Action.RESET_GPU),
        ({"problems": (("missing", ""),)}, "missing", Action.REBOOT),
    ],
)
def test_facts_that_have_to_hold_and_to_be_gone_for_a_while(change, key, action) -> None:
    start = read(NEW, replace(WELL, at=T - 10, links_active=18))
    bad = replace(WELL, **change)
    good = replace(WELL, links_active=18, pcie_width=16, pcie_width_max=16, pcie_generation=5, pcie_generation_max=5,
                   busy=True, margin_c=20.0, memory_margin_c=20.0, fabric_state="completed")  # fmt: skip
    early = read(start, *held(bad, 50))
    assert verdict(early, T + 50).evidence == ()
    flapping = read(early, replace(good, at=T + 55), replace(bad, at=T + 65))
    assert verdict(flapping, T + 65).evidence == ()
    late = read(early, *[replace(bad, at=T + at) for at in (60, 70)])
    found = verdict(late, T + 70)
    assert (found.action, found.evidence[0].key) == (action, key)
    soon = read(late, *[replace(good, at=T + at) for at in (80, 200, 360)])
    assert verdict(soon, T + 360).action is action
    assert verdict(read(soon, replace(good, at=T + 371)), T + 371).evidence == ()


def test_a_hung_driver_counts_after_its_own_time() -> None:
    bad = replace(WELL, problems=(("hung", "no answer"),))
    assert verdict(read(NEW, bad, replace(bad, at=T + 10)), T + 10).evidence == ()
    assert verdict(read(NEW, bad, replace(bad, at=T + 15)), T + 15).action is Action.REBOOT


def test_what_can_not_be_read_keeps_what_was_known() -> None:
    memory = read(NEW, replace(WELL, rows_failed=True), HealthReading(at=T + 60))
    assert verdict(memory, T + 60).action is Action.REPLACE


def test_mig_switches_no_alarm_about_links_on() -> None:
    memory = read(NEW, replace(WELL, links_active=12), *held(replace(WELL, links_active=0, mig=True), 600))
    assert verdict(memory, T + 600).evidence == ()


@pytest.mark.parametrize(("per_minute", "bad"), [(8, False), (31, False), (40, True)])
def test_pcie_replays_are_measured_by_the_links_speed(per_minute: int, bad: bool) -> None:
    memory = NEW
    for number in range(40):
        at = T + 10 * number
        reading = replace(WELL, at=at, pcie_replays=int(per_minute * number / 6), pcie_generation=5, pcie_width=16)
        memory = on_reading(memory, reading, CONFIG)
    assert bool(verdict(memory, T + 400).evidence) is bad


def test_a_counter_that_starts_anew_is_no_rate() -> None:
    memory = NEW
    for number in range(60):
        reading = replace(WELL, at=T + 10 * number, nvlink_crc=10**9 if number == 0 else number)
        memory = on_reading(memory, reading, CONFIG)
    assert verdict(memory, T + 600).evidence == ()


@pytest.mark.parametrize(
    ("counter", "per_step", "keys"),
    [
        ("nvlink_crc", 990, []),
        ("nvlink_crc", 1010, ["crc"]),
        ("nvlink_errors", 0, []),
        ("nvlink_errors", 1, ["errors"]),
    ],
)
def test_nvlink_errors_are_rates(counter: str, per_step: int, keys: list[str]) -> None:
    memory = NEW
    for number in range(60):
        memory = on_reading(memory, replace(WELL, at=T + 10 * number, **{counter: 10**6 + per_step * number}), CONFIG)
    assert [one.key for one in verdict(memory, T + 600).evidence] == keys


@pytest.mark.parametrize(("slow", "bad"), [(6, False), (7, True)])
def test_slowdown_counts_minutes(slow: int, bad: bool) -> None:
    memory = NEW
    start = T - T % 600
    for minute in range(10):
        reading = replace(WELL, at=start + 60 * minute, slowdown=0x40 if minute < slow else 0x4)
        memory = on_reading(memory, reading, CONFIG)
    assert bool(verdict(memory, start + 540).evidence) is bad


# --- people ---


def test_set_healthy_holds_until_there_is_new_evidence() -> None:
    bad = replace(WELL, rows_failed=True, links_active=17, rows_uncorrectable=600)
    memory = read(faults(79, 13), replace(WELL, at=T - 1, links_active=18), *held(bad, 120))
    memory = set_healthy(memory, T + 120)
    assert verdict(memory, T + 120).evidence == ()
    memory = read(memory, *[replace(bad, at=T + at) for at in range(130, 2000, 60)])
    assert verdict(memory, T + 2000).evidence == ()
    assert verdict(on_fault(memory, xid(79, T + 100), CONFIG), T + 2001).evidence == ()
    assert verdict(on_fault(memory, xid(79, T + 2001), CONFIG), T + 2001).action is Action.REBOOT
    late = on_fault(on_fault(memory, xid(79, T + 100), CONFIG), xid(79, T + 2001), CONFIG)
    assert verdict(late, T + 2001).evidence[0].count == 1
    worse = read(memory, replace(bad, at=T + 2010, rows_uncorrectable=601))
    assert [one.key for one in verdict(worse, T + 2010).evidence] == ["many"]


def test_what_came_after_a_persons_word_counts_also_where_it_was_read_before_it() -> None:
    memory = read(NEW, replace(WELL, at=T + 10))
    memory = on_fault(on_fault(memory, xid(79, T + 20), CONFIG), xid(48, T + 40), CONFIG)
    memory = read(memory, replace(WELL, at=T + 50, rows_pending=True))
    memory = set_healthy(memory, T + 30)
    assert {one.key for one in verdict(memory, T + 51).evidence} == {"48", "pending"}
    assert verdict(set_healthy(memory, T + 50), T + 51).evidence == ()


def test_a_fact_that_went_and_came_back_is_new_evidence() -> None:
    memory = set_healthy(read(NEW, replace(WELL, rows_pending=True)), T)
    memory = read(memory, replace(WELL, at=T + 10, rows_pending=False), replace(WELL, at=T + 20, rows_pending=True))
    assert verdict(memory, T + 20).action is Action.RESET_GPU


def test_maintenance_mutes_and_forgets_the_xids_of_its_time() -> None:
    memory = set_maintenance(NEW, until=T + 100)
    memory = on_fault(memory, xid(79, T + 5), CONFIG)
    memory = read(memory, replace(WELL, at=T + 10, rows_failed=True))
    found = verdict(memory, T + 50)
    assert (found.action, found.healthy, found.muted) == (Action.IGNORE, True, "in maintenance")
    assert [one.key for one in found.evidence] == ["failed"]
    after = verdict(memory, T + 101)
    assert (after.action, [one.key for one in after.evidence]) == (Action.REPLACE, ["failed"])


@pytest.mark.parametrize("name", [GPU, "0", "all"])
def test_the_config_can_name_gpus_in_maintenance(name: str) -> None:
    config = replace(CONFIG, maintenance=frozenset({name}))
    assert verdict(faults(79, config=config), config=config).muted
    other = replace(CONFIG, maintenance=frozenset({"1"}))
    assert verdict(faults(79, config=other), config=other).action is Action.REBOOT


def test_the_config_ignores_and_overrules() -> None:
    ignoring = replace(CONFIG, ignore_xids=frozenset({79}))
    assert verdict(faults(79, config=ignoring), config=ignoring).evidence == ()
    told = replace(CONFIG, xid_actions={94: Action.RESET_GPU, 79: Action.IGNORE})
    assert verdict(faults(94, config=told), config=told).action is Action.RESET_GPU
    assert verdict(faults(79, config=told), config=told).action is Action.IGNORE
    switch = Fault(code=12020, at=T, sxid=True, fatal=True)
    assert verdict(on_fault(NEW, switch, CONFIG)).action is Action.REBOOT
    quiet = replace(CONFIG, ignore_sxids=frozenset({12020}))
    assert verdict(on_fault(NEW, switch, quiet), config=quiet).evidence == ()


# --- for all histories ---

NEWS = st.one_of(
    st.builds(lambda code, at: ("fault", Fault(code=code, at=at)), st.sampled_from(sorted(xids())), st.floats(0, 5000)),
    st.builds(
        lambda at, recovery, rows, links, ecc: (
            "reading",
            HealthReading(at=at, recovery=recovery, rows_failed=rows, links_active=links, ecc_uncorrected=ecc),
        ),
        st.floats(0, 5000), st.sampled_from(["none", "unknown", "reset", "reboot", "drain", "odd"]),
        st.none() | st.booleans(), st.none() | st.integers(0, 18), st.none() | st.integers(0, 5),
    ),
    st.builds(lambda at: ("reset", at), st.floats(0, 5000)),
    st.builds(lambda at: ("boot", at), st.floats(0, 5000)),
    st.builds(lambda at: ("healthy", at), st.floats(0, 5000)),
)  # fmt: skip
STEPS = {
    "fault": lambda memory, news: on_fault(memory, news, CONFIG),
    "reading": lambda memory, news: on_reading(memory, news, CONFIG),
    "reset": on_reset,
    "boot": on_boot,
    "healthy": set_healthy,
}


@given(st.lists(NEWS, max_size=40))
def test_any_history_gives_one_verdict_and_survives_a_restart(history) -> None:
    memory = NEW
    for kind, news in history:
        memory = STEPS[kind](memory, news)
        memory, found = judge(memory, CONFIG, 5000)
        assert found.action is (found.evidence[0].action if found.evidence else Action.IGNORE)
        assert all(one.action.rank <= found.action.rank for one in found.evidence)
        if not found.healthy:
            assert found.action.withdraws
            assert found.remedy
        assert found.advice().one_line()
    stored = msgspec.json.decode(msgspec.json.encode(memory), type=RememberedGpu)
    assert stored == memory
    assert judge(stored, CONFIG, 5000) == judge(memory, CONFIG, 5000)


def test_what_is_remembered_is_bounded() -> None:
    memory = NEW
    for number in range(400):
        memory = on_fault(memory, xid(number % 172 + 1, T + 1000 * number, gpu_instance=number % 7), CONFIG)
        memory = on_reading(memory, replace(WELL, at=T + 1000 * number, slowdown=0x40, pcie_replays=number), CONFIG)
    assert len(memory.events) <= 64
    assert len(memory.episodes) <= 128
    assert len(memory.samples) <= 61
    assert len(memory.slow_minutes) <= 11
