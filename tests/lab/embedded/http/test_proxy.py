"""Requests that are passed on to pods: what their programs are sent, what comes back, and where none may lead.

Codes, messages and headers are those of kube-apiserver 1.35 with the same pods, where no reason is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from kgpu.lab.embedded.http.proxy import ConnectionCheck, HttpPodPrograms, Pieces, ProxyTarget, rewritten
from kgpu.lab.nodes.addresses import loopback
from tests.lab import container
from tests.lab.embedded.served import Answer, Server

PODS = "/api/v1/namespaces/default/pods"
SERVICES = "/api/v1/namespaces/default/services"
ADDRESS = "10.244.77.7"
NODE = "n1"
MERGE = "application/merge-patch+json"


@dataclass
class Program:
    """What listens on a pod's port. ``said``: what it answers by path; else it tells what it was asked."""

    port: int = 0
    said: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    program: Program

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        asked = {
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": self.rfile.read(length).decode(),
        }
        path = self.path.partition("?")[0]
        if path == "/slow":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\r\nfirst\r\n")
            self.program.begun.set()
            self.program.go_on.wait(300)
            self.wfile.write(b"4\r\nlast\r\n0\r\n\r\n")
            return
        if path == "/broken":
            self.wfile.write(b"this is no HTTP\r\n\r\n")
            self.close_connection = True
            return
        code, headers, body = self.program.said.get(path, (200, {}, json.dumps(asked).encode()))
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer

    def log_message(self, *_: Any) -> None:
        pass


def make_pod(server: Server, name: str, address: str, **spec: Any) -> str:
    """The pod's uid."""
    one = {"name": "c", "image": "x", **spec}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeName": NODE, "containers": [one]},
    }  # fmt: skip
    made = server.ask("POST", PODS, pod)
    assert made.code == 201
    if address:
        status = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
        assert server.ask("PATCH", f"{PODS}/{name}/status", status, media=MERGE).code == 200
    return str(made.value["metadata"]["uid"])


def of_pod(server: Server, uid: str, listening: socket.socket) -> contextlib.AbstractContextManager[Any]:
    """The socket belongs to a container of the pod: the same program listens, and the kernel tells whose it is."""
    return container.running(server.folder / "nodes" / NODE, uid, sockets=[listening])


@pytest.fixture(scope="module", autouse=True)
def node(server: Server) -> None:
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    assert server.ask("POST", "/api/v1/nodes", body).code == 201


@pytest.fixture(scope="module")
def program(server: Server) -> Iterator[Program]:
    """It listens as the program of the pod ``echo``, whose first port it has."""
    found = Program()
    handler = type("Handler", (Handler,), {"program": found})
    here = loopback(ADDRESS, server.folder / "nodes")
    assert here != "127.0.0.1"
    with http.server.ThreadingHTTPServer((here, 0), handler) as listening:
        found.port = listening.server_address[1]
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        try:
            uid = make_pod(server, "echo", ADDRESS, ports=[{"name": "web", "containerPort": found.port}])
            with of_pod(server, uid, listening.socket):
                yield found
        finally:
            listening.shutdown()  # on a socket that is closed it would go round and round for the rest of the run
            thread.join()
        listening.shutdown()


