"""gRPC over unix sockets, as little of it as the kubelet's APIs need; the only module that knows the gRPC library.

Servers register every method of a service: what has no implementation answers UNIMPLEMENTED the way grpc-go expects it
(the library's own answer for an unknown path lacks a content type, which grpc-go reports as a malformed header).
Sockets appear atomically: bound under a temporary name, listening, then renamed over whatever stale file was there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpclib.client
import grpclib.const
import grpclib.exceptions
import grpclib.server
from google.protobuf.message import DecodeError
from grpclib.const import Cardinality, Status

from kgpu.base.errors import KubeletError, UserError

# A client that hangs up is everyday life here, and the library reports each one.
logging.getLogger("grpclib").setLevel(logging.WARNING)

MAX_SOCKET_PATH = 107
"""Bytes in the name of a unix socket, without the ending zero (Linux)."""

_LINE_TROUBLE = (
    OSError,
    TimeoutError,
    grpclib.exceptions.StreamTerminatedError,
    grpclib.exceptions.ProtocolError,
)

Answer = Callable[[Any], Any]
"""Takes the request; returns an awaitable of the reply, or for streaming methods an async generator of replies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One remote procedure: ``path`` is ``/<package>.<Service>/<Method>``, the types are message classes."""

    path: str
    request: Any
    reply: Any
    streams: bool = False

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[1]


class Service:
    """A table of methods with what answers them; methods without an entry answer UNIMPLEMENTED."""

    def __init__(self, methods: Sequence[Method], answers: Mapping[str, Answer]) -> None:
        unknown = set(answers) - {method.name for method in methods}
        if unknown:
            msg = f"no such methods: {sorted(unknown)}"
            raise ValueError(msg)
        self._methods = methods
        self._answers = answers

    def __mapping__(self) -> dict[str, grpclib.const.Handler]:
        return {
            method.path: grpclib.const.Handler(
                _handler(method, self._answers.get(method.name)),
                Cardinality.UNARY_STREAM if method.streams else Cardinality.UNARY_UNARY,
                method.request,
                method.reply,
            )
            for method in self._methods
        }


def _handler(method: Method, answer: Answer | None) -> Callable[[Any], Awaitable[None]]:
    async def handle(stream: Any) -> None:
        request = await stream.recv_message()
        if answer is None or request is None:
            raise grpclib.exceptions.GRPCError(Status.UNIMPLEMENTED, f"{method.name} is not offered here")
        try:
            if method.streams:
                async with contextlib.aclosing(answer(request)) as replies:
                    async for reply in replies:
                        await stream.send_message(reply)
            else:
                await stream.send_message(await answer(request))
        except UserError as problem:
            raise grpclib.exceptions.GRPCError(Status.INVALID_ARGUMENT, problem.one_line()) from problem

    return handle


class _AnyMethod(dict[str, grpclib.const.Handler]):
    """Answers UNIMPLEMENTED for every path that no service has."""

    def get(self, key: str, default: Any = None) -> Any:
        handler = super().get(key)
        if handler is not None:
            return handler
        del default
        method = Method(path=key, request=None, reply=None)
        return grpclib.const.Handler(_refusal(method), Cardinality.UNARY_UNARY, None, None)


def _refusal(method: Method) -> Callable[[Any], Awaitable[None]]:
    async def handle(_stream: Any) -> None:
        raise grpclib.exceptions.GRPCError(Status.UNIMPLEMENTED, f"{method.name} is not offered here")

    return handle


class _TrackingServer(grpclib.server.Server):
    """Knows its connections, so that closing hangs up instead of leaving clients waiting."""

    def __init__(self, services: Sequence[Service]) -> None:
        super().__init__(services)
        self._mapping = _AnyMethod(self._mapping)
        self.protocols: weakref.WeakSet[Any] = weakref.WeakSet()

    def _protocol_factory(self) -> Any:
        protocol = super()._protocol_factory()
        self.protocols.add(protocol)
        return protocol

    def hang_up(self) -> None:
        for protocol in list(self.protocols):
            connection = getattr(protocol, "connection", None)
            transport = getattr(connection, "_transport", None)
            if transport is not None and not transport.is_closing():
                transport.close()


def _bind(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise KubeletError(
            f"The socket path {path} is {len(os.fsencode(path))} bytes long",
            f"at most {MAX_SOCKET_PATH} bytes, the limit for unix sockets",
            "use a folder with a shorter name",
        )
    temporary = path.with_name(f".{secrets.token_hex(3)}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.bind(str(temporary))
        sock.listen(64)
        os.rename(temporary, path)
    except OSError as problem:
        sock.close()
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise KubeletError(
            f"The socket {path} could not be made: {problem.strerror}",
            "a writable folder that the kubelet reads too",
            f"check that {path.parent} exists, is mounted from the host, and is writable",
        ) from problem
    return sock


class RpcServer:
    """Services on one unix socket. ``exists`` tells whether the socket's file is still ours."""

    def __init__(self, path: Path, services: Sequence[Service]) -> None:
        self.path = path
        self._services = services
        self._server: _TrackingServer | None = None
        self._identity: tuple[int, int] | None = None

    async def start(self) -> None:
        """Listen; replaces a stale socket file. Raises KubeletError when the socket can't be made."""
        server = _TrackingServer(self._services)
        sock = _bind(self.path)
        self._identity = _identity(self.path)
        # Not to be cancelled halfway: the event loop would keep a listening socket that nobody closes.
        started = asyncio.ensure_future(server.start(sock=sock))
        try:
            await asyncio.shield(started)
            self._server = server
        except asyncio.CancelledError:
            await started
            self._server = server
            await self.close()
            raise

    @property
    def exists(self) -> bool:
        """False when somebody (a starting kubelet, for one) removed or replaced the socket file."""
        return self._identity is not None and _identity(self.path) == self._identity

    @property
    def replaced(self) -> bool:
        """True when another file has the socket's name; a file that was only touched is still ours."""
        now = _identity(self.path)
        return self._identity is not None and now is not None and now[0] != self._identity[0]

    async def close(self) -> None:
        """Hang up on every client and remove the socket file, unless another program's file is there by now."""
        server, self._server = self._server, None
        if self.exists:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._identity = None
        if server is None:
            return
        server.close()
        await asyncio.sleep(0)  # handlers get their cancellation before the line goes dead
        server.hang_up()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await server.wait_closed()


