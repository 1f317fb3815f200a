"""A server that stands in for a Prometheus: it answers from scrapes, or as badly as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.usage.prometheus.scraped import Scrapes

Answer = tuple[int, str, bytes]
"""Code, type and body."""
HTML = (200, "text/html", b"<!DOCTYPE html><html><title>Sign in</title></html>")
TOO_MANY = "query processing would load too many samples into memory in query execution"


def refusal(code: int, kind: str, why: str) -> Answer:
    return code, "application/json", json.dumps({"status": "error", "errorType": kind, "error": why}).encode()


def matrix(*result: Any, **more: Any) -> Answer:
    data = {"status": "success", "data": {"resultType": "matrix", "result": list(result)}, **more}
    return 200, "application/json", json.dumps(data).encode()


@dataclass
class StandIn:
    """``answers`` are given first, one to each request; ``spoil`` changes what scrapes say. ``seen``: path and headers."""

    scrapes: Scrapes = field(default_factory=Scrapes)
    answers: list[Answer | None] = field(default_factory=list)
    spoil: Callable[[Any], Any] = lambda said: said
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    hung: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str) -> Answer | None:
        if self.answers:
            return self.answers.pop(0)
        parts = urllib.parse.urlsplit(path)
        if not parts.path.endswith("/api/v1/query_range"):
            return 404, "text/plain", b"404 page not found"
        asked = {key: of[0] for key, of in urllib.parse.parse_qs(parts.query).items()}
        found = asyncio.run(
            self.scrapes.range(asked["query"], *(int(asked[name]) for name in ("start", "end", "step")))
        )
        result = [
            {"metric": one.labels, "values": [[at / 1000, repr(value)] for at, value in one.points]}
            for one in found.series
        ]  # fmt: skip
        return matrix(*self.spoil(result))


@contextlib.contextmanager
def serving(stand_in: StandIn) -> Iterator[StandIn]:
    """None for an answer: it hangs until the end."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            stand_in.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            answer = stand_in.answer(self.path)
            if answer is None:
                stand_in.hung.wait(60)
                self.close_connection = True
                return
            code, form, body = answer
            self.send_response(code)
            self.send_header("Content-Type", form)
            self.send_header("Content-Length", str(len(body)))
            if 300 <= code < 400:
                self.send_header("Location", "http://127.0.0.1:1/login")
            with contextlib.suppress(ConnectionError):
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stand_in.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield stand_in
    finally:
        stand_in.hung.set()
        server.shutdown()
        server.server_close()