def ask(server: Server, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
    return server.ask(method, f"{PODS}/{path}", body, media="text/x", **headers)


@pytest.mark.parametrize("name", ["echo", "echo:{}", "http:echo:{}", "http:echo:"])
def test_a_pod_is_named_in_all_ways(server: Server, program: Program, name: str) -> None:
    found = ask(server, f"{name.format(program.port)}/proxy/a/b?x=1&y=%20z")
    assert found.code == 200
    assert found.headers["content-type"] == "application/json"
    assert (found.value["method"], found.value["path"]) == ("GET", "/a/b?x=1&y=%20z")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_every_method_with_its_body(server: Server, program: Program, method: str) -> None:
    body = None if method in ("GET", "OPTIONS") else "hello"
    found = ask(server, "echo/proxy/x", method, body)
    assert (found.code, found.value["method"], found.value["body"]) == (200, method, body or "")


def test_head_has_no_body(server: Server, program: Program) -> None:
    found = ask(server, "echo/proxy/x", "HEAD")
    assert (found.code, found.body) == (200, b"")
    assert int(found.headers["content-length"]) > 0


def test_credentials_and_hops_stay_behind(server: Server, program: Program) -> None:
    found = ask(
        server, "echo/proxy/x", Accept="text/plain", Cookie="c=d", X_Mine="1", Connection="X-Hop", X_Hop="1",
        X_Forwarded_For="1.2.3.4", Impersonate_User="kgpu-lab-admin", Impersonate_Group="system:masters",
        X_Remote_User="root", X_Remote_Uid="0", X_Remote_Group="system:masters", X_Remote_Extra_Scopes="all",
        Proxy_Authorization="Basic Zm9vOmJhcg==", TE="trailers", Keep_Alive="timeout=5",
    )  # fmt: skip
    sent = found.value["headers"]
    assert not {"authorization", "impersonate-user", "impersonate-group", "x-hop"} & sent.keys()
    assert not {"x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-extra-scopes"} & sent.keys()
    assert not {"proxy-authorization", "te", "keep-alive"} & sent.keys()
    assert server.token not in found.body.decode()
    assert (sent["accept"], sent["cookie"], sent["x-mine"]) == ("text/plain", "c=d", "1")
    assert sent["host"] == server.address
    assert sent["x-forwarded-for"] == "1.2.3.4, 127.0.0.1"
    assert sent["x-forwarded-uri"] == f"{PODS}/echo/proxy/x"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/", "/"),
        ("/a%2Fb/c%20d//e/../f", "/a/b/c%20d/f"),
        ("/a/", "/a/"),
        ("/../../../../../../healthz", "/healthz"),
        ("/%2e%2e/secrets", "/secrets"),
        ("/x%0d%0aEvil:%201", "/x%0D%0AEvil:%201"),
    ],
)
def test_paths_stay_below_the_pod(server: Server, program: Program, path: str, asked: str) -> None:
    assert ask(server, f"echo/proxy{path}").value["path"] == asked


def test_without_a_slash_the_client_is_told_to_add_it(server: Server, program: Program) -> None:
    found = ask(server, "echo/proxy?a=b")
    assert (found.code, found.headers["location"]) == (301, f"{PODS}/echo/proxy/?a=b")


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("/abs/path?q=1", f"{PODS}/echo/proxy/abs/path?q=1"),
        ("/abs/", f"{PODS}/echo/proxy/abs/"),
        ("rel", "rel"),
        ("http://example.com/x", "http://example.com/x"),
        ("//example.com/x", "//example.com/x"),
        (f"http://{ADDRESS}:PORT/x", f"{PODS}/echo/proxy/x"),
        (f"{PODS}/echo/proxy/x", f"{PODS}/echo/proxy/x"),
    ],
)
def test_redirects_are_handed_on_and_never_followed(
    server: Server, program: Program, target: str, location: str
) -> None:
    program.said["/redirect"] = (302, {"Location": target.replace("PORT", str(program.port))}, b"")
    found = ask(server, "echo/proxy/redirect")
    assert (found.code, found.headers["location"], found.body) == (302, location, b"")


def test_a_redirect_that_is_no_url_is_left_alone() -> None:
    place = ProxyTarget(scheme="http", address=ADDRESS, port="1", prefix="/api/v1/x/proxy")
    assert rewritten("http://[::1", place, frozenset()) == "http://[::1"


@pytest.mark.parametrize("code", [204, 404, 500, 503])
def test_the_programs_own_refusals_come_through(server: Server, program: Program, code: int) -> None:
    headers = {"Content-Type": "text/plain", "X-Own": "1", "Set-Cookie": "a=b", "Keep-Alive": "timeout=5"}
    program.said["/status"] = (code, headers, b"" if code == 204 else b"said no\n")
    found = ask(server, "echo/proxy/status")
    assert (found.code, found.body) == (code, program.said["/status"][2])
    assert (found.headers["x-own"], found.headers["set-cookie"]) == ("1", "a=b")
    assert "keep-alive" not in found.headers


