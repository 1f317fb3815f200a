"""A template as a tree: what ``parser`` makes and ``run`` carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Value: TypeAlias = "str | bool | int | float | list[Value] | dict[str, Value] | None"
"""What templates work on: texts, numbers, lists and mappings; None for Go's nil."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A text, a number, true, false or nil."""

    value: Value


@dataclass(frozen=True, slots=True)
class Here:
    """The dot: what ``range`` and ``with`` are at."""


@dataclass(frozen=True, slots=True)
class VariableName:
    """``$x``; ``$`` alone is the whole data."""

    name: str


@dataclass(frozen=True, slots=True)
class FunctionName:
    """A function: of the words of a command only the first may be one with arguments."""

    name: str


@dataclass(frozen=True, slots=True)
class Selected:
    """Fields of a value: ``.pci.device``, ``$x.Name``, ``(index . 0).Name``."""

    base: Operand
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TemplateCommand:
    """A value, or a function with its arguments."""

    words: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands, each the last argument of the next. ``names`` are variables that get the result."""

    commands: tuple[TemplateCommand, ...]
    line: int
    names: tuple[str, ...] = ()
    declares: bool = False


Operand: TypeAlias = "Constant | Here | VariableName | FunctionName | Selected | Pipeline"


@dataclass(frozen=True, slots=True)
class TemplateBlock:
    """Parts in order."""

    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text that goes through as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class ActionPart:
    """A value to print."""

    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class ControlPart:
    """``if``, ``with`` or ``range``, with what comes after ``else``."""

    kind: str
    pipeline: Pipeline
    body: TemplateBlock
    otherwise: TemplateBlock


@dataclass(frozen=True, slots=True)
class JumpPart:
    """``break`` or ``continue``."""

    kind: str


Part: TypeAlias = "TextPart | ActionPart | ControlPart | JumpPart"
