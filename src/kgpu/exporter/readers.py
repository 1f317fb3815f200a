"""Parsers for the values of the exporter's options; every one raises ConfigError.

A parser gets the raw value and the name of the flag or variable that it came from, for its message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.exporter.devices import DeviceSelector, parse_selector
from kgpu.exporter.labels import PodLabels, read_allowed
from kgpu.exporter.model import Generation
from kgpu.exporter.settings import Pods, Virtual
from kgpu.formats.duration import INFINITE, parse_duration
from kgpu.formats.go_flags import read_bool
from kgpu.formats.settings import Reader, read_list, read_words

NO_CONFIG_MAP: Final = "none"
_MILLISECONDS: Final = 10_000_000
_CONFIG_MAP: Final = re.compile(r"([a-z0-9][a-z0-9.-]{0,252}):([a-z0-9][a-z0-9.-]{0,252})", re.ASCII)
_ADDRESS: Final = re.compile(r"(?:\[([0-9a-fA-F:.%]{2,64})\]|([^:\[\]\s]{0,253})):([0-9]{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Where to listen; ``host`` "" is every address."""

    host: str = ""
    port: int = 9400


def read_names(value: Any, where: str) -> frozenset[str]:
    """A set of resource names."""
    return frozenset(read_list(value, where))


def read_milliseconds(value: Any, where: str) -> float:
    """Seconds from whole milliseconds, one or more."""
    text = str(value).strip()
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:12]) <= _MILLISECONDS and len(text) <= 12):
        raise ConfigError(f"{where}: {text[:40]!r} is no time", f"milliseconds, 1 to {_MILLISECONDS}", "correct it")
    return int(text) / 1000


def read_duration(value: Any, where: str) -> float:
    """Seconds from a Go duration."""
    try:
        nanoseconds = parse_duration(str(value).strip())
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.what}", error.expected, f"correct {where}") from error
    if not 0 < nanoseconds < INFINITE:
        raise ConfigError(f"{where}: {value!s:.40} is not possible", "more than zero", f"correct {where}")
    return nanoseconds / 1e9


def read_address(value: Any, where: str) -> ListenAddress:
    """``:9400``, ``host:port`` or ``[ip6]:port``."""
    match = _ADDRESS.fullmatch(str(value).strip())
    if match is None or int(match[3]) > 0xFFFF:
        raise ConfigError(f"{where}: {value!s:.80} is no address", ":9400, 127.0.0.1:9400 or [::1]:9400", "correct it")
    return ListenAddress(host=match[1] or match[2] or "", port=int(match[3]))


def read_config_map(value: Any, where: str) -> tuple[str, str] | None:
    """``namespace:name``, or ``none``."""
    text = str(value).strip()
    if text in {"", NO_CONFIG_MAP}:
        return None
    match = _CONFIG_MAP.fullmatch(text)
    if match is None:
        raise ConfigError(f"{where}: {text[:80]!r} names no ConfigMap", "namespace:name, or none", f"correct {where}")
    return match[1], match[2]


def read_generations(value: Any, where: str) -> tuple[Generation, ...]:
    """One generation, or two with a comma between, each once."""
    generations = [_generation(word.lower(), where) for word in read_words(value, where)]
    if not generations or len(set(generations)) != len(generations):
        raise ConfigError(f"{where}: {value!s:.40} names none, or one twice", "b, or b,c", f"correct {where}")
    return tuple(generations)


def read_limit(value: Any, where: str) -> int:
    """A number of series."""
    text = str(value).strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) > 0):
        raise ConfigError(f"{where}: {text[:40]!r} is no limit", "a whole number above 0", f"correct {where}")
    return int(text)


def one_of(*words: str) -> Reader:
    """A reader for one of a few words, capitals ignored."""

    def read(value: Any, where: str) -> str:
        text = str(value).strip().lower()
        if text not in words:
            hint = did_you_mean(text[:40], words)
            raise ConfigError(
                f"{where}: {text[:40]!r} is not known", f"one of {', '.join(words)}", hint or "correct it"
            )
        return text

    return read


_how = one_of(*Pods)
_which = one_of(*Generation)


def _generation(word: str, where: str) -> Generation:
    return Generation(_which(word, where))


def read_virtual(value: Any, where: str) -> Virtual:
    """A boolean in Go's spelling, or ``auto``."""
    if str(value).strip().lower() == Virtual.AUTO:
        return Virtual.AUTO
    try:
        return Virtual.ALWAYS if read_bool(value, where) else Virtual.NEVER
    except ConfigError as error:
        raise ConfigError(error.what, "true, false or auto", error.remedy) from error


def read_pods(value: Any, where: str) -> Pods:
    """``each`` or ``join``."""
    return Pods(_how(value, where))


def read_allowed_labels(value: Any, where: str) -> PodLabels:
    """Regular expressions; a bad one is an error, not "every label"."""
    return read_allowed([value] if isinstance(value, str) else list(value), where)


def read_selector(value: Any, where: str) -> DeviceSelector:
    """A device selector."""
    return parse_selector(str(value), where)
