"""Pure: a receiver's own text about each workload: ``{who}`` and the like in plain text, and nothing that computes.

The text is the policy's author's, who may use the receiver's markup in it. ``filling`` fills in what may be anybody's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.base.suggest import did_you_mean

MOST_FIELDS: Final = 20
KEEP: Final = "keep"
DEADLINE: Final = "deadline"
_PARTS: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class TemplateField:
    """What may be filled in, and what it is."""

    name: str
    means: str


FIELDS: Final = (
    TemplateField("who", "the workload or node: `Deployment research/llama`"),
    TemplateField("namespace", "its namespace"),
    TemplateField("what", "how many GPUs of which model it holds where, and what they do"),
    TemplateField("idle", "for how long they are idle: `2h 30m`"),
    TemplateField("since", "since when"),
    TemplateField("wasted", "what that has cost: `24.48 USD`"),
    TemplateField("perHour", "what it costs an hour"),
    TemplateField("assumed", "what of the price is assumed, if anything"),
    TemplateField(DEADLINE, "when it will be stopped; `none` where it won't"),
    TemplateField(KEEP, "the command that keeps it"),
    TemplateField("policy", "the policy's name"),
)
_BY_NAME: Final[Mapping[str, TemplateField]] = {row.name: row for row in FIELDS}


@dataclass(frozen=True, slots=True)
class MessageTemplate:
    """Plain texts and fields in turn."""

    parts: tuple[str | TemplateField, ...]

    def count(self, name: str) -> int:
        """How often it has that field."""
        return sum(isinstance(part, TemplateField) and part.name == name for part in self.parts)


def read_template(text: str, where: str) -> MessageTemplate:
    """A template; ``where`` says which, for the message. Raises ConfigError."""
    if found := _CONTROL.search(text):
        raise ConfigError(f"{where} has a control character ({ord(found[0]):#04x})", "text and line ends", "remove it")
    parts: list[str | TemplateField] = []
    end = 0
    for match in _PARTS.finditer(text):
        parts.append(text[end : match.start()])
        parts.append(_part(match, where))
        end = match.end()
    parts.append(text[end:])
    fields = sum(isinstance(part, TemplateField) for part in parts)
    if fields > MOST_FIELDS:
        raise ConfigError(f"{where} has {fields} fields", f"at most {MOST_FIELDS}", "remove some")
    template = MessageTemplate(tuple(part for part in parts if part != ""))
    if template.count(KEEP) > 1:
        raise ConfigError(f"{where} has {{{KEEP}}} several times", "the command once", "remove one of them")
    return template


def _part(match: re.Match[str], where: str) -> str | TemplateField:
    if match[0] in {"{{", "}}"}:
        return match[0][0]
    name = match[1]
    if name is None:
        raise ConfigError(
            f"{where}: a single {match[0]} at character {match.start() + 1}", "fields such as {who}",
            f"write {match[0] * 2} for {match[0]} itself",
        )  # fmt: skip
    if name not in _BY_NAME:
        raise ConfigError(
            f"{where}: there is no field {{{one_line(name, 40)}}}",
            f"one of: {', '.join(f'{{{known}}}' for known in _BY_NAME)}",
            did_you_mean(name[:80], _BY_NAME) or "correct it",
        )  # fmt: skip
    return _BY_NAME[name]
