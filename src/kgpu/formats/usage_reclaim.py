"""What ``kgpu-usage`` knows of workloads that hold GPUs, as it serves it, so that ``kgpu idle`` says what it would do.

It is what the process alone has: which requests were served, since when annotations keep a workload, and how its last
look at it ended. Reading is strict and bounded, as it comes over the network.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kgpu.base import typed
from kgpu.base.errors import UserError
from kgpu.base.printable import one_line

VERSION: Final = 1
RECLAIM_PATH: Final = "/usage/reclaim"
MOST_WORKLOADS: Final = 20_000
MAX_WHY: Final = 400
_Name = Annotated[str, Meta(max_length=400)]


class ReclaimAnswerError(UserError):
    """What ``kgpu-usage`` has answered is not what it knows of workloads."""


class _ReclaimPart(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True):
    """No key that is not known."""


class WorkloadSaid(_ReclaimPart, frozen=True, kw_only=True):
    """A workload at the last look. ``requests``: why requests keep it, "" where they do not or are not watched;
    ``watched``: whether they are. ``kept_since``: since when annotations are counted as keeping it, in seconds since
    1970. ``step``, ``why``: how the look at it ended, "" where it had no step to take.
    """

    namespace: _Name
    kind: _Name
    name: _Name
    watched: bool = False
    requests: Annotated[str, Meta(max_length=MAX_WHY)] = ""
    kept_since: float | None = None
    step: Annotated[str, Meta(max_length=40)] = ""
    why: Annotated[str, Meta(max_length=MAX_WHY)] = ""


class ReclaimSaid(_ReclaimPart, frozen=True, kw_only=True):
    """``at``: when the process looked last, in seconds since 1970, None where it has not, as one that does not lead.
    ``problem``: why it can't look, or acts on nothing.
    """

    version: int
    at: float | None = None
    problem: Annotated[str, Meta(max_length=1024)] = ""
    workloads: Annotated[tuple[WorkloadSaid, ...], Meta(max_length=MOST_WORKLOADS)] = ()


def encode(said: ReclaimSaid) -> bytes:
    """The answer."""
    return msgspec.json.encode(said)


def decode(text: str, *, place: str) -> ReclaimSaid:
    """What ``place`` has answered. Raises ReclaimAnswerError."""
    try:
        said = typed.decode(text, ReclaimSaid)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ReclaimAnswerError(
            f"{place}: {one_line(str(error), 200)}", "what it knows of workloads", _REMEDY
        ) from error
    if said.version != VERSION:
        raise ReclaimAnswerError(f"{place}: version {said.version}", f"version {VERSION}", _REMEDY)
    return said


_REMEDY: Final = "see that kgpu-usage is of this release of kgpu"
