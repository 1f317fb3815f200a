"""What GPUs are used for, as recorded: the lines of a usage recording, one JSON object each.

The first line is a header; each other one is about a node or about a device. A device's line says what was so up to its
moment: its counters only grow, so that a line that is lost loses nothing but detail. They begin at 0 with each
``boot``, and a recorder writes a line whenever holders, partitions or the state change, and every few minutes. All
amounts are whole numbers of small units, so that sums are exact: microseconds, microjoules, MiB times milliseconds.

Reading is strict: a line that is not as it must be is a ``RecordingError``, which names the line, what was expected and
what to do.
"""

from __future__ import annotations

import datetime as dt
import enum
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from kgpu.base import typed
from kgpu.base.errors import PlacedError
from kgpu.base.printable import one_line
from kgpu.base.suggest import did_you_mean

FORMAT: Final = "kgpu-usage"
VERSION: Final = 1
MAX_LINE: Final = 1 << 20
"""Bytes of a line. A device with 256 holders of 64 labels each has less."""
MILLION: Final = 10**6

Amount: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Uptime: TypeAlias = Annotated[int, Meta(ge=0, le=100 * 365 * 86_400 * MILLION)]
"""No machine is up for more than a century, so that no line makes a time that can't be written."""
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=512)]
Text: TypeAlias = Annotated[str, Meta(max_length=512)]
Millionths: TypeAlias = Annotated[int, Meta(ge=0, le=MILLION)]
Labels: TypeAlias = Annotated[dict[Name, Text], Meta(max_length=64)]
Moment: TypeAlias = Annotated[dt.datetime, Meta(tz=True)]


class RecordingError(PlacedError):
    """A line of a usage recording is not as it must be; ``place`` names the file and the line."""


class UsageState(enum.StrEnum):
    """What a device, or a partition of it, is doing. ``kgpu.usage.states`` has the rules and who pays."""

    FREE = "free"
    HELD_EMPTY = "held-empty"
    HELD_IDLE = "held-idle"
    HUNG = "hung"
    WAITING = "waiting"
    STARVED = "starved"
    INEFFICIENT = "inefficient"
    BUSY = "busy"
    DOWN = "down"
    UNKNOWN = "unknown"


class HolderSharing(enum.StrEnum):
    """By which right a container holds a device or partition. ``kgpu.usage.shares`` says what each pays."""

    WHOLE = "whole"
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    CLAIM = "claim"
    """A claim of Dynamic Resource Allocation, which pods may share; of a device with consumable capacity, ``portions``.
    """
    FRACTION = "fraction"
    """A part by a scheduler's word: HAMi's gpucores and gpumem, KAI's gpu-fraction; ``portions`` has them."""
    RESERVATION = "reservation"
    """KAI's reservation pod, which holds the GPU for those that have fractions of it."""


class _RecordedLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """What all have: no key that is not known."""


class RecordingHeader(_RecordedLine, frozen=True, kw_only=True, tag_field="kind", tag=FORMAT):
    """The first line. ``labels``: the keys of pods' labels that holders have, where their pods have them."""

    version: int
    cluster: Text = ""
    labels: tuple[Name, ...] = ()


class RecordedNode(_RecordedLine, frozen=True, kw_only=True, tag_field="kind", tag="node"):
    """What a price depends on, from ``at`` until the node's next line.

    ``labels`` are the Node's that say type, region, capacity and pool (``kgpu.usage.nodes``), ``provider_id`` is its
    ``spec.providerID``. ``gpus``: how many GPUs the machine has; 0 where that is only known from devices' lines.
    ``cpus`` and ``memory_mib`` are its processors and memory, 0 where they are not known.
    """

    node: Name
    at: Moment
    labels: Labels = {}
    provider_id: Text = ""
    gpus: Annotated[int, Meta(ge=0, le=4096)] = 0
    cpus: Annotated[int, Meta(ge=0, le=65536)] = 0
    memory_mib: Amount = 0


