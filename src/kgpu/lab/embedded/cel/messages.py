"""Error messages of expressions as cel-go words them: the C++ library's, reworded, and those that only cel-go has.

The compiler's errors are blocks ``ERROR: <input>:LINE:COLUMN: words`` with the line and a caret below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kgpu.lab.embedded.cel.patterns import go_pattern
from kgpu.lab.embedded.cel.tree import ExpressionTree

_STATUS: Final = re.compile(r"^[A-Z_]+: (.*?)(?: \[[A-Z_]+\])?$", re.DOTALL)
_BLOCK: Final = re.compile(r"ERROR: <input>:(\d+):(\d+): (.*?)(?=\nERROR: |\Z)", re.DOTALL)
_SHOWN: Final = re.compile(r"\n \| .*\n \| [.]*\^\Z", re.DOTALL)
_OVERLOAD: Final = re.compile(r"found no matching overload for '([^']+)' applied to '\((.*)\)'", re.DOTALL)
_UNDECLARED: Final = re.compile(r"undeclared reference to '([^'.]+)\.[^']*'(.*)", re.DOTALL)
_FOLLOWS: Final = "expression of type '*error*' cannot be the operand of a select operation"
_SELECTION: Final = re.compile(r"expression of type ('.*') cannot be the operand of a select operation")
_COMPILING: Final = (
    (
        re.compile(
            r"undefined field '[^']*' not found in struct "
            r"'((?:kubernetes\.authorization|net)\.\w+|kubernetes\.(?:Quantity|Semver|URL|NamedFormat))'"
        ),
        r"unexpected failed resolution of '\1'",
    ),
    (re.compile(r"(undefined field '[^']*') not found in struct '[^']*'"), r"\1"),
    (_SELECTION, r"type \1 does not support field selection"),
    (re.compile(r"has\(\) argument must be a field selection"), "invalid argument to has() macro"),
    (re.compile(r"\bnull_type\b"), "null"),
    (re.compile(r"\bgoogle\.protobuf\.(Timestamp|Duration)\b"), lambda found: found[1].lower()),
)  # fmt: skip
_RUNNING: Final = (
    (re.compile(r'^Key not found in map : "?(.*?)"?$', re.DOTALL), r"no such key: \1"),
    (re.compile(r"^Index error: index=(-?\d+) size=\d+$"), r"index out of bounds: \1"),
    (re.compile(r"^divide by zero$"), "division by zero"),
    (
        re.compile(r"^No matching overloads found : (string|int|uint|double|bool|bytes)\((map|list|bool|null_type)\)$"),
        r"no such overload: \1(\2)",
    ),
    (re.compile(r"^No matching overloads found : .*$", re.DOTALL), "no such overload"),
    (re.compile(r"^cannot convert string to (\w+)$"), r"type conversion error from 'string' to '\1'"),
    (re.compile(r"^Type conversion error"), "type conversion error"),
    (
        re.compile(r"^String to (Timestamp|Duration) conversion failed$"),
        r"type conversion error from 'string' to 'google.protobuf.\1'",
    ),
    (re.compile(r"^double out of int64 range$"), "integer overflow"),
    (re.compile(r"^int64 out of uint64 range$"), "unsigned integer overflow"),
    (
        re.compile(r"^invalid regular expression: missing (\]): (.*)$", re.DOTALL),
        r"error parsing regexp: missing closing \1: `\2`",
    ),
    (re.compile(r"^Applying SELECT to non-message type$"), "no such overload"),
    (re.compile(r'^No value with name "(.*)" found in Activation$'), r"no such attribute(s): \1"),
    (re.compile(r"^Iteration budget exceeded$"), "operation cancelled: actual cost limit exceeded"),
)


@dataclass(frozen=True, slots=True)
class _Complaint:
    """Line and column, counted from one, and the message."""

    line: int
    column: int
    words: str

    def shown(self, source: str) -> str:
        lines = source.split("\n")
        text = lines[self.line - 1] if 0 < self.line <= len(lines) else ""
        return f"ERROR: <input>:{self.line}:{self.column}: {self.words}\n | {text}\n | {'.' * (self.column - 1)}^"


def compile_error(
    text: str, source: str, shift: int, names: Mapping[str, str], tree: Callable[[], ExpressionTree]
) -> str:
    """The compiler's errors about ``source``, which was compiled with ``shift`` more lines above it.

    ``names`` maps types to their names in messages; ``tree`` returns the expression, unchecked.
    """
    text = _without_status(text)
    complaints = [
        _Complaint(int(block[1]) - shift, int(block[2]), _SHOWN.sub("", block[3])) for block in _BLOCK.finditer(text)
    ]
    if not complaints:
        return text
    kept = [_reworded(complaint, source, names, tree) for complaint in complaints if complaint.words != _FOLLOWS]
    return "\n".join(complaint.shown(source) for complaint in kept or complaints)


def _reworded(
    complaint: _Complaint, source: str, names: Mapping[str, str], tree: Callable[[], ExpressionTree]
) -> _Complaint:  # fmt: skip
    words = complaint.words
    overload = _OVERLOAD.fullmatch(words)
    unknown = _UNDECLARED.fullmatch(words)
    if unknown is not None:
        complaint = _first_name(complaint, source, f"undeclared reference to '{unknown[1]}'{unknown[2]}", tree())
    if overload is not None and overload[1] in {"_&&_", "_||_"}:
        complaint = _junction(complaint, source, _split(overload[2]), tree)
    elif overload is not None and _is_method(complaint, source, overload[1]):
        receiver, *rest = _split(overload[2])
        words = f"found no matching overload for '{overload[1]}' applied to '{receiver}.({', '.join(rest)})'"
        complaint = replace(complaint, words=words)
    words = complaint.words
    for pattern, better in _COMPILING:
        words = pattern.sub(better, words)
    for name, better_name in names.items():
        words = re.sub(rf"{re.escape(name)}\b", better_name.replace("\\", r"\\"), words)
    return replace(complaint, words=words)


def _is_method(complaint: _Complaint, source: str, function: str) -> bool:
    lines = source.split("\n")
    line = lines[complaint.line - 1] if 0 < complaint.line <= len(lines) else ""
    before = line[: complaint.column - 1].rstrip()
    return before.endswith(f".{function}") and line[complaint.column - 1 : complaint.column] == "("


def _split(parameters: str) -> list[str]:
    """Split a list of types at the commas between them."""
    types, depth = [""], 0
    for character in parameters:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            types.append("")
        else:
            types[-1] += character
    return [kind.strip() for kind in types]


def _junction(complaint: _Complaint, source: str, types: list[str], tree: Callable[[], ExpressionTree]) -> _Complaint:
    """For ``a && b`` the error is about the operand that isn't a bool, at its place."""
    wrong = next((index for index, kind in enumerate(types) if kind not in {"bool", "dyn"}), None)
    if wrong is None:
        return complaint
    whole = tree()
    for node in whole.nodes():
        if node.HasField("call") and node.call.function in {"_&&_", "_||_"} and len(node.call.args) > wrong:
            place = _place(source, whole.offset(node))
            if place == (complaint.line, complaint.column):
                words = f"expected type 'bool' but found '{types[wrong]}'"
                return _Complaint(*_place(source, whole.offset(node.call.args[wrong])), words)
    return complaint


