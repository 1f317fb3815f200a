"""What people put into files, taken apart: encodings, JSON values after each other, and lists in YAML without ``---``.

Bytes in, bytes out; nothing is decoded to objects here, so that what is broken spoils nothing else and memory stays
small. Every step is linear in the input, however hostile that is.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Final

MAX_TRIES: Final = 50
"""How many broken values of one JSON text are passed over before the rest is given up."""
MAX_KEYS: Final = 100
"""How many keys of one object are remembered."""
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HEAD: Final = 4096
_OBJECT: Final = re.compile(
    rb"(?:\s|#[^\n]*\n|---[^\n]*\n|Warning: [^\n]*\n)*"
    rb"(?:(?:- )?(?:apiVersion|kind|items|metadata)[ \t]*:|[\[{]\s*(?:[\[{]\s*)?\"(?:apiVersion|kind|items|metadata)\")"
)
_ITEM: Final = re.compile(rb"^( *)- ", re.MULTILINE)
_ITEMS: Final = re.compile(rb"^items:[ \t]*\r?$", re.MULTILINE)
_DOCUMENT: Final = re.compile(rb"^---(?:[ \t].*)?\r?$", re.MULTILINE)
_TOP_KEY: Final = re.compile(rb"(?:\A|\n)([A-Za-z][\w.-]*)[ \t]*:(?=[ \t\r\n])")
_NEXT_VALUE: Final = re.compile(r"\n(?=[\[{])")
_SPACE: Final = re.compile(r"[\s,]*")


def utf8(data: bytes) -> bytes:
    """The same text as UTF-8 without a mark in front; bytes of any other kind come back as they are."""
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            if encoding == "utf-8":
                return data[len(mark) :]
            return data.decode(encoding, "replace").encode("utf-8", "replace")
    if len(data) > 3 and data[0] != 0 and data[1] == 0 and data[2] != 0 and data[3] == 0:
        return data.decode("utf-16-le", "replace").encode("utf-8", "replace")
    return data


def like_objects(data: bytes) -> bool:
    """Whether a text of unknown kind begins as objects of Kubernetes do."""
    return _OBJECT.match(utf8(data[:_HEAD])) is not None


def json_values(data: bytes) -> Iterator[tuple[int, bytes | str]]:
    """The values of a text with several, each with its line: bytes, or (a str) why what is there can't be read."""
    text = data.decode("utf-8", "replace")
    at = line = tries = wasted = 0
    decoder = json.JSONDecoder()
    start = _SPACE.match(text, at)
    while start is not None and start.end() < len(text):
        line += text.count("\n", at, start.end())
        at = start.end()
        try:
            _, end = decoder.raw_decode(text, at)
            yield line, text[at:end].encode("utf-8", "replace")
        except (ValueError, RecursionError) as error:
            tries += 1
            wasted += getattr(error, "pos", at) - at
            further = _NEXT_VALUE.search(text, at)
            yield line, f"it is not JSON: {error}"
            if further is None or tries >= MAX_TRIES or wasted > len(text):
                return
            end = further.end()
        line += text.count("\n", at, end)
        at = end
        start = _SPACE.match(text, at)


def yaml_chunks(data: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Documents, and the items of a List one by one, with the line on which each begins.

    True with what is no document of its own by YAML's rules: what follows the items of a list, or stands after another
    object without ``---`` (``kubectl get ... >> FILE``). It is to be an object, the end of a list, or told.
    """
    line = at = 0
    for start, end in _spans(data, _DOCUMENT):
        line += data.count(b"\n", at, start)
        at = start
        parts = list(_parts(data, start, end))
        for first, last in parts:
            line += data.count(b"\n", at, first)
            at = first
            for offset, chunk, loose in _entries(data[first:last]):
                yield line + offset, chunk, loose or len(parts) > 1


def _spans(data: bytes, mark: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
    start = 0
    for hit in mark.finditer(data):
        yield start, hit.start()
        start = hit.end()
    yield start, len(data)


def _parts(data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """A mapping has each key once: where a key of the outermost one comes again, another object begins."""
    keys: set[bytes] = set()
    for hit in _TOP_KEY.finditer(data, start, end):
        if hit[1] in keys:
            yield start, hit.start(1)
            start = hit.start(1)
            keys.clear()
        if len(keys) < MAX_KEYS:
            keys.add(hit[1])
    yield start, end


def _entries(document: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Items of a List, then what is left; else the document itself."""
    head = _ITEMS.search(document)
    first = _ITEM.match(document, head.end()) or _ITEM.search(document, head.end()) if head else None
    if head is None or first is None or document[head.end() : first.start()].strip():
        yield 0, document, False
        return
    indent = len(first[1])
    mark = re.compile(rb"^ {%d}- " % indent, re.MULTILINE)
    starts = [hit.start() for hit in mark.finditer(document, first.start())]
    after = re.compile(rb"^(?! {%d}[- ]|\r?\n|#|$)" % indent if indent else rb"^[^\s#-]", re.MULTILINE)
    tail = after.search(document, first.start())
    end = tail.start() if tail else len(document)
    starts = [start for start in starts if start < end]
    line = document.count(b"\n", 0, starts[0])
    for start, stop in zip(starts, [*starts[1:], end], strict=True):
        chunk = document[start:stop]
        yield line, b" " * indent + b"  " + chunk[indent + 2 :], False
        line += chunk.count(b"\n")
    if tail:
        yield line, document[end:], True
