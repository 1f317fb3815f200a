"""Making an engine read its config: by a signal to the process behind its socket, by systemd, or not at all.

The signal is SIGHUP, as the replaced toolkit sends it. Docker reads its config then and goes on (its runtimes, that is;
CDI it turns on only at a start); containerd and CRI-O end, and whoever supervises them (systemd, k3s, k0s) starts them
again. Containers keep running meanwhile. One that ignores SIGHUP, or does not end by it within seconds, is restarted by
the next means that is safe (``restart_means``), and that is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kgpu.base.errors import ConfigError, HostError
from kgpu.base.suggest import did_you_mean
from kgpu.base.threads import beside
from kgpu.host.engines.model import Engine, EnginePlace
from kgpu.host.engines.paths import MountedPaths
from kgpu.toolkit.engine.model import Restarter
from kgpu.toolkit.engine.programs import run_program
from kgpu.toolkit.engine.restart_means import Means, ProcessFacts, next_means

MODES: Final = ("signal", "systemd", "none")
USUAL_MODE: Final[Mapping[Engine, str]] = {
    Engine.CONTAINERD: "signal",
    Engine.DOCKER: "signal",
    Engine.CRIO: "systemd",
}
CONNECT_SECONDS: Final = 5.0
HANGUP_SECONDS: Final = 5.0
"""How long to wait for a SIGHUP to end a process; one that does not catch it ends at once."""
TERM_SECONDS: Final = 30.0
SYSTEMD_SIGN: Final = "/run/systemd/system"
SYSTEMCTL_SECONDS: Final = 90.0


class NoRestart:
    """The restarter that does nothing: another program restarts the engine."""

    mode = "none"

    async def restart(self, place: EnginePlace) -> str:
        del place
        return ""


class SignalRestart:
    """SIGHUP to the process that listens on the engine's socket; the next means where that has no effect."""

    mode = "signal"

    def __init__(self, paths: MountedPaths) -> None:
        self._paths = paths

    async def restart(self, place: EnginePlace) -> str:
        pid = await beside(self._listener, place)
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return ""  # it has just ended by itself: it will come back with the new config
        try:
            no_effect = await beside(self._hang_up, handle, place, pid)
            return await self._otherwise(handle, place, pid, no_effect) if no_effect else ""
        except ProcessLookupError:
            return ""
        except OSError as error:
            raise HostError(
                f"{place.flavour} (process {pid}) can't be sent a signal: {error.strerror}",
                "the right to signal processes of the host",
                "run as root in the host's process namespace, or use --restart-mode systemd",
            ) from error
        finally:
            os.close(handle)

    def _hang_up(self, handle: int, place: EnginePlace, pid: int) -> str:
        """Send SIGHUP; why it had no effect, "" when it had."""
        if _facts(pid).ignores_hangup:
            return "ignores SIGHUP, as whoever started it did (nohup?)"
        signal.pidfd_send_signal(handle, signal.SIGHUP)
        if place.engine is Engine.DOCKER or _ended(handle, HANGUP_SECONDS):
            return ""
        return f"has not ended {HANGUP_SECONDS:.0f} s after SIGHUP"

    async def _otherwise(self, handle: int, place: EnginePlace, pid: int, no_effect: str) -> str:
        """Take the next means; what was done, and why. Raises HostError where there is none, or it has no effect."""
        message = f"{place.flavour} (process {pid}) {no_effect}"
        means = next_means(_facts(pid), place.service, systemd=self._paths.exists(SYSTEMD_SIGN))
        if place.engine is Engine.DOCKER:
            means = Means.NONE  # a restart may end its containers: not unasked
        if means is Means.SYSTEMD:
            await SystemdRestart(self._paths).restart(place)
            return f"{message}; systemd has restarted {place.service}"
        if means is Means.SIGTERM:
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            if await beside(_ended, handle, TERM_SECONDS):
                return f"{message}; it was sent SIGTERM"
            message += f", nor {TERM_SECONDS:.0f} s after SIGTERM"
        raise HostError(
            message,
            "that it reads its config: that it ends and is started again, or, as Docker, does so at a SIGHUP",
            f"restart it by hand, so that it hears SIGHUP: systemctl restart {place.service or place.flavour}",
        )

    def _listener(self, place: EnginePlace) -> int:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(CONNECT_SECONDS)
            try:
                sock.connect(str(self._paths.local(place.socket)))
            except OSError as error:
                raise HostError(
                    f"{place.flavour} doesn't answer on {place.socket}: {error}",
                    "a running engine to tell about its new config",
                    "start it, or correct --socket",
                ) from error
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid = int(struct.unpack("3i", raw)[0])
            # The peer is whoever began to listen: of Docker's socket that is usually systemd (docker.socket).
            if place.engine is Engine.DOCKER:
                pid = _answering(sock) or pid
        if pid <= 1:
            raise HostError(
                f"the process behind {place.socket} can't be seen from here, or only systemd is behind it",
                "the host's process namespace, and an engine that runs",
                "run with hostPID, or use --restart-mode systemd",
            )
        return pid


class SystemdRestart:
    """``systemctl restart`` of the engine's unit, in the host's root."""

    mode = "systemd"

    def __init__(self, paths: MountedPaths) -> None:
        self._paths = paths

    async def restart(self, place: EnginePlace) -> str:
        answer = await run_program(
            self._paths, ("systemctl", "restart", place.service or place.flavour), seconds=SYSTEMCTL_SECONDS
        )
        if answer is None or answer.code:
            output = answer.text.strip() if answer else "systemctl can't be run here"
            raise HostError(
                f"{place.service} can't be restarted: {output}",
                "systemd on this host, and a unit of that name",
                "correct --service, or use --restart-mode signal or none",
            )
        return ""


def _facts(pid: int) -> ProcessFacts:
    """The kernel's files about the process, as far as they can be read."""
    texts = []
    for name in ("status", "cgroup"):
        try:
            texts.append(Path(f"/proc/{pid}/{name}").read_text(errors="replace"))
        except OSError:
            texts.append("")
    return ProcessFacts(*texts)


def _ended(handle: int, seconds: float) -> bool:
    """Wait for the process's end; whether it came in time."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _answering(sock: socket.socket) -> int:
    """The pid of the process that answers a request on the connection, from the kernel; 0 when none does in time."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
        _, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(struct.calcsize("3i")))
    except OSError:
        return 0
    for level, kind, raw in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(struct.unpack("3i", raw[: struct.calcsize("3i")])[0])
    return 0


def restarter(mode: str, paths: MountedPaths, place: EnginePlace) -> Restarter:
    """The restarter of that name, "" for the engine's usual one. Raises ConfigError."""
    chosen = mode or USUAL_MODE[place.engine]
    if chosen not in MODES:
        hint = did_you_mean(chosen, MODES)
        raise ConfigError(
            f'there is no restart mode "{chosen}"{"; " if hint else ""}{hint}',
            f"one of: {', '.join(MODES)}",
            "choose one",
        )
    if chosen == "signal":
        return SignalRestart(paths)
    return SystemdRestart(paths) if chosen == "systemd" else NoRestart()


async def connects(path: str) -> str:
    """Why no process answers on the socket; "" when one does."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_unix_connection(path)
    except TimeoutError:
        return f"its socket takes no connection within {CONNECT_SECONDS:.0f} s"
    except OSError as error:
        return f"its socket doesn't answer: {error.strerror or error}"
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    return ""