def _first_name(complaint: _Complaint, source: str, words: str, tree: ExpressionTree) -> _Complaint:
    """For ``a.b.c`` with an unknown ``a`` the error is about ``a``, at its place."""
    for node in tree.nodes():
        if node.HasField("select") and _place(source, tree.offset(node)) == (complaint.line, complaint.column):
            first = node
            while first.HasField("select"):
                first = first.select.operand
            return _Complaint(*_place(source, tree.offset(first)), words)
    return replace(complaint, words=words)


def _place(source: str, offset: int) -> tuple[int, int]:
    before = source[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def runtime_error(text: str) -> str:
    """Why an expression failed."""
    text = _without_status(text)
    for pattern, words in _RUNNING:
        text = pattern.sub(words, text)
    return text


_OF_OPERAND: Final = ("Applying SELECT to non-message type", "Invalid container type: ", "<iter_range>")
_GO_TYPES: Final = {str: "String", bool: "Bool", int: "Int", float: "Double", bytes: "Bytes", type(None): "Null"}


def of_operand(text: str) -> bool:
    """Whether the evaluator reports that a value has no such field, key or items, without naming it."""
    return any(pattern in text for pattern in _OF_OPERAND)


def not_iterable(value: Any) -> str:
    """The error of a loop over a value without items."""
    return f"got 'types.{_GO_TYPES.get(type(value), 'Unknown')}', expected iterable type"


def _without_status(text: str) -> str:
    match = _STATUS.match(text)
    return match[1] if match else text


# --- errors that only cel-go has -------------------------------------------------------------------------------------


def literals(tree: ExpressionTree, source: str, skipped: int, convert: Callable[[str, str], bool]) -> str:
    """The errors about literals that are no pattern, duration or time where one is needed, and about lists of mixed
    types; "" when there are none.

    ``skipped`` characters come before ``source`` in the compiled text. ``convert`` returns whether a function accepts a
    text.
    """
    complaints = [
        _Complaint(*_place(source, tree.offset(node) - skipped), words).shown(source)
        for node, words in _wrong_literals(tree, convert)
        if tree.offset(node) >= skipped
    ]
    return "\n".join(complaints)


def _wrong_literals(tree: ExpressionTree, convert: Callable[[str, str], bool]) -> Iterator[tuple[Any, str]]:
    for node in tree.nodes():
        if node.HasField("items"):
            yield from _mixed(tree, list(node.items.elements))
        elif node.HasField("struct"):
            yield from _mixed(tree, [entry.value for entry in node.struct.entries if entry.HasField("key")])
        elif node.HasField("call") and node.call.function in {"matches", "duration", "timestamp"} and node.call.args:
            argument = node.call.args[-1]
            if not argument.HasField("constant") or tree.type_of(argument) != "string":
                continue
            text, function = argument.constant.text, node.call.function
            if not (_is_pattern(text) if function == "matches" else convert(function, text)):
                yield argument, f"invalid {function} argument"


def _mixed(tree: ExpressionTree, elements: list[Any]) -> Iterator[tuple[Any, str]]:
    first = ""
    for element in elements:
        kind = tree.type_of(element)
        if kind and first and kind != first:
            yield element, f"expected type '{first}' but found '{kind}'"
            return
        first = first or kind


def _is_pattern(text: str) -> bool:
    try:
        go_pattern(text)
    except ValueError:
        return False
    return True
