"""Kernel logs whose lines a terminal has broken say what they say whole."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgpu.cli.doctor import xids_in
from kgpu.doctor.host_facts import HostFacts
from kgpu.doctor.plan import diagnose
from kgpu.doctor.sources import files
from kgpu.doctor.sources.wrapped_lines import joined
from tests.budget import tries
from tests.doctor.example import all_examples

SAID = {
    "HW-01": "NVRM: Xid (PCI:0000:07:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "HW-02": "NVRM: Xid (0000:07:00): 48, An uncorrectable double bit error (DBE) has been detected on GPU at subpartition",
    "DRV-06": "NVRM: API mismatch: the client has the version 570.124.06, but this kernel module has the version 570.86.15.",
    "KRN-03": "NVRM: This can occur when a driver such as: nouveau, rivafb, nvidiafb or rivatv was loaded and obtained it",
    "KRN-04": "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7 for all there is to it",
    "KRN-07": "NVRM: The NVIDIA GPU 0000:07:00.0 (PCI ID: 10de:1db6) installed in this system is not supported by open nvidia.ko",
    "KRN-09": "NVRM: GPU 0000:07:00.0: RmInitAdapter failed! (0x62:0xffff:2477) and what follows it in this one long line",
}
QUIET = (
    "pcieport 0000:00:01.0: AER: Corrected error received: 0000:07:00.0 of which the kernel says all in one long line",
    "nouveau 0000:07:00.0: unknown chipset (b72000a1), and so on until no terminal of anybody is wide enough for it",
    "usb 1-1: new high-speed USB device number 2",
    "nvidia: module license 'NVIDIA' taints kernel, as its own words have it in every log of every machine there is",
)
HEADS = (
    "[ 1842.113456] ", "<4>[ 1842.113456] ", "kern  :warn  : [ 1842.113456] ", "[Thu Jan  1 11:58:20 2026] ",
    "6,1027,1842113456,-;", "Jan 01 11:58:20 gpu-9 kernel: ", "2026-01-01T11:58:20.113+00:00 gpu-9 kernel: ",
)  # fmt: skip


def hard(text: str, column: int, *, copied: bool = False) -> str:
    """As a terminal breaks it: anywhere. ``copied``: without the blanks at the ends of its lines."""
    rows = [line[at : at + column] for line in text.splitlines() for at in range(0, len(line), column)]
    return "\n".join(row.rstrip() if copied else row for row in rows) + "\n"


def soft(text: str, column: int) -> str:
    """As a mail or a chat breaks it: at blanks."""
    return "\n".join(row for line in text.splitlines() for row in textwrap.wrap(line, column)) + "\n"


def written(lines: tuple[str, ...], head: str) -> str:
    return "".join(f"{head}{line}\n" for line in lines)


def read(text: str, folder: Path) -> tuple[HostFacts, list[tuple[object, ...]]]:
    """What is read of the host, and what is told."""
    (folder / "what the kernel says").write_text(text)
    snapshot = files.read(str(folder)).judged(xids_in)
    report = diagnose(snapshot, strict=True)
    (host,) = snapshot.hosts.values()
    every = [one for root in report.findings for one in root.all()]
    return host, [(one.id, one.subject, one.cause, one.evidence, one.remedy) for one in every]


@pytest.mark.parametrize("column", [60, 80, 100])
@pytest.mark.parametrize("rule", SAID)
def test_a_broken_line_says_what_it_says_whole(rule: str, column: int, tmp_path: Path) -> None:
    text = written((*QUIET, SAID[rule]), HEADS[0])
    host, told = read(text, tmp_path)
    assert told[0][0] == rule
    assert read(hard(text, column), tmp_path) == (host, told)


@pytest.mark.parametrize("column", [60, 72, 80, 100, 110])
@pytest.mark.parametrize("head", [*HEADS, ""])
def test_every_form_of_log_comes_back_whole(head: str, column: int) -> None:
    """Those of AER and nouveau too, of which no rule tells: they are what other findings show beside them."""
    text = written((*QUIET, *SAID.values()), head)
    assert joined(text) == text
    assert hard(text, column) != text
    assert joined(hard(text, column)) == text
    assert joined(hard(text, column, copied=True)) == text


@pytest.mark.parametrize("column", [60, 72, 80])
def test_lines_that_were_broken_at_blanks(column: int) -> None:
    text = written((*QUIET, *SAID.values()), HEADS[0])
    assert joined(soft(text, column)) == text


@tries(200)
@given(
    said=st.lists(st.sampled_from([*SAID.values(), *QUIET]), min_size=1, max_size=5, unique=True),
    head=st.sampled_from(HEADS),
    column=st.integers(60, 200),
)
@example(said=[SAID["HW-01"]], head=HEADS[5], column=77)
def test_no_column_changes_what_is_told(
    said: list[str], head: str, column: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("log")
    text = written((*said, SAID["HW-01"]), head)
    assert read(hard(text, column), folder) == read(text, folder)


@pytest.mark.parametrize(
    "after",
    [
        "root@gpu-9:~# nvidia-smi\n", "+-----------------------------------+\n| NVIDIA-SMI 550.127.05  |\n", "\nhello\n",
        "____________________________________________\n", " SUBSYSTEM=pci\n", "a b\n",
    ],
)  # fmt: skip
def test_what_is_no_rest_of_a_line_stays_where_it_is(after: str) -> None:
    text = f"[ 1.2] {QUIET[0]}\n[ 1.3] {SAID['HW-01']}\n{after}"
    assert joined(text) == text


@given(st.text(max_size=200), st.sampled_from(HEADS))
def test_any_text_is_taken(text: str, head: str) -> None:
    whole = joined(f"{head}{text}\n")
    assert whole.replace("\n", "").replace(" ", "").startswith(head.strip().replace(" ", "")[:10])


def test_the_version_that_an_older_driver_says_is_told() -> None:
    (example,) = (one for one in all_examples() if one.name == "KRN-09_legacy")
    assert "304.116" in diagnose(example.snapshot(example.broken), strict=True).findings[0].cause
