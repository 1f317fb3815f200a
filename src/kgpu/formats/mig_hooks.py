"""Reads mig-parted's hooks file v1: commands to run around a change of slices.

The replaced program takes an unknown hook's name and any version without a word, and never runs what is below; here it
is an error, as is every key that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.errors import ConfigError, PlacedError
from kgpu.formats.strict import Problems, Table, choice, raw, read_table, text
from kgpu.formats.yaml import Path, load_document

VERSION: Final = "v1"
APPLY_START: Final = "apply-start"
PRE_APPLY_MODE: Final = "pre-apply-mode"
PRE_APPLY_CONFIG: Final = "pre-apply-config"
APPLY_EXIT: Final = "apply-exit"
MAX_BYTES: Final = 1 << 20
_LEAD: Final = "error parsing hooks file: "


@dataclass(frozen=True, slots=True, kw_only=True)
class MigHook:
    """A command with its words, its own environment, and the folder to run in, "" for the caller's."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""


def parse_hooks(content: str | bytes, *, source: str = "hooks file") -> dict[str, tuple[MigHook, ...]]:
    """The commands of each hook in their order; none for an empty file. Raises ConfigError."""
    try:
        document = load_document(content, source=source)
    except ConfigError as problem:
        said = f"{problem.place}: {problem.said}" if isinstance(problem, PlacedError) else problem.what
        raise ConfigError(_LEAD + said, problem.expected, problem.remedy) from problem
    if document.value is None or document.value == {}:
        return {}
    problems = Problems(source, document, _TOP)
    tree = read_table(problems, (), document.value, _TOP, exact=True)
    if problems.found:
        first, *more = problems.found
        others = f"; and {len(more)} more problems" if more else ""
        raise ConfigError(f"{_LEAD}{source}, {first.said}{others}", first.expected, first.remedy)
    if "version" not in tree:
        raise ConfigError(f"{_LEAD}{source} has no version", f"version: {VERSION}", "add it at the top")
    hooks: dict[str, tuple[MigHook, ...]] = tree.get("hooks", {})
    return hooks


def _commands(problems: Problems, path: Path, value: Any) -> tuple[MigHook, ...] | None:
    if not isinstance(value, list):
        problems.add(path, f"{raw(value)} is no list", "a list of commands")
        return None
    return tuple(_command(problems, (*path, number), one) for number, one in enumerate(value))


def _command(problems: Problems, path: Path, value: Any) -> MigHook:
    tree = read_table(problems, path, value, _COMMAND, exact=True)
    if not tree.get("command"):
        problems.add(path, "there is no command", "command: the program to run", "add it")
    hook = MigHook(
        command=tree.get("command", ""), args=tree.get("args", ()), env=tree.get("envs", {}),
        folder=tree.get("workdir", ""),
    )  # fmt: skip
    if any("\0" in word for word in (hook.command, hook.folder, *hook.args, *hook.env, *hook.env.values())):
        problems.add(path, "it has a character of number 0", "text that a program can be given", "remove it")
    return hook


def _words(problems: Problems, path: Path, value: Any) -> tuple[str, ...] | None:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    problems.add(
        path, f"{raw(value)} is no list of texts", 'a list of texts, such as ["-x", "1"]', "put each in quotes"
    )
    return None


def _variables(problems: Problems, path: Path, value: Any) -> dict[str, str] | None:
    if isinstance(value, dict) and all(isinstance(one, str) for one in value.values()):
        if all(name and "=" not in name for name in value):
            return value
        problems.add(path, "a variable's name is empty or has a =", "names of variables", "correct it")
        return None
    # Its values may be secrets.
    problems.add(path, "its values are not all texts", "variables with texts", "put each value in quotes")
    return None


_COMMAND: Final[Table] = {"command": text, "args": _words, "envs": _variables, "workdir": text}
_TOP: Final[Table] = {
    "version": choice("unknown version: ", VERSION),
    "hooks": {APPLY_START: _commands, PRE_APPLY_MODE: _commands, PRE_APPLY_CONFIG: _commands, APPLY_EXIT: _commands},
}
