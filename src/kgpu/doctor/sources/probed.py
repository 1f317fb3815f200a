"""A node's facts as one line of a log: the agent's role ``probe`` writes it, and whoever reads the log has the facts.

One JSON object that begins with ``{"kgpu.dev/host-facts":``, at the beginning of a line or after a time that the log's
keeper has put there, then node and time for people, then the facts, packed (zlib, base64): usually less than 16 KiB,
which no container engine splits, and 64 KiB at most. What does not fit is left out, the largest first, and said among
the facts' ``missing``. Lines are hostile when read: sizes are bounded, and what is no such line is none.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from kgpu.base.typed import decode
from kgpu.doctor import secrets
from kgpu.formats.names import HOST_FACTS_KEY

FORM: Final = 1
MAX_LINE: Final = 64 * 1024
MAX_FACTS: Final = 2 * 1024 * 1024
"""Bytes when unpacked."""
FRESH: Final = 2 * 3600.0
"""Seconds after which facts say nothing of now: an agent says them every hour."""
_KEEP: Final = 50
"""Lines of the kernel's log and names of a list that stay in any case."""
_TRIES: Final = 8
_EFFORT: Final = 6
MAX_TEXT: Final = 2000
"""Characters of a line of the kernel's log."""
MAX_FILE: Final = 64 * 1024
"""Characters of a file: what is longer is left out whole, since half of it would be read as broken."""
_TOO_LARGE: Final[Mapping[str, str]] = {"problem": "too large for the agent's log"}
_NO_ROOM: Final = "there was no room for it in the agent's log"
_BEFORE: Final = re.compile(rb"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) )?")
"""What may be before it on its line: a time (RFC 3339) that who keeps the log has put there."""
_MAX_TIME: Final = 40
_ROOM: Final = MAX_LINE - 1024  # for all but the facts
_BEGIN: Final = b'{"%s":' % HOST_FACTS_KEY.encode()


class _Line(msgspec.Struct, frozen=True, rename={"form": HOST_FACTS_KEY}):
    form: int
    node: str = ""
    taken: str = ""
    facts: str = ""


def line(facts: Mapping[str, Any]) -> str:
    """The line (without its end) of facts as ``host_facts.encode`` gives them.

    Secrets are taken out here, but for the files' texts: these are clean since they were read.
    """
    document = _fitting(_cut(facts))  # first: what is cleaned is only what stays
    files = document.pop("files", None) or {}
    document = _fitting({**secrets.scrubbed(document), "files": files})
    said = _Line(FORM, node=str(facts.get("node") or ""), taken=str(facts.get("taken") or ""), facts=_packed(document))
    return msgspec.json.encode(said).decode()


def _packed(document: Mapping[str, Any]) -> str:
    return base64.b64encode(zlib.compress(msgspec.json.encode(document), _EFFORT)).decode()


def _cut(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with long log lines shortened and long files left out."""
    document = dict(facts)
    missing = document["missing"] = dict(document.get("missing") or {})
    if document.get("kernelLog"):
        document["kernelLog"] = [_short(line) for line in document["kernelLog"]]
    files = document["files"] = dict(document.get("files") or {})
    for path, file in files.items():
        if len(str(file.get("text") or "")) > MAX_FILE:
            files[path] = _TOO_LARGE
            missing[f"the file {path}"] = _NO_ROOM
    return document


def _short(text: str) -> str:
    """Cut between words: half a password looks like none."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT].rpartition(' ')[0]} ..."


def _fitting(document: dict[str, Any]) -> dict[str, Any]:
    """Less and less of it, until there is room. Packing is costly: each time as much goes as probably is too much."""
    removing = _smaller(document)
    while (size := len(_packed(document))) > _ROOM:
        left = len(msgspec.json.encode(document)) * (size - _ROOM) / size
        for removed in removing:
            left -= removed
            if left <= 0:
                break
        else:
            return document
    return document


def _smaller(document: dict[str, Any]) -> Iterator[int]:
    """Remove one part after the other; yield the size in bytes of each."""
    missing = document["missing"]

    def gone(what: str, value: Any) -> int:
        missing[what] = _NO_ROOM
        return len(msgspec.json.encode(value))

    while len(log := document.get("kernelLog") or ()) > _KEEP:
        half = len(log) // 2
        document["kernelLog"] = log[half:]
        yield gone("the beginning of the kernel log", log[:half])
    files: dict[str, Any] = document.get("files") or {}
    for path in sorted(files, key=lambda path: -len(str(files[path].get("text") or ""))):
        file, files[path] = files[path], _TOO_LARGE
        yield gone(f"the file {path}", file)
    for field in ("devices", "processes", "libraries", "firmware", "units", "gpus"):
        if document.get(field):
            value, document[field] = document[field], None
            yield gone(field, value)
    for field in list(document):
        if field not in ("kind", "apiVersion", "metadata", "node", "taken", "missing"):
            yield gone(field, document.pop(field))


def found_in(data: bytes) -> dict[str, Any] | None:
    """The facts of the last such line of a log, None where there is none that can be read."""
    end, tries = len(data), _TRIES
    while tries and (start := data.rfind(_BEGIN, 0, end)) >= 0:
        end = start
        head = data[max(start - _MAX_TIME, 0) : start].rpartition(b"\n")
        if not (head[1] or start <= _MAX_TIME) or not _BEFORE.fullmatch(head[2]):
            continue  # somebody's words within another message
        facts = _unpacked(data[start : start + MAX_LINE].split(b"\n", 1)[0])
        if facts is not None:
            return facts
        tries -= 1
    return None


def without(data: bytes) -> bytes:
    """A log without such lines: nobody reads what is packed."""
    if _BEGIN not in data:
        return data
    return b"\n".join(line for line in data.split(b"\n") if not _is_line(line))


def _is_line(line: bytes) -> bool:
    head, begin, _ = line[: _MAX_TIME + len(_BEGIN)].partition(_BEGIN)
    return bool(begin) and _BEFORE.fullmatch(head) is not None


def _unpacked(text: bytes) -> dict[str, Any] | None:
    try:
        line = decode(text.strip(), _Line)
        unpacking = zlib.decompressobj()
        facts = unpacking.decompress(base64.b64decode(line.facts, validate=True), MAX_FACTS)
        if unpacking.unconsumed_tail or line.form != FORM:
            return None
        fields = msgspec.json.decode(facts)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, zlib.error, binascii.Error, ValueError):
        return None
    return fields if isinstance(fields, dict) else None
