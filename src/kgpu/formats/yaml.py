"""YAML and JSON texts as plain values, read the way Kubernetes programs in Go read them (sigs.k8s.io/yaml).

Differs from PyYAML's own loaders: ``12:30:45`` and dates stay text, ``1e3`` is a number, a bare ``y`` is true, keys
become text, duplicate keys are errors that name both lines. Built on parser events with an explicit stack, so that
hostile input (deep nesting, alias bombs, huge documents) is an error and never a crash. The only importer of PyYAML.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from kgpu.base.errors import ConfigError, PlacedError

MAX_BYTES: Final = 16 * 1024 * 1024
MAX_DEPTH: Final = 100
MAX_NODES: Final = 1_000_000
"""Values after aliases were followed."""

Path = tuple[str | int, ...]

_BASE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TRUE: Final = frozenset({"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
_FALSE: Final = frozenset({"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_INT: Final = re.compile(r"[-+]?(0[bB][01]+|0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|0|[1-9][0-9]*)", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_SPECIAL: Final = {
    **dict.fromkeys((".nan", ".NaN", ".NAN"), "nan"),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), "inf"),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), "-inf"),
}
_TAG: Final = "tag:yaml.org,2002:"
_MERGE: Final = object()
_EXPECTED: Final = "well-formed YAML or JSON"


class Lines:
    """The lines (from 1) of a collection's keys or items, and of what is within them."""

    __slots__ = ("of", "within")

    def __init__(self) -> None:
        self.of: dict[str | int, int] = {}
        self.within: dict[str | int, Lines] = {}


@dataclass(slots=True)
class Document:
    """One document: its value, the line on which it begins, and those of what is in it, where they were asked for."""

    value: Any
    first: int = 1
    lines: Lines | None = None
    repeated: Sequence[tuple[int, Any]] = ()
    """Keys that were there already, with the line of the value that took the place of the one before."""

    def line(self, path: Path) -> int:
        """The line of ``path`` or of the closest thing around it."""
        line, lines = self.first, self.lines
        for key in path:
            if lines is None or key not in lines.of:
                break
            line, lines = lines.of[key], lines.within.get(key)
        return line


def load(text: str | bytes, *, source: str = "YAML") -> Any:
    """The only document's value; None for an empty text. Raises ConfigError naming ``source`` and the line."""
    return _only(list(_documents(text, source)), source).value


def load_document(text: str | bytes, *, source: str = "YAML", repeated: bool = False) -> Document:
    """As ``load``, with lines. More than one document is an error.

    ``repeated``: a key may be there twice; the last value counts, and ``Document.repeated`` tells of it.
    """
    return _only(list(_documents(text, source, repeated=repeated, with_lines=True)), source)


def _only(documents: list[Document], source: str) -> Document:
    if len(documents) > 1:
        raise ConfigError(
            f"{source}: {len(documents)} documents where one is expected",
            "one YAML document",
            "remove what follows the line '---', or split the file",
        )
    return documents[0] if documents else Document(None)


def load_all(text: str | bytes, *, source: str = "YAML") -> list[Any]:
    """The values of all documents, empty ones left out."""
    return [document.value for document in _documents(text, source) if document.value is not None]


def dump(value: Any) -> str:
    """Block-style YAML that ``load`` reads back to the same value; keys keep their order."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=10_000
    )
    return text


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes what this module's resolver would not read as the same text, and never writes aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _represent_text(dumper: Any, text: str) -> Any:
    plain = _plain(text) if "\n" not in text else text
    style = None if isinstance(plain, str) and plain is not _MERGE else "'"
    return dumper.represent_scalar(_TAG + "str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _plain(text: str) -> Any:
    """The value of an unquoted scalar."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if text == "<<":
        return _MERGE
    if text in _SPECIAL:
        return float(_SPECIAL[text])
    first = text[0]
    if not (first in "+-." or first.isdigit()):
        return text
    digits = text.replace("_", "")
    if _INT.fullmatch(digits):
        return _integer(digits)
    if _FLOAT.fullmatch(digits):
        number = float(digits)
        return text if math.isinf(number) else number
    return text


