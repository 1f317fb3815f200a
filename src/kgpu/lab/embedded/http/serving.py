"""The network side: TLS connections to the application over uvicorn's HTTP/1.1 protocol, with our own accept loop.

asyncio's server accepts without a bound, waits a minute for a handshake, and writes a traceback for each accept that
fails for want of descriptors. Here a ``ConnectionLimiter`` decides which connections stay, a handshake has
``HANDSHAKE_S``, and dropped connections are logged in one line a minute.
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
from kgpu.lab.embedded.http.app import ABORT, KNOWN, TAKE_OVER, App
from kgpu.lab.embedded.http.connections import PATIENCE_S, ClientConnection, ConnectionLimiter
from kgpu.lab.embedded.http.kubelets import BUFFER

log = logging.getLogger(__name__)

HANDSHAKE_S: Final = PATIENCE_S  # on a machine that is busy it takes seconds; until then it counts as a stranger's
GOODBYE_S: Final = 5.0  # for a client to say goodbye when its connection is closed
MOST: Final = 8192
STRANGERS: Final = 1024  # 256 KiB each, which is what asyncio's TLS holds for a connection
RESERVE: Final = 96  # descriptors for everything else: data, calls to kubelets, one batch on its way out
BATCH: Final = 32  # accepted at once, so that requests get their turn
PAUSE_S: Final = 0.2  # before accepting again when descriptors have run out
LOG_EVERY_S: Final = 60.0
KEEP_ALIVE_S: Final = 120  # longer than clients keep idle connections, so that they close them and not we
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_TICKS: Final = 10  # of uvicorn's main loop in a second


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one and return the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some kernels know a lower bound of their own
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return MOST + RESERVE if soft == resource.RLIM_INFINITY else soft


def limiter_for(descriptors: int) -> ConnectionLimiter:
    """A limiter for a process that may have that many descriptors."""
    most = min(MOST, max(descriptors - RESERVE, 8))
    return ConnectionLimiter(most, min(STRANGERS, most // 2))


class Protocol(HttpToolsProtocol):
    """One connection, which reports its state to the limiter."""

    def __init__(self, limiter: ConnectionLimiter, connection: ClientConnection, **options: Any) -> None:
        super().__init__(**options)
        self._limiter = limiter
        self._connection = connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection.drop = transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        self._limiter.leave(self._connection)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {
            ABORT: {"call": self.transport.abort}, KNOWN: {"call": self._known}, TAKE_OVER: {"call": self._take_over},
        }  # fmt: skip

    def on_headers_complete(self) -> None:
        self._limiter.mark_busy(self._connection)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:
            self._limiter.mark_resting(self._connection)

    def _known(self) -> None:
        self._limiter.mark_known(self._connection)

    def _unsupported_upgrade_warning(self) -> None:
        """What is asked for decides the application."""

    def _take_over(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.pipeline:  # a client that does not wait for the answer would be misunderstood
            self.transport.abort()
        if self.transport.is_closing():
            raise ConnectionResetError("the client has gone")
        self.cycle.disconnected = True  # nothing more of HTTP is to be said
        self.flow.resume_reading()
        reader = asyncio.StreamReader(limit=BUFFER, loop=self.loop)
        protocol = UpgradedProtocol(reader, self)
        protocol.connection_made(self.transport)
        self.transport.set_protocol(protocol)
        return reader, asyncio.StreamWriter(self.transport, protocol, reader, self.loop)


class UpgradedProtocol(asyncio.StreamReaderProtocol):
    """A connection that is no HTTP any more, and still counts as the one that it was."""

    def __init__(self, reader: asyncio.StreamReader, former: Protocol) -> None:
        super().__init__(reader, loop=former.loop)
        self._former = former

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._former.connection_lost(exc)


class HttpsServer(uvicorn.Server):
    """``serve`` until ``should_exit``. Signals are the caller's."""

    def __init__(self, config: uvicorn.Config, limiter: ConnectionLimiter) -> None:
        super().__init__(config)
        self._limiter = limiter
        self._handshakes: set[asyncio.Task[None]] = set()  # a loop alone does not keep them
        self._accepting: set[socket.socket] = set()
        self._exhausted = 0
        self._logged = (0, 0, 0)
        self._logged_at = -LOG_EVERY_S

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
        self._limiter.close()  # they would be waited for, to say goodbye
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            self._limiter.sweep()
            self._log_dropped()
        return await super().on_tick(counter)

    # --- accepting ------------------------------------------------------------------------------------------------

    def _resume(self, sock: socket.socket) -> None:
        if sock in self._accepting:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(BATCH):
            try:
                client, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    log.debug("a connection could not be accepted: %s", error)
                    return
                self._exhausted += 1
                for _ in range(BATCH):
                    self._limiter.make_room()
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)  # it would be called over and over
                loop.call_later(PAUSE_S, self._resume, listener)
                return
            client.setblocking(False)
            connection = self._limiter.enter(client.close)
            if connection is None:
                client.close()
                continue
            task = asyncio.get_running_loop().create_task(self._handshake(client, connection))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, client: socket.socket, connection: ClientConnection) -> None:
        loop = asyncio.get_running_loop()

        def protocol() -> Protocol:
            return Protocol(
                self._limiter, connection, config=self.config, server_state=self.server_state,
                app_state=self.lifespan.state, _loop=loop,
            )  # fmt: skip

        if client.fileno() < 0:
            return  # dropped before its turn came
        task = asyncio.current_task()
        assert task is not None
        connection.drop = task.cancel
        try:
            await loop.connect_accepted_socket(
                protocol, client, ssl=self.config.ssl, ssl_handshake_timeout=HANDSHAKE_S, ssl_shutdown_timeout=GOODBYE_S
            )
        except OSError as error:  # no TLS, too slow, or gone
            log.debug("a handshake failed: %s", error)
            self._limiter.leave(connection)
        except BaseException:
            self._limiter.leave(connection)
            raise

    def _log_dropped(self) -> None:
        counts = (self._limiter.dropped, self._limiter.refused, self._exhausted)
        now = time.monotonic()
        if counts == self._logged or now - self._logged_at < LOG_EVERY_S:
            return
        dropped, refused, exhausted = (new - old for new, old in zip(counts, self._logged, strict=True))
        log.warning(
            "%d connections without credentials or at rest were dropped and %d refused to keep within the bound, "
            "%d times no file descriptor was left; %d are open",
            dropped, refused, exhausted, len(self._limiter),
        )  # fmt: skip
        self._logged, self._logged_at = counts, now


def server(app: App, pki: tls.Pki, *, descriptors: int, stop_s: float) -> HttpsServer:
    """The server of the application.

    ``descriptors``: how many the process may have; ``stop_s``: seconds for open requests at shutdown.
    """
    config = uvicorn.Config(
        app, http=HttpToolsProtocol, ws="none", loop="asyncio", lifespan="off", interface="asgi3",
        ssl_certfile=str(pki.certificate("server")), ssl_keyfile=str(pki.key("server")),
        log_config=None, access_log=False, server_header=False, proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=int(stop_s),
    )  # fmt: skip
    return HttpsServer(config, limiter_for(descriptors))
