"""What a Prometheus has of agents' counters in a window, as a recording: asked for in pieces, told where it lacks some.

``last_over_time`` over each step takes the last that was scraped in it, also of holders that ended within. A piece that
is too much for the server is asked for in smaller ones. Nothing is written anywhere, and nothing is decided by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import ConfigError
from kgpu.base.printable import counted, one_line
from kgpu.base.threads import beside
from kgpu.base.times import stamp_of
from kgpu.usage.prometheus.answer import RangeSeries, TooMuchAskedError
from kgpu.usage.prometheus.asking import RangeQueries
from kgpu.usage.prometheus.lines import LinesMade
from kgpu.usage.prometheus.scrapes import CLUSTER, DEVICES, METRICS, STATES, read
from kgpu.usage.recording import MAX_LINES, UsageRecording

SETTLED_S: Final = 30
"""What is younger may not be there of all series yet."""
STEPS: Final = ((86_400, 60), (14 * 86_400, 300), (92 * 86_400, 900))
"""Up to which length of a window, in seconds, it is read at which step."""
LONGEST_STEP: Final = 3600
FIRST_PIECE: Final = 60
FEWEST: Final = 12
MOST: Final = 2000
"""Steps of a piece."""
MOST_POINTS: Final = 400_000
"""Of a piece, about."""
SILENT_STEPS: Final = 3
SILENT_S: Final = 900
_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,127}", re.ASCII)


@dataclass(slots=True)
class _Told:
    """What is to be told at the end."""

    labels: set[str] = field(default_factory=set)
    clusters: set[str] = field(default_factory=set)
    warnings: dict[str, None] = field(default_factory=dict)
    refused: int = 0
    unclear: int = 0
    counted: bool = False
    """Whether anything was counted at all."""


def matchers(words: Sequence[str]) -> str:
    """``LABEL=VALUE`` as PromQL has them, for all that is asked. Raises ConfigError."""
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not _NAME.fullmatch(name) or not value.isprintable():
            raise ConfigError(
                f"--prometheus-match {one_line(word, 80)!r} matches nothing", "LABEL=VALUE, such as cluster=prod",
                "correct --prometheus-match",
            )  # fmt: skip
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        found.append(f'{name}="{quoted}"')
    return ",".join(found)


def step_for(begin: int, end: int) -> int:
    """The step at which a window is read, in seconds."""
    return next((step for length, step in STEPS if end - begin <= length), LONGEST_STEP)


async def recorded_by(
    source: RangeQueries, *, begin: int, end: int, newest: int, match: str = ""
) -> UsageRecording:  # fmt: skip
    """What was counted between two moments, in seconds since 1970; nothing after ``newest`` is asked for. ``match`` are
    further matchers of each series. What is not there is told in the recording's advice. Raises PrometheusError, and
    ConfigError where there is nothing.
    """
    step = step_for(begin, end)
    made, told = LinesMade(step), _Told()
    steps = -(-(end - begin) // step) + 1  # one more, for what was scraped first after the end
    at, piece = min(begin, newest - steps * step), FIRST_PIECE
    beyond = at + steps * step
    while at <= beyond:
        last = min(beyond, at + (piece - 1) * step)
        try:
            series = await _asked(source, match, told, (at, last, step))
        except TooMuchAskedError:
            if piece <= FEWEST:
                raise
            piece = max(FEWEST, piece // 4)
            continue
        await beside(_take, made, told, series, source.place)
        if len(made.devices) > MAX_LINES:
            raise ConfigError(
                "there is more in that time than can be read at once", f"at most {MAX_LINES} lines of devices",
                "ask for less with --since and --until",
            )  # fmt: skip
        points = sum(len(one.points) for several in series.values() for one in several)
        at, piece = last + step, min(MOST, max(FEWEST, piece * MOST_POINTS // max(1, points)))
    made.finish()
    if not made.devices:
        raise _nothing(source.place, (begin, end), match, told, made.impossible)
    advice = [*_about_prometheus(source.place, told), *_about_reach(made, begin, end, step)]
    return UsageRecording(
        labels=tuple(sorted(told.labels)), nodes=made.nodes, devices=made.devices,
        advice=[one.printable() for one in advice],
    )  # fmt: skip


async def _asked(
    source: RangeQueries, match: str, told: _Told, when: tuple[int, int, int]
) -> dict[str, list[RangeSeries]]:
    """All metrics at moments: the first, the last, and the step between two."""
    begin, end, step = when
    found = {}
    for metric in METRICS:
        answer = await source.range(f"last_over_time({metric}{{{match}}}[{step}s])", begin, end, step)
        found[metric] = answer.series
        told.refused += answer.refused
        told.warnings.update(dict.fromkeys(answer.warnings))
    return found


def _take(made: LinesMade, told: _Told, series: Mapping[str, list[RangeSeries]], place: str) -> None:
    found = read(series)
    told.labels |= found.labels
    told.clusters |= found.clusters
    told.unclear += found.unclear
    told.counted = told.counted or bool(series[STATES])
    if len(told.clusters) > 1:
        names = ", ".join(sorted(one_line(name, 40) or "(none)" for name in told.clusters)[:5])
        raise ConfigError(
            f"{place} has {DEVICES} of several clusters: {names}", "figures of one",
            f"say which by --prometheus-match {CLUSTER}=NAME",
        )  # fmt: skip
    for at in sorted(found.moments):
        made.take(at, found.moments[at])


def _nothing(place: str, window: tuple[int, int], match: str, told: _Told, impossible: int) -> ConfigError:
    when = f"between {stamp_of(window[0])} and {stamp_of(window[1])}"
    if impossible:
        return ConfigError(
            f"{place} has {counted(impossible, 'look')} at devices {when}, and none can have been then",
            "looks within a day of when they were scraped", "set the clocks of nodes and of Prometheus right",
        )  # fmt: skip
    if told.counted:
        return ConfigError(
            f"{place} has agents' counters {when}, and not what they are about", f"{DEVICES} and its like beside them",
            "upgrade the agents: those of this release tell it; and see that no relabelling drops kgpu_usage_*",
        )  # fmt: skip
    return ConfigError(
        f"{place} has nothing of kgpu's usage {when}" + (f" with {match}" if match else ""),
        "the counters kgpu_usage_* of agents with the role usage",
        "set the Helm values usage.enabled and operator.metrics.serviceMonitor.enabled, or ask for another time",
    )


def _about_prometheus(place: str, told: _Told) -> list[Advice]:
    found = []
    if told.warnings:
        found.append(_warning(
            "PrometheusWarns", f"{place} says that its answers may not be whole: {'; '.join([*told.warnings][:3])}",
        ))  # fmt: skip
    if told.refused:
        found.append(_warning(
            "FiguresRefused", f"{counted(told.refused, 'value')} can't be a counter's, and were left out",
        ))  # fmt: skip
    if told.unclear:
        found.append(_warning(
            "SeriesUnclear",
            f"{counted(told.unclear, 'series', 'series')} without the labels that kgpu gives them were left out",
        ))  # fmt: skip
    return found


def _about_reach(made: LinesMade, begin: int, end: int, step: int) -> list[Advice]:
    """What of the window nothing was scraped in."""
    found = []
    if made.impossible:
        found.append(_warning(
            "FiguresRefused", f"{counted(made.impossible, 'look')} at devices can't have been then, and were left out",
        ))  # fmt: skip
    most = max(SILENT_S, SILENT_STEPS * step)
    late = sorted(node for node, reach in made.reach.items() if reach.first / 1000 - begin > most)
    early = sorted(node for node, reach in made.reach.items() if end - reach.last / 1000 > most)
    gaps = sorted((reach.gap, node) for node, reach in made.reach.items() if reach.gap / 1000 > most)
    if late:
        first = min(made.reach[node].first for node in late) / 1000
        found.append(_warning(
            "WindowNotCovered",
            f"{_of(late, made)} nothing was scraped from {stamp_of(begin)} on, the first at {stamp_of(first)}: time "
            "before a node's first scrape is in no row",
        ))  # fmt: skip
    if early:
        found.append(_warning(
            "WindowNotCovered",
            f"{_of(early, made)} nothing was scraped at the end: time after a node's last scrape is in no row",
        ))  # fmt: skip
    if gaps:
        longest, node = gaps[-1]
        since = made.reach[node].gap_begins / 1000
        found.append(_warning(
            "ScrapesMissing",
            f"{_of([name for _, name in gaps], made)} scrapes are missing, for {longest / 3.6e6:.1f} hours at the "
            f"longest, from {stamp_of(since)} on: what agents counted on meanwhile is in the rows, and the rest is "
            "__unknown__",
        ))  # fmt: skip
    return found


def _of(nodes: Sequence[str], made: LinesMade) -> str:
    named = ", ".join(one_line(node, 60) for node in nodes[:3]) + (", …" if len(nodes) > 3 else "")
    return f"of {len(nodes)} of {counted(len(made.reach), 'node')} ({named})"


def _warning(reason: str, what: str) -> Advice:
    return Advice(what=what, severity=Severity.WARNING, reason=reason)