def is_served(path: Path) -> bool:
    """Whether a process listens at a unix socket; False for a file that a killed one left behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(os.fsencode(path))
        except BlockingIOError:
            return True  # it has more callers than it takes at once
        except OSError:
            return False
        return True


def _identity(path: Path) -> tuple[int, int] | None:
    """Inode and change time: inode numbers alone are reused at once on some file systems."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


class RpcClient:
    """Calls to one unix socket; use as an async context manager. Trouble is a KubeletError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._channel = grpclib.client.Channel(path=str(path))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    async def call(self, method: Method, request: Any, *, timeout: float) -> Any:  # noqa: ASYNC109 - a gRPC deadline
        """One answer within ``timeout`` seconds."""
        stub = grpclib.client.UnaryUnaryMethod(self._channel, method.path, method.request, method.reply)
        with self._told(method):
            async with asyncio.timeout(timeout + 0.5):
                return await stub(request, timeout=timeout)

    async def stream(self, method: Method, request: Any) -> AsyncGenerator[Any, None]:
        """Answers until the server ends the stream."""
        stub = grpclib.client.UnaryStreamMethod(self._channel, method.path, method.request, method.reply)
        with self._told(method):
            async with stub.open() as stream:
                await stream.send_message(request, end=True)
                async for message in stream:
                    yield message

    @contextlib.contextmanager
    def _told(self, method: Method) -> Iterator[None]:
        try:
            yield
        except grpclib.exceptions.GRPCError as problem:
            raise RpcError(
                f"{method.name} on {self.path} was refused with {problem.status.name}: {problem.message}",
                "an accepted call",
                "read the refusal; the other side's log has more",
                status=problem.status.name,
                message=problem.message or "",
            ) from problem
        except _LINE_TROUBLE as problem:
            raise self._failed(method, str(problem) or type(problem).__name__) from problem
        except DecodeError as problem:
            raise self._failed(method, "the answer is no such message") from problem
        except AttributeError as problem:
            # grpclib's, for a line that was lost between connecting and the first use of it.
            if problem.name != "_transport":
                raise
            raise self._failed(method, "the connection was lost") from problem

    def _failed(self, method: Method, detail: str) -> KubeletError:
        return KubeletError(
            f"{method.name} on {self.path} failed: {detail}",
            "a process that listens and answers there",
            "check that the process behind the socket runs; it is tried again",
        )


class RpcError(KubeletError):
    """The other side answered with an error; ``status`` is gRPC's name for it."""

    def __init__(self, what: str, expected: str, remedy: str, *, status: str, message: str) -> None:
        super().__init__(what, expected, remedy)
        self.status = status
        self.message = message
