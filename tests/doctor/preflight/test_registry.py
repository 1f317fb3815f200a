"""Registries are asked as anybody: tokens, absent images, refusals, silence, hostile answers; against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kgpu.doctor.preflight import registry
from kgpu.doctor.preflight.registry import ImageName, parsed

TOKEN = "anybodys-token"
MANIFEST = {"Content-Type": "application/vnd.oci.image.index.v1+json"}
HOSTILE: dict[str, tuple[int, dict[str, str], str]] = {
    "page": (200, {"Content-Type": "text/html; charset=utf-8"}, "answers 200 with text/html"),
    "bare": (200, {}, "answers 200 with nothing"),
    "json": (200, {"Content-Type": "application/json"}, "answers 200 with application/json"),
    "no page": (404, {"Content-Type": "text/html"}, "answers 404 with text/html"),
    "partial": (206, MANIFEST, "answers 206"),
    "terminal": (200, {"Content-Type": "text/\x1b[2Jhtml"}, "127.0.0.1"),
    "long": (200, {"Content-Type": "x" * 5000}, "answers 200 with xxx"),
    "headers": (200, {**MANIFEST, "X-Long": "x" * 300_000}, "can't be reached"),
    "teapot": (418, MANIFEST, "answers 418"),
    "moved": (301, {"Location": "http://{host}/elsewhere"}, "answers 301"),
    "basic": (401, {"WWW-Authenticate": "Basic realm=x"}, "wants a login"),
    "no realm": (401, {"WWW-Authenticate": "Bearer"}, "wants a login"),
    "no challenge": (401, {}, "wants a login"),
    "foreign realm": (401, {"WWW-Authenticate": 'Bearer realm="http://tokens.example/token"'}, "wants a login"),
    "file": (401, {"WWW-Authenticate": 'Bearer realm="file:///etc/passwd"'}, "wants a login"),
    "odd realm": (401, {"WWW-Authenticate": 'Bearer realm="http://[127/token"'}, "can't be reached"),
    "relative": (401, {"WWW-Authenticate": 'Bearer realm="/token"'}, "wants a login"),
}
"""What is no answer of a registry: code, headers, and what is said of it."""
THERE = "/v2/nvidia/driver/manifests/580.95.05-ubuntu24.04"


class Registry(ThreadingHTTPServer):
    """A registry with one image. ``mode``: open, token, login, broken, redirect, silent, babble, trickle, or of HOSTILE."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.mode = "token"
        self.token_body = json.dumps({"token": TOKEN}).encode()
        self.asked: list[tuple[str, str, str]] = []
        self.wake = threading.Event()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Registry

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        server, mode = self.server, self.server.mode
        authorization = self.headers.get("Authorization", "")
        server.asked.append(("HEAD", self.path, authorization))
        if mode == "silent":
            server.wake.wait(30)
        if mode in ("token", "login", "babble", "trickle") and authorization != f"Bearer {TOKEN}":
            realm = f'Bearer realm="http://{server.host}/token",service="tests",scope="repository:nvidia/driver:pull"'
            self._answer(401, {"WWW-Authenticate": realm if mode != "login" else "Basic realm=x"})
        elif mode == "broken":
            self._answer(503)
        elif mode == "redirect":
            self._answer(307, {"Location": f"http://{server.host}/elsewhere"})
        elif mode in HOSTILE:
            code, headers, _ = HOSTILE[mode]
            self._answer(code, {name: value.format(host=server.host) for name, value in headers.items()})
        elif self.path == THERE:
            self._answer(200, MANIFEST)
        else:
            self._answer(404, {"Content-Type": "application/json"})

    def do_GET(self) -> None:
        self.server.asked.append(("GET", self.path, self.headers.get("Authorization", "")))
        if self.server.mode == "trickle":
            self._trickle()
            return
        self._answer(200, body=b"x" * 200_000 if self.server.mode == "babble" else self.server.token_body)

    def _trickle(self) -> None:
        """A byte now and then, until the test is over."""
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        with contextlib.suppress(OSError):
            while not self.server.wake.wait(0.05):
                self.wfile.write(b" ")

    def _answer(self, code: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Registry]:
    with Registry() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.wake.set()
        found.shutdown()
        thread.join()


def ask(*images: str, deadline: float = 300.0) -> dict[str, registry.RegistryAnswer]:
    return asyncio.run(registry.ask(images, deadline=deadline))


def image(server: Registry, tag: str = "580.95.05-ubuntu24.04") -> str:
    return f"{server.host}/nvidia/driver:{tag}"


