"""The bytes of an NRI connection, without input or output: ttrpc messages inside the frames of a multiplexer.

One unix socket carries two ttrpc connections, one per direction of calls. A multiplexer frame is (connection, length)
and bytes; a ttrpc message is (length, stream, kind, flags) and bytes; all numbers are big-endian. Decoders take bytes
as they come, in pieces of any size, and refuse lengths beyond the protocol's limits before they store anything.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

PLUGIN_CONNECTION: Final = 1
"""On it the runtime calls and the plugin answers."""
RUNTIME_CONNECTION: Final = 2
"""On it the plugin calls and the runtime answers."""

REQUEST: Final = 1
RESPONSE: Final = 2
DATA: Final = 3
REMOTE_CLOSED: Final = 0x1
"""Flag of a request after which the caller sends nothing more on this stream: the usual kind."""

MAX_MESSAGE: Final = 4 << 20
"""Bytes of one ttrpc message without its header (ttrpc's own limit)."""

_FRAME: Final = struct.Struct(">II")
_HEADER: Final = struct.Struct(">IIBB")
_FIRST_PIECE: Final = 4096


class TtrpcError(ValueError):
    """Bytes that are not NRI's; the connection can't be used any more."""


@dataclass(frozen=True, slots=True)
class TtrpcMessage:
    """One ttrpc message; ``stream`` is odd for calls."""

    stream: int
    kind: int
    data: bytes
    flags: int = 0


def encode(connection: int, message: TtrpcMessage) -> bytes:
    """The message in its frames.

    In two frames where it is long: the runtime's reader takes a frame whole or fails, into a buffer of 4096 bytes for
    the beginning of a message and into one of the message's own size for the rest.
    """
    if len(message.data) > MAX_MESSAGE:
        raise TtrpcError(f"a message of {len(message.data)} bytes, {MAX_MESSAGE} at most")
    whole = _HEADER.pack(len(message.data), message.stream, message.kind, message.flags) + message.data
    pieces = (whole[:_FIRST_PIECE], whole[_FIRST_PIECE:])
    return b"".join(_FRAME.pack(connection, len(piece)) + piece for piece in pieces if piece)


class Decoder:
    """Makes (connection, message) of a byte stream. After a TtrpcError it must not be fed again."""

    def __init__(self) -> None:
        self._trunk = bytearray()
        self._connections: dict[int, bytearray] = {}

    def feed(self, data: bytes) -> list[tuple[int, TtrpcMessage]]:
        """The messages that these bytes complete. Raises TtrpcError."""
        self._trunk += data
        messages: list[tuple[int, TtrpcMessage]] = []
        while len(self._trunk) >= _FRAME.size:
            connection, length = _FRAME.unpack_from(self._trunk)
            if length > MAX_MESSAGE + _HEADER.size:
                raise TtrpcError(f"a frame of {length} bytes")
            if len(self._trunk) < _FRAME.size + length:
                break
            piece = self._trunk[_FRAME.size : _FRAME.size + length]
            del self._trunk[: _FRAME.size + length]
            if connection in {PLUGIN_CONNECTION, RUNTIME_CONNECTION}:
                buffer = self._connections.setdefault(connection, bytearray())
                buffer += piece
                messages += [(connection, message) for message in _messages(buffer)]
        return messages


def _messages(buffer: bytearray) -> list[TtrpcMessage]:
    messages = []
    while len(buffer) >= _HEADER.size:
        length, stream, kind, flags = _HEADER.unpack_from(buffer)
        if length > MAX_MESSAGE:
            raise TtrpcError(f"a message of {length} bytes")
        end = _HEADER.size + length
        if len(buffer) < end:
            break
        messages.append(TtrpcMessage(stream, kind, bytes(buffer[_HEADER.size : end]), flags))
        del buffer[:end]
    return messages
