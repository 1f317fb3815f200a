"""The strategy table, row by row, and what else figures say."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kgpu.advise.strategy import WorkloadCase, besides, changing, choose
from kgpu.advise.strategy_text import advise, as_data, as_text

H100 = "NVIDIA-H100-80GB-HBM3"


@dataclass(frozen=True)
class Figures:
    hours: float = 100
    watched_hours: float = 100
    recorded_hours: float = 100
    product: str = H100
    card_mib: int = 81_559
    gpus_per_pod: int = 1
    memory_mib: int | None = 6_000
    activity: float | None = 0.2
    mean_activity: float | None = 0.05
    multiprocessors: float | None = 0.1
    idle: float | None = 0.2
    profile: str = ""


@pytest.mark.parametrize(
    ("figures", "trusted", "row", "what"),
    [
        ({"gpus_per_pod": 4, "multiprocessors": 0.01}, True, 1, "4 whole GPUs"),
        ({"memory_mib": 70_000}, False, 1, "a whole GPU"),
        ({"multiprocessors": 0.6}, True, 2, "a whole GPU"),
        ({"multiprocessors": None, "activity": 0.8}, True, 2, "a whole GPU"),
        ({}, False, 3, "a MIG slice 1g.10gb"),
        ({"memory_mib": 9_000}, False, 3, "a MIG slice 1g.20gb"),
        ({"multiprocessors": 0.3}, False, 3, "a MIG slice 3g.40gb"),
        ({"multiprocessors": None, "activity": 0.2}, False, 3, "a MIG slice 2g.20gb"),
        ({"product": "NVIDIA-A30", "card_mib": 24_576, "memory_mib": 4_000}, False, 3, "a MIG slice 1g.6gb"),
        ({"multiprocessors": 0.55}, False, 4, "a whole GPU"),
        ({"product": "NVIDIA-L4", "card_mib": 23_034}, False, 4, "a whole GPU"),
        ({"mean_activity": 0.15}, True, 5, "MPS, 9 clients on a GPU"),
        ({"mean_activity": 0.15, "product": "Tesla-P100"}, True, 6, "time-slicing, 10 shares of a GPU"),
        ({"mean_activity": 0.15, "profile": "1g.10gb"}, True, 6, "time-slicing, 10 shares of a GPU"),
        ({"memory_mib": 20_000}, True, 6, "time-slicing, 3 shares of a GPU"),
        ({"memory_mib": 50_000}, True, 6, "a whole GPU"),
    ],
)
def test_the_first_row_that_holds_is_taken(figures: dict, trusted: bool, row: int, what: str) -> None:
    found = choose(WorkloadCase(use=Figures(**figures), trusted=trusted))
    assert found is not None
    assert (found.row, found.what) == (row, what)


def test_high_activity_alone_never_shares_and_unknown_figures_give_no_advice() -> None:
    assert choose(WorkloadCase(use=Figures(activity=0.95, multiprocessors=None), trusted=True)).way == "whole"
    nothing = Figures(memory_mib=None, activity=None, multiprocessors=None, mean_activity=None)
    assert choose(WorkloadCase(use=nothing, trusted=True)) is None
    assert advise("ml/x", WorkloadCase(use=nothing, trusted=True)).why_not.startswith("too little is known")


def test_what_else_is_said() -> None:
    said = " | ".join(besides(WorkloadCase(use=Figures(idle=0.9, profile="1g.10gb"))))
    assert "time-slicing on slices" in said
    assert "would fit a Tesla-T4" in said
    assert "nothing ran for 90%" in said
    assert "were not recorded" in " ".join(besides(WorkloadCase(use=Figures(multiprocessors=None))))
    assert list(besides(WorkloadCase(use=Figures(multiprocessors=0.5, idle=0.1)))) == []


def test_what_would_change_it_is_what_the_table_says_then() -> None:
    case = WorkloadCase(use=Figures())
    assert "with neighbours that are trusted (--neighbours trusted): time-slicing, 10 shares of a GPU" in list(
        changing(case, choose(case))
    )


def test_a_slice_costs_its_part() -> None:
    found = as_data(advise("ml/x", WorkloadCase(use=Figures()), per_gpu_hour=8_000_000, currency="USD"))
    assert found["advice"]["resource"] == "nvidia.com/mig-1g.10gb"
    assert found["perMonth"] == {
        "currency": "USD", "whole": 5840.0, "so": pytest.approx(834.29), "perGpuHour": 8.0, "priceSources": [],
    }  # fmt: skip


def test_by_which_lists_is_said() -> None:
    sources = tuple(f"list {number}" for number in range(5))
    text = as_text(advise("ml/x", WorkloadCase(use=Figures()), per_gpu_hour=8, currency="USD", price_sources=sources))
    assert "for an hour of a GPU where it ran: list 0; list 1; list 2; and 2 more" in text


def test_what_is_not_known_is_no_figure_and_no_reason() -> None:
    use = Figures(product="", card_mib=0, hours=78.4, recorded_hours=120)
    text = as_text(advise("ml/x", WorkloadCase(use=use)))
    assert "GPU: unknown, memory unknown" in text
    assert "hours: 78 of the 120 that are recorded; 72 are needed" in text
    for figures in ({"product": ""}, {"memory_mib": None}, {"multiprocessors": None, "activity": None}):
        found = choose(WorkloadCase(use=Figures(**figures)))
        assert (found.row, found.why) == (
            4, "its neighbours are not trusted, and whether a slice has room for it is not known",
        )  # fmt: skip
