"""``kgpu xid``: numbers, the catalogue and logs; exit codes."""

from __future__ import annotations

import gzip
import io
import json
import sys
from types import SimpleNamespace

import pytest

from kgpu.cli.main import main

LOG = """\
[  10.5] NVRM: GPU at PCI:0000:04:00: GPU-c43f0536-e751-7211-d7a7-78c95249ee7d
[  11.0] NVRM: Xid (PCI:0000:04:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[  11.1] NVRM: GPU 0000:04:00.0: GPU has fallen off the bus.
[  12.0] NVRM: Xid (PCI:0000:07:00 GPU-I:02 GPU-CI:00): 31, pid=77, name=train\x1b[31m, Ch 1
[  13.0] NVRM: Xid (PCI:0000:07:00 GPU-I:02 GPU-CI:00): 31, pid=77, name=train\x1b[31m, Ch 1
[  14.0] amdgpu 0000:03:00.0: Xid 79
"""


@pytest.fixture
def piped(monkeypatch):
    def put(data: bytes, *, tty: bool = False) -> None:
        fake = SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: tty)
        monkeypatch.setattr(sys, "stdin", fake)

    return put


def test_a_number(capsys) -> None:
    assert main(["kgpu", "xid", "79"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Xid 79: GPU has fallen off the bus\n")
    assert "reboot the node: drain the node and reboot it" in out
    assert "RESTART_BM / CONTACT_SUPPORT" in out


@pytest.mark.parametrize(
    ("driver", "said"),
    [("535.104.05", "535 gives no verdict of its own"), ("R570", "570 follows it with Xid 154"), ("", "from 570 on")],
)
def test_the_driver_decides_whose_word_counts(driver: str, said: str, capsys) -> None:
    assert main(["kgpu", "xid", "109", *(["--driver", driver] if driver else [])]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("spelling", ["79", "xid79", "XID79", "079"])
def test_spellings(spelling: str, capsys) -> None:
    assert main(["kgpu", "xid", spelling, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["code"] == 79


def test_several_numbers_as_json(capsys) -> None:
    assert main(["kgpu", "xid", "13", "20034", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["kind"], one["code"], one["action"]) for one in found] == [
        ("xid", 13, "restart-app"), ("sxid", 20034, "reset-gpu"),
    ]  # fmt: skip


@pytest.mark.parametrize("words", [["0"], ["173"], ["9999999"], ["abc"], ["-o", "xml"], ["79", "--list"], ["79", "--driver", "x"], ["--list", "--driver", "570"],
                                   ["--log", "/does/not/exist"]])  # fmt: skip
def test_bad_input_is_explained(words: list[str], capsys) -> None:
    assert main(["kgpu", "xid", *words]) == 2
    said = capsys.readouterr().err
    assert "expected:" in said
    assert "to do:" in said


def test_the_catalogue(capsys) -> None:
    assert main(["kgpu", "xid", "--list", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["code"] for one in found[:172]] == list(range(1, 173))
    assert len(found) == 172 + 93
    assert main(["kgpu", "xid", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 172 + 93
    assert lines[79].split()[:4] == ["79", "reboot", "error", "RESTART_BM"]


@pytest.mark.parametrize("by", ["--log FILE", "--log -", "pipe"])
def test_a_log(by: str, piped, tmp_path, capsys) -> None:
    file = tmp_path / "kernel.log"
    file.write_text(LOG)
    piped(LOG.encode())
    words = {"--log FILE": ["--log", str(file)], "--log -": ["--log", "-"], "pipe": []}[by]
    assert main(["kgpu", "xid", *words]) == 3
    out = capsys.readouterr().out
    assert "GPU 0000:04:00 GPU-c43f0536-e751-7211-d7a7-78c95249ee7d: reboot the node" in out
    assert "Xid 79     GPU has fallen off the bus: once, 11.0 [reboot the node]" in out
    assert "GPU 0000:07:00: restart the program" in out
    assert "in GPU instance 2: 2 times, 12.0 to 13.0" in out
    assert "\x1b" not in out
    assert "0000:03:00" not in out


def test_a_rotated_log_is_unpacked(tmp_path, capsys) -> None:
    file = tmp_path / "kern.log.2.gz"
    file.write_bytes(gzip.compress(LOG.encode()))
    assert main(["kgpu", "xid", "--log", str(file)]) == 3
    assert "reboot the node" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "said"),
    [(gzip.compress(LOG.encode() * 50)[:90], "damaged"), (gzip.compress(b"x")[:4] + b"junk" * 9, "damaged"),
     (b"\x28\xb5\x2f\xfd rest", "compressed with zstd"), (b"\xfd7zXZ\x00", "compressed with xz")],
    ids=["cut off", "junk", "zstd", "xz"],
)  # fmt: skip
def test_what_can_not_be_unpacked_is_said(data: bytes, said: str, tmp_path, capsys) -> None:
    file = tmp_path / "kern.log.2"
    file.write_bytes(data)
    assert main(["kgpu", "xid", "--log", str(file)]) == 2
    assert said in capsys.readouterr().err


def test_what_a_boot_has_ended(piped, capsys) -> None:
    piped(LOG.encode() + b"[    0.000000] Linux version 6.1.0 (x) #1 SMP\n")
    assert main(["kgpu", "xid"]) == 0
    assert "[over: before the last boot]" in capsys.readouterr().out


AMD_LOG = b"""[    1.0] amdgpu 0000:c3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block
[    2.0] amdgpu 0000:83:00.0: amdgpu: 9 uncorrectable hardware errors detected in gfx block
[    3.0] amdgpu 0000:83:00.0: amdgpu: GPU reset(1) succeeded!
"""


def test_errors_of_amd_gpus_and_what_a_reset_has_ended(piped, capsys) -> None:
    piped(AMD_LOG)
    assert main(["kgpu", "xid"]) == 3
    said = capsys.readouterr().out
    assert "GPU 0000:c3:00: reset the GPU" in said
    assert "amd-smi reset" in said
    assert "nvidia-smi" not in said
    assert "[over: before the last boot or reset]" in said
    piped(AMD_LOG)
    assert main(["kgpu", "xid", "-o", "json"]) == 3
    devices = json.loads(capsys.readouterr().out)["devices"]
    assert [(device["pci"], device["action"], device["errors"][0]["key"], device["errors"][0]["over"]) for device in devices] == [
        ("0000:c3:00", "reset-gpu", "ras-uncorrectable", False), ("0000:83:00", "ignore", "ras-uncorrectable", True),
    ]  # fmt: skip


def test_a_log_as_json(piped, capsys) -> None:
    piped(LOG.encode())
    assert main(["kgpu", "xid", "-o", "json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["action"] == "reboot"
    second = found["devices"][1]
    assert (second["pci"], second["action"]) == ("0000:07:00", "restart-app")
    assert [(one["code"], one["count"], one["gpuInstance"]) for one in second["errors"]] == [(31, 2, 2)]


def test_errors_of_programs_are_nothing_for_the_node(piped, capsys) -> None:
    piped(b"NVRM: Xid (PCI:0000:07:00): 13, pid=77, name=a, Graphics Exception\n")
    assert main(["kgpu", "xid"]) == 0
    assert "restart the program" in capsys.readouterr().out


@pytest.mark.parametrize("data", [b"nothing\n", b"\n", bytes(range(256)) * 50])
def test_a_log_without_any(data: bytes, piped, capsys) -> None:
    piped(data)
    assert main(["kgpu", "xid"]) == 0
    assert capsys.readouterr().out == "no Xid, SXid, lost GPU or error of amdgpu in this log\n"


def test_an_empty_log_proves_nothing(piped, capsys) -> None:
    piped(b"")
    assert main(["kgpu", "xid"]) == 2
    assert "run dmesg as root" in capsys.readouterr().err


def test_without_anything_on_a_terminal(piped, capsys) -> None:
    piped(b"", tty=True)
    assert main(["kgpu", "xid"]) == 2
    assert "nothing to explain" in capsys.readouterr().err


def test_help_has_examples(capsys) -> None:
    assert main(["kgpu", "xid", "--help"]) == 0
    assert "dmesg | kgpu xid" in capsys.readouterr().out