def test_an_answer_that_is_not_changed_may_name_its_length(server: Server, program: Program) -> None:
    program.said["/kept"] = (304, {"ETag": '"1"', "Content-Length": "17"}, b"")
    found = ask(server, "echo/proxy/kept")
    assert (found.code, found.body, found.headers["etag"]) == (304, b"", '"1"')


def test_a_length_beside_chunks_does_not_count(server: Server, program: Program) -> None:
    chunked = {"Transfer-Encoding": "chunked", "Content-Length": "50"}
    program.said["/both"] = (200, chunked, b"5\r\nhello\r\n0\r\n\r\n")
    found = ask(server, "echo/proxy/both")
    assert (found.code, found.body) == (200, b"hello")


def test_a_status_that_is_none_is_told_and_its_connection_ended(server: Server, program: Program) -> None:
    program.said["/odd"] = (999, {}, b"")
    found = ask(server, "echo/proxy/odd")
    assert found.code == 503
    assert "malformed HTTP status code" in found.value["message"]


def test_a_client_can_not_have_the_host_left_out(server: Server, program: Program) -> None:
    """The program would be told the address that it has on this machine."""
    found = ask(server, "echo/proxy/x", Connection="Host")
    assert found.value["headers"]["host"] == server.address


@pytest.fixture
def stranger() -> Iterator[tuple[socket.socket, list[bytes]]]:
    """A program of this machine that listens on every address, and what it was sent."""
    heard: list[bytes] = []
    with socket.create_server(("0.0.0.0", 0)) as listening:

        def listen() -> None:
            with contextlib.suppress(OSError):
                while True:
                    made, _ = listening.accept()
                    with made, contextlib.suppress(OSError):
                        made.settimeout(60)
                        heard.append(made.recv(1000))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield listening, heard
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(300)


STRANGER = (
    "error trying to reach service: dial tcp {address}:{port}: connect: connection refused: the program of this machine "
    "that listens there is none of the pod's; expected: a program that a container of the pod has started; "
    "to do: end the other one, or have the pod listen on another port"
)


def test_a_stranger_that_listens_everywhere_is_sent_nothing(
    server: Server, program: Program, stranger: tuple[socket.socket, list[bytes]]
) -> None:
    listening, heard = stranger
    port = listening.getsockname()[1]
    make_pod(server, "quiet", "10.244.77.8")
    row = {"ip": ADDRESS, "targetRef": {"kind": "Pod", "name": "echo", "namespace": "default"}}
    make_service(
        server, "strange", ports=[{"port": 80}], subsets=[{"addresses": [row], "ports": [{"port": port}]}]
    )  # fmt: skip
    for path, address in (
        (f"{PODS}/quiet:{port}", "10.244.77.8"),
        (f"{PODS}/https:quiet:{port}", "10.244.77.8"),
        (f"{PODS}/echo:{port}", ADDRESS),
        (f"{SERVICES}/strange:80", ADDRESS),
    ):
        found = server.ask("POST", f"{path}/proxy/x", "said")
        assert (found.code, found.value["message"]) == (503, STRANGER.format(address=address, port=port)), path
    assert set(heard) <= {b""}, "connections, and nothing on them"


def test_nor_is_one_that_listens_on_the_pods_own_address(server: Server) -> None:
    """As a program of another lab would, whose addresses are the same."""
    make_pod(server, "taken", "10.244.77.9")
    with socket.create_server((loopback("10.244.77.9", server.folder / "nodes"), 0)) as listening:
        port = listening.getsockname()[1]
        found = ask(server, f"taken:{port}/proxy/x")
    assert (found.code, found.value["message"]) == (503, STRANGER.format(address="10.244.77.9", port=port))