@pytest.mark.parametrize("mode", ["open", "token"])
def test_an_image_is_there_or_not(server: Registry, mode: str) -> None:
    server.mode = mode
    there, absent = image(server), image(server, "580.95.05-debian13")
    found = ask(there, absent)
    assert (found[there].exists, found[absent].exists) == (True, False)
    assert "no such image" in found[absent].why


def test_the_token_is_asked_for_as_the_registry_says_and_without_credentials(server: Registry) -> None:
    ask(image(server))
    assert server.asked == [
        ("HEAD", THERE, ""),
        ("GET", "/token?scope=repository%3Anvidia%2Fdriver%3Apull&service=tests", ""),
        ("HEAD", THERE, f"Bearer {TOKEN}"),
    ]


@pytest.mark.parametrize(
    ("mode", "why"),
    [("login", "wants a login"), ("broken", "answers 503"), ("redirect", "answers 307"), ("babble", "wants a login")],
)
def test_what_a_registry_does_not_tell_is_unknown(server: Registry, mode: str, why: str) -> None:
    server.mode = mode
    answer = ask(image(server))[image(server)]
    assert answer.exists is None
    assert why in answer.why


@pytest.mark.parametrize("mode", HOSTILE)
def test_what_only_looks_like_an_answer_is_unknown_and_nothing_else_is_asked(server: Registry, mode: str) -> None:
    server.mode = mode
    answer = ask(image(server))[image(server)]
    assert answer.exists is None
    assert HOSTILE[mode][2] in answer.why
    assert answer.why.isprintable()
    assert len(answer.why) < 300
    assert server.asked == [("HEAD", THERE, "")], "neither redirects nor realms of other kinds are followed"


def test_a_digest_says_that_an_image_is_there(server: Registry) -> None:
    said = registry._answer(200, {"docker-content-digest": f"sha256:{'0' * 64}"}, server.host)
    assert said.exists is True


@pytest.mark.parametrize(
    "token", [b"", b"[]", b"null", b'{"token": 5}', b'{"token": ""}', b'{"token": "a\\nb"}', '{"token": "ü"}'.encode()]
)  # fmt: skip
def test_what_is_no_token_is_sent_to_nobody(server: Registry, token: bytes) -> None:
    server.token_body = token
    answer = ask(image(server))[image(server)]
    assert (answer.exists, answer.why) == (None, f"{server.host} wants a login")
    assert [authorization for _, _, authorization in server.asked] == ["", ""]


def test_a_token_that_trickles_ends_at_the_deadline(server: Registry) -> None:
    server.mode = "trickle"
    answer = ask(image(server), deadline=0.5)[image(server)]
    assert answer.exists is None
    assert "has not answered within 0.5 seconds" in answer.why


def test_one_that_does_not_answer_is_unknown_at_the_deadline(server: Registry) -> None:
    server.mode = "silent"
    answer = ask(image(server), deadline=0.3)[image(server)]
    assert answer.exists is None


def test_one_that_is_not_there_is_unknown(server: Registry) -> None:
    gone = "127.0.0.1:1/nvidia/driver:1"
    found = ask(gone, image(server))
    assert found[gone].exists is None
    assert "can't be reached" in found[gone].why
    assert found[image(server)].exists is True, "one registry's fault is no other's"


def test_a_token_is_never_fetched_without_tls_from_elsewhere() -> None:
    challenge = 'Bearer realm="http://tokens.example/token",service="x"'
    assert asyncio.run(registry._token(None, parsed("nvcr.io/nvidia/driver:1"), challenge)) is None  # type: ignore[arg-type]


def test_only_so_many_are_asked_for(server: Registry) -> None:
    server.mode = "open"
    many = [image(server, f"1-{number}") for number in range(registry.MAX_IMAGES + 3)]
    found = ask(*many)
    assert sum(one.exists is None for one in found.values()) == 3


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("nvcr.io/nvidia/driver:580-ubuntu24.04", ImageName("nvcr.io", "nvidia/driver", "580-ubuntu24.04")),
        ("localhost/driver", ImageName("localhost", "driver", "latest")),
        ("r:5000/a/b@sha256:00", ImageName("r:5000", "a/b", "sha256:00")),
        ("nvidia/driver:1", ImageName(registry.DEFAULT, "nvidia/driver", "1")),
        ("driver", ImageName(registry.DEFAULT, "library/driver", "latest")),
    ],
)
def test_references_are_read_as_runtimes_do(reference: str, name: ImageName) -> None:
    assert parsed(reference) == name
