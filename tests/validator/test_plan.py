"""What follows from results: files, the Node's condition, what is told, when CUDA runs again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.advice import Severity
from kgpu.formats.validation_report import CheckTrouble
from kgpu.validator import files, plan
from kgpu.validator.model import Check, CheckResult, NodeValidation, Status, failed, waiting
from tests.validator.made import cuda, device, inventory, passed

BAD = CheckTrouble(what="no driver", expected="a driver", remedy="install it")
GOOD = tuple(passed(check) for check in Check)


def with_(result: CheckResult) -> NodeValidation:
    return NodeValidation(results=tuple(result if one.check is result.check else one for one in GOOD), boot="b")


def test_every_check_has_one_file_or_the_other() -> None:
    wanted = plan.files_of(with_(failed(Check.TOOLKIT, BAD)))
    there = sorted(name for name, content in wanted.items() if content is not None and name != files.REPORT)
    assert there == ["cuda-ready", "driver-ready", "plugin-ready", "toolkit-not-ready"]
    assert wanted["toolkit-not-ready"] == b"no driver; expected a driver; to do: install it\n"


def test_a_check_that_was_not_made_has_no_file() -> None:
    wanted = plan.files_of(NodeValidation(results=GOOD[:1]))
    assert [name for name, content in wanted.items() if content is not None] == [files.REPORT, "driver-ready"]


def test_one_failed_gpu_leaves_cuda_ready() -> None:
    wanted = plan.files_of(with_(cuda(device("a"), device("b", Status.FAILED))))
    assert (wanted["cuda-ready"], wanted["cuda-not-ready"]) == (b"", None)


@pytest.mark.parametrize(
    ("report", "status", "reason", "word"),
    [
        (NodeValidation(results=GOOD), "True", "Validated", "cuda is well"),
        (NodeValidation(), "Unknown", "Validating", "no check"),
        (with_(failed(Check.DRIVER, BAD)), "False", "DriverFailed", "to do: install it"),
        (with_(waiting(Check.PLUGIN, BAD)), "Unknown", "PluginPending", "no driver"),
        (with_(cuda(device("a"), device("b", Status.FAILED))), "False", "CudaDevicesFailed", "GPU b: it is broken"),
        (with_(cuda(device("b", Status.FAILED))), "False", "CudaFailed", "GPU b: it is broken"),
    ],
)
def test_the_condition(report, status, reason, word) -> None:
    condition = plan.condition_of(report)
    assert (condition.status, condition.reason, word in condition.message) == (status, reason, True), condition


@given(st.text(), st.text(), st.lists(st.text(), max_size=5))
def test_a_condition_is_one_line_and_fits_whatever_it_says(what, remedy, evidence) -> None:
    trouble = CheckTrouble(what=what * 50, expected="x", remedy=remedy * 50)
    condition = plan.condition_of(with_(failed(Check.DRIVER, trouble, evidence=tuple(evidence))))
    assert (len(condition.message) <= plan.MAX_MESSAGE, "\n" in condition.message) == (True, False)


def test_a_check_waits_for_what_it_needs_only() -> None:
    results = {Check.DRIVER: failed(Check.DRIVER, BAD)}
    assert plan.blocked(Check.CUDA, results).trouble.what == "the driver check comes first (no driver)"
    assert plan.blocked(Check.CUDA, {Check.DRIVER: passed(Check.DRIVER)}) is None
    assert plan.blocked(Check.DRIVER, results) is None


def test_patience_ends_for_what_has_a_limit() -> None:
    result = waiting(Check.PLUGIN, BAD)
    assert plan.impatient(result, 149).status is Status.WAITING
    assert plan.impatient(result, 150).status is Status.FAILED
    assert plan.impatient(waiting(Check.CUDA, BAD), 1e9).status is Status.WAITING


def test_cuda_runs_on_what_is_unknown_and_on_failures_when_they_are_due() -> None:
    found = inventory(3)
    a, b, c = (gpu.uuid for gpu in found.accelerators)
    known = {a: device(a), b: device(b, Status.FAILED)}
    assert [one.uuid for one in plan.to_run(found, known, {b: 10.0}, 5.0)] == [c]
    assert [one.uuid for one in plan.to_run(found, known, {b: 10.0}, 10.0)] == [b, c]


def test_results_of_devices_that_went_are_forgotten() -> None:
    found = inventory(2)
    a = found.accelerators[0].uuid
    assert list(plan.still_known(found, {a: device(a), "gone": device("gone")})) == [a]


@pytest.mark.parametrize(
    ("was", "boot", "driver", "held"),
    [("b", "b", "570", True), ("b", "other", "570", False), ("b", "b", "", False), ("", "", "570", False)],
)
def test_earlier_results_hold_for_the_same_boot(was, boot, driver, held) -> None:
    assert plan.holds(NodeValidation(boot=was, driver_version=driver), boot=boot) == held


def test_only_good_results_are_gone_on_with() -> None:
    former = NodeValidation(results=(cuda(device("a"), device("b", Status.FAILED), device("c", Status.SKIPPED)),))
    assert list(plan.restorable(former)) == ["a", "c"]


def test_a_failure_is_told_once_and_its_end_too() -> None:
    well, ill = with_(cuda(device("a"), device("b"))), with_(cuda(device("a"), device("b", Status.FAILED)))
    (news,) = plan.advice(well, ill)
    assert (news.subject, news.reason, news.severity, news.remedy) == ("b", "CudaFailed", Severity.ERROR, "heal it")
    assert list(plan.advice(ill, ill)) == []
    assert [one.reason for one in plan.advice(ill, well)] == ["ValidationPassed", "ValidationPassed"]


def test_waiting_is_no_news() -> None:
    assert list(plan.advice(NodeValidation(), NodeValidation(results=(waiting(Check.CUDA, BAD),)))) == []


def test_the_time_of_a_success_stays_until_the_next_one() -> None:
    first = NodeValidation(
        times=plan.successes(NodeValidation(), (passed(Check.DRIVER),), 100.7), results=(passed(Check.DRIVER),)
    )
    assert first.times == (("driver", 100.0),)
    assert plan.successes(first, (passed(Check.DRIVER),), 200.0) == (("driver", 100.0),)
    broken = replace(first, results=(failed(Check.DRIVER, BAD),))
    assert plan.successes(broken, (passed(Check.DRIVER),), 300.0) == (("driver", 300.0),)
