"""What control daemons write is told once, whole and clean, whatever lies in their folder."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from kgpu.mps.control_log import FILE_NAME, ControlLog

NAME = "nvidia.com/gpu.shared"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


def test_lines_of_a_daemon_are_in_the_log_of_the_role(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = ControlLog(str(file.parent), NAME)
    log.tell()  # there is none yet
    file.write_text("[time Control 7] Starting control daemon\n[time Control 7] NEW CLI")
    log.tell()
    log.tell()
    with file.open("a") as more:
        more.write("ENT 9 from user 0\n")
    log.tell()
    assert caplog.messages == [
        f"{NAME}: [time Control 7] Starting control daemon",
        f"{NAME}: [time Control 7] NEW CLIENT 9 from user 0",
    ]


def test_what_was_there_before_is_not_told_again(file: Path) -> None:
    file.write_text("old\n")
    log = ControlLog(str(file.parent), NAME, behind=True)
    assert log.news() == []
    file.write_text("a\n")  # begun anew
    assert log.news() == ["a"]


def test_a_flood_and_bytes_that_drive_a_terminal_do_no_harm(file: Path) -> None:
    file.write_bytes(b"\x1b[2Jbad\xff\n" + b"x" * 3000 + b"\n\n")
    first, second = ControlLog(str(file.parent), NAME).news()
    assert first == "?[2Jbad\ufffd"
    assert len(second) == 500
    file.write_bytes(b"line\n" * 100_000)
    log = ControlLog(str(file.parent), NAME)
    assert 0 < len(log.news()) < 5000
    assert log.news() == []


def test_a_link_or_a_pipe_in_its_place_is_not_followed(file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    file.symlink_to(secret)
    assert ControlLog(str(file.parent), NAME).news() == []
    file.unlink()
    os.mkfifo(file)
    assert ControlLog(str(file.parent), NAME).news() == []
    file.unlink()
    file.mkdir()
    assert ControlLog(str(file.parent), NAME).news() == []
