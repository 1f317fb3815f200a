"""What a shell would make of a remedy that is pasted into it: of bash, and of zsh as people type into it.

What is a command, and what a sentence for people, is as the doctor has it (``is_command``). What can go wrong with
a command is found by its words: an interactive zsh takes ``#`` for a word, ends at a pattern that no file fits, and
fills in ``=word`` and ``!``; both shells run words that were meant for the reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.base.remedy import PROGRAMS, is_command

_FURTHER: Final = PROGRAMS | {"cut", "head", "sort", "xargs", "wc", "tr"}
_ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*=")
_PLACEHOLDER: Final = re.compile(r"(?<![\w$.-])[A-Z][A-Z_]{2,}(?![\w=(-])")
_OUTPUT: Final = re.compile(r"\$\([^()]*\)")
"""What another command prints, in a word."""
_VALUES: Final = frozenset({"OUTPUT", "DEFAULT", "SPX", "NVRM", "PERFORMANCE", "TEMPERATURE", "POWER", "ECC"})
"""Words in capitals that programs know."""


@dataclass(frozen=True, slots=True)
class Word:
    """``bare``: what of it stands outside quotes; ``lively``: outside single ones, where ``!`` counts."""

    whole: str
    bare: str = ""
    lively: str = ""


def problems(remedy: Iterable[str]) -> Iterator[str]:
    """What would go wrong with a remedy's lines, one after the other, and what nobody could understand."""
    above = ""
    for step in remedy:
        if not is_command(step):
            above += f" {step}"
            yield from (f"{step}: a command within a sentence: {hit[1]}" for hit in _WITHIN.finditer(step))
            continue
        yield from (f"{step}: {what}" for what in _of_command(step, above))


_WITHIN: Final = re.compile(rf"(?:: |; )((?:{'|'.join(sorted(map(re.escape, PROGRAMS)))}) -?[a-z/-].*)$")
_TEXT: Final = re.compile(r"<<'?EOF'?$", re.MULTILINE)


def _of_command(step: str, above: str) -> Iterator[str]:
    first = step.split("\n", 1)[0]
    if "\n" in step and not _TEXT.search(first):
        yield "several lines"
        return
    for command in simple(_TEXT.sub("", first)):
        words = list(command)
        while words and _ASSIGNED.match(words[0].whole):
            words = words[1:]
        if words and words[0].whole not in _FURTHER:
            yield f"{words[0].whole!r} is no program"
        yield from _of_words(command, above)


def _of_words(words: list[Word], above: str) -> Iterator[str]:
    before = ""
    for position, word in enumerate(words):
        if (
            word.bare.startswith(("#", "="))
            or set(word.bare) & set("?*[()")
            or re.search(r"\{[^}]*(?:,|\.\.)", word.bare)
        ):
            yield f"a shell fills in {word.whole}"
        if "!" in word.lively:
            yield f"zsh and bash put a command of before in place of {word.whole}"
        if (
            "..." in word.bare
            or word.bare.endswith((",", "."))
            or (word.bare.endswith(":") and position + 1 < len(words))
        ):
            yield f"a sentence goes on behind {word.whole}"
        if not (word.whole.startswith("custom-columns=") or _ASSIGNED.match(word.whole)):
            for name in _PLACEHOLDER.findall(word.bare):
                if name not in _VALUES and not re.search(rf"\b{name}\b", above) and before != "-d":
                    yield f"nobody says above it what {name} is"
        before = word.whole


def simple(line: str) -> list[list[Word]]:
    """The simple commands of a line, as their words."""
    commands: list[list[Word]] = [[]]
    whole, bare, lively, quote, begun = "", "", "", "", False

    def end() -> None:
        nonlocal whole, bare, lively, begun
        if begun:
            commands[-1].append(Word(whole, bare, lively))
        whole, bare, lively, begun = "", "", "", False

    characters = iter(_OUTPUT.sub("OUTPUT", line))
    for one in characters:
        if quote:
            if one == quote:
                quote = ""
                continue
            if quote == '"' and one == "\\":
                one = next(characters, "")
            elif quote == '"':
                lively += one
            whole += one
        elif one in "'\"":
            quote, begun = one, True
        elif one == "\\":
            whole, begun = whole + next(characters, ""), True
        elif one.isspace():
            end()
        elif one in ";|&":
            end()
            if commands[-1]:
                commands.append([])
        elif one in "<>":
            end()
        else:
            whole, bare, lively, begun = whole + one, bare + one, lively + one, True
    end()
    return [command for command in commands if command]