def _integer(digits: str) -> int | float | str:
    sign, body = (-1, digits[1:]) if digits[0] == "-" else (1, digits.lstrip("+"))
    if len(body) > 400:
        return digits
    lower = body.lower()
    if lower.startswith(("0x", "0b", "0o")):
        value = int(lower, 0)
    elif len(body) > 1 and body[0] == "0":
        value = int(body, 8)
    else:
        value = int(body)
    value *= sign
    # Go falls back to a float beyond 64 bits.
    return value if -(2**63) <= value < 2**64 else float(value)


@dataclass(slots=True)
class _Frame:
    value: Any
    anchor: str | None
    line: int
    size: int = 1
    key: Any = None
    raw_key: Any = None
    has_key: bool = False
    key_line: int = 0
    merges: list[Any] = field(default_factory=list)
    lines: Lines = field(default_factory=Lines)


class YamlSyntaxError(PlacedError):
    """A text is no YAML. ``line`` is where, None where the parser does not say; ``complaint`` is the parser's own,
    without what it was reading.
    """

    def __init__(self, place: str, said: str, remedy: str, *, line: int | None = None, complaint: str = "") -> None:
        super().__init__(place, said, _EXPECTED, remedy, lead="error parsing ")
        self.line = line
        self.complaint = complaint or said


def _documents(
    text: str | bytes, source: str, *, repeated: bool = False, with_lines: bool = False
) -> Iterator[Document]:
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{source} is larger than {MAX_BYTES} bytes", "a smaller text", "split it")
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        yield from _build(yaml.parse(text, Loader=_BASE), source, repeated=repeated, with_lines=with_lines)
    except UnicodeError as problem:
        raise ConfigError(f"{source} is not UTF-8: {problem}", "UTF-8 text", "save it as UTF-8") from problem
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        where = f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark else source
        detail = ", ".join(part for part in (problem.context, problem.problem) if part)
        raise YamlSyntaxError(
            where, detail, "correct the line; look at indentation and quotes",
            line=mark.line + 1 if mark else None, complaint=problem.problem or detail,
        ) from problem  # fmt: skip
    except (yaml.YAMLError, ValueError) as problem:
        detail = " ".join(str(problem).split())
        raise YamlSyntaxError(source, detail, "remove what is named") from problem


