"""What is read back from scrapes is what the agents recorded, up to the scrapes' interval; what lacks is told."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from kgpu.base.errors import ConfigError
from kgpu.usage.prometheus.answer import TooMuchAskedError
from kgpu.usage.prometheus.reading import matchers, recorded_by, step_for
from kgpu.usage.prometheus.scrapes import DEVICES, HELD, STATES, UPTIME
from kgpu.usage.recording import UsageRecording
from tests.usage.prometheus.conftest import FleetDay
from tests.usage.prometheus.fleet import SCRAPED_S, reported, seconds
from tests.usage.prometheus.scraped import Scrapes

ENDED = {"__unknown__": 4, "team/Job/sweep": 3, "__idle__": 1, "__down__": 1}
"""How often a pod's end is missed by up to a scrape; others' rows begin and end once with the window."""


def fresh(day: FleetDay) -> Scrapes:
    return Scrapes(samples=copy.deepcopy(day.scrapes.samples))


async def read(day: FleetDay, scrapes: Scrapes | None = None, **more: object) -> UsageRecording:
    return await recorded_by(scrapes or fresh(day), **{"begin": day.begin, "end": day.end, "newest": 2**40, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["namespace", "owner", "node", "pool", "product", "label:team"])
async def test_the_figures_are_those_that_agents_recorded(fleet_day: FleetDay, by: str) -> None:
    found = await read(fleet_day)
    assert not found.advice
    theirs = seconds(reported(fleet_day.own, by, fleet_day.begin, fleet_day.end))
    ours = seconds(reported(found, by, fleet_day.begin, fleet_day.end))
    unknown = {name for name in {*ours, *theirs} if "__unknown__" in name}
    assert ours.keys() - unknown == theirs.keys() - unknown
    for name in ours.keys() - unknown:
        for what, value in theirs[name].items():
            assert ours[name][what] == pytest.approx(value, abs=SCRAPED_S * (ENDED.get(name, 3) + 1)), (name, what)
    total = sum(row["gpu_us"] for row in ours.values())
    assert total == pytest.approx(sum(row["gpu_us"] for row in theirs.values()), abs=1), "none is lost or counted twice"
    more = sum(ours[name]["gpu_us"] - theirs.get(name, {}).get("gpu_us", 0) for name in unknown & ours.keys())
    assert 0 <= more <= SCRAPED_S * ENDED["__unknown__"], "pods' last seconds, and nothing else"


async def test_replicas_and_second_jobs_change_nothing(fleet_day: FleetDay) -> None:
    alone = Scrapes(samples={
        key: samples for key, samples in fresh(fleet_day).samples.items() if ("replica", "a") not in key[1]
    })  # fmt: skip
    both, one = await read(fleet_day), await read(fleet_day, alone)
    for by in ("owner", "node"):
        ours, theirs = (seconds(reported(found, by, fleet_day.begin, fleet_day.end)) for found in (both, one))
        for name, row in theirs.items():
            assert row["gpu_us"] == pytest.approx(ours[name]["gpu_us"], abs=2 * SCRAPED_S)
    assert [line.boot for line in both.devices if line.node == "n2"].count("boot-2/60") > 1


@pytest.mark.parametrize("piece", [12, 37, 2000])
async def test_in_whatever_pieces_it_is_asked_for_the_lines_are_the_same(
    fleet_day: FleetDay, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await read(fleet_day)
    for name in ("FIRST_PIECE", "MOST"):
        monkeypatch.setattr(f"kgpu.usage.prometheus.reading.{name}", piece)
    assert (await read(fleet_day)).devices == whole.devices


async def test_what_is_too_much_at_once_is_asked_for_in_smaller_pieces(fleet_day: FleetDay) -> None:
    whole = await read(fleet_day)
    scrapes = fresh(fleet_day)
    scrapes.fails = [TooMuchAskedError("too many samples", "", "")]
    assert (await read(fleet_day, scrapes)).devices == whole.devices
    (_, begin, end, step), (_, _, smaller, _) = scrapes.asked[:2]
    assert smaller - begin < (end - begin) / 2
    assert step == 60
    scrapes.fails = [TooMuchAskedError("too many samples", "", "")] * 20
    with pytest.raises(TooMuchAskedError):
        await read(fleet_day, scrapes)


async def test_hours_without_scrapes_are_bridged_by_counters_and_who_came_and_went_is_unknown(
    fleet_day: FleetDay,
) -> None:
    """The gap has all three jobs in it: nobody knows who they were, and that time is not idle."""
    scrapes = fresh(fleet_day)
    begin, end = (fleet_day.begin + 2300) * 1000, (fleet_day.begin + 4200) * 1000
    for key, samples in scrapes.samples.items():
        scrapes.samples[key] = [one for one in samples if not begin <= one[0] < end]
    found = await read(fleet_day, scrapes)
    (told,) = found.advice
    assert (told.reason, "2 of 2 nodes" in told.what, "0.5 hours" in told.what) == ("ScrapesMissing", True, True)
    theirs = seconds(reported(fleet_day.own, "owner", fleet_day.begin, fleet_day.end))
    ours = seconds(reported(found, "owner", fleet_day.begin, fleet_day.end))
    assert "team/Job/sweep" not in ours
    assert ours["__idle__"]["gpu_us"] <= theirs["__idle__"]["gpu_us"] + SCRAPED_S
    assert ours["__unknown__"]["gpu_us"] >= theirs["__unknown__"]["gpu_us"] + theirs["team/Job/sweep"]["gpu_us"] - 200
    stays = "lab/StatefulSet/notebook"
    assert ours[stays]["gpu_us"] == pytest.approx(theirs[stays]["gpu_us"], abs=SCRAPED_S)


async def test_a_window_that_was_not_scraped_whole_says_so_and_makes_no_rows_of_it(fleet_day: FleetDay) -> None:
    found = await read(fleet_day, begin=fleet_day.begin - 86_400, end=fleet_day.end + 86_400)
    early, late = found.advice
    assert {early.reason, late.reason} == {"WindowNotCovered"}
    assert "before a node's first scrape is in no row" in early.what
    rows = seconds(reported(found, "node", fleet_day.begin - 86_400, fleet_day.end + 86_400))
    assert sum(row["gpu_us"] for row in rows.values()) <= 4 * (fleet_day.end - fleet_day.begin + 1200)


async def test_a_node_that_is_scraped_no_more_is_named(fleet_day: FleetDay) -> None:
    scrapes = fresh(fleet_day)
    last = (fleet_day.end - 3000) * 1000
    for key, samples in scrapes.samples.items():
        if ("instance", "n1:9410") in key[1]:
            scrapes.samples[key] = [one for one in samples if one[0] < last]
    (told,) = (await read(fleet_day, scrapes)).advice
    assert "1 of 2 nodes (n1)" in told.what


async def test_prometheus_own_warnings_are_told(fleet_day: FleetDay) -> None:
    scrapes = replace(fresh(fleet_day), warnings=("remote store: 503\x1b[2J",))
    (told,) = (await read(fleet_day, scrapes)).advice
    assert told.what == "http://prometheus says that its answers may not be whole: remote store: 503�[2J"


async def test_where_nothing_is_there_it_says_what_is_missing(fleet_day: FleetDay) -> None:
    with pytest.raises(ConfigError, match="has nothing of kgpu's usage between"):
        await read(fleet_day, Scrapes())
    older = Scrapes(samples={key: of for key, of in fresh(fleet_day).samples.items() if key[0] in {STATES, HELD}})
    with pytest.raises(ConfigError, match="not what they are about") as refused:
        await read(fleet_day, older)
    assert "upgrade the agents" in refused.value.remedy


async def test_clocks_that_are_days_off_are_told(fleet_day: FleetDay) -> None:
    scrapes = fresh(fleet_day)
    for (name, _), samples in scrapes.samples.items():
        if name == "kgpu_usage_looked_timestamp_seconds":
            samples[:] = [(at, value - 5 * 86_400) for at, value in samples]
    with pytest.raises(ConfigError, match="none can have been then") as refused:
        await read(fleet_day, scrapes)
    assert "clocks" in refused.value.remedy


async def test_two_clusters_in_one_prometheus_are_told_apart(fleet_day: FleetDay) -> None:
    scrapes = Scrapes()
    for (name, labels), samples in fresh(fleet_day).samples.items():
        cluster = "a" if ("instance", "n1:9410") in labels else 'b"'
        scrapes.samples[name, labels | {("cluster", cluster)}] = samples
    with pytest.raises(ConfigError, match='several clusters: a, b"'):
        await read(fleet_day, scrapes)
    found = await read(fleet_day, scrapes, match=matchers(['cluster=b"']))
    assert {line.node for line in found.devices} == {"n2"}


@pytest.mark.parametrize("words", ["cluster", "=a", "a-b=c", "a=b\nc", '"}=x'])
def test_what_matches_nothing_is_refused(words: str) -> None:
    with pytest.raises(ConfigError, match="--prometheus-match"):
        matchers([words])


def test_longer_windows_are_read_in_larger_steps() -> None:
    day = 86_400
    assert [step_for(0, days * day) for days in (1, 7, 31, 365)] == [60, 300, 900, 3600]


LIES = {
    "an uptime of ninety years": (UPTIME, 2.8e9),
    "an uptime of nothing": (UPTIME, 0.0),
    "a look in the far future": ("kgpu_usage_looked_timestamp_seconds", 9e11),
    "states of ten thousand years": (STATES, 3e11),
    "held for ten thousand years": (HELD, 3e11),
    "counters of nothing": (STATES, 0.0),
}


@pytest.mark.parametrize("at", [0, 1, 40, -1])
@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_costs_its_own_sample_and_never_more_time_than_passed(
    fleet_day: FleetDay, lie: str, at: int
) -> None:
    metric, value = LIES[lie]
    scrapes = fresh(fleet_day)
    for (name, _), samples in scrapes.samples.items():
        within = [one for one in samples if fleet_day.begin * 1000 <= one[0] <= fleet_day.end * 1000]
        if name == metric and len(within) > 50:
            moment = within[at][0]
            samples[:] = [(when, value if when == moment else figure) for when, figure in samples]
    found = await read(fleet_day, scrapes)
    ours = seconds(reported(found, "node", fleet_day.begin, fleet_day.end))
    passed = fleet_day.end - fleet_day.begin
    total = sum(row["gpu_us"] for row in ours.values())
    assert total <= 4 * passed + 1
    assert total >= 4 * passed - 4 * 400, "the rest counts"
    assert all(value >= 0 for row in ours.values() for value in row.values())


async def test_every_line_could_be_written_and_read(fleet_day: FleetDay) -> None:
    from kgpu.formats.usage import decode, encode

    found = await read(fleet_day)
    assert [decode(encode(line).rstrip(), place="test") for line in found.devices] == found.devices
    assert found.labels == ("app_kubernetes_io_name", "team")
    assert DEVICES == "kgpu_usage_device_info"
