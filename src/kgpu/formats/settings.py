"""Settings as rows, and the one engine that resolves them: flag, then environment, then file, then default.

A row says where a setting may be given and how its value is read. What a row has ``idle`` for changes nothing here and
is told as a Warning where it is given; what it has ``instead`` for is refused. Command lines and references are made
from the rows.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.go_flags import read_bool

if TYPE_CHECKING:
    from kgpu.formats import strict

Reader: TypeAlias = Callable[[Any, str], Any]
"""The value from what was given, and the name of the place it was given at, for the error. Raises ConfigError."""

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
WITHOUT_EFFECT: Final = "SettingWithoutEffect"


class FlagShape(enum.StrEnum):
    """How a flag stands on a command line: with a value, alone or with one, alone, several times."""

    TEXT = "text"
    SWITCH = "switch"
    ALONE = "alone"
    LIST = "list"


class Restart(enum.StrEnum):
    """What has to start again before a change counts: the process (in an agent only the role), or nothing."""

    PROCESS = "process"
    NONE = "none"


def read_text(value: Any, where: str) -> str:
    """Any text, the empty one too."""
    del where
    return str(value)


def read_path(value: Any, where: str) -> Path:
    """A path, as it is given."""
    del where
    return Path(value)


def read_unchanged(value: Any, where: str) -> Any:
    """The value itself, where its file's reader has checked it."""
    del where
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting.

    ``attr`` is its name in the component's settings. ``envs`` are variables in order of precedence, ``key`` is the path
    in the config file, "" for none. A file whose problems are told with their lines is read by ``read_file``, and
    ``read`` gets what that makes of it (``kgpu.formats.settings_file``). ``metavar`` stands for the flag's value in its
    help. ``default`` counts where nothing is given; with ``reads_default`` it is a text that is read as if it were
    given. ``empty_counts``: a variable that is set to nothing is given all the same. ``idle`` is why a value has no
    effect here, but for the default and those that are ``usual``, which say what is so anyway; ``instead`` is what to
    use in its place where it is refused for that.
    """

    attr: str
    flag: str = ""
    help: str = ""
    read: Reader = read_text
    default: Any = ""
    aliases: tuple[str, ...] = ()
    envs: tuple[str, ...] = ()
    key: str = ""
    read_file: strict.Reader | None = None
    shape: FlagShape = FlagShape.TEXT
    metavar: str = ""
    choices: tuple[str, ...] = ()
    reads_default: bool = False
    empty_counts: bool = False
    idle: str = ""
    usual: tuple[Any, ...] = ()
    instead: str = ""
    restart: Restart = Restart.PROCESS

    @property
    def flags(self) -> tuple[str, ...]:
        """The flag and its other names."""
        return (self.flag, *self.aliases)

    @property
    def flag_names(self) -> str:
        """The flag with its other long names, as nobody says which was typed: ``--driver-root (or --root)``."""
        others = [name for name in self.aliases if name.startswith("--")]
        return f"{self.flag} (or {', '.join(others)})" if self.flag and others else self.flag

    @property
    def name(self) -> str:
        """What it is called where nobody has given it: its flag, else a variable, else the file's key."""
        return next(iter(self.places), self.attr)

    @property
    def places(self) -> tuple[str, ...]:
        """Everywhere it may be given."""
        return tuple(filter(None, (self.flag, *self.envs, self.key)))


@dataclass(frozen=True, slots=True)
class GivenValue:
    """One value as it was given: raw, and where."""

    value: Any
    where: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """``values`` by attribute, of every row; ``given`` has those that somebody gave, and how."""

    values: Mapping[str, Any]
    given: Mapping[str, GivenValue]


def find(
    row: Setting, *, flags: Mapping[str, Any], env: Mapping[str, str], file: Mapping[str, Any] = NOTHING
) -> GivenValue | None:
    """Where a setting is given, None where nowhere. ``flags`` are by attribute; None and () are not given."""
    value = flags.get(row.attr)
    if value is not None and value != ():
        return GivenValue(value, row.flag_names)
    for name in row.envs:
        if name in env and (row.empty_counts or env[name].strip()):
            return GivenValue(env[name], name)
    if row.key and row.key in file:
        return GivenValue(file[row.key], row.key)
    return None


