"""The test suite's parts: every test file is in one, and what JUnit files say is told."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tools.suite import report
from tools.suite.parts import PARTS, Part, part_of
from tools.suite.report import Case, Took
from tools.suite.run import status

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))


@functools.cache
def collected(part: Part) -> frozenset[str]:
    """The test files that pytest finds with the part's paths and what it ignores."""

    def below(file: str, folders: list[str]) -> bool:
        return any(file == folder or file.startswith(f"{folder}/") for folder in folders)

    ignored = part.ignored(PARTS)
    return frozenset(file for file in FILES if below(file, list(part.paths)) and not below(file, ignored))


def test_every_file_runs_once() -> None:
    runs = [file for part in PARTS for file in collected(part)]
    assert sorted(runs) == FILES
    assert all(file in collected(part_of(file)) for file in FILES)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_path_exists_and_has_tests(part: Part) -> None:
    assert all((ROOT / path).exists() for path in part.paths)
    assert collected(part)


def test_only_parts_on_real_programs_have_tests_for_them() -> None:
    """A folder whose conftest marks its tests as real ones would otherwise use cores that it leaves idle; and on a new
    machine the parts without programs run while these are built.
    """
    marked = {path.parent for path in (ROOT / "tests").rglob("conftest.py") if "on_real.mark" in path.read_text()}
    for file in FILES:
        real = any(folder in (ROOT / file).parents for folder in marked)
        real |= "containerd_binary()" in (ROOT / file).read_text()
        assert part_of(file).real == real or file == "tests/tools/test_suite.py", file


def test_a_file_of_nobody_is_an_error() -> None:
    with pytest.raises(KeyError):
        part_of("src/kgpu/test_x.py")


XML = """<testsuites><testsuite>
<testcase classname="tests.a" name="good" time="1.5"><properties><property name="cpu" value="0.9"/></properties></testcase>
<testcase classname="tests.a" name="bad" time="2"><failure>x</failure></testcase>
<testcase classname="tests.a" name="bad" time="1"><error>its teardown</error></testcase>
<testcase classname="tests.a" name="left out" time="0"><skipped/></testcase>
</testsuite></testsuites>"""


def test_junit_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(XML)
    assert report.read(tmp_path / "a.xml") == [
        Case("tests.a::good", "passed", 1.5, 0.9),
        Case("tests.a::bad", "failed", 3.0),
        Case("tests.a::left out", "skipped", 0.0),
    ]
    assert report.read(tmp_path / "none.xml") == []
    (tmp_path / "torn.xml").write_text(XML[:80])
    assert report.read(tmp_path / "torn.xml") == []


def test_the_report_ends_with_the_count() -> None:
    cases = [Case(f"t{n}", "passed", float(n), 60.0 - n) for n in range(60)]
    said = report.text({"one": Took(61.0, 50.0, cases), "two": Took(5.0, None, [Case("x", "failed", 0.1)])})
    lines = said.splitlines()
    assert lines[0] == "the 50 slowest tests"
    assert lines[1].split() == ["59.0", "s", "t59"]
    assert lines[52] == "the 50 tests with the most processor time"
    assert lines[53].split() == ["60.0", "s", "t0"]
    assert "  one    1:01    0:50  60 passed, 0 failed" in lines
    assert "  two    0:05          0 passed, 1 failed" in lines
    assert lines[-1] == "60 passed, 1 failed"


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0], 0), ([0, 1], 1), ([1, 3, 0], 3), ([5, 0], 0), ([5, 5], 5), ([], 5), ([0, -9], -9)],
)
def test_one_status_for_all(codes: list[int], expected: int) -> None:
    assert status(codes) == expected
