"""Which of this machine's listeners are a pod's: read from the kernel's tables, and tried with real containers."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.lab.nodes.listeners import Listener, accepting_inodes, is_pods, parse
from tests.lab import container

ADDRESS = "127.31.5.6"

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0605007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0000000000000000 100 0 0 10 0
   1: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0000000000000000 100 0 0 10 0
   2: 0605007F:1F40 0100007F:D903 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0000000000000000 20 4 30 10 -1
   3: cut off
   4: zz:zz 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 14 1
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:1F40 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 21 1 0 100 0 0 10 0
   1: 0000000000000000FFFF00000605007F:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 22 1 0 100 0 0 10 0
   2: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 23 1 0 100 0 0 10 0
"""

little = pytest.mark.skipif(sys.byteorder != "little", reason="the tables were written by a little-endian machine")


@little
def test_the_kernels_tables_are_read() -> None:
    assert parse(TCP) == [Listener("127.0.5.6", 8000, "11"), Listener("", 8000, "12")]
    assert parse(TCP6) == [Listener("", 8000, "21"), Listener("127.0.5.6", 80, "22"), Listener("::1", 80, "23")]
    assert parse("") == []


@pytest.mark.parametrize(
    ("address", "port", "inodes"),
    [
        ("127.0.5.6", 8000, {"11"}),  # who named the address comes first
        ("127.0.5.7", 8000, {"12", "21"}),  # either may be it: an IPv6 listener takes IPv4, too
        ("127.0.5.6", 80, {"22"}),
        ("127.0.5.7", 80, set()),
    ],
)
def test_who_takes_a_connection(address: str, port: int, inodes: set[str]) -> None:
    found = [
        Listener("127.0.5.6", 8000, "11"), Listener("", 8000, "12"), Listener("", 8000, "21"),
        Listener("127.0.5.6", 80, "22"), Listener("::1", 80, "23"),
    ]  # fmt: skip
    assert accepting_inodes(found, address, port) == inodes


@contextlib.contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as made:
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind((address, 0))
        made.listen()
        yield made


@pytest.mark.parametrize("address", [ADDRESS, "0.0.0.0", "::"])
def test_a_pods_own_listener_is_known_on_its_address_and_on_every_one(tmp_path: Path, address: str) -> None:
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(listening(address))
        except OSError:
            pytest.skip("this machine has no IPv6")
        port = made.getsockname()[1]
        assert not is_pods("uid-1", tmp_path, ADDRESS, port), "nobody's container has it yet"
        stack.enter_context(container.running(tmp_path, "uid-1", sockets=[made]))
        stack.enter_context(container.running(tmp_path, "uid-2"))
        assert is_pods("uid-1", tmp_path, ADDRESS, port)
        assert not is_pods("uid-2", tmp_path, ADDRESS, port)
        assert not is_pods("", tmp_path, ADDRESS, port)
        assert not is_pods("uid-1", tmp_path / "other", ADDRESS, port)


def test_what_a_container_has_started_counts_and_what_ended_does_not(tmp_path: Path) -> None:
    """The command is a program that starts another, which listens; it tells its port in a file."""
    listens = (
        "import os, socket, time\n"
        "if os.fork(): time.sleep(600)\n"
        "made = socket.socket(); made.bind(('0.0.0.0', 0)); made.listen()\n"
        "open('new', 'w').write(str(made.getsockname()[1])); os.rename('new', 'port')\n"
        "time.sleep(600)\n"
    )
    with container.running(tmp_path, "uid-1", sys.executable, "-I", "-S", "-c", listens) as folder:
        told = folder / "port"
        while not told.exists():
            assert not (folder / "exit.json").exists(), (folder / "log").read_text()
            time.sleep(0.01)
        port = int(told.read_text())
        assert is_pods("uid-1", tmp_path, ADDRESS, port)
    assert not is_pods("uid-1", tmp_path, ADDRESS, port)


def test_both_a_pods_and_a_strangers_is_nobodys(tmp_path: Path) -> None:
    """Who of them takes a connection is the kernel's choice."""
    with socket.socket() as own, socket.socket() as stranger:
        for one in (own, stranger):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        own.bind((ADDRESS, 0))
        stranger.bind(own.getsockname())
        own.listen()
        with container.running(tmp_path, "uid-1", sockets=[own]):
            port = own.getsockname()[1]
            assert is_pods("uid-1", tmp_path, ADDRESS, port)
            stranger.listen()
            assert not is_pods("uid-1", tmp_path, ADDRESS, port)
