"""Registries are asked as anybody: tokens, absent images, refusals, silence, hostile answers; against a real server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kgpu.doctor.preflight import registry
from kgpu.doctor.preflight.registry import ImageName, parsed

TOKEN = "anybodys-token"
THERE = "/v2/nvidia/driver/manifests/580.95.05-ubuntu24.04"


class Registry(ThreadingHTTPServer):
    """A registry with one image. ``mode``: open, token, login, broken, redirect, silent, babble."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.mode = "token"
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
        if mode in ("token", "login", "babble") and authorization != f"Bearer {TOKEN}":
            realm = f'Bearer realm="http://{server.host}/token",service="tests",scope="repository:nvidia/driver:pull"'
            self._answer(401, {"WWW-Authenticate": realm if mode != "login" else "Basic realm=x"})
        elif mode == "broken":
            self._answer(503)
        elif mode == "redirect":
            self._answer(307, {"Location": "http://127.0.0.1:1/"})
        else:
            self._answer(200 if self.path == THERE else 404)

    def do_GET(self) -> None:
        self.server.asked.append(("GET", self.path, self.headers.get("Authorization", "")))
        body = json.dumps({"token": TOKEN}).encode()
        self._answer(200, body=b"x" * 200_000 if self.server.mode == "babble" else body)

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


def ask(*images: str, deadline: float = 20.0) -> dict[str, registry.RegistryAnswer]:
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
