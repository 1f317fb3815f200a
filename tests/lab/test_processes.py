"""Processes of a lab: recognised, measured, signalled, and never mistaken for others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec
import pytest

from kgpu.base.boot import ENV_BOOT_ID
from kgpu.lab import processes


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def test_a_recorded_process_is_recognised_and_signalled() -> None:
    child = _sleeper()
    try:
        known = processes.record(child.pid)
        assert processes.alive(known)
        assert processes.signal_process(known, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
    assert not processes.alive(known)
    assert not processes.signal_process(known, signal.SIGKILL)


def test_a_simulated_machines_boot_is_not_that_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    known = processes.record(os.getpid())
    monkeypatch.setenv(ENV_BOOT_ID, "simulated")
    assert processes.record(os.getpid()) == known
    assert processes.alive(known)


def test_another_process_with_the_same_pid_is_left_alone() -> None:
    child = _sleeper()
    try:
        known = processes.record(child.pid)
        for other in (
            msgspec.structs.replace(known, start=known.start + 1),
            msgspec.structs.replace(known, boot="another boot"),
        ):
            assert not processes.alive(other)
            assert not processes.signal_process(other, signal.SIGKILL)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_zombies_are_not_alive() -> None:
    child = _sleeper()
    known = processes.record(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.alive(known)
    child.wait()


def test_start_time_with_brackets_and_spaces_in_the_command() -> None:
    fields = ["S", *map(str, range(4, 52))]
    assert processes.parse_start_time(f"42 (a) b (c) {' '.join(fields)}\n") == 22


def test_memory_is_read_from_the_rollup() -> None:
    assert processes.parse_memory("00-ff ---p 0 00:00 0 [rollup]\nRss:    120 kB\nPss:     60 kB\n") == {
        "rss_kib": 120,
        "pss_kib": 60,
    }
    child = _sleeper()
    assert processes.memory(child.pid)["rss_kib"] > 0
    assert child.pid in processes.children(os.getpid())
    child.kill()
    child.wait()
    assert processes.memory(child.pid) == {}
    assert processes.children(child.pid) == []