class RecordedPartition(_RecordedLine, frozen=True, kw_only=True):
    """A MIG instance, or another vendor's partition. ``states_us``: microseconds in each state since the boot."""

    id: Name
    profile: Text = ""
    states_us: dict[UsageState, Amount] = {}


class RecordedHolder(_RecordedLine, frozen=True, kw_only=True):
    """A container that holds the device, or the partition of that id, with what it has used since it holds it.

    ``owner`` is what made its pod, such as ``Deployment/llama``; ``gang`` names, within the namespace, the pods of any
    nodes that it works together with, such as ``JobSet/train``. ``replicas`` and ``units``: of how many shares of the
    device it holds how many. ``portions``: what it has of the device by dimension, such as memory, in millionths.
    ``claim``: its ResourceClaim, by what is the same for pods that share one. ``starting_us``: of ``held_us`` before it
    ran, as while its image is pulled. ``busy_us`` and ``sm_us`` integrate activity and active multiprocessors,
    ``memory_mib_ms`` memory; None is what is not known.
    """

    namespace: Name
    pod: Name
    uid: Name
    container: Text = ""
    partition: Text = ""
    owner: Text = ""
    gang: Text = ""
    labels: Labels = {}
    sharing: HolderSharing = HolderSharing.WHOLE
    replicas: Annotated[int, Meta(ge=1, le=4096)] = 1
    units: Annotated[int, Meta(ge=1, le=4096)] = 1
    portions: Annotated[dict[Name, Millionths], Meta(max_length=16)] = {}
    claim: Text = ""
    held_us: Amount
    starting_us: Amount = 0
    busy_us: Amount | None = None
    sm_us: Amount | None = None
    memory_mib_ms: Amount | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """By what its counters are followed from line to line."""
        return self.uid, self.container, self.partition


class RecordedGpu(_RecordedLine, frozen=True, kw_only=True, tag_field="kind", tag="device"):
    """A device up to ``at``: ``holders`` are all that held it since its line before, also those that have ended.

    ``boot`` changes whenever the counters begin anew: the boot's id, and the agent's start where it keeps none.
    ``uptime_us`` is the machine's clock that never jumps. ``states_us`` are microseconds in each state since ``boot``;
    what is in none, or in ``unknown``, was not observed. Where there are ``partitions`` it is about what is in none.
    """

    node: Name
    device: Name
    at: Moment
    boot: Name
    uptime_us: Uptime
    product: Text = ""
    memory_mib: Amount = 0
    states_us: dict[UsageState, Amount]
    energy_uj: Amount | None = None
    partitions: Annotated[tuple[RecordedPartition, ...], Meta(max_length=64)] = ()
    holders: Annotated[tuple[RecordedHolder, ...], Meta(max_length=4096)] = ()


RecordLine: TypeAlias = RecordingHeader | RecordedNode | RecordedGpu

_KINDS: Final[Mapping[str, type[_RecordedLine]]] = {
    FORMAT: RecordingHeader,
    "node": RecordedNode,
    "device": RecordedGpu,
}
_BELOW: Final[Mapping[str, type[_RecordedLine]]] = {"holders": RecordedHolder, "partitions": RecordedPartition}
_REMEDY: Final = "record again, or remove the line: what the next one says still counts"
_WORD: Final = re.compile(r"Invalid enum value '(.*)'\Z", re.DOTALL)
_WORDS: Final = (*UsageState, *HolderSharing)
_AT: Final = re.compile(r"\A(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<where>.*)`)?\Z", re.DOTALL)


def encode(line: RecordLine) -> bytes:
    """The line with its end."""
    return msgspec.json.encode(line) + b"\n"


