"""``kubectl port-forward`` on the embedded lab, with the real kubectl."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import http.server
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kgpu.lab.embedded.lab import EmbeddedLab
from tests.child import child
from tests.lab.test_exec import Pods, pod, until

pytestmark = pytest.mark.timeout(600)
PORT, LOCAL, ECHO, DEAF, NOBODY = 28080, 28081, 28082, 28083, 28099
SIZE = 20_000_000
SCRIPT = f"""
import http.server, os, socket, threading, time
open('big', 'wb').write(bytes(range(256)) * ({SIZE} // 256))
def echo(taken):
    while data := taken.recv(65536):
        taken.sendall(data)
    taken.sendall(b'end')
    taken.close()
def listen(port, work):
    server = socket.create_server(('', port))
    while True:
        taken, _ = server.accept()
        threading.Thread(target=work, args=(taken,)).start()
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_): pass
threading.Thread(target=listen, args=({ECHO}, echo), daemon=True).start()
threading.Thread(target=listen, args=({DEAF}, lambda taken: time.sleep(3600)), daemon=True).start()
for address, port in (('', {PORT}), ('127.0.0.1', {LOCAL})):
    server = http.server.ThreadingHTTPServer((address, port), Quiet)
    threading.Thread(target=server.serve_forever).start()
print('up', flush=True)
"""
SERVICE = {
    "apiVersion": "v1", "kind": "Service", "metadata": {"name": "forwarded"},
    "spec": {"selector": {"app": "forwarded"}, "ports": [{"port": 80, "targetPort": PORT}]},
}  # fmt: skip


@pytest.fixture(scope="module")
def pods(embedded: EmbeddedLab, kubectl: str) -> Iterator[Pods]:
    made = Pods(embedded, kubectl)
    words = ["sh", "-c", 'cd /tmp && exec "$KGPU_LAB_PYTHON" -c "$SCRIPT"']
    container = {"name": "c", "image": "busybox:1", "command": words, "env": [{"name": "SCRIPT", "value": SCRIPT}]}
    server = pod("forwarded", container)
    server["metadata"]["labels"] = {"app": "forwarded"}
    made.apply(SERVICE)
    made.make(server)
    until(lambda: b"up" in made.run("logs", "forwarded").stdout)
    yield made
    made.remove("forwarded")
    made.run("delete", "service", "forwarded")


class Forwarding:
    """A running kubectl; ``errors`` is what it has said of them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        first = process.stdout.readline()
        self.port = int(re.search(r"127.0.0.1:(\d+) ->", first)[1])  # type: ignore[index]
        self.errors = ""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=300)

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read()


@contextlib.contextmanager
def forwarded(pods: Pods, target: str, port: int) -> Iterator[Forwarding]:
    words = [pods.program, "port-forward", target, f":{port}", "--address", "127.0.0.1"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with child(words, env=pods.environment, **pipes) as process:
        yield Forwarding(process)


@pytest.mark.parametrize(
    ("target", "port"), [("pod/forwarded", PORT), ("service/forwarded", 80), ("pod/forwarded", LOCAL)]
)
def test_a_pods_server_answers_and_all_arrives_over_many_connections(pods: Pods, target: str, port: int) -> None:
    expected = hashlib.sha256(bytes(range(256)) * (SIZE // 256)).hexdigest()
    with forwarded(pods, target, port) as forwarding, ThreadPoolExecutor(4) as pool:
        assert b"big" in forwarding.get("/")
        for data in pool.map(forwarding.get, ["/big"] * 4):
            assert hashlib.sha256(data).hexdigest() == expected


def test_the_end_of_what_is_sent_reaches_the_program_and_its_answer_comes_back(pods: Pods) -> None:
    with forwarded(pods, "pod/forwarded", ECHO) as forwarding, forwarding.connect() as connection:
        connection.sendall(b"hello")
        assert connection.recv(100) == b"hello"
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b"end"
        assert connection.recv(100) == b""


def test_a_program_that_reads_nothing_is_left_behind_with_its_connection(pods: Pods) -> None:
    with forwarded(pods, "pod/forwarded", DEAF) as forwarding:
        with forwarding.connect() as connection:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:  # what is on the way is kept in a few buffers, not without end
                    connection.send(bytes(1 << 20))
        assert forwarding.process.poll() is None
    with forwarded(pods, "pod/forwarded", PORT) as other:
        assert b"big" in other.get("/")


def test_a_port_that_nobody_listens_on_is_told_in_kubectls_words(pods: Pods) -> None:
    with forwarded(pods, "pod/forwarded", NOBODY) as forwarding:
        with forwarding.connect() as connection, contextlib.suppress(ConnectionError):
            assert connection.recv(10) == b""
        until(lambda: "lost connection to pod" in forwarding.errors)
        assert f"error forwarding port {NOBODY} to pod " in forwarding.errors
        assert "connect: connection refused" in forwarding.errors


def test_another_program_of_the_machine_is_not_reached(pods: Pods) -> None:
    """The loopback is one for all: what listens on every address listens on the pod's, too."""

    class Secret(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            raise AssertionError("it was asked")

    with http.server.ThreadingHTTPServer(("0.0.0.0", 0), Secret) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        try:
            with forwarded(pods, "pod/forwarded", stranger.server_port) as forwarding:
                with pytest.raises((http.client.HTTPException, OSError)):
                    forwarding.get("/")
                until(lambda: "connect: connection refused" in forwarding.errors)
        finally:
            stranger.shutdown()


def test_who_may_not_is_refused_and_a_pod_that_is_not_there_is_told(pods: Pods) -> None:
    words = ["port-forward", "pod/forwarded", f":{PORT}", "--as", "somebody", "--as-group", "system:authenticated"]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "port-forward-get"}}
    rule = {"apiGroups": [""], "resources": ["pods", "pods/portforward"], "verbs": ["get"]}
    subject = {"kind": "User", "name": "somebody", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "Role", "name": "port-forward-get", "apiGroup": "rbac.authorization.k8s.io"}
    pods.apply(
        {**role, "kind": "Role", "rules": [rule]},
        {**role, "kind": "RoleBinding", "roleRef": reference, "subjects": [subject]},
    )
    try:
        refused = pods.run(*words)  # a WebSocket is a GET, and yet no right to look is enough
        assert refused.returncode == 1
        assert b'cannot create resource "pods/portforward"' in refused.stderr
    finally:
        pods.run("delete", "role,rolebinding", "port-forward-get")
    missing = pods.run("port-forward", "pod/nowhere", f":{PORT}")
    assert b'pods "nowhere" not found' in missing.stderr
