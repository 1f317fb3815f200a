"""The network side: TLS connections to the application over uvicorn's HTTP/1.1 protocol, accepted by our own hand.

asyncio's server accepts without a bound, waits a minute for a handshake, and writes a traceback for each accept that
fails for want of descriptors. Here ``door.Door`` decides who stays, a handshake has ``HANDSHAKE_S``, and what was
dropped is told in one line a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import time
from collections.abc import Iterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kgpu.lab.embedded import tls
from kgpu.lab.embedded.http.app import ABORT, KNOWN, App
from kgpu.lab.embedded.http.door import ClientConnection, ConnectionLimiter

log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 5.0
GOODBYE_S: Final = 5.0  # for a client to say goodbye when its connection is closed
MOST: Final = 8192
STRANGERS: Final = 1024  # 256 KiB each, which is what asyncio's TLS holds for a connection
RESERVE: Final = 96  # descriptors for everything else: data, calls to kubelets, one batch on its way out
BATCH: Final = 32  # accepted at once, so that requests get their turn
PAUSE_S: Final = 0.2  # before accepting again when descriptors have run out
TELL_S: Final = 60.0
KEEP_ALIVE_S: Final = 120  # longer than clients keep idle connections, so that they close them and not we
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_TICKS: Final = 10  # of uvicorn's main loop in a second


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; what the limit is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some kernels know a lower bound of their own
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return MOST + RESERVE if soft == resource.RLIM_INFINITY else soft


def door_for(descriptors: int) -> ConnectionLimiter:
    """For a process that may have that many descriptors."""
    most = min(MOST, max(descriptors - RESERVE, 8))
    return ConnectionLimiter(most, min(STRANGERS, most // 2))


class Protocol(HttpToolsProtocol):
    """One connection, which tells the door how it is doing."""

    def __init__(self, door: ConnectionLimiter, guest: ClientConnection, **options: Any) -> None:
        super().__init__(**options)
        self._door = door
        self._guest = guest

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._guest.drop = transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self._guest)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"call": self.transport.abort}, KNOWN: {"call": self._known}}

    def on_headers_complete(self) -> None:
        self._door.works(self._guest)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:
            self._door.rests(self._guest)

    def _known(self) -> None:
        self._door.known(self._guest)


class HttpsServer(uvicorn.Server):
    """``serve`` until ``should_exit``. Signals are the caller's."""

    def __init__(self, config: uvicorn.Config, door: ConnectionLimiter) -> None:
        super().__init__(config)
        self._door = door
        self._handshakes: set[asyncio.Task[None]] = set()  # a loop alone does not keep them
        self._accepting: set[socket.socket] = set()
        self._exhausted = 0
        self._told = (0, 0, 0)
        self._told_at = -TELL_S

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers = []
        for sock in sockets or []:
            sock.setblocking(False)
            self._accepting.add(sock)
            self._resume(sock)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for sock in self._accepting:
            asyncio.get_running_loop().remove_reader(sock)
        self._accepting.clear()
        self._door.close()  # they would be waited for, to say goodbye
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            self._door.sweep()
            self._tell()
        return await super().on_tick(counter)

    # --- accepting ------------------------------------------------------------------------------------------------

    def _resume(self, sock: socket.socket) -> None:
        if sock in self._accepting:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(BATCH):
            try:
                made, _address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    log.debug("a connection could not be accepted: %s", error)
                    return
                self._exhausted += 1
                for _ in range(BATCH):
                    self._door.make_room()
                loop = asyncio.get_running_loop()
                loop.remove_reader(sock)  # it would be called over and over
                loop.call_later(PAUSE_S, self._resume, sock)
                return
            made.setblocking(False)
            guest = self._door.enter(made.close)
            if guest is None:
                made.close()
                continue
            task = asyncio.get_running_loop().create_task(self._welcome(made, guest))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _welcome(self, made: socket.socket, guest: ClientConnection) -> None:
        loop = asyncio.get_running_loop()

        def protocol() -> Protocol:
            return Protocol(
                self._door, guest, config=self.config, server_state=self.server_state, app_state=self.lifespan.state,
                _loop=loop,
            )  # fmt: skip

        if made.fileno() < 0:
            return  # dropped before its turn came
        task = asyncio.current_task()
        assert task is not None
        guest.drop = task.cancel
        try:
            await loop.connect_accepted_socket(
                protocol, made, ssl=self.config.ssl, ssl_handshake_timeout=HANDSHAKE_S, ssl_shutdown_timeout=GOODBYE_S
            )
        except OSError as error:  # no TLS, too slow, or gone
            log.debug("a handshake failed: %s", error)
            self._door.leave(guest)
        except BaseException:
            self._door.leave(guest)
            raise

    def _tell(self) -> None:
        found = (self._door.dropped, self._door.refused, self._exhausted)
        now = time.monotonic()
        if found == self._told or now - self._told_at < TELL_S:
            return
        dropped, refused, exhausted = (new - old for new, old in zip(found, self._told, strict=True))
        log.warning(
            "%d connections without credentials or at rest were dropped and %d refused to keep within the bound, "
            "%d times no file descriptor was left; %d are open",
            dropped, refused, exhausted, len(self._door),
        )  # fmt: skip
        self._told, self._told_at = found, now


def server(app: App, pki: tls.Pki, *, descriptors: int, stop_s: float) -> HttpsServer:
    """``descriptors``: how many the process may have; ``stop_s``: seconds for requests when it ends."""
    config = uvicorn.Config(
        app, http=HttpToolsProtocol, ws="none", loop="asyncio", lifespan="off", interface="asgi3",
        ssl_certfile=str(pki.certificate("server")), ssl_keyfile=str(pki.key("server")),
        log_config=None, access_log=False, server_header=False, proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=int(stop_s),
    )  # fmt: skip
    return HttpsServer(config, door_for(descriptors))