def decode(text: bytes, *, place: str) -> RecordLine:
    """One line. Raises RecordingError, which begins with ``place``: the file and the line's number."""
    if len(text) > MAX_LINE:
        raise RecordingError(place, f"{len(text)} bytes", f"at most {MAX_LINE} bytes in a line", _REMEDY)
    try:
        line = _typed(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise _refused(text, error, place) from error
    if isinstance(line, RecordedGpu):
        _check_device(line, place)
    return line


def _typed(text: bytes) -> RecordLine:
    line: RecordLine = typed.decode(text, RecordLine)  # type: ignore[arg-type]  # a union is no class to mypy
    return line


def check_header(header: RecordingHeader, *, place: str) -> None:
    """Raises RecordingError for a version that this program can't read."""
    if header.version != VERSION:
        raise RecordingError(
            place, f"the recording has version {header.version}", f"version {VERSION}",
            "read it with the release of kgpu that wrote it",
        )  # fmt: skip


def _check_device(line: RecordedGpu, place: str) -> None:
    """Raises RecordingError for holders and partitions that contradict one another."""
    ids = [part.id for part in line.partitions]
    for keys, what in (([(name,) for name in ids], "partition"), ([one.key for one in line.holders], "holder")):
        repeated = next((key for key, count in Counter[tuple[str, ...]](keys).items() if count > 1), None)
        if repeated is not None:
            shown = one_line("/".join(repeated), 80)
            raise RecordingError(place, f"the {what} {shown} is there twice", f"each {what} once", _REMEDY)
    for holder in line.holders:
        if holder.partition and holder.partition not in ids:
            raise RecordingError(
                place, f"{one_line(holder.pod, 80)} holds partition {one_line(holder.partition, 80)} that is not there",
                f"one of: {one_line(', '.join(ids), 200)}" if ids else "a device with partitions", _REMEDY,
            )  # fmt: skip
        if holder.units > holder.replicas:
            raise RecordingError(
                place, f"{one_line(holder.pod, 80)} holds {holder.units} of {holder.replicas} shares",
                "no more units than replicas", _REMEDY,
            )  # fmt: skip


def _refused(text: bytes, error: Exception, place: str) -> RecordingError:
    """The error for a line that msgspec did not take; an unknown key or word gets what was probably meant."""
    if not isinstance(error, msgspec.ValidationError):
        return RecordingError(place, f"no JSON: {one_line(str(error), 200)}", "one JSON object on each line", _REMEDY)
    found = _unknown_key(text)
    if found is not None:
        key, known = found
        remedy = did_you_mean(key, known) or "remove it, or read the recording with the release of kgpu that wrote it"
        return RecordingError(place, f'there is no "{one_line(key, 80)}"', f"one of: {', '.join(known)}", remedy)
    match = _AT.match(str(error))
    what, where = (match["what"], match["where"] or "") if match else (str(error), "")
    word = _WORD.match(what)
    if word is not None:
        shown = one_line(word[1], 80)
        remedy = did_you_mean(shown, _WORDS) or _REMEDY
        return RecordingError(place, f"{where}: {shown}", f"one of: {', '.join(_WORDS)}", remedy)
    expected, _, got = what.removeprefix("Expected ").partition(", got ")
    said = f"{where or 'the line'} is {got or 'not as it must be'}"
    return RecordingError(place, one_line(said, 200), one_line(expected, 200), _REMEDY)


def _unknown_key(text: bytes) -> tuple[str, Sequence[str]] | None:
    """The first key, or kind, that no line has, and those that there are. None where that is not what is wrong."""
    try:
        tree = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    if not isinstance(tree, dict):
        return None
    kind = tree.get("kind")
    shape = _KINDS.get(kind) if isinstance(kind, str) else None
    if shape is None:
        return str(kind) if "kind" in tree else "line without kind", tuple(_KINDS)
    known = ("kind", *shape.__struct_fields__)
    wrong = next((key for key in tree if key not in known), None)
    if wrong is not None:
        return wrong, known
    for key, below in _BELOW.items():
        items = tree.get(key)
        keys = [name for item in items if isinstance(item, dict) for name in item] if isinstance(items, list) else []
        wrong = next((name for name in keys if name not in below.__struct_fields__), None)
        if wrong is not None:
            return wrong, below.__struct_fields__
    return None
