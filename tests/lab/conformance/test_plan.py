"""Which tests are chosen, why others are not, and how they are shared out between processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import LabError
from kgpu.lab.conformance import plan
from kgpu.lab.conformance.model import Skip, Test
from kgpu.lab.port import EMBEDDED, REAL

LIST = """The following spec names can be used with 'ginkgo run --focus/skip':
    test/e2e/apps/job.go:60: [sig-apps] Job should delete a job [Conformance]
    test/e2e/apps/job.go:90: [sig-apps] Job should run (a) task* [Serial] [Conformance]
    test/e2e/apps/job.go:95: [sig-apps] Job should wait [Slow] [Conformance]
    test/e2e/apps/job.go:99: [sig-apps] Job should do more
    test/e2e/auth/x.go:1: [sig-auth] Accounts should have a token [Conformance]
    test/e2e/auth/x.go:1: [sig-auth] Accounts should have a token [Conformance]

"""
TESTS = plan.parse_list(LIST)
DELETE, TASK, WAIT, MORE, TOKEN = TESTS
SKIP = Skip(pattern="should delete", reason="jobs stay", labs=(EMBEDDED,))


def test_the_list_is_read_once_each_and_in_order() -> None:
    assert [test.sig for test in TESTS] == ["apps", "apps", "apps", "apps", "auth"]
    assert TASK.title == "Job should run (a) task* [Serial]"
    assert [test.serial for test in TESTS] == [False, True, False, False, False]


@pytest.mark.parametrize("text", ["", "Error: no such flag", "    a.go:1: something else\n"])
def test_what_is_no_list_is_told(text: str) -> None:
    with pytest.raises(LabError, match="names no tests"):
        plan.parse_list(text)


def test_all_conformance_tests_of_the_sigs_are_run_or_left_out_with_a_reason() -> None:
    choice = plan.choose(TESTS, EMBEDDED, ("apps", "auth"), [SKIP])
    assert choice.run == (TASK, WAIT, TOKEN)
    assert choice.left_out == ((DELETE, SKIP),)
    assert plan.choose(TESTS, REAL, ("apps",), [SKIP]).run == (DELETE, TASK, WAIT)


def test_a_selection_is_narrowed() -> None:
    assert plan.choose(TESTS, REAL, ("apps", "auth"), [], focus="token|task").run == (TASK, TOKEN)
    assert plan.choose(TESTS, REAL, ("apps",), [], slow=r"\[Slow\]").run == (DELETE, TASK)
    assert plan.choose(TESTS, REAL, ("apps",), [], of="should do").run == (MORE,)


@pytest.mark.parametrize(("focus", "says"), [("(", "--focus"), ("nothing of this", "no such test")])
def test_a_focus_that_selects_nothing_is_told(focus: str, says: str) -> None:
    with pytest.raises(LabError, match=re.escape(says)):
        plan.choose(TESTS, REAL, ("apps",), [], focus=focus)


@pytest.mark.parametrize("pattern", ["should do more", "gone since the last version"])
def test_a_skip_about_no_conformance_test_is_refused(pattern: str) -> None:
    plan.check_skips(TESTS, [SKIP])
    with pytest.raises(LabError, match="is about no test"):
        plan.check_skips(TESTS, [SKIP, Skip(pattern=pattern, reason="none", labs=(REAL,))])


@given(st.lists(st.sampled_from(TESTS), max_size=12), st.integers(1, 5))
def test_every_test_is_in_one_process_and_serial_ones_are_apart(tests: list[Test], size: int) -> None:
    beside, alone = plan.split(tests, size)
    assert sorted(test.name for part in (*beside, *alone) for test in part) == sorted(test.name for test in tests)
    assert not any(test.serial for part in beside for test in part)
    assert all(test.serial for part in alone for test in part)
    assert all(1 <= len(part) <= size for part in (*beside, *alone))


@given(st.lists(st.sampled_from(TESTS), min_size=1, unique=True))
def test_the_focus_finds_these_tests_and_no_others(tests: list[Test]) -> None:
    pattern = plan.focus_of(tests)
    assert [test for test in TESTS if re.search(pattern, f"Kubernetes e2e suite {test.name}")] == [
        test for test in TESTS if test in tests
    ]


def test_a_command_line_that_would_be_too_long_is_refused() -> None:
    with pytest.raises(LabError, match="too many tests"):
        plan.focus_of([Test("x" * 1000)] * 200)


def test_the_command_names_the_lab_and_the_report(tmp_path: Path) -> None:
    found = plan.command(
        Path("/e2e.test"), [TOKEN], kubeconfig=Path("/k"), kubectl="/kubectl", folder=tmp_path, nodes=3, limit_s=60
    )
    assert found[0] == "/e2e.test"
    assert {
        "--kubeconfig=/k",
        "--num-nodes=3",
        "--ginkgo.timeout=60s",
        f"--ginkgo.json-report={tmp_path}/report.json",
    } <= (set(found))
