"""What a row of ``*_rows.yaml`` has to have: tests that are there, or a reason that everybody can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from tests.test_promises import named_tests, one_line

ROOT: Final = Path(__file__).parent.parent.parent
ANSWERS: Final = frozenset({"yes", "partly", "no", "never"})
REASONS: Final = "docs/explanation/decisions.md"


def rows_of(name: str) -> Any:
    """The rows of a file beside this one."""
    return yaml.safe_load((Path(__file__).parent / f"{name}_rows.yaml").read_text())


def numbers(text: str) -> set[int]:
    """The numbers of ranges such as ``1-3, 7``."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def lacks(row: dict[str, Any]) -> list[str]:
    """What a row lacks: a test that it names, any test where it says yes or partly, a reason where it says less than yes."""
    tests = row.get("by", ())
    now = row["now"]
    wrong = [f"no test {test}" for test in tests if test.partition("::")[2] not in named_tests(test.partition("::")[0])]
    wrong += [f"{now} is no answer"] if now not in ANSWERS else []
    wrong += ["no test shows it"] if now in ("yes", "partly") and not tests else []
    reason = row.get("reason", "")
    if now == "yes":
        return wrong + (["yes needs no reason"] if reason else [])
    told = one_line(reason) in one_line((ROOT / REASONS).read_text())
    return wrong + ([] if reason and told else [f"{REASONS} gives no reason: {reason}"])
