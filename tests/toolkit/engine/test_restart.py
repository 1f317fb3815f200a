"""Restarting engines: real processes behind real sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kgpu.base import signals
from kgpu.base.errors import ConfigError, HostError
from kgpu.host.engines.model import Engine, EnginePlace
from kgpu.host.engines.paths import MountedPaths
from kgpu.toolkit.engine.restart import NoRestart, SignalRestart, SystemdRestart, connects, restarter

PLACE = EnginePlace(
    engine=Engine.CONTAINERD, flavour="containerd", config="/c.toml", socket="/run/c.sock", service="containerd"
)
# Listens on the socket; with a second word it survives SIGHUP and notes it there, or ignores the signals "-HUP-TERM".
PROGRAM = """
import pathlib, signal, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
if len(sys.argv) > 2 and sys.argv[2].startswith("-"):
    for name in sys.argv[2].split("-")[1:]:
        signal.signal(getattr(signal, "SIG" + name), signal.SIG_IGN)
elif len(sys.argv) > 2:
    signal.signal(signal.SIGHUP, lambda *_: (pathlib.Path(sys.argv[2]).write_text("read"), print("read", flush=True)))
print("up", flush=True)
while True:
    listener.accept()
"""


@pytest.fixture
def listener(tmp_path):
    started: list[subprocess.Popen] = []

    def start(*words: str) -> subprocess.Popen:
        (tmp_path / "run").mkdir(exist_ok=True)
        process = subprocess.Popen(
            signals.with_defaults([sys.executable, "-c", PROGRAM, str(tmp_path / "run/c.sock"), *words]),
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout.readline() == b"up\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_the_process_behind_the_socket_is_told_and_waited_for(listener, tmp_path) -> None:
    process = listener()
    paths = MountedPaths.at(tmp_path)
    assert await connects(str(paths.local(PLACE.socket))) == ""
    reaped = asyncio.create_task(asyncio.to_thread(process.wait))
    assert await SignalRestart(paths).restart(PLACE) == ""
    assert await reaped == -signal.SIGHUP
    assert "doesn't answer" in await connects(str(paths.local(PLACE.socket)))


async def test_docker_goes_on(listener, tmp_path) -> None:
    told = tmp_path / "told"
    process = listener(str(told))
    await SignalRestart(MountedPaths.at(tmp_path)).restart(replace(PLACE, engine=Engine.DOCKER))
    assert await asyncio.to_thread(process.stdout.readline) == b"read\n"
    assert told.read_text() == "read"
    assert process.poll() is None


# As under systemd: the socket was made by another process, which goes on holding it.
ACTIVATED = """
import pathlib, signal, socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
signal.signal(signal.SIGHUP, lambda *_: (pathlib.Path(sys.argv[2]).write_text("read"), print("read", flush=True)))
print("up", flush=True)
while True:
    connection, _ = listener.accept()
    if connection.recv(4096):
        connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nOK")
    connection.close()
"""


def test_the_docker_behind_a_socket_of_systemds_is_told_and_not_systemd(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(signal, "pidfd_send_signal", _never_to(os.getpid(), signal.pidfd_send_signal))
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as made_here:
        made_here.bind(str(tmp_path / "run/c.sock"))
        made_here.listen()
        words = [sys.executable, "-c", ACTIVATED, str(made_here.fileno()), str(tmp_path / "told")]
        with subprocess.Popen(words, stdout=subprocess.PIPE, pass_fds=[made_here.fileno()]) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == b"up\n"
                asyncio.run(SignalRestart(MountedPaths.at(tmp_path)).restart(replace(PLACE, engine=Engine.DOCKER)))
                assert process.stdout.readline() == b"read\n"
            finally:
                process.kill()


def _never_to(pid: int, send):
    """Sends on, but fails the test in place of ending it when the signal is for this process."""

    def checked(handle: int, number: int) -> None:
        text = Path(f"/proc/self/fdinfo/{handle}").read_text()
        assert f"Pid:\t{pid}\n" not in text, "the signal would go to whoever made the socket"
        send(handle, number)

    return checked


async def test_nobody_behind_the_socket(tmp_path) -> None:
    with pytest.raises(HostError, match=r"doesn't answer on /run/c\.sock"):
        await SignalRestart(MountedPaths.at(tmp_path)).restart(PLACE)


async def test_systemctl_is_run_in_the_hosts_root(tmp_path, monkeypatch) -> None:
    seen: list[tuple[str, ...]] = []
    answers = [(0, ""), (1, "Unit x.service not found.")]

    async def program(paths, words, *, seconds):
        from kgpu.toolkit.engine.programs import ProgramAnswer

        assert paths.tree.here == tmp_path
        assert seconds > 10
        seen.append(tuple(words))
        return ProgramAnswer(*answers[len(seen) - 1])

    monkeypatch.setattr("kgpu.toolkit.engine.restart.run_program", program)
    systemd = SystemdRestart(MountedPaths.at(tmp_path))
    await systemd.restart(PLACE)
    with pytest.raises(HostError, match=r"Unit x\.service not found"):
        await systemd.restart(replace(PLACE, service="x"))
    assert seen == [("systemctl", "restart", "containerd"), ("systemctl", "restart", "x")]


def test_usual_modes(tmp_path) -> None:
    paths = MountedPaths.at(tmp_path)
    assert isinstance(restarter("", paths, PLACE), SignalRestart)
    assert isinstance(restarter("", paths, replace(PLACE, engine=Engine.CRIO)), SystemdRestart)
    assert isinstance(restarter("none", paths, PLACE), NoRestart)
    with pytest.raises(ConfigError, match='did you mean "systemd"'):
        restarter("systemdd", paths, PLACE)


async def test_a_hidden_process_is_told_apart(listener, tmp_path, monkeypatch) -> None:
    listener()
    monkeypatch.setattr("kgpu.toolkit.engine.restart.struct.unpack", lambda *_: (0, 0, 0))
    with pytest.raises(HostError, match="can't be seen from here"):
        await SignalRestart(MountedPaths.at(tmp_path)).restart(PLACE)