def test_an_address_in_a_status_leads_to_no_other_pods_program(server: Server, program: Program) -> None:
    make_pod(server, "pretender", ADDRESS)
    found = ask(server, f"pretender:{program.port}/proxy/x")
    assert (found.code, found.value["message"]) == (503, STRANGER.format(address=ADDRESS, port=program.port))


def test_a_pods_own_program_may_listen_everywhere(server: Server) -> None:
    """As most do, and Kubernetes lets them."""
    uid = make_pod(server, "wide", "10.244.77.10")
    words = ["-I", "-S", "-u", "-m", "http.server", "--bind", "0.0.0.0", "0"]
    with container.running(server.folder / "nodes" / NODE, uid, sys.executable, *words) as folder:
        (folder / "index.html").write_text("of the pod\n")
        while (told := re.search(r"port (\d+) ", (folder / "log").read_text())) is None:
            assert not (folder / "exit.json").exists()
            time.sleep(0.01)
        found = ask(server, f"wide:{told[1]}/proxy/index.html")
        assert (found.code, found.body) == (200, b"of the pod\n")
        assert ask(server, f"echo:{told[1]}/proxy/index.html").code in (404, 503), "and is no other pod's"


async def test_nothing_is_sent_before_the_listener_is_known() -> None:
    """Also not where the HTTP client would no longer tell of its connections under the name that is waited for."""
    heard = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        writer.close()
        heard.set()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        asked: list[tuple[str, str, int]] = []

        def answers(place: ProxyTarget, address: str, number: int) -> bool:
            asked.append((place.uid, address, number))
            return False

        programs = HttpPodPrograms(lambda _: "127.0.0.1", answers)
        place = ProxyTarget(scheme="http", address=ADDRESS, port=str(port), prefix="/p", uid="u", node=NODE)
        with pytest.raises(OSError, match=r"none of the pod's; expected: .*; to do: "):
            await programs.send("POST", place, "/x", [], b"said")
        await heard.wait()
        await programs.close()
        assert asked == [("u", "127.0.0.1", port)]
    told = ConnectionCheck(lambda: True, "x")
    with pytest.raises(OSError, match="none of the pod's"):
        await told.trace("http11.send_request_headers.started", {})


async def test_many_small_pieces_leave_turns_to_others() -> None:
    """They are all there at once: nothing between them waits."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    class Said:
        async def aiter_raw(self) -> Any:
            for _ in range(100):
                yield b"x"

        async def aclose(self) -> None:
            pass

    running = asyncio.create_task(others())
    assert len([piece async for piece in Pieces(Said())]) == 100  # type: ignore[arg-type]
    running.cancel()
    assert turns >= 99


async def test_an_answer_that_nobody_reads_is_closed() -> None:
    closed = []

    class Said:
        async def aclose(self) -> None:
            closed.append(True)

    await Pieces(Said()).aclose()  # type: ignore[arg-type]
    assert closed


def test_what_comes_is_passed_on_at_once(server: Server, program: Program) -> None:
    connection = server.connect()
    try:
        connection.request("GET", f"{PODS}/echo/proxy/slow", headers=server.headers())
        found = connection.getresponse()
        assert program.begun.wait(300)
        assert found.read1(100) == b"first"
        program.go_on.set()
        assert found.read() == b"last"
    finally:
        program.go_on.set()
        connection.close()


UNREACHED = "error trying to reach service: "


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("ftp:echo:80/proxy/x", 400, 'invalid pod request "ftp:echo:80"'),
        ("a:b:c:d/proxy/x", 400, 'invalid pod request "a:b:c:d"'),
        (":80/proxy/x", 400, 'invalid pod request ":80"'),
        ("missing/proxy/x", 404, 'pods "missing" not found'),
        ("echo:{port}/log", 404, 'pods "echo:{port}" not found'),
        ("echo/proxyx/y", 404, "the server could not find the requested resource"),
        ("../proxy/y", 400, "Name parameter invalid: \"..\": may not be '..'"),
        ("echo/proxy/x?dryRun=All", 400, "dryRun is not supported"),
        ("echo:99999/proxy/x", 503, f"{UNREACHED}dial tcp: address 99999: invalid port"),
        ("echo:{closed}/proxy/x", 503, f"{UNREACHED}dial tcp {ADDRESS}:{{closed}}: connect: connection refused"),
        ("https:echo:{port}/proxy/x", 503, f"{UNREACHED}tls: first record does not look like a TLS handshake"),
        # The real server drops the connection here.
        ("echo:web/proxy/x", 503, f"{UNREACHED}dial tcp: address web: invalid port"),
        ("echo/proxy/broken", 503, f"{UNREACHED}EOF"),
    ],
)
def test_what_leads_nowhere(server: Server, program: Program, path: str, code: int, message: str) -> None:
    with socket.socket() as closed:
        closed.bind((loopback(ADDRESS, server.folder / "nodes"), 0))
        ports = {"port": program.port, "closed": closed.getsockname()[1]}
        found = ask(server, path.format(**ports))
    assert (found.code, found.value["message"]) == (code, message.format(**ports))


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", "169.254.169.254", "192.168.1.1", "8.8.8.8", "::1", "fd00::1", "0.0.0.0"]
)
def test_no_other_address_is_ever_asked(server: Server, address: str) -> None:
    """Whoever may write a pod's status writes its address. (The real server refuses the loopback and none at all.)"""
    name = f"elsewhere-{address.replace('.', '-').replace(':', '-')}z"
    make_pod(server, name, address)
    found = ask(server, f"{name}:80/proxy/x")
    assert (found.code, found.value["message"]) == (400, "address not allowed")


