"""A server that others wear on: idle and wrong connections, a log that grows, a folder that is taken away."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import os
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

from kgpu.lab.embedded import upkeep
from tests.lab.embedded.served import Server, running

DESCRIPTORS = 256
MAPS = "/api/v1/namespaces/default/configmaps"


@contextlib.contextmanager
def _connections(server: Server, number: int, *, tls: bool = False) -> Iterator[list[socket.socket]]:
    host, _, port = server.address.rpartition(":")
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(number):
            one: socket.socket = stack.enter_context(socket.create_connection((host, int(port)), timeout=300))
            if tls:
                one = stack.enter_context(server.context.wrap_socket(one, server_hostname=host))
            made.append(one)
        yield made


def _is_closed(one: socket.socket) -> bool:
    """Whether the other side ended it; waits for that."""
    try:
        return one.recv(1) == b""
    except (ConnectionError, ssl.SSLError):
        return True


def test_idle_connections_keep_nobody_out_and_leave_no_mess_in_the_log(tmp_path: Path) -> None:
    with running(tmp_path / "lab", descriptors=DESCRIPTORS) as server:
        before = len(server.log)
        with contextlib.closing(server.connect()) as kept:
            kept.request("GET", MAPS, headers=server.headers())
            assert kept.getresponse().read()
            with _connections(server, 400) as plain:
                assert server.ask("GET", MAPS).code == 200
                assert _is_closed(plain[0])  # the oldest went for the others
                with _connections(server, 200, tls=True) as secure:
                    assert server.ask("GET", MAPS).code == 200
                    assert _is_closed(secure[0])
                    kept.request("GET", MAPS, headers=server.headers())  # a known one is still connected
                    assert kept.getresponse().status == 200
                    assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < DESCRIPTORS
        said = server.log[before:]
        assert "Traceback" not in said
        assert len(said) < 4096


def test_rubbish_does_not_fill_the_log(tmp_path: Path) -> None:
    begun = time.monotonic()
    with running(tmp_path / "lab") as server:
        before = len(server.log)
        for tls in (False, True):
            with _connections(server, 60, tls=tls) as made:
                for one in made:
                    one.sendall(b"\x00rubbish\r\n\r\n" * 4)
                for one in made:
                    with contextlib.suppress(OSError):
                        while one.recv(4096):
                            pass
        assert server.ask("GET", MAPS).code == 200
        minutes = 1 + (time.monotonic() - begun) // 60  # in each of which some may be told
        assert server.log[before:].count("\n") <= 25 * minutes
        assert "Traceback" not in server.log[before:]


def test_a_server_whose_folder_is_gone_ends(tmp_path: Path) -> None:
    with running(tmp_path / "lab") as server:
        shutil.rmtree(tmp_path / "lab")
        assert server.process.wait(300) == 0


def test_a_server_whose_folder_is_another_ends(tmp_path: Path) -> None:
    with running(tmp_path / "lab") as server:
        (tmp_path / "lab").rename(tmp_path / "moved")
        with running(tmp_path / "lab") as second:
            assert server.process.wait(300) == 0
            assert second.ask("GET", "/readyz").code == 200
    assert "is gone" in (tmp_path / "moved" / "logs" / "server.log").read_text()


def test_a_log_that_is_too_big_is_moved_aside_while_the_server_writes_on(tmp_path: Path) -> None:
    with running(tmp_path / "lab") as server:
        old = server.log_file.stat().st_ino
        with server.log_file.open("ab") as log:
            log.write(b"x" * (upkeep.LOG_BYTES + 1))
        aside = server.log_file.with_name("server.log.1")
        until = time.monotonic() + 300
        while not aside.exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert aside.stat().st_ino == old
        assert server.stop() == 0
        assert "stopping" in server.log
        assert sorted(one.name for one in server.log_file.parent.iterdir()) == ["server.log", "server.log.1"]


async def test_a_folder_is_watched_by_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    watching = asyncio.create_task(upkeep.until_gone(path, upkeep.FileIdentity.of(path.stat()), period=0.01))
    done, _ = await asyncio.wait([watching], timeout=0.1)
    assert not done
    (tmp_path / "new").touch()
    (tmp_path / "new").rename(path)
    await asyncio.wait_for(watching, 60)


def test_what_others_make_libraries_say_is_bounded_and_ours_is_not() -> None:
    now = 0.0
    sparing = upkeep.Sparing(most=3, period=60, clock=lambda: now)

    def passes(name: str) -> logging.LogRecord | None:
        record = logging.LogRecord(name, logging.WARNING, "", 0, "hello %s", ("you",), None)
        return record if sparing.filter(record) else None

    assert [passes("uvicorn.error") is not None for _ in range(5)] == [True, True, True, False, False]
    assert passes("asyncio") is None
    assert all(passes("kgpu.lab") is not None for _ in range(9))
    now = 61.0
    record = passes("asyncio")
    assert record is not None
    assert record.getMessage() == "hello you (3 records of libraries were left out before this one)"
    assert passes("asyncio") is not None


def test_a_stopped_server_ends_also_with_strangers(tmp_path: Path) -> None:
    with running(tmp_path / "lab") as server, _connections(server, 20), _connections(server, 5, tls=True):
        with contextlib.closing(server.connect()) as watching:
            watching.request("GET", f"{MAPS}?watch=1", headers=server.headers())
            assert watching.getresponse().status == http.client.OK
            assert server.stop() == 0
        assert "Traceback" not in server.log
