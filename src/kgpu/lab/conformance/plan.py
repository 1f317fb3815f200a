"""Which tests are run, and with which words ``e2e.test`` is called; pure. Start here.

The tests are those that ``e2e.test --list-tests`` names; every one of a selection is run, or has a row in the table of
skips. A row that is about no test is an error, so that the table can't outlive what it speaks of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.errors import LabError
from kgpu.lab.conformance.model import CONFORMANCE, Skip, Test

_LISTED: Final = re.compile(r"^\s+\S+\.go:\d+: (\[sig-.*)$", re.MULTILINE)
MAX_WORD: Final = 100_000  # bytes; Linux takes 131,072 in one word of a command line
REPORT: Final = "report.json"
CONFORMANCE_TESTS: Final = re.escape(CONFORMANCE)


@dataclass(frozen=True, slots=True)
class SelectedTests:
    """What to run on one kind of lab, and what not, with the row that says why."""

    run: tuple[Test, ...]
    left_out: tuple[tuple[Test, Skip], ...]


def parse_list(text: str) -> list[Test]:
    """The tests that ``--list-tests`` names, each once, in its order. Raises LabError when there are none."""
    tests = [Test(name) for name in dict.fromkeys(_LISTED.findall(text))]
    if not tests:
        raise LabError(
            f"e2e.test names no tests: {text.strip()[-300:]!r}",
            "a list of tests",
            "see its message; it may be of another version than this harness knows",
        )
    return tests


def choose(
    tests: Iterable[Test], lab: str, sigs: Sequence[str], skips: Sequence[Skip], *,
    of: str = CONFORMANCE_TESTS, focus: str = "", slow: str = "",
) -> SelectedTests:  # fmt: skip
    """The tests of ``sigs`` in whose names ``of`` and ``focus`` are found and ``slow`` is not.

    Raises LabError for a focus that is no regular expression or that no test has.
    """
    try:
        wanted, unwanted = re.compile(focus), re.compile(slow) if slow else None
    except re.error as error:
        raise LabError(f'--focus "{focus}": {error}', "a regular expression", "correct it") from error
    chosen = [
        test
        for test in tests
        if re.search(of, test.name)
        and test.sig in sigs
        and wanted.search(test.name)
        and not (unwanted and unwanted.search(test.name))
    ]
    if not chosen:
        raise LabError(f'no such test of {", ".join(sigs)} has "{focus}" in its name', "some", "widen --focus")
    run: list[Test] = []
    left_out: list[tuple[Test, Skip]] = []
    for test in chosen:
        row = next((skip for skip in skips if skip.takes(test, lab)), None)
        if row is None:
            run.append(test)
        else:
            left_out.append((test, row))
    return SelectedTests(tuple(run), tuple(left_out))


def check_skips(tests: Sequence[Test], skips: Iterable[Skip]) -> None:
    """Raises LabError for a row of the table that is about no conformance test."""
    known = [test for test in tests if CONFORMANCE in test.name]
    for skip in skips:
        for lab in skip.labs:
            if not any(skip.takes(test, lab) for test in known):
                raise LabError(
                    f'the skip "{skip.pattern}" is about no test of this version',
                    "rows about tests that exist",
                    "remove or correct it in kgpu/lab/conformance/skips.py",
                )


def split(tests: Sequence[Test], size: int) -> tuple[list[tuple[Test, ...]], list[tuple[Test, ...]]]:
    """Parts of at most ``size`` tests, a process each: those that may run beside each other, and those that may not."""
    beside = [test for test in tests if not test.serial]
    alone = [test for test in tests if test.serial]
    return _parts(beside, size), _parts(alone, size)


def _parts(tests: Sequence[Test], size: int) -> list[tuple[Test, ...]]:
    """As few as possible, about equally long; tests of one kind, which are neighbours, come into different ones."""
    count = -(-len(tests) // size)
    return [tuple(tests[number::count]) for number in range(count)]


def focus_of(tests: Iterable[Test]) -> str:
    """A regular expression that is found in these tests' names only. Raises LabError for one too long to be passed."""
    # A name begins with its sig's brackets, which nothing else of a spec's text has, so that its end alone is marked.
    pattern = "(?:" + "|".join(re.escape(test.name) for test in tests) + ")$"
    if len(pattern.encode()) > MAX_WORD:
        raise LabError("too many tests for one command line", f"at most {MAX_WORD} bytes of names", "select fewer sigs")
    return pattern


def command(
    program: Path, tests: Sequence[Test], *, kubeconfig: Path, kubectl: str, folder: Path, nodes: int, limit_s: int
) -> list[str]:
    """The call of ``e2e.test`` that runs ``tests`` and writes its report into ``folder``."""
    return [
        str(program),
        f"--ginkgo.focus={focus_of(tests)}",
        f"--ginkgo.json-report={folder / REPORT}",
        f"--ginkgo.timeout={limit_s}s",
        "--ginkgo.no-color",
        "--ginkgo.silence-skips",
        "--provider=skeleton",
        f"--kubeconfig={kubeconfig}",
        f"--kubectl-path={kubectl}",
        f"--num-nodes={nodes}",
        "--allowed-not-ready-nodes=0",
        # A failed test's namespace is told by its message; everything about it would be megabytes.
        "--dump-logs-on-failure=false",
        "--disable-log-dump",
        f"--e2e-output-dir={folder}",
    ]
