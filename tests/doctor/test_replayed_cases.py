"""Reports that are kept in a folder are replayed: right, wrong, silent, or a false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.replay_cases import main

XID = "[ 1842.113] NVRM: Xid (PCI:0000:07:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
CALM = "[ 1842.113] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15\n"


def report(place: Path, name: str, log: str, cause: str) -> None:
    (place / name).mkdir()
    (place / name / "dmesg").write_text(log)
    (place / name / "cause.txt").write_text(cause)


@pytest.mark.parametrize(
    ("name", "log", "cause", "said"),
    [
        ("01-lost", XID, "a thread\nright ids: HW-01 KRN-12\n", "1 of 1 right"),
        ("01-lost", XID, "right ids: KRN-03", "01-lost: told first: HW-01, right: KRN-03"),
        ("01-lost", CALM, "right ids: HW-01", "01-lost: told first: nothing, right: HW-01"),
        ("01-unnamed", XID, "nobody knows", "1 of 1 right"),
        ("01-unnamed", CALM, "nobody knows", "01-unnamed: told first: nothing"),
        ("01-healthy-calm", CALM, "it is well", "1 of 1 right"),
        ("01-healthy-not", XID, "it is well", "01-healthy-not: told: HW-01, and it is healthy"),
    ],
)
def test_what_is_told_first_is_compared(
    *, name: str, log: str, cause: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(tmp_path, name, log, cause)
    assert main([str(tmp_path)]) == int(said != "1 of 1 right")
    assert said in capsys.readouterr().out.splitlines()


def test_without_reports_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == "skipped: no cases here\n"
