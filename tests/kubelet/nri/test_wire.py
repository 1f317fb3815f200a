"""Frames and messages: the published layout, any cut of the bytes, and lengths that lie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.kubelet.nri.wire import (
    MAX_MESSAGE,
    PLUGIN_CONNECTION,
    REQUEST,
    RESPONSE,
    RUNTIME_CONNECTION,
    Decoder,
    TtrpcError,
    TtrpcMessage,
    encode,
)

messages = st.builds(
    TtrpcMessage,
    st.integers(0, 2**32 - 1),
    st.sampled_from([REQUEST, RESPONSE]),
    st.binary(max_size=9000),
    st.integers(0, 7),
)


def test_the_published_layout() -> None:
    # Frame: connection, length. Message: length, stream, kind, flags.
    assert encode(PLUGIN_CONNECTION, TtrpcMessage(3, RESPONSE, b"ab")) == bytes.fromhex(
        "00000001" "0000000c" "00000002" "00000003" "02" "00" "6162"
    )  # fmt: skip


def test_a_long_message_comes_in_two_frames_that_a_small_buffer_can_take() -> None:
    whole = encode(RUNTIME_CONNECTION, TtrpcMessage(1, REQUEST, b"x" * 10000))
    assert int.from_bytes(whole[4:8]) == 4096
    second = whole[8 + 4096 :]
    assert int.from_bytes(second[:4]) == RUNTIME_CONNECTION
    assert int.from_bytes(second[4:8]) == 10 + 10000 - 4096 == len(second) - 8
    edge = encode(RUNTIME_CONNECTION, TtrpcMessage(1, REQUEST, b"x" * (4096 - 10)))
    assert len(edge) == 8 + 4096


@given(st.lists(st.tuples(st.sampled_from([1, 2]), messages), max_size=5), st.randoms())
def test_whatever_the_cut_the_same_messages_arrive(sent: list[tuple[int, TtrpcMessage]], random) -> None:
    data = b"".join(encode(connection, message) for connection, message in sent)
    decoder = Decoder()
    got: list[tuple[int, TtrpcMessage]] = []
    while data:
        cut = random.randint(1, len(data))
        got += decoder.feed(data[:cut])
        data = data[cut:]
    assert got == sent


def test_frames_of_other_connections_are_skipped() -> None:
    data = encode(7, TtrpcMessage(1, REQUEST, b"hidden")) + encode(PLUGIN_CONNECTION, TtrpcMessage(1, REQUEST, b"seen"))
    assert Decoder().feed(data) == [(PLUGIN_CONNECTION, TtrpcMessage(1, REQUEST, b"seen"))]


def test_two_messages_in_one_frame() -> None:
    one = encode(PLUGIN_CONNECTION, TtrpcMessage(1, REQUEST, b"a"))[8:]
    two = encode(PLUGIN_CONNECTION, TtrpcMessage(3, REQUEST, b"b"))[8:]
    frame = PLUGIN_CONNECTION.to_bytes(4) + (len(one) + len(two)).to_bytes(4) + one + two
    assert [message.data for _, message in Decoder().feed(frame)] == [b"a", b"b"]


def test_lengths_beyond_the_limit_are_refused_before_anything_is_kept() -> None:
    with pytest.raises(TtrpcError):
        Decoder().feed((1).to_bytes(4) + (MAX_MESSAGE + 11).to_bytes(4))
    with pytest.raises(TtrpcError):
        Decoder().feed((1).to_bytes(4) + (10).to_bytes(4) + (MAX_MESSAGE + 1).to_bytes(4) + bytes(6))
    with pytest.raises(TtrpcError):
        encode(1, TtrpcMessage(1, REQUEST, bytes(MAX_MESSAGE + 1)))


@given(st.binary(max_size=300))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    decoder = Decoder()
    try:
        for _, message in decoder.feed(data):
            assert len(message.data) <= len(data)
    except TtrpcError:
        pass
