"""Runs the doctor on reports that somebody has kept, and says how often its first finding is right.

``python tools/replay_cases.py FOLDER``: each folder in it with a ``cause.txt`` is a report. That text names the rules
that are right in a line ``right ids: KRN-03 KRN-08``; of a folder whose name has ``-healthy`` nothing but notes may be
told.
Exits 1 where one is wrong. The reports themselves are users' own and not part of this repository.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from kgpu.cli.doctor import xids_in
from kgpu.doctor.model import Level, Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.sources import files

_RIGHT = re.compile(r"right ids: (.*)")
_ID = re.compile(r"[A-Z]{2,4}-\d+")
_HEALTHY = re.compile(r"(?:^|-)healthy(?:-|$)")


def replayed(folder: Path) -> Iterator[tuple[str, bool, str]]:
    """Of each report its name, whether what is told is right, and what is told, or why not."""
    for case in sorted(path.parent for path in folder.glob("*/cause.txt")):
        named = _RIGHT.search((case / "cause.txt").read_text())
        wanted = _ID.findall(named[1]) if named else []
        report = diagnose(files.read(str(case)).judged(xids_in))
        first = report.findings[0].id if report.findings else "nothing"
        if _HEALTHY.search(case.name):
            alarms = [one.id for one in report.findings if one.level is not Level.NOTE]
            yield case.name, not alarms, f"told: {alarms[0]}, and it is healthy" if alarms else "healthy"
        elif wanted:
            yield case.name, first in wanted, f"told first: {first}, right: {' '.join(wanted)}"
        else:
            yield case.name, not _silent(report), f"told first: {first}"


def _silent(report: Report) -> bool:
    return all(one.level is Level.NOTE for one in report.findings)


def main(arguments: list[str]) -> int:
    """Replay the folder's reports; returns the exit code."""
    if len(arguments) != 1:
        print("usage: python tools/replay_cases.py FOLDER")
        return 2
    rows = list(replayed(Path(arguments[0])))
    if not rows:
        print("skipped: no cases here")
        return 0
    wrong = [f"{name}: {said}" for name, right, said in rows if not right]
    print("\n".join([*wrong, f"{len(rows) - len(wrong)} of {len(rows)} right"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
