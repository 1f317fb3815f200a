"""SPDY's frames: those of kubectl, in whatever pieces they come, and what is none."""

from __future__ import annotations

import contextlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.lab.nodes import spdy
from kgpu.lab.nodes.spdy import FrameReader, FrameWriter, GoneAway, PingAsked, SpdyError, StreamData, StreamOpened

FIN = 1 << 24


def block(**headers: str) -> bytes:
    """Headers as SPDY/3 writes them, before they are packed."""
    rows = [part.encode() for pair in headers.items() for part in pair]
    return struct.pack(">I", len(headers)) + b"".join(struct.pack(">I", len(row)) + row for row in rows)


class Client:
    """The frames of a client, whose header compression goes on from one to the next."""

    def __init__(self) -> None:
        self._pack = zlib.compressobj(zdict=spdy.DICTIONARY)

    def packed(self, text: bytes) -> bytes:
        return self._pack.compress(text) + self._pack.flush(zlib.Z_SYNC_FLUSH)

    def opened(self, stream: int, **headers: str) -> bytes:
        return control(1, struct.pack(">IIH", stream, 0, 0) + self.packed(block(**headers)))


def control(kind: int, body: bytes, *, flags: int = 0, version: int = 3) -> bytes:
    return struct.pack(">HHI", 0x8000 | version, kind, flags << 24 | len(body)) + body


def read(data: bytes, size: int = 1 << 20) -> list[spdy.SpdyFrame]:
    reader = FrameReader()
    return [frame for at in range(0, len(data), size) for frame in reader.take(data[at : at + size])]


def test_the_dictionary_is_that_of_the_protocol() -> None:
    """Its checksum is in every stream that begins with it: RFC 1950's DICTID."""
    assert zlib.adler32(spdy.DICTIONARY) == 0xE3C6A7C2


@given(sizes=st.lists(st.integers(0, 300), max_size=5), size=st.integers(1, 64))
def test_frames_are_the_same_in_whatever_pieces_they_come(sizes: list[int], size: int) -> None:
    client = Client()
    data = client.opened(1, Streamtype="error", port="80", requestid="0")
    data += client.opened(3, streamtype="data", port="80", requestid="0")
    sent = [bytes([number]) * length for number, length in enumerate(sizes)]
    data += b"".join(FrameWriter.data(3, piece) for piece in sent) + FrameWriter.data(3, b"end", fin=True)
    data += FrameWriter.ping(7) + control(3, struct.pack(">II", 3, 5)) + control(4, b"\0" * 4) + control(7, b"\0" * 8)
    first, second, *rest = read(data, size)
    assert first == StreamOpened(1, {"streamtype": "error", "port": "80", "requestid": "0"})
    assert second == StreamOpened(3, {"streamtype": "data", "port": "80", "requestid": "0"})
    pieces = [frame for frame in rest if isinstance(frame, StreamData)]
    assert b"".join(piece.data for piece in pieces) == b"".join(sent) + b"end"
    assert [piece.fin for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert rest[len(pieces) :] == [PingAsked(7), spdy.StreamReset(3), GoneAway()]  # settings are no news


def test_data_is_not_kept_until_its_frame_is_whole() -> None:
    reader = FrameReader()
    head = struct.pack(">II", 1, FIN | 1 << 20)
    assert list(reader.take(head + b"a" * 10)) == [StreamData(1, b"a" * 10)]
    assert list(reader.take(b"b" * 5)) == [StreamData(1, b"b" * 5)]
    (last,) = reader.take(b"c" * ((1 << 20) - 15))
    assert isinstance(last, StreamData)
    assert last.fin


def test_the_end_of_data_may_stand_alone() -> None:
    assert read(FrameWriter.data(5, b"", fin=True)) == [StreamData(5, b"", fin=True)]
    assert read(FrameWriter.data(5, b"")) == []


def test_replies_and_resets_are_read_as_they_were_meant() -> None:
    writer = FrameWriter()
    unpack = zlib.decompressobj(zdict=spdy.DICTIONARY)
    for stream in (1, 3):
        version, kind, length, told = struct.unpack_from(">HHII", frame := writer.reply(stream))
        assert (version, kind, length, told) == (0x8003, 2, len(frame) - 8, stream)
        assert unpack.decompress(frame[12:]) == struct.pack(">I", 0)
    assert read(FrameWriter.reset(9, spdy.REFUSED)) == [spdy.StreamReset(9)]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (control(1, b"", version=2), "version 2"),
        (control(1, b"x" * (spdy.SMALL + 1)), f"a control frame of {spdy.SMALL + 1} bytes"),
        (control(1, struct.pack(">IIH", 1, 0, 0) + b"no zlib"), "can't be read"),
        (control(1, b"abc"), "can't be read"),
        (control(3, b""), "can't be read"),
        (control(6, b"\1"), "can't be read"),
        (control(1, struct.pack(">IIH", 1, 0, 0) + Client().packed(struct.pack(">I", 9))), "can't be read"),
        (control(1, struct.pack(">IIH", 1, 0, 0) + Client().packed(b"\0" * (1 << 22))), "too long"),
    ],
)
def test_what_is_no_spdy_or_too_much_of_it_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(SpdyError, match=what):
        read(data)


@given(st.binary(max_size=200), st.booleans())
def test_whatever_comes_is_frames_or_refused(data: bytes, whole: bool) -> None:
    with contextlib.suppress(SpdyError):
        read(control(1, data) if whole else data, 7)