def test_the_right_is_asked_for_by_verb(server: Server, program: Program) -> None:
    for method, verb in (("GET", "get"), ("POST", "create")):
        found = ask(server, "echo:80/proxy/x", method, Impersonate_User="bob")
        assert found.code == 403
        assert found.value["message"].startswith(
            f'pods "echo:80" is forbidden: User "bob" cannot {verb} resource "pods/proxy" in API group ""'
        )


def make_service(server: Server, name: str, *, ports: list[dict[str, Any]], subsets: Any = None) -> None:
    spec = {"ports": ports}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
    assert server.ask("POST", SERVICES, service).code == 201
    if subsets is not None:
        endpoints = {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": name}, "subsets": subsets}
        assert server.ask("POST", "/api/v1/namespaces/default/endpoints", endpoints).code == 201


def test_a_service_leads_to_its_pods_and_nowhere_else(server: Server, program: Program) -> None:
    row = {"ip": ADDRESS, "targetRef": {"kind": "Pod", "name": "echo", "namespace": "default"}}
    ports = [{"name": "http", "port": program.port}]
    make_service(server, "web", ports=[{"name": "http", "port": 80}], subsets=[{"addresses": [row], "ports": ports}])
    make_service(
        server, "by-hand", ports=[{"name": "http", "port": 80}],
        subsets=[{"addresses": [{"ip": "192.0.2.7"}], "ports": [{"name": "http", "port": 80}]}],
    )  # fmt: skip
    make_service(server, "none", ports=[{"port": 80}])
    for name in ("web:http", "web:80", "http:web:80"):
        found = server.ask("GET", f"{SERVICES}/{name}/proxy/x")
        assert (found.code, found.value["path"]) == (200, "/x"), name
    for name, code, message in (
        ("web", 503, 'no endpoints available for service "web"'),
        ("web:82", 503, 'no service port 82 found for service "web"'),
        ("by-hand:80", 503, 'no endpoints available for service "by-hand:80"'),
        ("none:80", 404, 'services "none" not found'),
        ("missing:80", 404, 'services "missing" not found'),
        ("ftp:web:80", 400, 'invalid service request "ftp:web:80"'),
    ):
        found = server.ask("GET", f"{SERVICES}/{name}/proxy/x")
        assert (found.code, found.value["message"]) == (code, message)
