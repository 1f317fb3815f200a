"""One NRI connection, seen from either end: answers the other side's calls and makes calls of its own.

Answers never raise into the connection: a UserError becomes FAILED_PRECONDITION with its text, anything else INTERNAL
with a word for the log. Calls that wait when the line goes dead end with a KubeletError.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from kgpu.base.errors import KubeletError, UserError
from kgpu.base.service import end
from kgpu.kubelet.nri import wire
from kgpu.kubelet.pb import nri_v1alpha1_pb2 as nri
from kgpu.kubelet.pb import ttrpc_pb2 as ttrpc

log = logging.getLogger(__name__)

INVALID_ARGUMENT: Final = 3
FAILED_PRECONDITION: Final = 9
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
RESOURCE_EXHAUSTED: Final = 8
READ_BYTES: Final = 1 << 16
MAX_CALLS: Final = 256
"""Calls that are answered at a time; the runtime makes them one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TtrpcMethod:
    """One procedure of a ttrpc service and its message classes."""

    service: str
    name: str
    request: Any
    reply: Any


RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
REGISTER: Final = TtrpcMethod(
    service=RUNTIME_SERVICE, name="RegisterPlugin", request=nri.RegisterPluginRequest, reply=nri.Empty
)
CONFIGURE: Final = TtrpcMethod(
    service=PLUGIN_SERVICE, name="Configure", request=nri.ConfigureRequest, reply=nri.ConfigureResponse
)
SYNCHRONIZE: Final = TtrpcMethod(
    service=PLUGIN_SERVICE, name="Synchronize", request=nri.SynchronizeRequest, reply=nri.SynchronizeResponse
)
CREATE: Final = TtrpcMethod(
    service=PLUGIN_SERVICE,
    name="CreateContainer",
    request=nri.CreateContainerRequest,
    reply=nri.CreateContainerResponse,
)
STATE_CHANGE: Final = TtrpcMethod(
    service=PLUGIN_SERVICE, name="StateChange", request=nri.StateChangeEvent, reply=nri.Empty
)
SHUTDOWN: Final = TtrpcMethod(service=PLUGIN_SERVICE, name="Shutdown", request=nri.Empty, reply=nri.Empty)

Answer = Callable[[Any], Awaitable[Any]]


class CallRefusedError(KubeletError):
    """The other side answered a call with an error; ``code`` is gRPC's number, ``message`` its own words."""

    def __init__(self, method: str, code: int, message: str) -> None:
        super().__init__(
            f"NRI's {method} was refused with code {code}: {message}", "an accepted call",
            "read the refusal; the container runtime's log has more",
        )  # fmt: skip
        self.code = code
        self.message = message


class Session:
    """Runs on a connected stream: ``run`` until the line ends, ``call`` meanwhile.

    ``serves`` and ``calls`` are the multiplexer's connections for the two directions.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        serves: int,
        calls: int,
        answers: Mapping[TtrpcMethod, Answer],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._serves = serves
        self._calls = calls
        self._answers = {(method.service, method.name): (method, answer) for method, answer in answers.items()}
        self._streams = itertools.count(1, 2)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Read and answer until the other side hangs up. Raises KubeletError when what it says is not NRI."""
        decoder = wire.Decoder()
        try:
            while data := await self._reader.read(READ_BYTES):
                for connection, message in decoder.feed(data):
                    self._take(connection, message)
        except wire.TtrpcError as problem:
            raise KubeletError(
                f"the NRI connection carries {problem}", "ttrpc messages in NRI's frames",
                "check that the socket is the container runtime's NRI socket",
            ) from problem  # fmt: skip
        except OSError:
            log.debug("the NRI connection broke", exc_info=True)
        finally:
            await self.close()

    async def close(self) -> None:
        """Hang up; calls that wait fail, calls that are being answered are given up."""
        self._writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_hung_up())
        self._waiting.clear()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        await end(*tasks)
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def call(self, method: TtrpcMethod, request: Any, *, timeout: float) -> Any:  # noqa: ASYNC109 - a ttrpc deadline
        """The reply within ``timeout`` seconds. Raises KubeletError, CallRefusedError for the other side's own no."""
        if self._writer.is_closing():
            raise _hung_up()
        stream = next(self._streams)
        envelope = ttrpc.Request(
            service=method.service,
            method=method.name,
            payload=request.SerializeToString(),
            timeout_nano=int(timeout * 1e9),
        )
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[stream] = future
        try:
            self._send(self._calls, stream, wire.REQUEST, envelope.SerializeToString(), wire.REMOTE_CLOSED)
            async with asyncio.timeout(timeout):
                data = await future
        except TimeoutError as problem:
            raise KubeletError(
                f"NRI's {method.name} was not answered within {timeout:g} s", "an answer", "look at the runtime's log"
            ) from problem
        finally:
            self._waiting.pop(stream, None)
        try:
            response = ttrpc.Response.FromString(data)
            if response.status.code:
                raise CallRefusedError(method.name, response.status.code, response.status.message)
            return method.reply.FromString(response.payload)
        except DecodeError as problem:
            raise KubeletError(
                f"the answer to NRI's {method.name} can't be read",
                "a protobuf message",
                "look at the runtime's version",
            ) from problem

    def _take(self, connection: int, message: wire.TtrpcMessage) -> None:
        if connection == self._calls and message.kind == wire.RESPONSE:
            future = self._waiting.get(message.stream)
            if future is not None and not future.done():
                future.set_result(message.data)
        elif connection == self._serves and message.kind == wire.REQUEST:
            if len(self._tasks) >= MAX_CALLS:
                self._reply(message.stream, b"", RESOURCE_EXHAUSTED, f"{MAX_CALLS} calls are being answered")
                return
            task = asyncio.create_task(self._serve(message), name="nri-call")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, message: wire.TtrpcMessage) -> None:
        name = "a call"
        try:
            envelope = ttrpc.Request.FromString(message.data)
            name = envelope.method
            row = self._answers.get((envelope.service, envelope.method))
            if row is None:
                self._reply(message.stream, b"", UNIMPLEMENTED, f"{envelope.service}/{name} is not offered here")
                return
            method, answer = row
            reply = await answer(method.request.FromString(envelope.payload))
            self._reply(message.stream, reply.SerializeToString())
        except DecodeError:
            self._reply(message.stream, b"", INVALID_ARGUMENT, f"{name}: the request can't be read")
        except UserError as problem:
            self._reply(message.stream, b"", FAILED_PRECONDITION, problem.one_line())
        except Exception:
            log.exception("NRI's %s could not be answered", name)
            self._reply(message.stream, b"", INTERNAL, f"{name} could not be answered; the log of kgpu has more")

    def _reply(self, stream: int, payload: bytes, code: int = 0, message: str = "") -> None:
        response = ttrpc.Response(payload=payload)
        if code:
            response.status.code = code
            response.status.message = message
        self._send(self._serves, stream, wire.RESPONSE, response.SerializeToString())

    def _send(self, connection: int, stream: int, kind: int, data: bytes, flags: int = 0) -> None:
        # One write for the whole message: frames of two messages must not mix.
        if not self._writer.is_closing():
            self._writer.write(wire.encode(connection, wire.TtrpcMessage(stream, kind, data, flags)))


def _hung_up() -> KubeletError:
    return KubeletError(
        "the NRI connection ended", "a container runtime that keeps it open", "nothing; it is tried again"
    )
