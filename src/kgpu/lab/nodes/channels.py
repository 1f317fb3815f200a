"""The remote command protocol of Kubernetes over a WebSocket: which message is what. Pure.

A binary message is one byte for the channel, then its data. Versions 4 and 5 end with a Status on the error channel;
in version 5 channel 255 closes the channel that it names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

V5: Final = "v5.channel.k8s.io"
V4: Final = "v4.channel.k8s.io"
V1: Final = "channel.k8s.io"
PROTOCOLS: Final = (V5, V4, V1)
"""Those that are spoken here, the best first."""
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
SMALL: Final = 1024
"""Bytes of a message that is no input; a longer one is none that anybody sends."""
_MOST: Final = 65535  # columns or rows of a terminal


@dataclass(frozen=True, slots=True)
class ChannelPiece:
    """Data for a channel: a message, of ``STDIN`` also a part of one."""

    channel: int
    data: bytes


class ChannelReader:
    """Takes messages apart as their parts come: input at once, of other channels whole messages of a few bytes."""

    def __init__(self) -> None:
        self._channel: int | None = None
        self._kept = b""

    def take(self, data: bytes, *, finished: bool) -> Iterator[ChannelPiece]:
        """What a part of a message says; ``finished`` for its last one."""
        if self._channel is None and data:
            self._channel, data = data[0], data[1:]
        if self._channel == STDIN and data:
            yield ChannelPiece(STDIN, data)
        elif self._channel not in (None, STDIN):
            self._kept += data[: SMALL + 1 - len(self._kept)]
        if finished:
            if self._channel is not None and 0 < len(self._kept) <= SMALL:
                yield ChannelPiece(self._channel, self._kept)
            self._channel, self._kept = None, b""


def choose(offered: str, known: Sequence[str] = PROTOCOLS) -> str:
    """The protocol for a client that offers these, separated by commas; "" without one that is ``known``."""
    names = {name.strip() for name in offered.split(",")}
    if offered.strip() == "" and V1 in known:
        return V1
    return next((protocol for protocol in known if protocol in names), "")


def terminal_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) of a resize message; None for what is none."""
    try:
        size = json.loads(data)
        width, height = int(size["Width"]), int(size["Height"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return (width, height) if 0 <= width <= _MOST and 0 <= height <= _MOST else None


def ended(protocol: str, code: int) -> bytes:
    """What the error channel says of a command that has ended."""
    if code == 0:
        return _status(protocol, {"status": "Success"}, "")
    message = f"command terminated with non-zero exit code: command terminated with exit code {code}"
    cause = {"reason": "ExitCode", "message": str(code)}
    status = {"status": "Failure", "message": message, "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
    return _status(protocol, status, message)


def failed(protocol: str, why: str) -> bytes:
    """What it says when there is no command to end."""
    message = f"Internal error occurred: {why}"
    causes = [{"message": why}]
    status = {
        "status": "Failure", "message": message, "reason": "InternalError", "details": {"causes": causes}, "code": 500,
    }  # fmt: skip
    return _status(protocol, status, message)


def _status(protocol: str, status: dict[str, Any], text: str) -> bytes:
    """As a Status; as plain text for a client of the first version, which reads that as an error if there is any."""
    return text.encode() if protocol == V1 else json.dumps({"metadata": {}, **status}).encode()


def offered_but_unknown(offered: str, known: Sequence[str] = PROTOCOLS) -> str:
    """The refusal of a client that speaks none of them."""
    return f"requested protocol(s) are not supported: [{offered}]; supports {list(known)}"
