"""Every defect of mig-parted and of the DRA driver, and every complaint about MIG and shared GPUs has a row in
``complaints.yaml``, and each row has tests that are there, or a reason why it has none.

What the rows are about is listed here as in the sheet, so that none can be left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.test_promises import ROOT, named_tests, one_line

ROWS: Final[dict[str, list[dict[str, Any]]]] = yaml.safe_load((Path(__file__).parent / "complaints.yaml").read_text())
DEFECTS: Final = range(1, 10)
DRA_DEFECTS: Final = range(1, 9)
COMPLAINTS: Final = {
    1: "gop#1361 kubernetes#130855",
    2: "nvp#466 nvp#299 gop#2155",
    3: "gop#2833 gop#442 gop#646",
    4: "mp#181 mp#19 mp#357 mp#157 gop#2376 gop#1845 DCGM#276 go-nvml#146",
    5: "gop#603 mp#97",
    6: "mp#31 gop#351",
    7: "nvp#225 gop#403 gop#668",
    8: "gop#2415 mp#368",
    9: "gop#1309",
    10: "nvp#1807",
    11: "nvp#260",
    12: "gop#361 dra#894",
    13: "dra#897",
    14: "dra#1454 dra#1480",
    15: "dra#719",
    16: "dra#1092",
    17: "dra#1100 dra#1259 dra#1080",
    18: "dra#1452 dra#951 dra#1371 dra#1327 dra#1255",
    19: "dra#149 dra#473 dra#1018",
    20: "dra#1384 dra#1183 dra#41 dra#81 dra#58",
    21: "dra#35 dra#787 dra#902 dra#907 dra#641 dra#563 dra#305",
    22: "HAMi#1777 HAMi#1181 HAMi#1381 HAMi#1764 HAMi#1438 HAMi-core#74",
    23: "HAMi#2923 HAMi#1557 HAMi#812 HAMi#815",
    24: "HAMi#1014 HAMi#1054 HAMi#1044 HAMi#1088",
    25: "KAI#416 KAI#848 KAI#118 KAI#256 KAI#257 KAI#522 KAI#422 KAI#1876",
}
"""The threads of each row of the sheet's table."""
KEYS: Final = {"of", "line", "says", "tests", "rules", "why_not"}


def lacks(row: dict[str, Any]) -> list[str]:
    """What is wrong with a row."""
    tests, rules, why_not = row.get("tests", []), row.get("rules", []), str(row.get("why_not", ""))
    wrong = [f"no test {test}" for test in tests if not _is_there(test)]
    wrong += [f"no example {rule}" for rule in rules if not (ROOT / f"tests/doctor/examples/{rule}.yaml").is_file()]
    if bool(tests) is bool(why_not):
        wrong.append("it has either tests or a reason why not")
    if why_not and not why_not.endswith("."):
        wrong.append("its reason is no sentence")
    if why_not and one_line(why_not) not in _decisions():
        wrong.append("decisions.md does not say why not")
    if row.keys() - KEYS or not (row.get("of") and row.get("says")):
        wrong.append("it says of what, and what")
    return [f"{row.get('of')}: {row.get('says')}: {what}" for what in wrong]


def _is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    return name in named_tests(file)


def _decisions() -> str:
    return one_line((ROOT / "docs/explanation/decisions.md").read_text())


@pytest.mark.parametrize("part", ROWS)
def test_every_row_has_its_tests_or_a_reason(part: str) -> None:
    assert [lack for row in ROWS[part] for lack in lacks(row)] == []


def test_no_fact_stands_twice() -> None:
    facts = [(row["of"], row["says"]) for rows in ROWS.values() for row in rows]
    assert len(facts) == len(set(facts))


def test_every_defect_has_a_row_with_tests() -> None:
    assert sorted(row["of"] for row in ROWS["defects"] if row.get("tests")) == list(DEFECTS)


def test_every_defect_of_the_dra_driver_has_a_row() -> None:
    assert sorted(row["of"] for row in ROWS["dra_defects"]) == list(DRA_DEFECTS)


@pytest.mark.parametrize("line", COMPLAINTS)
def test_every_complaint_has_its_rows(line: int) -> None:
    threads = {thread for row in ROWS["complaints"] if row["line"] == line for thread in row["of"].split()}
    assert threads == set(COMPLAINTS[line].split())


def test_no_row_is_of_a_complaint_that_is_not_listed() -> None:
    assert ROWS.keys() == {"defects", "dra_defects", "complaints"}
    assert {row["line"] for row in ROWS["complaints"]} == COMPLAINTS.keys()


@pytest.mark.parametrize(
    "row",
    [
        {"of": 1, "says": "it fails"},
        {"of": 1, "says": "it fails", "tests": []},
        {"of": 1, "says": "it fails", "why_not": "Nobody has written this sentence down."},
        {"of": 1, "says": "it fails", "why_not": "kgpu intercepts no CUDA call"},
        {"of": 1, "says": "it fails", "why_not": "kgpu intercepts no CUDA call.", "tests": ["mig/test_plan.py::test_what_stays_is_not_touched"]},
        {"of": 1, "says": "it fails", "tests": ["mig/test_plan.py::test_that_nobody_has_written"]},
        {"of": 1, "says": "it fails", "tests": ["mig/test_gone.py::test_x"]},
        {"of": 1, "says": "it fails", "rules": ["MIG-99"], "tests": ["mig/test_plan.py::test_what_stays_is_not_touched"]},
        {"of": 1, "says": "it fails", "test": ["mig/test_plan.py::test_what_stays_is_not_touched"]},
        {"says": "it fails", "tests": ["mig/test_plan.py::test_what_stays_is_not_touched"]},
    ],
    ids=str,
)  # fmt: skip
def test_a_row_without_proof_is_found(row: dict[str, Any]) -> None:
    assert lacks(row)