def resolve(
    rows: Iterable[Setting],
    *,
    flags: Mapping[str, Any] = NOTHING,
    env: Mapping[str, str] = NOTHING,
    file: Mapping[str, Any] = NOTHING,
) -> Resolved:
    """What is in force. Raises ConfigError that names the flag, the variable or the file's key."""
    values: dict[str, Any] = {}
    given_values: dict[str, GivenValue] = {}
    for row in rows:
        given_value = find(row, flags=flags, env=env, file=file)
        if given_value is not None:
            given_values[row.attr] = given_value
            values[row.attr] = row.read(given_value.value, given_value.where)
        else:
            values[row.attr] = row.read(row.default, row.name) if row.reads_default else row.default
    return Resolved(values, given_values)


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set what is at a row's ``key`` in a config file's tree; sections that are not there yet are made."""
    *sections, name = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[name] = value


def refuse(rows: Iterable[Setting], *, flags: Mapping[str, Any], env: Mapping[str, str], among: str) -> None:
    """Raises ConfigError for the first that is given of the rows that are refused. ``among`` is what else there is."""
    for row in rows:
        given_value = find(row, flags=flags, env=env) if row.instead else None
        if given_value is not None:
            raise ConfigError(
                f"{given_value.where} is refused: {row.idle}", f"{among} without {given_value.where}", row.instead
            )


def without_effect(rows: Iterable[Setting], resolved: Resolved) -> Iterator[Advice]:
    """A warning for each setting that was given and has no effect."""
    for row in rows:
        value, given_value = resolved.values[row.attr], resolved.given.get(row.attr)
        if row.idle and value not in (row.default, *row.usual):
            name = given_value.where if given_value is not None else row.name
            yield Advice(
                subject=name,
                what=f"{name} has no effect",
                why=row.idle,
                evidence=(f"{name}: {value!r:.200}",),
                severity=Severity.WARNING,
                remedy=f"take {' or '.join(row.places)} out",
                reason=WITHOUT_EFFECT,
            )


def switch(attr: str, flag: str, text: str, *, default: bool | str = False, **more: Any) -> Setting:
    """A row for true or false, in Go's spellings."""
    return Setting(attr=attr, flag=flag, help=text, read=read_bool, default=default, shape=FlagShape.SWITCH, **more)


def choice(choices: Iterable[str], known: str) -> Reader:
    """A reader for one of a few words; ``known`` is the text that users know before a wrong one."""
    words = tuple(choices)

    def read(value: Any, where: str) -> str:
        text = str(value).strip()
        if text not in words:
            raise _wrong(where, f"{known}{text}", words, text)
        return text

    return read


def read_words(value: Any, where: str) -> tuple[str, ...]:
    """Comma lists, joined; a word that stands twice stays so."""
    del where
    texts = [value] if isinstance(value, str) else list(value)
    words = (word.strip() for text in texts for word in str(text).split(","))
    return tuple(word for word in words if word)


def read_list(value: Any, where: str) -> tuple[str, ...]:
    """Comma lists, joined, each word once."""
    return tuple(dict.fromkeys(read_words(value, where)))


def some_of(choices: Iterable[str], known: str, *, needed: bool = False) -> Reader:
    """A reader for a list of these words; ``needed``: an empty list is wrong."""
    words = tuple(choices)

    def read(value: Any, where: str) -> tuple[str, ...]:
        chosen = read_list(value, where)
        for word in chosen:
            if word not in words:
                raise _wrong(where, f"{known}{word}", words, word)
        if needed and not chosen:
            raise ConfigError(f"{where}: {known}", f"one of {', '.join(words)}", f"correct or unset {where}")
        return chosen

    return read


def _wrong(where: str, problem: str, words: tuple[str, ...], word: str) -> ConfigError:
    return ConfigError(
        f"{where}: {problem}", f"one of {', '.join(words)}", did_you_mean(word, words) or f"correct {where}"
    )
