"""The frames of SPDY/3.1 that ``kubectl port-forward`` sends, and the answers. Pure.

Kubernetes' clients know no flow control of SPDY: whoever reads slowly holds the whole connection back. Promises: data
is handed on as it comes, whatever a frame's length; of everything else no more than ``SMALL`` bytes are kept, packed or
not. Source: the SPDY protocol, draft 3.1.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

SMALL: Final = 16 * 1024
"""Bytes of a control frame, and of its headers when they are unpacked."""
PROTOCOL_ERROR, REFUSED, CANCEL = 1, 3, 5
"""Why a stream is reset."""
_CONTROL: Final = 0x8000
_VERSION: Final = 3
_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY = 1, 2, 3, 6, 7
_FIN: Final = 1
_HEAD: Final = struct.Struct(">II")
_CONTROL_HEAD: Final = struct.Struct(">HHI")
_NUMBER: Final = struct.Struct(">I")
_ID: Final = 0x7FFFFFFF
_LENGTH: Final = 0xFFFFFF

_NAMES: Final = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status 200+OK version HTTP/1.1 url public set-cookie "
    "keep-alive origin"
)
_TEXT: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative "
    "Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 "
    "Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec "
    "00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,"
    "application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset="
    "iso-8859-1,utf-,*,enq=0."
)
DICTIONARY: Final = (
    b"".join(_NUMBER.pack(len(name)) + name.replace("+", " ").encode() for name in _NAMES.split(" ")) + _TEXT.encode()
)
"""What both sides' header compression begins with."""


class SpdyError(Exception):
    """What came is no SPDY, or more than anybody sends."""


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """A stream that the other side opens; ``fin`` when it will send nothing on it."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False


@dataclass(frozen=True, slots=True)
class StreamData:
    """A piece of a stream's data; ``fin`` behind the last one."""

    stream: int
    data: bytes
    fin: bool = False


@dataclass(frozen=True, slots=True)
class StreamReset:
    """A stream that is over on both sides."""

    stream: int


@dataclass(frozen=True, slots=True)
class PingAsked:
    """A ping to answer."""

    number: int


@dataclass(frozen=True, slots=True)
class GoneAway:
    """The other side opens no more streams."""


SpdyFrame = StreamOpened | StreamData | StreamReset | PingAsked | GoneAway


@dataclass(slots=True)
class FrameReader:
    """Takes a connection's bytes apart."""

    _kept: bytes = b""
    _stream: int = 0
    _left: int = 0  # bytes of the data frame that is being read
    _fin: bool = False
    _unpack: zlib._Decompress = field(default_factory=lambda: zlib.decompressobj(zdict=DICTIONARY))

    def take(self, data: bytes) -> Iterator[SpdyFrame]:
        """What these bytes complete. Raises SpdyError."""
        self._kept += data
        while True:
            if self._left:
                if not self._kept:
                    return
                yield self._piece()
            elif len(self._kept) < _HEAD.size:
                return
            elif self._kept[0] & 0x80:
                if (frame := self._control()) is None:
                    return
                yield from frame
            else:
                self._stream, second = _HEAD.unpack_from(self._kept)
                self._kept = self._kept[_HEAD.size :]
                self._left, self._fin = second & _LENGTH, bool(second >> 24 & _FIN)
                if not self._left and self._fin:
                    yield StreamData(self._stream, b"", fin=True)

    def _piece(self) -> StreamData:
        piece, self._kept = self._kept[: self._left], self._kept[self._left :]
        self._left -= len(piece)
        return StreamData(self._stream, piece, fin=self._fin and not self._left)

    def _control(self) -> tuple[SpdyFrame, ...] | None:
        """The frame at the beginning of what is kept, if it is known; None while it is not whole."""
        version, kind, second = _CONTROL_HEAD.unpack_from(self._kept)
        length = second & _LENGTH
        if version != _CONTROL | _VERSION:
            raise SpdyError(f"version {version & ~_CONTROL}, not {_VERSION}")
        if length > SMALL:
            raise SpdyError(f"a control frame of {length} bytes")
        if len(self._kept) < _HEAD.size + length:
            return None
        body, self._kept = self._kept[_HEAD.size : _HEAD.size + length], self._kept[_HEAD.size + length :]
        return self._known(kind, body, fin=bool(second >> 24 & _FIN))

    def _known(self, kind: int, body: bytes, *, fin: bool) -> tuple[SpdyFrame, ...]:
        try:
            if kind == _SYN_STREAM:
                return (StreamOpened(_number(body), self._headers(body[10:]), fin),)
            if kind == _RST_STREAM:
                return (StreamReset(_number(body)),)
            if kind == _PING:
                return (PingAsked(_NUMBER.unpack_from(body)[0]),)
        except (struct.error, zlib.error, UnicodeDecodeError) as error:
            raise SpdyError(f"a frame of type {kind} that can't be read: {error}") from error
        return (GoneAway(),) if kind == _GOAWAY else ()

    def _headers(self, packed: bytes) -> dict[str, str]:
        """Names in lower case. Raises SpdyError, struct.error, zlib.error."""
        text = self._unpack.decompress(packed, SMALL)
        if self._unpack.unconsumed_tail:
            raise SpdyError("headers that are too long")
        (count,), at, words = _NUMBER.unpack_from(text), _NUMBER.size, []
        for _ in range(2 * min(count, SMALL)):
            (length,) = _NUMBER.unpack_from(text, at)
            words.append(text[at + _NUMBER.size : at + _NUMBER.size + length].decode())
            at += _NUMBER.size + length
        return {name.lower(): value for name, value in zip(words[::2], words[1::2], strict=True)}


def _number(body: bytes) -> int:
    return int(_NUMBER.unpack_from(body)[0]) & _ID


@dataclass(slots=True)
class FrameWriter:
    """Makes frames; what they return must be sent in the order in which it was made."""

    _pack: zlib._Compress = field(default_factory=lambda: zlib.compressobj(zdict=DICTIONARY))

    def reply(self, stream: int) -> bytes:
        """The stream is taken; without headers."""
        packed = self._pack.compress(_NUMBER.pack(0)) + self._pack.flush(zlib.Z_SYNC_FLUSH)
        return _control(_SYN_REPLY, _NUMBER.pack(stream) + packed)

    @staticmethod
    def data(stream: int, data: bytes, *, fin: bool = False) -> bytes:
        """Up to 16 MiB of a stream's data."""
        return _HEAD.pack(stream, len(data) | (_FIN << 24 if fin else 0)) + data

    @staticmethod
    def reset(stream: int, status: int) -> bytes:
        """The stream is over, and why."""
        return _control(_RST_STREAM, _NUMBER.pack(stream) + _NUMBER.pack(status))

    @staticmethod
    def ping(number: int) -> bytes:
        """The answer to a ping."""
        return _control(_PING, _NUMBER.pack(number))


def _control(kind: int, body: bytes) -> bytes:
    return _CONTROL_HEAD.pack(_CONTROL | _VERSION, kind, len(body)) + body
