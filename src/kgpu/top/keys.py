"""Pure: what a terminal sends, as names of keys: ``a``, ``up``, ``pagedown``, ``esc``, ``ctrl-c``."""

from __future__ import annotations

import re
from typing import Final

_NAMES: Final = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b[5~": "pageup", "\x1b[6~": "pagedown",
    "\x1b[H": "home", "\x1b[F": "end", "\x1bOH": "home", "\x1bOF": "end", "\x1b[1~": "home", "\x1b[4~": "end",
    "\x1b[7~": "home", "\x1b[8~": "end", "\x1b[Z": "shift-tab", "\x1b[15~": "f5", "\r": "enter", "\n": "enter",
    "\t": "tab", "\x7f": "backspace", "\x08": "backspace", "\x01": "home", "\x05": "end",
}  # fmt: skip
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-9;<?]*[A-Za-z~]|O[A-Za-z])")
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-9;<?]{0,32}|O)?")


def keys(text: str, *, last: bool = False) -> tuple[list[str], str]:
    """Return the keys, and the rest that may begin another key; with ``last`` nothing more comes."""
    pressed: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\x1b":
            whole = _SEQUENCE.match(text, at)
            if whole is None and not last and _UNFINISHED.fullmatch(text, at):
                return pressed, text[at:]
            sequence = whole[0] if whole else char
            name = _NAMES.get(sequence) or ("" if whole else "esc")
            pressed += [name] if name else []
            at += len(sequence)
            continue
        pressed.append(_NAMES.get(char) or (f"ctrl-{chr(ord(char) + 96)}" if "\0" < char < "\x1b" else char))
        at += 1
    return pressed, ""
