"""The configuration file of AMD's exporter, ``/etc/metrics/config.json``: read strictly, told where it has no effect.

Pure: text in, settings and what to tell out. A file that can't be followed as it is written is refused whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.base.typed import read
from kgpu.exporter.vendors.amd.labels import ALWAYS, OPTIONAL
from kgpu.exporter.vendors.amd.rows import MADE, ROWS, UNMEASURED
from kgpu.exporter.vendors.amd.settings import RocmConfig

LIMIT_BYTES: Final = 1 << 18
MOST_CUSTOM: Final = 10
MOST_POD_LABELS: Final = 20
PORT: Final = "ServerPort"
FIXED_LABELS: Final = frozenset(name for name, _ in ALWAYS)
CHOSEN_LABELS: Final = frozenset(OPTIONAL)
SERIES_LABELS: Final = frozenset(
    {name for row in ROWS for name in (row.index, *(label for label, _ in row.labels)) if name}
)
FIELDS: Final = frozenset({*(row.field for row in ROWS), *(name.upper() for name in MADE)})
_IDLE_LABELS: Final = {
    "kfd_process_id": "kgpu shows who holds a GPU by its pod",
    "card_series": "the driver's files have the model alone",
    "cluster_name": "no job says it; set it in CustomLabels",
}
_PREFIX: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,60}", re.ASCII)
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,60}", re.ASCII)
_VALUE_LIMIT: Final = 256

# A key by its path, and why it has no effect.
IDLE: Final[Mapping[str, str]] = {
    "CommonConfig.Logging": "kgpu logs to its standard error",
    "CommonConfig.ProfilerConfig": "kgpu runs no profiler",
    "GPUConfig.HealthThresholds": "the role health judges GPUs, by its own settings",
    "GPUConfig.ProfilerMetrics": "kgpu runs no profiler",
    "GPUConfig.Selector": "--devices chooses GPUs",
    "NICConfig": "kgpu measures no network cards",
    "IFOEConfig": "kgpu measures no network cards",
}


def parse(text: str, where: str) -> tuple[RocmConfig, tuple[Advice, ...]]:
    """The settings of a file, and what of it has no effect. Raises ConfigError."""
    whole = read(text, dict, most=LIMIT_BYTES)
    if whole is None:
        raise ConfigError(f"{where} is no JSON object", "the configuration of AMD's metrics exporter", "correct it")
    given = {path: value for path, value in _flat(whole, where) if value is not None}
    told = tuple(_no_effect(where, path, IDLE[path]) for path in given if path in IDLE)
    unknown = [path for path in given if path not in IDLE and path not in _READ]
    if unknown:
        hint = did_you_mean(unknown[0][:60], [*IDLE, *_READ])
        raise ConfigError(
            f"{where}: {unknown[0][:60]} is not known", "the keys of AMD's exporter", hint or "take it out"
        )
    values: dict[str, Any] = {}
    for path, (name, reads) in _READ.items():
        if path in given:
            values[name], more = reads(given[path], f"{where}: {path}")
            told += tuple(_no_effect(where, f"{path} {word}", why) for word, why in more)
    _refuse_doubles(values, where)
    return RocmConfig(**values), told


def _flat(whole: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    """Each key with its path; the two groups whose keys count are looked into."""
    for key, value in whole.items():
        if key not in _GROUPS or value is None:
            yield key, value
        elif isinstance(value, dict):
            yield from ((f"{key}.{name}", under) for name, under in value.items())
        else:
            raise ConfigError(f"{where}: {key} is no object", "an object of settings", "correct it")


_Told = list[tuple[str, str]]


def _port(value: Any, where: str) -> tuple[int, _Told]:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 65536:
        raise ConfigError(f"{where} {value!s:.40} is no port", "a number from 1 to 65535", "correct it")
    return value, []


def _prefix(value: Any, where: str) -> tuple[str, _Told]:
    if not isinstance(value, str) or (value and not _PREFIX.fullmatch(value)):
        raise ConfigError(f"{where} {value!s:.60} can't begin a metric's name", "such as amd_", "correct it")
    return value, []


def _words(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value) or len(value) > 1000:
        raise ConfigError(f"{where} is no list of names", 'such as ["GPU_CLOCK"]', "correct it")
    return [word.strip().upper()[:80] for word in value]


def _fields(value: Any, where: str) -> tuple[frozenset[str] | None, _Told]:
    words = _words(value, where)
    told = [(word, _why_not(word)) for word in words if word not in FIELDS]
    # An empty list is all of them, as with AMD's exporter; one of unknown names is none.
    return (frozenset(words) & FIELDS if words else None), told


def _why_not(word: str) -> str:
    known = next((why for start, why in UNMEASURED if word.startswith(start)), "")
    return known or did_you_mean(word, FIELDS) or "no metric of a GPU has this name"


def _labels(value: Any, where: str) -> tuple[frozenset[str], _Told]:
    words = [word.lower() for word in _words(value, where)]
    known = FIXED_LABELS | CHOSEN_LABELS
    told = [(word.upper(), _IDLE_LABELS.get(word, "it is no label of GPUs")) for word in words if word not in known]
    return frozenset(words) & CHOSEN_LABELS, told


def _pairs(most: int) -> Callable[[Any, str], tuple[tuple[tuple[str, str], ...], _Told]]:
    def reads(value: Any, where: str) -> tuple[tuple[tuple[str, str], ...], _Told]:
        if not isinstance(value, dict) or len(value) > most:
            raise ConfigError(f"{where} is no map of {most} labels at most", "names with their values", "correct it")
        for name, text in value.items():
            if not (_LABEL.fullmatch(name) and isinstance(text, str) and len(text) <= _VALUE_LIMIT):
                raise ConfigError(f"{where}: {name[:60]!r} can't be a label", "a name and a short text", "correct it")
        return tuple((name.lower(), text) for name, text in value.items()), []

    return reads


def _switch(key: str, default: bool, idle: Mapping[str, str]) -> Callable[[Any, str], tuple[bool, _Told]]:
    """Reads an object whose one key is in effect; ``idle`` are its others, and why they are not."""

    def reads(value: Any, where: str) -> tuple[bool, _Told]:
        if not isinstance(value, dict) or not isinstance(value.get(key, default), bool):
            raise ConfigError(f"{where} is no object with {key}", f'such as {{"{key}": true}}', "correct it")
        unknown = [name for name in value if name != key and name not in idle]
        if unknown:
            hint = did_you_mean(unknown[0][:60], [key, *idle])
            what = f"{where}.{unknown[0][:60]} is not known"
            raise ConfigError(what, "a key of AMD's exporter", hint or "take it out")
        return value.get(key, default), [(name, idle[name]) for name in value if name != key]

    return reads


def _refuse_doubles(values: Mapping[str, Any], where: str) -> None:
    names = [name for key in ("custom", "pod_labels") for name, _ in values.get(key, ())]
    taken = FIXED_LABELS | CHOSEN_LABELS | SERIES_LABELS
    for number, name in enumerate(names):
        if name in taken or name in names[:number] or name.startswith("__"):
            raise ConfigError(f"{where}: the label {name} is there already", "a name of its own", "take another name")


def _no_effect(where: str, path: str, why: str) -> Advice:
    return Advice(
        subject=where, what=f"{path} has no effect", why=why, severity=Severity.INFO,
        remedy="take it out, or leave it: it does no harm", reason="RocmConfigIdle",
    )  # fmt: skip


_GROUPS: Final = ("CommonConfig", "GPUConfig")
_READ: Final[Mapping[str, tuple[str, Callable[[Any, str], tuple[Any, _Told]]]]] = {
    PORT: ("port", _port),
    "CommonConfig.MetricsFieldPrefix": ("prefix", _prefix),
    "CommonConfig.HealthService": (
        "health_service",
        _switch("Enable", True, {"PollingRate": "GPUs are looked at every second"}),
    ),
    "CommonConfig.Debug": ("debug_api", _switch("EnableAPI", False, {})),
    "GPUConfig.Fields": ("fields", _fields),
    "GPUConfig.Labels": ("labels", _labels),
    "GPUConfig.CustomLabels": ("custom", _pairs(MOST_CUSTOM)),
    "GPUConfig.ExtraPodLabels": ("pod_labels", _pairs(MOST_POD_LABELS)),
}
