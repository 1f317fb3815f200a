"""Searches for regular expressions in time that grows with the text alone, however hostile the pattern.

Rules are written by tenants and carried out by the operator, and Python's own ``re`` can take exponential time. All
ways through the pattern are followed at once (a Thompson automaton); what is left, a large pattern on a long text, is
stopped by a budget of steps.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kgpu.discovery.rules.pattern_syntax import (
    Alternatives,
    Assertion,
    CharSet,
    Node,
    PatternError,
    Repetition,
    Sequenced,
    parse,
)

__all__ = ["PatternError", "finds", "pattern"]

MAX_SIZE: Final = 2000
"""Steps of a program; ``{2,5}`` and the like are written out."""
MAX_TEXT: Final = 4096
BUDGET: Final = 150_000
"""Steps of one search, about a tenth of a second."""


@dataclass(frozen=True, slots=True)
class _Fork:
    """Go on at several places."""

    to: tuple[int, ...]


_Step: TypeAlias = "CharSet | Assertion | _Fork | None"
"""None: found."""


@dataclass(slots=True)
class PatternProgram:
    """A pattern as a program: each step goes on with the next, but for forks."""

    steps: list[_Step] = field(default_factory=list)

    def add(self, step: _Step) -> int:
        """Append a step and return its place. Raises PatternError for a program that is too large."""
        if len(self.steps) >= MAX_SIZE:
            raise PatternError(
                "a pattern that is too large", f"at most {MAX_SIZE} characters and classes, repetitions written out",
                "use smaller counts of repetitions",
            )  # fmt: skip
        self.steps.append(step)
        return len(self.steps) - 1

    def write(self, node: Node) -> None:
        """Append what finds the node."""
        match node:
            case CharSet() | Assertion():
                self.add(node)
            case Sequenced():
                for part in node.parts:
                    self.write(part)
            case Alternatives():
                self._alternatives(node)
            case Repetition():
                self._repeated(node)

    def _alternatives(self, node: Alternatives) -> None:
        fork = self.add(None)
        begins, ends = [], []
        for option in node.options:
            begins.append(len(self.steps))
            self.write(option)
            ends.append(self.add(None))
        self.steps[fork] = _Fork(tuple(begins))
        for end in ends:
            self.steps[end] = _Fork((len(self.steps),))

    def _repeated(self, node: Repetition) -> None:
        for _ in range(node.least):
            self.write(node.part)
        if node.most is None:
            begin = self.add(None)
            self.write(node.part)
            self.add(_Fork((begin,)))
            self.steps[begin] = _Fork((begin + 1, len(self.steps)))
            return
        skips = []
        for _ in range(node.most - node.least):
            skips.append(self.add(None))
            self.write(node.part)
        for skip in skips:
            self.steps[skip] = _Fork((skip + 1, len(self.steps)))


@functools.lru_cache(maxsize=1024)
def pattern(text: str) -> PatternProgram:
    """The pattern. Raises PatternError."""
    program = PatternProgram()
    program.write(parse(text))
    program.add(None)
    return program


@functools.lru_cache(maxsize=8192)
def finds(text: str, element: str) -> bool:
    """Whether the pattern ``text`` matches anywhere in the element. Raises PatternError, also if it takes too long."""
    program = pattern(text)
    if len(element) > MAX_TEXT:
        raise PatternError(
            f"an element of {len(element)} characters to search in", f"at most {MAX_TEXT}", "compare another element"
        )
    return _Search(program.steps, element).run()


@dataclass(slots=True)
class _Search:
    steps: list[_Step]
    text: str
    left: int = BUDGET

    def run(self) -> bool:
        places: list[int] = []
        for at in range(len(self.text) + 1):
            places.append(0)  # a match may begin anywhere
            reached, found = self._follow(places, at)
            if found:
                return True
            if at == len(self.text):
                break
            char = self.text[at]
            places = [place + 1 for place in reached if self.steps[place].has(char)]  # type: ignore[union-attr]
        return False

    def _follow(self, places: Iterable[int], at: int) -> tuple[list[int], bool]:
        """The steps that wait for a character, and whether the end is reached."""
        seen: set[int] = set()
        todo, waiting = list(places), []
        while todo:
            place = todo.pop()
            if place in seen:
                continue
            seen.add(place)
            step = self.steps[place]
            if step is None:
                return [], True
            if isinstance(step, _Fork):
                todo.extend(step.to)
            elif isinstance(step, CharSet):
                waiting.append(place)
            elif self._holds(step, at):
                todo.append(place + 1)
        self.left -= len(seen)
        if self.left < 0:
            raise PatternError(
                f"a search that takes more than {BUDGET} steps", "a smaller pattern, or a shorter text",
                "use fewer repetitions in the pattern",
            )  # fmt: skip
        return waiting, False

    def _holds(self, step: Assertion, at: int) -> bool:
        before, after = self.text[at - 1 : at] if at else "", self.text[at : at + 1]
        match step.kind:
            case "^":
                return not before
            case "$":
                return not after
            case "(?m)^":
                return before in {"", "\n"}
            case "(?m)$":
                return after in {"", "\n"}
            case kind:
                return (_is_word(before) != _is_word(after)) == (kind == "b")


def _is_word(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char == "_")