def _build(events: Any, source: str, *, repeated: bool, with_lines: bool) -> Iterator[Document]:
    stack: list[_Frame] = []
    again: list[tuple[int, Any]] = []
    anchors: dict[str, tuple[Any, int]] = {}
    nodes, first = 0, 1

    def fail(line: int, what: str, expected: str = _EXPECTED, remedy: str = "correct the line") -> ConfigError:
        return ConfigError(f"{source}, line {line}: {what}", expected, remedy)

    def place(value: Any, line: int, size: int, lines: Lines | None = None) -> Document | None:
        """Put a finished value where it belongs; the document when it was the outermost."""
        if not stack:
            return Document(_no_merge(value), first, lines if with_lines else None, again)
        frame = stack[-1]
        frame.size += size
        if isinstance(frame.value, list):
            frame.value.append(_no_merge(value))
            return None
        if not frame.has_key:
            frame.key, frame.raw_key = value if value is _MERGE else _key(value, line, fail), value
            frame.has_key, frame.key_line = True, line
            return None
        frame.has_key = False
        if frame.key is _MERGE:
            frame.merges.append((value, frame.key_line))
            return None
        if frame.key in frame.value:
            again.append((line, frame.raw_key))
        frame.value[frame.key] = _no_merge(value)
        return None

    for event in events:
        line = event.start_mark.line + 1
        kind = type(event)
        if kind is yaml.DocumentStartEvent:
            anchors, stack, again = {}, [], []
            continue
        if kind in {yaml.StreamStartEvent, yaml.StreamEndEvent, yaml.DocumentEndEvent}:
            continue
        nodes += 1
        if kind in {yaml.ScalarEvent, yaml.SequenceStartEvent, yaml.MappingStartEvent, yaml.AliasEvent}:
            if not stack:
                first = line
            elif (place_in := _next_place(stack[-1])) is not None:
                frame = stack[-1]
                before = frame.lines.of.get(place_in)
                if before is not None and not repeated:
                    raise fail(
                        frame.key_line,
                        f'key "{place_in}" is there twice, first on line {before}',
                        "every key once",
                        "remove one of the two",
                    )
                if with_lines or frame.has_key:  # the keys of a mapping also to know one that is there twice
                    frame.lines.of[place_in] = frame.key_line if frame.has_key else line
        done: Document | None = None
        if kind is yaml.ScalarEvent:
            value = _scalar(event, line, fail)
            if event.anchor:
                anchors[event.anchor] = (value, 1)
            done = place(value, line, 1)
        elif kind is yaml.AliasEvent:
            if event.anchor not in anchors:
                raise fail(line, f"alias *{event.anchor} has no finished anchor before it")
            value, size = anchors[event.anchor]
            nodes += size
            done = place(value, line, size)
        elif kind in {yaml.SequenceStartEvent, yaml.MappingStartEvent}:
            if len(stack) >= MAX_DEPTH:
                raise fail(line, f"nested deeper than {MAX_DEPTH} levels", "less nesting", "make it flatter")
            if event.tag not in {None, "!", _TAG + "seq", _TAG + "map"}:
                raise fail(line, f"tag {event.tag} is not known", "no tag", "remove the tag")
            empty: Any = [] if kind is yaml.SequenceStartEvent else {}
            stack.append(_Frame(empty, event.anchor, line))
        else:
            frame = stack.pop()
            for merged, merge_line in frame.merges:
                _merge(frame.value, merged, merge_line, fail)
            if frame.anchor:
                anchors[frame.anchor] = (frame.value, frame.size)
            if with_lines and stack and (place_in := _next_place(stack[-1])) is not None:
                stack[-1].lines.within[place_in] = frame.lines
            done = place(frame.value, frame.line, frame.size, frame.lines)
        if nodes > MAX_NODES:
            raise fail(line, f"more than {MAX_NODES} values, aliases included", "a smaller text", "remove aliases")
        if done is not None:
            yield done


def _next_place(frame: _Frame) -> str | int | None:
    """The key or index of the value that comes next; None when a key comes next."""
    if isinstance(frame.value, list):
        return len(frame.value)
    if not frame.has_key:
        return None
    return frame.key if isinstance(frame.key, str) else "<<"


def _no_merge(value: Any) -> Any:
    return "<<" if value is _MERGE else value


def _key(value: Any, line: int, fail: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e21 else repr(value)
    if value is None:
        return "null"
    raise fail(line, "a list or a mapping can't be a key", "a text as key", "write the key as one word")


def _merge(target: dict[str, Any], merged: Any, line: int, fail: Any) -> None:
    for source in merged if isinstance(merged, list) else [merged]:
        if not isinstance(source, dict):
            raise fail(line, "'<<' takes a mapping or a list of mappings", "an alias of a mapping", "correct the merge")
        for key, value in source.items():
            target.setdefault(key, value)


def _scalar(event: Any, line: int, fail: Any) -> Any:
    text: str = event.value
    tag: str | None = event.tag
    if tag is None or tag == "!":
        value = _plain(text) if event.implicit[0] and tag is None else text
    elif tag == _TAG + "str":
        value = text
    elif tag in {_TAG + "int", _TAG + "float", _TAG + "bool", _TAG + "null"}:
        value = _plain(text)
        wanted: Any = {"int": int, "float": (int, float), "bool": bool, "null": type(None)}[tag[len(_TAG) :]]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise fail(line, f"{text!r} is not what its tag {tag} says", remedy="remove the tag")
    else:
        raise fail(line, f"tag {tag} is not known", "no tag", "remove the tag")
    if isinstance(value, float) and not math.isfinite(value):
        raise fail(line, f"{text} can't be carried in JSON", "a finite number", "write a number")
    return value
