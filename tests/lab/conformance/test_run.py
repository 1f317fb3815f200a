"""How parts of the tests are run: what a test that hangs held up is run again, and no process is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kgpu.base.errors import LabError
from kgpu.lab.conformance.model import ResultState, Test
from kgpu.lab.conformance.report import NOT_RUN
from kgpu.lab.conformance.run import ConformanceOptions, Runner
from kgpu.lab.port import EMBEDDED, About
from kgpu.lab.progress import QuietProgress

NAMES = tuple(f"[sig-apps] Job number {number} [Conformance]" for number in range(4))
TESTS = tuple(Test(name) for name in NAMES)
# Stands in for e2e.test: the tests of its focus, of which one that hangs ends the run with those behind it not reached.
PROGRAM = """#!{python}
import json, re, sys
told = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
{broken}
specs, over = [], False
for name in {names!r}:
    state = "skipped"
    if re.search(told["ginkgo.focus"], name) and not over:
        over = name in {hangs!r}
        state = "timedout" if over else "passed"
    message = {{"Failure": {{"Message": "A suite timeout occurred"}}}} if state == "timedout" else {{}}
    specs.append({{"LeafNodeType": "It", "LeafNodeText": name, "State": state, "RunTime": 1, **message}})
json.dump([{{"SpecReports": specs}}], open(told["ginkgo.json-report"], "w"))
"""


class LabUp:
    """As much of a lab as is asked for here."""

    progress = QuietProgress()
    about = About(name="x", kind=EMBEDDED, folder=Path("/x"), kubeconfig=Path("/x/k"), kubectl="kubectl", complete=True)


@pytest.fixture
def runner(tmp_path: Path) -> Callable[..., Runner]:
    def make(*, hangs: tuple[str, ...] = (), broken: str = "") -> Runner:
        program = tmp_path / "e2e.test"
        program.write_text(PROGRAM.format(python=sys.executable, names=NAMES, hangs=hangs, broken=broken))
        program.chmod(0o755)
        return Runner(program, LabUp(), tmp_path, ConformanceOptions(sigs=("apps",)))

    return make


def test_what_a_hanging_test_held_up_is_run_again(runner: Callable[..., Runner]) -> None:
    found = {one.test.name: one for one in runner(hangs=(NAMES[1],)).run(TESTS)}
    assert [found[name].state for name in NAMES] == [
        ResultState.PASSED,
        ResultState.FAILED,
        ResultState.PASSED,
        ResultState.PASSED,
    ]
    assert found[NAMES[1]].message == "A suite timeout occurred"


def test_a_run_that_reaches_no_test_is_not_repeated_for_ever(runner: Callable[..., Runner]) -> None:
    unknown = Test("[sig-apps] Job of another version [Conformance]")
    assert [(one.state, one.message) for one in runner().run([unknown])] == [(ResultState.FAILED, NOT_RUN)]


def test_a_program_that_ends_without_a_report_is_told_with_its_words(runner: Callable[..., Runner]) -> None:
    with pytest.raises(LabError, match="wrote no report:\nno such flag"):
        runner(broken="print('no such flag'); sys.exit(3)").run(TESTS)


def test_an_interrupt_while_a_test_is_waited_for_ends_its_program(
    runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that are run alone are waited for where the interrupt comes."""
    waited: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if not waited:
                waited.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    made = runner(broken="import time; time.sleep(60)")
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        made._once(TESTS)
    assert waited[0].returncode == -signal.SIGKILL
