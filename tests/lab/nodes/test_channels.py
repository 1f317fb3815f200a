"""The remote command protocol: messages in parts, sizes of terminals, and what the error channel says."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.lab.nodes import channels
from kgpu.lab.nodes.channels import ChannelPiece, ChannelReader
from tests.budget import tries


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ("v5.channel.k8s.io", channels.V5),
        ("v4.channel.k8s.io, v5.channel.k8s.io", channels.V5),
        ("v4.channel.k8s.io", channels.V4),
        ("channel.k8s.io", channels.V1),
        ("", channels.V1),
        ("base64.channel.k8s.io", ""),
        ("SPDY/3.1,v6.channel.k8s.io", ""),
    ],
)
def test_the_best_protocol_that_both_speak(offered: str, chosen: str) -> None:
    assert channels.choose(offered) == chosen


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b'{"Width":80,"Height":24}', (80, 24)),
        (b'{"Width":0,"Height":0}', (0, 0)),
        (b'{"Width":65535,"Height":65536}', None),
        (b'{"Width":-1,"Height":2}', None),
        (b'{"Width":1e999,"Height":2}', None),
        (b'{"Width":[],"Height":2}', None),
        (b'{"Width":80}', None),
        (b"[80,24]", None),
        (b"[" * 1000, None),
        (b"\xff", None),
    ],
)
def test_a_size_of_a_terminal(data: bytes, size: tuple[int, int] | None) -> None:
    assert channels.terminal_size(data) == size


@pytest.mark.parametrize("protocol", [channels.V5, channels.V4])
def test_how_a_command_ended(protocol: str) -> None:
    assert json.loads(channels.ended(protocol, 0)) == {"metadata": {}, "status": "Success"}
    failed = json.loads(channels.ended(protocol, 137))
    assert (failed["status"], failed["reason"]) == ("Failure", "NonZeroExitCode")
    assert failed["details"]["causes"] == [{"reason": "ExitCode", "message": "137"}]
    missing = json.loads(channels.failed(protocol, "no such thing"))
    assert (missing["code"], missing["message"]) == (500, "Internal error occurred: no such thing")


def test_the_first_version_has_words_alone() -> None:
    assert channels.ended(channels.V1, 0) == b""
    assert b"exit code 3" in channels.ended(channels.V1, 3)


def read(parts: list[bytes]) -> list[ChannelPiece]:
    reader = ChannelReader()
    return [
        piece
        for number, part in enumerate(parts, start=1)
        for piece in reader.take(part, finished=number == len(parts))
    ]


@tries(100)
@given(st.integers(0, 255), st.binary(max_size=3000), st.lists(st.integers(0, 3001), max_size=5))
def test_a_message_is_the_same_in_whatever_parts_it_comes(channel: int, data: bytes, cuts: list[int]) -> None:
    message = bytes([channel]) + data
    places = [0, *sorted(cut for cut in cuts if cut <= len(message)), len(message)]
    pieces = read([message[begin:end] for begin, end in itertools.pairwise(places)])
    assert all(piece.channel == channel for piece in pieces)
    whole = b"".join(piece.data for piece in pieces)
    # What is no input is a few bytes long, or nothing.
    assert whole == (data if channel == channels.STDIN or len(data) <= channels.SMALL else b"")


def test_a_message_begins_anew_after_the_last() -> None:
    reader = ChannelReader()
    assert list(reader.take(b"", finished=True)) == []
    assert list(reader.take(b"\x00a", finished=True)) == [ChannelPiece(0, b"a")]
    assert list(reader.take(b"\x04" + b"x" * 5000, finished=True)) == []
    assert list(reader.take(b"\xff\x00", finished=True)) == [ChannelPiece(255, b"\x00")]
