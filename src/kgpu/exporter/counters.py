"""Which metrics are exported: counters files as the replaced exporter reads them, and the usual set.

A line is ``FIELD, type, help``; ``#`` begins a comment. One bad line never takes the others along: it becomes a problem
with its line number and what was probably meant, and the rest is exported (the replaced exporter does not start, also
after an upgrade that retires a field). Files are bounded; only a file without a single good line is refused whole.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.exporter.field_table import all_fields, find, known_names
from kgpu.exporter.fields import Spelled, spell
from kgpu.exporter.model import Generation, MetricKind

LIMIT_BYTES: Final = 1 << 20
LIMIT_LINES: Final = 10_000
LIMIT_PROBLEMS: Final = 50
_LIMIT_LINE: Final = 8 << 10
_COLUMNS: Final = 3
_SHOWN: Final = 80

CONFIG_MAP_KEYS: Final = ("metrics", "dcgm-metrics.csv", "default-counters.csv")
"""The keys that the exporter, the operator and the documentation use; the first that exists is read."""


@dataclass(frozen=True, slots=True)
class CountedMetric:
    """One exported metric, with the type and help that the file gives it."""

    spelled: Spelled
    kind: MetricKind
    help: str

    @property
    def name(self) -> str:
        return self.spelled.name


@dataclass(frozen=True, slots=True)
class Counters:
    """A parsed file: the metrics in its order, and what is wrong with other lines."""

    rows: tuple[CountedMetric, ...]
    problems: tuple[ConfigError, ...] = ()


def default_counters(
    generations: Sequence[Generation] = (Generation.B,), *, extra: bool = True
) -> tuple[CountedMetric, ...]:
    """The default set under the names of each generation; ``extra``: with kgpu's additions."""
    rows: dict[str, CountedMetric] = {}
    for generation in generations:
        for field in all_fields():
            if field.default or (field.extra and extra) or (field.default_in_c and generation is Generation.C):
                spelled = spell(field, generation)
                rows.setdefault(spelled.name, CountedMetric(spelled, spelled.kind(generation), field.help))
    return tuple(rows.values())


def parse_counters(text: str, source: str = "the counters file") -> Counters:
    """Parse a counters file. Raises ConfigError when it has no valid line, or is no counters file at all."""
    if len(text) > LIMIT_BYTES:
        raise _refused(source, f"has more than {LIMIT_BYTES} characters")
    lines = text.removeprefix("\ufeff").split("\n")
    if len(lines) > LIMIT_LINES:
        raise _refused(source, f"has more than {LIMIT_LINES} lines")
    rows: dict[str, tuple[int, CountedMetric]] = {}
    problems: list[ConfigError] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            counter, note = _line(line, hints=len(problems) < LIMIT_PROBLEMS)
            if counter.name in rows:
                first = rows[counter.name][0]
                raise ConfigError(f"{counter.name} is there twice", "every field once", f"it is as on line {first}")
            rows[counter.name] = (number, counter)
        except ConfigError as error:
            note = error
        if note is not None and len(problems) < LIMIT_PROBLEMS:
            problems.append(ConfigError(f"{source}, line {number}: {note.what}", note.expected, note.remedy))
    if not rows:
        raise problems[0] if problems else _refused(source, "names no field")
    return Counters(tuple(counter for _, counter in rows.values()), tuple(problems))


def from_config_map(data: Mapping[str, str], source: str) -> tuple[str, str]:
    """Return the key of a ConfigMap with the counters, and its text. Raises ConfigError when no known key exists."""
    for key in CONFIG_MAP_KEYS:
        if key in data:
            return key, data[key]
    # A ConfigMap that is made from a file has the file's name as its only key.
    if len(data) == 1 and (only := next(iter(data))).endswith(".csv"):
        return only, data[only]
    hints = (did_you_mean(key, CONFIG_MAP_KEYS) for key in sorted(data))
    raise ConfigError(
        f"{source} has no counters" + (f", only {', '.join(sorted(data))[:_SHOWN]}" if data else ""),
        f"one of the keys {', '.join(CONFIG_MAP_KEYS)}",
        next(filter(None, hints), "put the counters under one of these keys"),
    )


def _line(line: str, *, hints: bool) -> tuple[CountedMetric, ConfigError | None]:
    """The metric of one line, and a warning about it or None. ``hints``: look for similar names, which takes time."""
    if len(line) > _LIMIT_LINE:
        raise ConfigError(f"it has more than {_LIMIT_LINE} characters", "FIELD, type, help", "shorten it")
    try:
        cells = [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True, strict=True))]
    except (csv.Error, StopIteration) as error:
        raise ConfigError(f"{line[:_SHOWN]!r} can't be split", "FIELD, type, help", "close the quotes") from error
    while len(cells) > _COLUMNS and not cells[-1]:
        cells.pop()
    if len(cells) < _COLUMNS:
        raise ConfigError(
            f"{line.strip()[:_SHOWN]!r} has {len(cells)} of 3 columns", "FIELD, type, help", "add what is missing"
        )
    spelled = find(cells[0])
    if spelled is None:
        raise ConfigError(
            f'there is no field "{cells[0][:_SHOWN]}"',
            "a field of the documented table",
            (hints and did_you_mean(cells[0][:_SHOWN], known_names())) or "remove the line, or correct the name",
        )
    kind = _kind(cells[1])
    note = None
    if len(cells) > _COLUMNS:
        note = ConfigError(
            f"the help of {spelled.name} has a comma", "3 columns", "put the help in double quotes; it is used as it is"
        )
    elif kind in {MetricKind.HISTOGRAM, MetricKind.SUMMARY}:
        note = ConfigError(
            f"{spelled.name} is one number, no {kind}", "gauge, counter or label", "it is exported without a type"
        )
    return CountedMetric(spelled, kind, _plain(", ".join(cells[2:]))), note


def _kind(word: str) -> MetricKind:
    try:
        return MetricKind(word)
    except ValueError:
        words = [str(kind) for kind in MetricKind]
        raise ConfigError(
            f'there is no type "{word[:_SHOWN]}"',
            f"one of {', '.join(words)}",
            did_you_mean(word[:_SHOWN], words) or "correct it",
        ) from None


def _plain(text: str) -> str:
    """Replace control characters: they would end the HELP line or garble a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def _refused(source: str, why: str) -> ConfigError:
    return ConfigError(f"{source} {why}", "lines of FIELD, type, help", "correct it, or leave it out for the usual set")
