"""Startup, readiness and liveness probes of running containers: asked as the kubelet asks; stand-ins pass.

HTTP, TCP and exec probes really ask a local process. A pod's address here is the loopback address that belongs to its
fake pod address, so that a program that listens everywhere, or on ``KGPU_LAB_POD_ADDRESS``, is found. Other programs of
this machine that listen everywhere are not: on a real node nobody would answer there.
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
class ContainerProbe:
    """One probe's numbers; times in seconds."""

    kind: str
    action: Object
    delay: float
    period: float
    timeout: float
    successes: int
    failures: int


def parse(container: Object, kind: str) -> ContainerProbe | None:
    """The container's probe of that kind, with the API's defaults."""
    probe = container.get(KINDS[kind])
    if not probe:
        return None
    return ContainerProbe(
        kind=kind,
        action=probe,
        delay=float(probe.get("initialDelaySeconds") or 0),
        period=float(probe.get("periodSeconds") or 10),
        timeout=float(probe.get("timeoutSeconds") or 1),
        successes=int(probe.get("successThreshold") or 1),
        failures=int(probe.get("failureThreshold") or 3),
    )


class ThresholdCounter:
    """Turns single answers into a verdict: the thresholds of the probe, in a row."""

    def __init__(self, probe: ContainerProbe, *, verdict: bool) -> None:
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


class PodPorts:
    """Which ports of a pod's address the pod listens on: ``is_own`` tells, and is asked again after a failure."""

    def __init__(self, is_own: Callable[[int], bool]) -> None:
        self._is_own = is_own
        self._own: set[int] = set()

    async def own(self, port: int) -> bool:
        """Whether a program of the pod listens on it."""
        if port not in self._own and await asyncio.to_thread(self._is_own, port):
            self._own.add(port)
        return port in self._own

    def failed(self, port: int) -> None:
        """A probe of this port failed: ask again before the next."""
        self._own.discard(port)


ProbeReport = Callable[[bool, str], None]
"""(passed, output) of one answer."""


async def run(
    probe: ContainerProbe,
    container: Object,
    running: Running,
    address: str,
    report: ProbeReport,
    *,
    ports: PodPorts | None = None,
) -> None:
    """Ask until cancelled; ``report`` gets every answer. Without ``ports`` whoever listens counts as the pod's."""
    await asyncio.sleep(probe.delay)
    while True:
        report(*await ask(probe, container, running, address, ports))
        await asyncio.sleep(probe.period)


async def ask(
    probe: ContainerProbe, container: Object, running: Running, address: str, ports: PodPorts | None = None
) -> tuple[bool, str]:
    """One answer and what was said."""
    if isinstance(running, StandIn):
        return True, ""
    action = probe.action
    if "exec" in action or ports is None:
        return await _ask(probe, container, running, address)
    target = action.get("httpGet") or action.get("tcpSocket") or action.get("grpc") or {}
    port = port_number(target.get("port"), container)
    if not target.get("host") and not await ports.own(port):
        refused = _dial(address, port, ConnectionRefusedError())
        return False, _get(target, address, port, refused) if "httpGet" in action else refused
    ok, output = await _ask(probe, container, running, address)
    if not ok:
        ports.failed(port)
    return ok, output


async def _ask(probe: ContainerProbe, container: Object, running: Running, address: str) -> tuple[bool, str]:
    action = probe.action
    try:
        async with asyncio.timeout(probe.timeout + 1):
            if "exec" in action:
                code, output = await running.execute(action["exec"].get("command") or [], probe.timeout)
                return code == 0, output[:BODY_LIMIT]
            if "httpGet" in action:
                return await _http(action["httpGet"], container, address, probe.timeout)
            target = action.get("tcpSocket") or action.get("grpc") or {}
            return await _tcp(target, container, address, probe.timeout)
    except TimeoutError:
        if "exec" in action:
            return False, f"command timed out: {' '.join(action['exec'].get('command') or ())!r}"
        return False, "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"


def port_number(value: Any, container: Object) -> int:
    """A port of a probe: a number, or the name of one of the container's ports; 0 when there is none."""
    if isinstance(value, int) or str(value).isdigit():
        return int(value)
    return next((int(row["containerPort"]) for row in container.get("ports") or () if row.get("name") == value), 0)


async def _tcp(target: Object, container: Object, address: str, seconds: float) -> tuple[bool, str]:
    host = target.get("host") or address
    port = port_number(target.get("port"), container)
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


def _get(target: Object, host: str, port: int, why: str) -> str:
    """How a request fails."""
    return f'Get "{str(target.get("scheme") or "HTTP").lower()}://{host}:{port}{target.get("path") or "/"}": {why}'


async def _http(target: Object, container: Object, address: str, seconds: float) -> tuple[bool, str]:
    host = target.get("host") or address
    port = port_number(target.get("port"), container)
    path = str(target.get("path") or "/")
    context = None
    if target.get("scheme") == "HTTPS":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    lines = [f"GET {path if path.startswith('/') else '/' + path} HTTP/1.1", f"Host: {host}:{port}"]
    lines += ["User-Agent: kube-probe/1.35", "Accept: */*", "Connection: close"]
    lines += [f"{row['name']}: {row['value']}" for row in target.get("httpHeaders") or ()]
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
                status = (await reader.readline()).split()
            finally:
                writer.close()
    except (OSError, TimeoutError, ssl.SSLError) as error:
        return False, _get(target, host, port, _dial(host, port, error))
    code = int(status[1]) if len(status) > 1 and status[1].isdigit() else 0
    if 200 <= code < 400:
        return True, ""
    return False, f"HTTP probe failed with statuscode: {code}"
