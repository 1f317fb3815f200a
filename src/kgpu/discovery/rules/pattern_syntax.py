r"""Reads regular expressions in RE2's syntax, the dialect in which rules are written, as a tree.

What RE2 refuses is refused here: backreferences, looking ahead or behind, possessive operators, nested repetitions
(``a**``), counts above 1000. Refused beyond that, by name: Unicode scripts (``\p{Greek}``; categories such as ``\pL``
are known) and single bytes (``\C``).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from kgpu.base.errors import ConfigError

MAX_LENGTH: Final = 1000
MAX_REPEAT: Final = 1000
MAX_DEPTH: Final = 100
_LAST: Final = 0x10FFFF


class PatternError(ConfigError):
    """Not a pattern that can be searched for."""


@dataclass(frozen=True, slots=True)
class CharSet:
    """One character out of ranges of code points or of Unicode categories. ``folded``: capitals don't matter."""

    ranges: tuple[tuple[int, int], ...] = ()
    categories: tuple[str, ...] = ()
    without: tuple[CharSet, ...] = ()
    """Sets whose opposites belong to it too."""
    negated: bool = False
    folded: bool = False

    def has(self, char: str) -> bool:
        """Whether the character is in it."""
        found = any(self._has(one) for one in (orbit(char) if self.folded else (char,)))
        return found != self.negated

    def _has(self, char: str) -> bool:
        code = ord(char)
        return (
            any(first <= code <= last for first, last in self.ranges)
            or (bool(self.categories) and unicodedata.category(char).startswith(self.categories))
            or any(not one.has(char) for one in self.without)
        )


@dataclass(frozen=True, slots=True)
class Assertion:
    """A place: ``^`` and ``$`` (of the text), ``(?m)^`` and ``(?m)$`` (of a line), ``b`` and ``B`` (of a word)."""

    kind: str


@dataclass(frozen=True, slots=True)
class Sequenced:
    """One after the other; none of them matches the empty text."""

    parts: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One of them."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """So many times; ``most`` is None for any number."""

    part: Node
    least: int
    most: int | None


Node: TypeAlias = "CharSet | Assertion | Sequenced | Alternatives | Repetition"

_DIGIT: Final = CharSet(((48, 57),))
_WORD: Final = CharSet(((48, 57), (65, 90), (95, 95), (97, 122)))
_SPACE: Final = CharSet(((9, 10), (12, 13), (32, 32)))
_PERL: Final = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_POSIX: Final = {
    "alnum": ((48, 57), (65, 90), (97, 122)), "alpha": ((65, 90), (97, 122)), "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)), "cntrl": ((0, 31), (127, 127)), "digit": ((48, 57),), "graph": ((33, 126),),
    "lower": ((97, 122),), "print": ((32, 126),), "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)), "upper": ((65, 90),), "word": _WORD.ranges, "xdigit": ((48, 57), (65, 70), (97, 102)),
}  # fmt: skip
_CONTROLS: Final = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_CATEGORIES: Final = frozenset({
    "C", "Cc", "Cf", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N", "Nd", "Nl", "No", "P",
    "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs",
})  # fmt: skip
# Characters that fold to an ASCII letter and back: the Kelvin sign, the long s.
_ODD: Final = {"k": "\u212a", "s": "\u017f"}


def orbit(char: str) -> frozenset[str]:
    """The characters that are the same when capitals don't matter."""
    low = char.upper().lower()
    low = low if len(low) == 1 else char.lower()
    found = {char, low, char.lower(), char.upper(), low.upper(), _ODD.get(low, char)}
    return frozenset(one for one in found if len(one) == 1)


def parse(text: str) -> Node:
    """The tree. Raises PatternError."""
    if len(text) > MAX_LENGTH:
        raise PatternError(
            f"a pattern of {len(text)} characters", f"at most {MAX_LENGTH} characters", "make it shorter, or two of it"
        )
    reader = _PatternReader(text)
    found = reader.alternatives(_Flags(), 0)
    if not reader.done:
        raise reader.error("unexpected )", "a ( before each )")
    return found


@dataclass(frozen=True, slots=True)
class _Flags:
    fold: bool = False
    lines: bool = False
    dot_all: bool = False


_FLAGS: Final[dict[str, Callable[[_Flags, bool], _Flags]]] = {
    "i": lambda flags, on: replace(flags, fold=on),
    "m": lambda flags, on: replace(flags, lines=on),
    "s": lambda flags, on: replace(flags, dot_all=on),
    "U": lambda flags, _on: flags,  # which of several matches is taken: none is asked for
}


