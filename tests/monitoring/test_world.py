"""What the other tests stand on: a port that stays ours, and a Prometheus that listens before it can answer."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.monitoring.world import Prometheus, closing, until
from tests.ports import free_port

SLOW = """#!{python}
# Listens like a Prometheus that still reads its data: 503 until the file "ready" is there.
import http.server, pathlib, sys

address = next(one for one in sys.argv if one.startswith("--web.listen-address=")).partition("=")[2]
folder = pathlib.Path(__file__).parent


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        (folder / "asked").touch()
        self.send_response(200 if (folder / "ready").exists() else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


host, _, port = address.rpartition(":")
http.server.HTTPServer((host, int(port)), Handler).serve_forever()
"""


def program(folder: Path, text: str) -> Path:
    made = folder / "program"
    made.write_text(text.format(python=sys.executable))
    made.chmod(0o755)
    return made


def test_a_prometheus_that_only_listens_is_waited_for(tmp_path: Path) -> None:
    prometheus = Prometheus(program(tmp_path, SLOW), tmp_path, {})
    with closing(prometheus):
        until("it listens", lambda: not prometheus.ready() and (tmp_path / "asked").exists())
        assert not prometheus.ready()
        (tmp_path / "ready").touch()
        assert prometheus.ready()


def test_one_that_has_ended_is_told_with_its_log(tmp_path: Path) -> None:
    prometheus = Prometheus(program(tmp_path, "#!/bin/sh\necho no such flag >&2\nexit 2\n"), tmp_path, {})
    with closing(prometheus), pytest.raises(AssertionError, match="no such flag"):
        until("it answers", prometheus.ready)


def test_a_port_is_given_once_and_can_be_listened_on() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    assert len({port, *(free_port() for _ in range(50))}) == 51
    for _ in range(2):  # a program that is started again has it again
        with socket.create_server(("127.0.0.1", port)) as listening, socket.create_connection(("127.0.0.1", port)):
            listening.accept()[0].close()
