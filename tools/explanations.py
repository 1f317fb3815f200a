"""Writes src/kgpu/doctor/explained.json: for each rule of the doctor a case with proof and remedy.

It comes from the broken halves of the examples of the doctor's tests, so that ``kgpu doctor --explain ID`` shows a case
as it is told. ``--check`` exits 1 when the file is not current.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))


from kgpu.cli.doctor import xids_in  # noqa: E402
from kgpu.doctor.plan import diagnose  # noqa: E402
from kgpu.doctor.rules import all_rules  # noqa: E402
from tests.doctor.example import all_examples  # noqa: E402 - found through the path above
from tools.answers import ROWS  # noqa: E402

FILE = ROOT / "src" / "kgpu" / "doctor" / "explained.json"
MOST_EVIDENCE = 3


def explained() -> dict[str, dict[str, Any]]:
    """By rule. Raises SystemExit for a rule of which no example tells."""
    pages: dict[str, list[str]] = {}
    for row in ROWS:
        pages.setdefault(row.example.partition("_")[0], []).append(row.page)
    found: dict[str, dict[str, Any]] = {}
    for example in sorted(all_examples(), key=lambda one: (one.name != one.rule, one.name)):
        if example.rule in found:
            continue
        report = diagnose(example.snapshot(example.broken).judged(xids_in), strict=True)
        told = [one for root in report.findings for one in root.all() if one.id == example.rule]
        if told:
            found[example.rule] = {
                "cause": told[0].cause,
                "evidence": [str(one) for one in told[0].evidence[:MOST_EVIDENCE]],
                "remedy": list(told[0].remedy),
                **({"pages": pages[example.rule]} if example.rule in pages else {}),
            }
    silent = [rule.id for rule in all_rules() if rule.id not in found]
    if silent:
        raise SystemExit(f"no example tells of {', '.join(silent)}")
    return dict(sorted(found.items()))


def text() -> str:
    """The file: a line for each rule, so that a change is seen as what it is."""
    rows = (f"{json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in explained().items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


def main() -> int:
    """Write or check; returns the exit code."""
    wanted = text()
    current = FILE.exists() and FILE.read_text() == wanted
    if "--check" in sys.argv:
        if not current:
            print(f"{FILE} is not current; run `python tools/explanations.py`")
        return int(not current)
    if not current:
        FILE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