@dataclass(slots=True)
class _PatternReader:
    text: str
    at: int = 0
    names: set[str] = field(default_factory=set)

    @property
    def done(self) -> bool:
        return self.at >= len(self.text)

    def error(self, what: str, expected: str = "a pattern in RE2's syntax") -> PatternError:
        shown = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return PatternError(f"{what} in `{shown}`", expected, "correct the pattern")

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self) -> str:
        if self.done:
            raise self.error("a \\ at the end")
        self.at += 1
        return self.text[self.at - 1]

    def taken(self, text: str) -> bool:
        if not self.peek(text):
            return False
        self.at += len(text)
        return True

    def until(self, end: str, what: str) -> str:
        place = self.text.find(end, self.at)
        if place < 0:
            raise self.error(f"missing {what}")
        found = self.text[self.at : place]
        self.at = place + len(end)
        return found

    def alternatives(self, flags: _Flags, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self.error("groups nested too deep", f"at most {MAX_DEPTH} groups within each other")
        options: list[Node] = []
        parts: list[Node] = []
        repeated_at = -1
        while not self.done and not self.peek(")"):
            if self.taken("|"):
                options.append(Sequenced(tuple(parts)))
                parts = []
            elif self.taken("(?"):
                flags, inner = self._group(flags, depth)
                parts.extend([inner] if inner is not None else [])
            elif counts := self._counts():
                parts.append(self._repeated(parts, counts, again=repeated_at == counts[0]))
                repeated_at = self.at
            else:
                parts.extend(self._one(flags, depth))
        options.append(Sequenced(tuple(parts)))
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def _repeated(self, parts: list[Node], counts: tuple[int, int, int | None], *, again: bool) -> Node:
        """The last part, repeated."""
        if not parts or again:
            what = "a repetition of a repetition" if again else "nothing before a repetition"
            raise self.error(what, "one of *, +, ? and {} after what is repeated")
        self.taken("?")  # a lazy repetition finds the same
        return Repetition(parts.pop(), counts[1], counts[2])

    def _one(self, flags: _Flags, depth: int) -> list[Node]:
        if self.taken("("):
            inner = self.alternatives(flags, depth + 1)
            self._close()
            return [inner]
        if self.taken("\\Q"):
            end = self.text.find("\\E", self.at)
            quoted = self.text[self.at :] if end < 0 else self.text[self.at : end]
            self.at = len(self.text) if end < 0 else end + 2
            return [_single(ord(char), flags) for char in quoted]
        return [self._atom(flags)]

    def _close(self) -> None:
        if not self.taken(")"):
            raise self.error("missing )", "a ) after each (")

    def _group(self, flags: _Flags, depth: int) -> tuple[_Flags, Node | None]:
        """After ``(?``: the flags that hold afterwards, and the group, None where only flags were set."""
        name = self.taken("P<") or (self.taken("<") and not self.peek("=") and not self.peek("!"))
        if name:
            self._name(self.until(">", "> after a group's name"))
            inner = self.alternatives(flags, depth + 1)
            self._close()
            return flags, inner
        changed, on, some = flags, True, False
        while True:
            char = self.take() if not self.done else ""
            if char == "-" and on:
                on, some = False, False
            elif char in _FLAGS and char:
                changed, some = _FLAGS[char](changed, on), True
            elif char == ")" and (on or some):
                return changed, None
            elif char == ":" and (on or some):
                inner = self.alternatives(changed, depth + 1)
                self._close()
                return flags, inner
            else:
                raise self.error("an operator of Perl that RE2 has not", "no looking ahead or behind, no other (?...)")

    def _name(self, name: str) -> None:
        if not name or not all(char == "_" or (char.isascii() and char.isalnum()) for char in name):
            raise self.error("a wrong name of a group", "letters, digits and _")
        if name in self.names:
            raise self.error(f"two groups of the name {name}", "each name once")
        self.names.add(name)

    def _atom(self, flags: _Flags) -> Node:
        char = self.take()
        if char == "[":
            return self._class(flags)
        if char == "\\":
            return self._escape(flags)
        if char == "^":
            return Assertion("(?m)^" if flags.lines else "^")
        if char == "$":
            return Assertion("(?m)$" if flags.lines else "$")
        if char == ".":
            return CharSet(((0, _LAST),)) if flags.dot_all else CharSet(((10, 10),), negated=True)
        return _single(ord(char), flags)

    def _counts(self) -> tuple[int, int, int | None] | None:
        """Where a repetition begins that is next, and how often at least and at most; None if there is none."""
        before = self.at
        for sign, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self.taken(sign):
                return before, least, most
        counted = self._count()
        return (before, *counted) if counted else None

    def _count(self) -> tuple[int, int | None] | None:
        """``{2}``, ``{2,}`` or ``{2,5}``; anything else with a brace is a plain brace."""
        end = self.text.find("}", self.at) if self.peek("{") else -1
        if end < 0:
            return None
        first, comma, last = self.text[self.at + 1 : end].partition(",")
        if not (_digits(first) and (_digits(last) or not last)):
            return None
        numbers = [int(part) if len(part) < 6 else MAX_REPEAT + 1 for part in (first, last) if part]
        self.at = end + 1
        if max(numbers) > MAX_REPEAT or (len(numbers) == 2 and numbers[0] > numbers[1]):
            raise self.error("a wrong count of repetitions", f"at most {MAX_REPEAT}, the lesser number first")
        least = numbers[0]
        return least, (numbers[-1] if last or not comma else None)

    def _escape(self, flags: _Flags) -> Node:
        char = self.take()
        if char in "bB":
            return Assertion(char)
        if char in "Az":
            return Assertion("^" if char == "A" else "$")
        return self._char_escape(char, flags)

    def _char_escape(self, char: str, flags: _Flags) -> CharSet:
        r"""What ``\`` and this character stand for, in or outside of brackets."""
        if char.lower() in _PERL:
            found = _PERL[char.lower()]
            return replace(found, negated=char.isupper(), folded=flags.fold)
        if char in "pP":
            return self._category(negated=char == "P", flags=flags)
        return _single(self._code(char), flags)

    def _category(self, *, negated: bool, flags: _Flags) -> CharSet:
        name = self.until("}", "}") if self.taken("{") else self.take()
        if name.startswith("^"):
            name, negated = name[1:], not negated
        if name == "Any":
            return CharSet(((0, _LAST),), negated=negated)
        if name not in _CATEGORIES:
            raise self.error(f"the Unicode class {name[:20]}, which is not known here", "a category such as L or Nd")
        return CharSet(categories=(name,), negated=negated, folded=flags.fold)

    def _code(self, char: str) -> int:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in "1234567" and not (not self.done and self.text[self.at] in "01234567"):
            raise self.error("a reference to a group", "no references: RE2 has none")
        if char in "01234567":
            digits = char
            while len(digits) < 3 and not self.done and self.text[self.at] in "01234567":
                digits += self.take()
            return int(digits, 8)
        if char == "x":
            return self._hex(self.until("}", "}") if self.taken("{") else self.take() + self.take())
        if char.isalnum() or not char.isascii():
            raise self.error(f"the escape \\{char}, which RE2 has not")
        return ord(char)

    def _hex(self, digits: str) -> int:
        if not digits or len(digits) > 8 or not all(char in "0123456789abcdefABCDEF" for char in digits):
            raise self.error("a wrong escape \\x", r"\x7f or \x{10ffff}")
        code = int(digits, 16)
        if code > _LAST:
            raise self.error("a character above the last one", r"at most \x{10ffff}")
        return code

    def _class(self, flags: _Flags) -> CharSet:
        negated = self.taken("^")
        ranges: list[tuple[int, int]] = []
        categories: list[str] = []
        without: list[CharSet] = []
        first = True
        while first or not self.peek("]"):
            if self.done:
                raise self.error("missing ]", "a ] after each [")
            found = self._posix() if self.peek("[:") else self._class_part(flags)
            first = False
            if found.negated:
                without.append(replace(found, negated=False))
            else:
                ranges.extend(found.ranges)
                categories.extend(found.categories)
        self.at += 1
        return CharSet(tuple(ranges), tuple(categories), tuple(without), negated, flags.fold)

    def _posix(self) -> CharSet:
        end = self.text.find(":]", self.at)
        name = self.text[self.at + 2 : end] if end >= 0 else ""
        negated = name.startswith("^")
        if name.removeprefix("^") not in _POSIX:
            raise self.error(f"the class [:{name[:20]}:], which is not known", f"one of {', '.join(_POSIX)}")
        self.at = end + 2
        return CharSet(_POSIX[name.removeprefix("^")], negated=negated)

    def _class_part(self, flags: _Flags) -> CharSet:
        low = self._class_char(flags)
        if len(low.ranges) != 1 or low.ranges[0][0] != low.ranges[0][1] or low.negated:
            return low
        after = self.text[self.at + 1 : self.at + 2]
        if not self.peek("-") or after in {"]", ""}:
            return low
        self.at += 1
        high = self._class_char(flags)
        first, last = low.ranges[0][0], high.ranges[0][1] if len(high.ranges) == 1 and not high.negated else -1
        if last < first:
            raise self.error("a range whose end comes before its begin", "a range such as a-z")
        return CharSet(((first, last),))

    def _class_char(self, flags: _Flags) -> CharSet:
        char = self.take()
        return self._char_escape(self.take(), flags) if char == "\\" else CharSet(((ord(char), ord(char)),))


def _single(code: int, flags: _Flags) -> CharSet:
    return CharSet(((code, code),), folded=flags.fold)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdecimal()
