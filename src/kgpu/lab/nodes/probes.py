"""Startup, readiness and liveness probes of running containers: asked as the kubelet asks; stand-ins pass.

HTTP, TCP and exec probes really ask a local process. A pod's address here is the loopback address that belongs to its
fake pod address, so that a program that listens everywhere, or on ``KGPU_LAB_POD_ADDRESS``, is found.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kgpu.kube.port import Object
from kgpu.lab.nodes.runtime import Running, StandIn

BODY_LIMIT: Final = 10 * 1024
# kind -> (key in the container, what is said of a container that fails it)
KINDS: Final = {"Startup": "startupProbe", "Readiness": "readinessProbe", "Liveness": "livenessProbe"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One probe's numbers; times in seconds."""

    kind: str
    action: Object
    delay: float
    period: float
    timeout: float
    successes: int
    failures: int


def parse(container: Object, kind: str) -> Probe | None:
    """The container's probe of that kind, with the API's defaults."""
    found = container.get(KINDS[kind])
    if not found:
        return None
    return Probe(
        kind=kind,
        action=found,
        delay=float(found.get("initialDelaySeconds") or 0),
        period=float(found.get("periodSeconds") or 10),
        timeout=float(found.get("timeoutSeconds") or 1),
        successes=int(found.get("successThreshold") or 1),
        failures=int(found.get("failureThreshold") or 3),
    )


class Counter:
    """Turns single answers into a verdict: the thresholds of the probe, in a row."""

    def __init__(self, probe: Probe, *, verdict: bool) -> None:
        self._probe = probe
        self.verdict = verdict
        self._last: bool | None = None
        self._count = 0

    def take(self, ok: bool) -> bool:
        """One more answer; True when the verdict may have to be acted on (it was reached by this answer)."""
        self._count = self._count + 1 if ok == self._last else 1
        self._last = ok
        needed = self._probe.successes if ok else self._probe.failures
        if self._count < needed:
            return False
        self.verdict = ok
        return True


Told = Callable[[bool, str], None]
"""(passed, output) of one answer."""


async def run(probe: Probe, container: Object, running: Running, address: str, told: Told) -> None:
    """Ask until cancelled; ``told`` hears every answer."""
    await asyncio.sleep(probe.delay)
    while True:
        told(*await ask(probe, container, running, address))
        await asyncio.sleep(probe.period)


async def ask(probe: Probe, container: Object, running: Running, address: str) -> tuple[bool, str]:
    """One answer and what was said."""
    if isinstance(running, StandIn):
        return True, ""
    action = probe.action
    try:
        async with asyncio.timeout(probe.timeout + 1):
            if "exec" in action:
                code, output = await running.execute(action["exec"].get("command") or [], probe.timeout)
                return code == 0, output[:BODY_LIMIT]
            if "httpGet" in action:
                return await _http(action["httpGet"], container, address, probe.timeout)
            found = action.get("tcpSocket") or action.get("grpc") or {}
            return await _tcp(found, container, address, probe.timeout)
    except TimeoutError:
        if "exec" in action:
            return False, f"command timed out: {' '.join(action['exec'].get('command') or ())!r}"
        return False, "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"


def port_number(value: Any, container: Object) -> int:
    """A port of a probe: a number, or the name of one of the container's ports; 0 when there is none."""
    if isinstance(value, int) or str(value).isdigit():
        return int(value)
    return next((int(row["containerPort"]) for row in container.get("ports") or () if row.get("name") == value), 0)


async def _tcp(found: Object, container: Object, address: str, seconds: float) -> tuple[bool, str]:
    host = found.get("host") or address
    port = port_number(found.get("port"), container)
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        return False, _dial(host, port, error)
    writer.close()
    return True, ""


def _dial(host: str, port: int, error: BaseException) -> str:
    words = "connect: connection refused" if isinstance(error, ConnectionRefusedError) else "i/o timeout"
    return f"dial tcp {host}:{port}: {words}"


async def _http(found: Object, container: Object, address: str, seconds: float) -> tuple[bool, str]:
    host = found.get("host") or address
    port = port_number(found.get("port"), container)
    path = str(found.get("path") or "/")
    scheme = str(found.get("scheme") or "HTTP")
    context = None
    if scheme == "HTTPS":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    lines = [f"GET {path if path.startswith('/') else '/' + path} HTTP/1.1", f"Host: {host}:{port}"]
    lines += ["User-Agent: kube-probe/1.35", "Accept: */*", "Connection: close"]
    lines += [f"{row['name']}: {row['value']}" for row in found.get("httpHeaders") or ()]
    url = f"{scheme.lower()}://{host}:{port}{path}"
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
                status = (await reader.readline()).split()
            finally:
                writer.close()
    except (OSError, TimeoutError, ssl.SSLError) as error:
        return False, f'Get "{url}": {_dial(host, port, error)}'
    code = int(status[1]) if len(status) > 1 and status[1].isdigit() else 0
    if 200 <= code < 400:
        return True, ""
    return False, f"HTTP probe failed with statuscode: {code}"
