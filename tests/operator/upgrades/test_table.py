"""The replaced operator's state table, replayed row by row through kgpu's operator and engine, or why kgpu differs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from kgpu.operator.upgrades import UpgradeState
from tests.operations.test_sources import lacks
from tests.operator.upgrades.live_fleet import NEW, OLD
from tests.operator.upgrades.traces import Moment, Trace, trace

TABLE: Final[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "table.yaml").read_text())
STORIES: Final[dict[str, dict[str, Any]]] = TABLE["stories"]
ROWS: Final[list[dict[str, Any]]] = TABLE["rows"]
KEYS: Final = {"from", "when", "to", "writes", "story", "shows", "here", "tests", "otherwise"}
SHOWN: Final[dict[str, Callable[[Moment, Moment], bool]]] = {
    "cordoned": lambda _first, now: now.cordoned,
    "not cordoned": lambda _first, now: not now.cordoned,
    "the former driver": lambda _first, now: now.loaded == OLD,
    "the wanted driver": lambda _first, now: now.loaded == NEW,
    "nothing evicted": lambda _first, now: not now.asked,
    "another driver pod": lambda first, now: now.driver_pod not in ("", first.driver_pod),
}
"""What a node is like at the end of a row, by its words; after "evicted" and "asked" come the names of pods."""


@functools.cache
def told(story: str) -> Trace:
    return asyncio.run(trace(STORIES[story]))


def shows(words: str, first: Moment, now: Moment) -> bool:
    word, *pods = words.split()
    if word in ("evicted", "asked"):
        return now.asked == tuple(f"default/{name}" for name in sorted(pods))
    return SHOWN[words](first, now)


def states_of(row: dict[str, Any]) -> list[str]:
    """The states in which a row's story shows it."""
    return list(row.get("here") or dict.fromkeys((row["from"], row["to"])))


@pytest.mark.parametrize("story", STORIES)
def test_a_story_goes_as_it_is_told(story: str) -> None:
    found = told(story)
    assert [one.state for one in found.moments] == STORIES[story]["trace"]
    # The label shows each state that lasts, in the same order; one of a moment it may leave out.
    rest = iter(STORIES[story]["trace"])
    assert all(label in rest for label in found.labels)
    assert found.labels[-1] == STORIES[story]["trace"][-1]
    brief = {UpgradeState.CORDON, UpgradeState.UNCORDON, UpgradeState.POD_DELETION, UpgradeState.DRAIN}
    assert set(STORIES[story]["trace"]) - set(found.labels) <= brief


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "story" in row], ids=lambda row: f"{row['from']}: {row['when']}"
)
def test_a_row_is_replayed(row: dict[str, Any]) -> None:
    moments, wanted = told(row["story"]).moments, states_of(row)
    states = [one.state for one in moments]
    ends = [at + len(wanted) - 1 for at in range(len(states)) if states[at : at + len(wanted)] == wanted]
    assert ends, f"{wanted} is not in {states}"
    now = moments[ends[0]]
    assert [words for words in row["shows"] if not shows(words, moments[0], now)] == [], now


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['from']}: {row['when']}")
def test_a_row_is_shown_or_says_why_not(row: dict[str, Any]) -> None:
    assert row.keys() <= KEYS
    assert all(row[key] for key in ("from", "when", "to", "writes"))
    assert bool(row.get("story")) is bool(row.get("shows"))
    proof = row.get("tests") or (["operator/upgrades/test_table.py::test_a_row_is_replayed"] if "story" in row else [])
    assert proof or "otherwise" in row
    if proof:
        assert lacks({"of": row["from"], "says": row["when"], "tests": proof}) == []
    if "otherwise" in row:
        assert lacks({"of": row["from"], "says": row["when"], "why_not": row["otherwise"]}) == []
    if "here" in row:
        assert "otherwise" in row, "other states than the table's need a sentence"


def test_every_state_of_the_table_has_rows() -> None:
    known = {*map(str, UpgradeState), "(unknown)", "node-maintenance-required", "post-maintenance-required"}
    assert {row["from"] for row in ROWS} - {"any", "slots"} == known


def test_no_row_stands_twice_and_no_story_is_idle() -> None:
    facts = [(row["from"], row["when"]) for row in ROWS]
    assert len(facts) == len(set(facts))
    assert {row["story"] for row in ROWS if "story" in row} == set(STORIES)
