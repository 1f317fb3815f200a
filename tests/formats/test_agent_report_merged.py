"""What several processes of a node say is one report: who lives counts, and a role's own process before the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.agent_report import AgentReport, RoleReport, ended, has_ended, merged, role

RUNS = role("running")
FACTS = {"driver": "580.1", "driver_source": "host", "cuda": "13.0", "gpus": 8}


def report(generation: int = 1, facts: dict[str, object] | None = None, **roles: RoleReport) -> AgentReport:
    return AgentReport(version="1", generation=generation, roles=roles, **(facts or {}))  # type: ignore[arg-type]


def test_nobody_and_one() -> None:
    only = report(toolkit=RUNS)
    assert merged(None, {}) is None
    assert merged(only, {}) is only
    assert merged(None, {"toolkit": only}) is only


def test_every_role_is_in_it_and_the_facts_of_who_opens_the_driver() -> None:
    parts = {"features": report(features=RUNS), "toolkit": report(3, FACTS, toolkit=RUNS)}
    found = merged(None, parts)
    assert found is not None
    assert found.roles == {"features": RUNS, "toolkit": RUNS}
    assert (found.driver, found.driver_source, found.cuda, found.gpus) == ("580.1", "host", "13.0", 8)


def test_a_role_s_own_process_counts_before_the_whole_agent() -> None:
    whole = report(toolkit=RUNS, labels=RUNS)
    waits = role("waiting", "for a driver", "Waiting")
    found = merged(whole, {"toolkit": report(toolkit=waits)})
    assert found is not None
    assert found.roles == {"toolkit": waits, "labels": RUNS}


@pytest.mark.parametrize("gone", ["whole", "part"])
def test_who_has_ended_counts_for_nothing_beside_who_lives(gone: str) -> None:
    old, new = report(1, {**FACTS, "driver": "570.1"}, toolkit=RUNS), report(2, FACTS, toolkit=RUNS)
    found = merged(ended(old), {"toolkit": new}) if gone == "whole" else merged(new, {"toolkit": ended(old)})
    assert found is not None
    assert (found.roles["toolkit"], found.driver, found.generation) == (RUNS, "580.1", 2)


def test_facts_stay_while_every_process_that_knows_them_is_exchanged() -> None:
    parts = {"features": report(features=RUNS), "toolkit": ended(report(1, FACTS, toolkit=RUNS))}
    found = merged(None, parts)
    assert found is not None
    assert (found.driver, found.gpus) == ("580.1", 8)


def test_a_driver_that_has_gone_is_not_kept_alive_by_who_has_ended() -> None:
    lives = report(toolkit=role("waiting", "no driver"))
    found = merged(None, {"labels": ended(report(1, FACTS, labels=RUNS)), "toolkit": lives})
    assert found is not None
    assert (found.driver, found.gpus) == ("", 0)


def test_what_has_left_stays_left_when_the_process_ends() -> None:
    left = report(toolkit=role("left"), labels=role("stopped", "off", "Disabled"))
    assert ended(left) == left
    assert has_ended(ended(report(toolkit=RUNS)))
    assert not has_ended(report())


words = st.text(max_size=4)
reports = st.builds(
    AgentReport,
    generation=st.integers(),
    roles=st.dictionaries(words, st.builds(RoleReport, state=words, why=st.sampled_from(["", "Ended"])), max_size=3),
    driver=words,
    gpus=st.integers(),
)


@given(st.none() | reports, st.dictionaries(words, reports, max_size=4))
def test_every_role_that_is_named_is_kept_and_nothing_is_made_up(
    whole: AgentReport | None, parts: dict[str, AgentReport]
) -> None:
    every = [*parts.values(), *([whole] if whole else [])]
    found = merged(whole, parts)
    if found is None:
        assert not every
        return
    assert found.roles.keys() == {name for one in every for name in one.roles}
    assert all(any(one.roles.get(name) == said for one in every) for name, said in found.roles.items())
    assert found.driver in {one.driver for one in every}
