"""Reads a template as a tree. Refused is what is not carried out: unknown functions, templates within templates."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.suggest import did_you_mean
from kgpu.discovery.rules.model import RuleError
from kgpu.discovery.rules.templates.functions import FUNCTIONS
from kgpu.discovery.rules.templates.lexer import Token, tokens, unquoted
from kgpu.discovery.rules.templates.nodes import (
    ActionPart,
    Constant,
    ControlPart,
    FunctionName,
    Here,
    JumpPart,
    Operand,
    Part,
    Pipeline,
    Selected,
    TemplateBlock,
    TemplateCommand,
    TextPart,
    VariableName,
)

MAX_TEMPLATE: Final = 65_536
MAX_DEPTH: Final = 50
MAX_VARIABLES: Final = 100
MAX_NUMBER: Final = 2**63
CONTROLS: Final = frozenset({"if", "with", "range"})
_ENDS: Final = frozenset({"end", "else"})
_REFUSED: Final = frozenset({"define", "template", "block"})
_CONSTANTS: Final = {"true": True, "false": False, "nil": None}


@functools.lru_cache(maxsize=512)
def parse(template: str) -> TemplateBlock:
    """The tree. Raises RuleError."""
    if len(template) > MAX_TEMPLATE:
        raise RuleError(
            f"a template of {len(template)} characters",
            f"at most {MAX_TEMPLATE} characters",
            "make several rules of it",
        )
    parser = _TemplateParser(list(tokens(template)))
    block, end = parser.block(0, in_range=False)
    if end:
        raise parser.error(f"{end} without if, with or range", "an end for each of them")
    return block


@dataclass(slots=True)
class _TemplateParser:
    found: list[Token]
    at: int = 0
    scopes: list[list[str]] = field(default_factory=lambda: [["$"]])

    def error(self, what: str, expected: str, remedy: str = "correct the template") -> RuleError:
        near = self.found[min(self.at, len(self.found)) - 1] if self.found else Token("", "", 1)
        return RuleError(f"line {near.line} of the template: {what}", expected, remedy)

    def next(self) -> Token:
        self.at += 1
        return self.found[self.at - 1]  # an action always has its close

    def peek(self) -> Token:
        return self.found[self.at]

    def block(self, depth: int, *, in_range: bool) -> tuple[TemplateBlock, str]:
        """Parts up to ``end`` or ``else``, which is returned; "" at the template's end."""
        if depth > MAX_DEPTH:
            raise self.error("blocks nested too deep", f"at most {MAX_DEPTH} within each other")
        parts: list[Part] = []
        while self.at < len(self.found):
            token = self.next()
            if token.kind == "text":
                parts.append(TextPart(token.text))
                continue
            word = self.peek().text if self.peek().kind == "word" else ""
            if word in _ENDS:
                self.at += 1
                return TemplateBlock(tuple(parts)), word
            parts.append(self._part(word, depth, in_range=in_range))
        return TemplateBlock(tuple(parts)), ""

    def _part(self, word: str, depth: int, *, in_range: bool) -> Part:
        if word in CONTROLS:
            self.at += 1
            return self._control(word, depth, in_range=in_range)
        if word in {"break", "continue"}:
            self.at += 1
            if not in_range:
                raise self.error(f"{word} outside of range", f"{word} between range and end")
            self._close()
            return JumpPart(word)
        if word in _REFUSED:
            raise self.error(
                f'"{word}" is not carried out', "if, with, range and values", "write its text where it is used"
            )
        pipeline = self._pipeline(0)
        self._close()
        return ActionPart(pipeline)

    def _control(self, kind: str, depth: int, *, in_range: bool) -> ControlPart:
        self.scopes.append([])
        pipeline = self._pipeline(0, in_range=kind == "range")
        self._close()
        self.scopes.append([])
        body, end = self.block(depth + 1, in_range=in_range or kind == "range")
        self.scopes.pop()
        otherwise = TemplateBlock()
        if end == "else":
            otherwise = self._otherwise(kind, depth, in_range=in_range)
        elif end:
            self._close()
        else:
            raise self.error(f"{kind} has no end", "an end for each if, with and range")
        self.scopes.pop()
        return ControlPart(kind, pipeline, body, otherwise)

    def _otherwise(self, kind: str, depth: int, *, in_range: bool) -> TemplateBlock:
        """After ``else``; ``else if`` is an ``if`` of its own that shares the ``end``."""
        follows = self.peek()
        if follows.kind == "word" and follows.text in {"if", "with"} and kind != "range":
            self.at += 1
            if depth + 1 > MAX_DEPTH:
                raise self.error("too many else if", f"at most {MAX_DEPTH}")
            return TemplateBlock((self._control(follows.text, depth + 1, in_range=in_range),))
        self._close()
        block, end = self.block(depth + 1, in_range=in_range)
        if end != "end":
            raise self.error(f"{kind} has no end" if not end else "else after else", "one else and one end")
        self._close()
        return block

    def _close(self) -> None:
        token = self.next()
        if token.kind != "close":
            raise self.error(f'"{token.text[:40]}" can\'t be here', "}}")

    def _pipeline(self, depth: int, *, in_range: bool = False) -> Pipeline:
        if depth > MAX_DEPTH:
            raise self.error("parentheses nested too deep", f"at most {MAX_DEPTH} within each other")
        line = self.peek().line
        names, declares = self._names(in_range=in_range)
        commands = [self._command(depth)]
        while self.peek().text == "|" and self.peek().kind == "sign":
            self.at += 1
            commands.append(self._command(depth))
        for command in commands[1:]:
            if not isinstance(command.words[0], FunctionName):
                raise self.error("a value after |, which takes no argument", "a function after |")
        if declares:
            self.scopes[-1].extend(names)
            if sum(map(len, self.scopes)) > MAX_VARIABLES:
                raise self.error("too many variables", f"at most {MAX_VARIABLES} at a place")
        return Pipeline(tuple(commands), line, names, declares)

    def _names(self, *, in_range: bool) -> tuple[tuple[str, ...], bool]:
        """``$x :=``, ``$x =``, and before a range ``$i, $x :=``."""
        ahead = [(token.kind, token.text) for token in self.found[self.at : self.at + 4]]
        kinds = [text if kind == "sign" else kind for kind, text in ahead]
        for shape in (["variable"], ["variable", ",", "variable"] if in_range else []):
            sign = kinds[len(shape) : len(shape) + 1]
            if shape and kinds[: len(shape)] == shape and sign in ([":="], ["="]):
                names = tuple(text for kind, text in ahead[: len(shape)] if kind == "variable")
                self.at += len(shape) + 1
                if sign == ["="]:
                    for name in names:
                        self._check_known(name)
                return names, sign == [":="]
        return (), False

    def _check_known(self, name: str) -> None:
        if not any(name in scope for scope in self.scopes):
            raise self.error(f"there is no variable {name}", f"one of {', '.join(n for s in self.scopes for n in s)}")

    def _command(self, depth: int) -> TemplateCommand:
        words: list[Operand] = []
        while not (self.peek().kind == "close" or (self.peek().kind == "sign" and self.peek().text in {"|", ")"})):
            if words and not self.peek().spaced:
                raise self.error(
                    f'no space before "{self.peek().text[:40]}"', "spaces between a function and its arguments"
                )
            words.append(self._operand(depth))
        if not words:
            raise self.error("nothing where a value is meant", "a value or a function")
        self._check_call(words)
        return TemplateCommand(tuple(words))

    def _check_call(self, words: list[Operand]) -> None:
        first = words[0]
        if not isinstance(first, FunctionName) and len(words) > 1:
            raise self.error("arguments after a value that is no function", "a function before its arguments")

    def _operand(self, depth: int) -> Operand:
        token = self.next()
        operand: Operand
        if token.kind in {"string", "raw"}:
            operand = Constant(unquoted(token))
        elif token.kind == "number":
            operand = Constant(self._number(token.text))
        elif token.kind == "variable":
            self._check_known(token.text)
            operand = VariableName(token.text)
        elif token.kind == "field":
            self.at -= 1
            return self._selected(Here(), first=True)
        elif token.kind == "word":
            operand = self._word(token.text)
        elif token.text == ".":
            operand = Here()
        elif token.text == "(":
            operand = self._pipeline(depth + 1)
            if self.next().text != ")":
                raise self.error("a ( without its )", "a ) for each (")
        else:
            raise self.error(f'"{token.text[:40]}" can\'t be here', "a value or a function")
        return self._selected(operand)

    def _selected(self, base: Operand, *, first: bool = False) -> Operand:
        fields: list[str] = []
        while self.peek().kind == "field" and (not self.peek().spaced or (first and not fields)):
            fields.append(self.next().text[1:])
        if fields and isinstance(base, Constant):
            raise self.error("a field of a constant", "fields of the data or of variables")
        return Selected(base, tuple(fields)) if fields else base

    def _word(self, word: str) -> Operand:
        if word in _CONSTANTS:
            return Constant(_CONSTANTS[word])
        if word not in FUNCTIONS:
            hint = did_you_mean(word[:40], FUNCTIONS)
            raise self.error(
                f'the function "{word[:40]}" is not known here', "one of the functions in docs/reference/node-rules.md",
                hint or "make the rule without it",
            )  # fmt: skip
        return FunctionName(word)

    def _number(self, text: str) -> int | float:
        digits = text.lstrip("+-")
        sign = -1 if text.startswith("-") else 1
        if len(digits) > 40:
            raise self.error("a number of too many digits", "at most 40")
        if digits[:1] == "0" and len(digits) > 1 and digits[1] not in ".eE":
            base = 16 if digits[1] in "xX" else 8
            return sign * min(int(digits.lstrip("0xXoO") or "0", base), MAX_NUMBER - 1)
        value = int(digits) if digits.isdecimal() else float(digits)
        if abs(value) >= MAX_NUMBER:
            raise self.error("a number that is too large", "less than 9e18")
        return sign * value
