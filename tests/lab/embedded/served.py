"""A server of the embedded cluster in a process of its own, and a plain HTTP client for it."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

JSON = "application/json"
START_S = 300.0


@dataclass
class Answer:
    code: int
    headers: dict[str, str]
    body: bytes
    warnings: list[str] = field(default_factory=list)
    """The texts of the Warning headers."""

    @property
    def value(self) -> Any:
        return json.loads(self.body)


@dataclass
class Server:
    """Running, until ``stop`` or ``kill``."""

    folder: Path
    process: subprocess.Popen[bytes]
    address: str = ""
    token: str = ""
    context: ssl.SSLContext = field(default_factory=ssl.create_default_context)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def log_file(self) -> Path:
        return self.folder / "logs" / "server.log"

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def connect(self, seconds: float = START_S) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self.address, context=self.context, timeout=seconds)

    def headers(self, token: str | None = None) -> dict[str, str]:
        token = self.token if token is None else token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def ask(
        self, method: str, path: str, body: Any = None, *, media: str = JSON, token: str | None = None, **headers: str
    ) -> Answer:
        """One request. ``body``: bytes and str as they are, anything else as JSON; ``token`` "" asks as nobody."""
        if body is not None and not isinstance(body, str | bytes):
            body = json.dumps(body)
        sent = self.headers(token) | {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent["Content-Type"] = media
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body.encode() if isinstance(body, str) else body, sent)
            found = connection.getresponse()
            told = found.headers.get_all("Warning") or []
            warnings = [one.partition('"')[2].removesuffix('"').replace('\\"', '"') for one in told]
            return Answer(
                found.status, {key.lower(): value for key, value in found.getheaders()}, found.read(), warnings
            )

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


def start(folder: Path, *arguments: str, descriptors: int = 0) -> Server:
    """Answers when this returns. ``descriptors``: how many the process may have, 0 for as many as we."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    limited = ["prlimit", f"--nofile={descriptors}"] if descriptors else []
    with (folder / "logs" / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [*limited, sys.executable, "-m", "kgpu.lab.embedded.server", "--dir", str(folder), *arguments],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    server = Server(folder, process)
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError, http.client.HTTPException):
            config = json.loads(server.kubeconfig.read_text())
            cluster = config["clusters"][0]["cluster"]
            server.address = cluster["server"].removeprefix("https://")
            server.token = config["users"][0]["user"]["token"]
            authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
            server.context = ssl.create_default_context(cadata=authority)
            if server.ask("GET", "/readyz").code == 200:
                return server
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"the server does not answer:\n{server.log}")


@contextlib.contextmanager
def running(folder: Path, *arguments: str, descriptors: int = 0) -> Iterator[Server]:
    server = start(folder, *arguments, descriptors=descriptors)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
