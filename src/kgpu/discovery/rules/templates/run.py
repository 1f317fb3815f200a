"""Carries out templates: text with actions in, lines ``name=value`` out.

Go's text/template without templates in templates, with ``missingkey=error``. Whatever a tenant writes ends: so many
steps, so much output, so deep; and nothing outside of the data is reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.discovery.rules.model import RuleError
from kgpu.discovery.rules.templates.functions import FUNCTIONS, LAZY, MAX_TEXT, cost, shown, truth, weight, wrong
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
    Value,
    VariableName,
)
from kgpu.discovery.rules.templates.parser import parse

MAX_OUTPUT: Final = MAX_TEXT
BUDGET: Final = 100_000
"""Parts and values of one run, about a tenth of a second."""


class _Jump(Exception):  # noqa: N818 - it is no error
    """``break`` or ``continue``."""


def expand_lines(template: str, data: Mapping[str, Any]) -> dict[str, str]:
    """The lines of the output as pairs; empty ones are left out. Raises RuleError."""
    pairs = {}
    for line in expand(template, data).split("\n"):
        key, sign, value = line.strip().partition("=")
        if sign:
            pairs[key] = value
        elif key:
            raise RuleError(
                f'the template gives the line "{key[:60]}"', "name=value on each line",
                "add =, and look where lines end: a range needs a line break before its end",
            )  # fmt: skip
    return pairs


def expand(template: str, data: Mapping[str, Any]) -> str:
    """The template's output. Raises RuleError."""
    run = _Run(dict(data))
    run.block(parse(template), run.root)
    return "".join(run.output)


@dataclass(slots=True)
class _Run:
    root: Value
    output: list[str] = field(default_factory=list)
    written: int = 0
    left: int = BUDGET
    line: int = 1
    variables: list[tuple[str, Value]] = field(default_factory=list)

    def step(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise wrong(f"a template that takes more than {BUDGET} steps", "fewer elements or loops")

    def error(self, error: RuleError) -> RuleError:
        return RuleError(f"line {self.line} of the template: {error.what}", error.expected, error.remedy)

    def write(self, text: str) -> None:
        self.written += len(text)
        if self.written > MAX_OUTPUT:
            raise self.error(wrong(f"more than {MAX_OUTPUT} characters of output", "less"))
        self.output.append(text)

    def block(self, block: TemplateBlock, dot: Value) -> None:
        for part in block.parts:
            self.step()
            self._part(part, dot)

    def _part(self, part: Part, dot: Value) -> None:
        match part:
            case TextPart():
                self.write(part.text)
            case ActionPart():
                value = self.pipeline(part.pipeline, dot)
                if not part.pipeline.names:
                    self.step(weight([value]) // 16)
                    self.write(shown(value))
            case JumpPart():
                raise _Jump(part.kind)
            case ControlPart():
                before = len(self.variables)
                if part.kind == "range":
                    self._range(part, dot)
                else:
                    value = self.pipeline(part.pipeline, dot)
                    taken = truth(value)
                    self.block(part.body if taken else part.otherwise, value if taken and part.kind == "with" else dot)
                del self.variables[before:]

    def _range(self, part: ControlPart, dot: Value) -> None:
        names = part.pipeline.names
        items = list(self._items(self._value(part.pipeline, dot)))
        before = len(self.variables)
        for key, item in items:
            self.step()
            pairs = zip(names, (key, item) if len(names) == 2 else (item,), strict=False)
            for name, value in pairs:
                self._set(name, value, declares=part.pipeline.declares)
            try:
                self.block(part.body, item)
            except _Jump as jump:
                if jump.args == ("break",):
                    break
            finally:
                del self.variables[before:]
        if not items:
            self.block(part.otherwise, dot)

    def _items(self, value: Value) -> Iterator[tuple[Value, Value]]:
        if isinstance(value, list):
            yield from enumerate(value)
        elif isinstance(value, dict):
            yield from sorted(value.items())
        elif isinstance(value, int) and not isinstance(value, bool):
            yield from ((number, number) for number in range(min(value, BUDGET)))
        elif value is not None:
            raise self.error(wrong(f"range can't go over {shown(value)[:40]}", "a list or a mapping"))

    def _set(self, name: str, value: Value, *, declares: bool) -> None:
        if declares:
            self.variables.append((name, value))
            return
        for place in range(len(self.variables) - 1, -1, -1):
            if self.variables[place][0] == name:
                self.variables[place] = (name, value)
                return

    def pipeline(self, pipeline: Pipeline, dot: Value) -> Value:
        """The pipeline's value, which its variables get."""
        value = self._value(pipeline, dot)
        for name in pipeline.names:
            self._set(name, value, declares=pipeline.declares)
        return value

    def _value(self, pipeline: Pipeline, dot: Value) -> Value:
        self.line = pipeline.line
        value, *rest = pipeline.commands
        done = self._command(value, dot, ())
        for command in rest:
            done = self._command(command, dot, (done,))
        return done

    def _command(self, command: TemplateCommand, dot: Value, last: tuple[Value, ...]) -> Value:
        first, *words = command.words
        if isinstance(first, FunctionName):
            return self._call(first.name, words, dot, last)
        return self._operand(first, dot)

    def _call(self, name: str, words: list[Operand], dot: Value, last: tuple[Value, ...]) -> Value:
        row = FUNCTIONS[name]
        count = len(words) + len(last)
        if count < row.least or (row.most is not None and count > row.most):
            most = "" if row.most == row.least else " or more" if row.most is None else f" to {row.most}"
            raise self.error(wrong(f"{name} has {count} arguments", f"{row.least}{most}"))
        values: list[Value] = []
        for word in words:
            values.append(self._operand(word, dot))
            if name in LAZY and truth(values[-1]) == (name == "or"):
                return values[-1]
        try:
            self.step(cost(name, (*values, *last)))
            return row.call(*values, *last)
        except RuleError as error:
            raise self.error(error) from error

    def _operand(self, operand: Operand, dot: Value) -> Value:
        self.step()
        match operand:
            case Constant():
                return operand.value
            case Here():
                return dot
            case VariableName():
                return self._variable(operand.name)
            case FunctionName():
                return self._call(operand.name, [], dot, ())
            case Pipeline():
                return self._value(operand, dot)
            case Selected():
                return self._field(self._operand(operand.base, dot), operand.fields)

    def _variable(self, name: str) -> Value:
        if name == "$":
            return self.root
        for known, value in reversed(self.variables):
            if known == name:
                return value
        raise self.error(wrong(f"the variable {name} has no value here", "a variable that was set before"))

    def _field(self, value: Value, fields: tuple[str, ...]) -> Value:
        for name in fields:
            if not isinstance(value, dict) or name not in value:
                known = f"one of {', '.join(sorted(value)[:10])}" if isinstance(value, dict) and value else "a field"
                raise self.error(wrong(f'there is no field "{name[:60]}"', known))
            value = value[name]
        return value
