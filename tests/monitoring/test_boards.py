"""Dashboards: places, what Grafana needs to import them, and that 12239's panels ask what they ask there."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from kgpu.formats import yaml
from kgpu.monitoring.boards import BOARDS, DEVICES
from kgpu.monitoring.grafana import WIDTH, Board, config_map
from tests.monitoring import grafana_types

# Grafana's dashboard 12239: metric and unit of each panel.
OF_12239 = {
    "GPU Temperature": ("DCGM_FI_DEV_GPU_TEMP{", "celsius"),
    "GPU Avg. Temp": ("avg(DCGM_FI_DEV_GPU_TEMP{", "celsius"),
    "GPU Power Usage": ("DCGM_FI_DEV_POWER_USAGE{", "watt"),
    "GPU Power Total": ("sum(DCGM_FI_DEV_POWER_USAGE{", "watt"),
    "GPU SM Clocks": ("DCGM_FI_DEV_SM_CLOCK{", "hertz"),
    "GPU Utilization": ("DCGM_FI_DEV_GPU_UTIL{", "percent"),
    "GPU Framebuffer Mem Used": ("DCGM_FI_DEV_FB_USED{", "mbytes"),
    "Tensor Core Utilization": ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{", "percentunit"),
}
# The sketch in the documents (B50).
SKETCHED = ("GPU Util %", "Memory Used", "Temperature", "Per-GPU Utilization Timeline", "Xid Errors (last 24h)",
            "Power Draw")  # fmt: skip


def test_b50_the_panels_of_12239() -> None:
    assert {panel.title: panel.unit for panel in DEVICES.panels} == {name: unit for name, (_, unit) in OF_12239.items()}
    for panel in DEVICES.panels:
        ((expr, _),) = panel.queries
        assert expr.startswith(OF_12239[panel.title][0])
        assert 'instance=~"$instance"' in expr
        assert 'gpu=~"$gpu"' in expr


def test_b50_the_panels_of_the_sketch() -> None:
    (overview,) = (board for board in BOARDS if board.title == "GPU Cluster Overview")
    titles = [panel.title for panel in overview.panels]
    assert [title for title in titles if title in SKETCHED] == [
        *SKETCHED[:3], "Xid Errors (last 24h)", "Power Draw", "Per-GPU Utilization Timeline",
    ]  # fmt: skip


@pytest.mark.parametrize("board", BOARDS, ids=[board.file for board in BOARDS])
def test_panels_have_places_of_their_own(board: Board) -> None:
    made = board.body()["panels"]
    assert len({panel["id"] for panel in made}) == len(made)
    places = [panel["gridPos"] for panel in made]
    for place in places:
        assert place["w"] > 0
        assert 0 <= place["x"] <= WIDTH - place["w"]
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or apart


@pytest.mark.parametrize("board", BOARDS, ids=[board.file for board in BOARDS])
def test_grafana_can_import_it(board: Board) -> None:
    made = json.loads(board.text())
    assert made["uid"]
    assert made["title"] == board.title
    variables = {one["name"] for one in made["templating"]["list"]}
    assert "datasource" in variables
    for panel in made["panels"]:
        for target in panel["targets"]:
            used = {name for name in ("node", "namespace", "instance", "gpu") if f"${name}" in target["expr"]}
            assert used <= variables
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_a_config_map_for_the_sidecar() -> None:
    made = config_map(BOARDS[0], namespace="monitoring", labels={"grafana_dashboard": "1"})
    assert made["metadata"]["labels"] == {"grafana_dashboard": "1"}
    ((name, text),) = made["data"].items()
    assert name.endswith(".json")
    assert json.loads(text) == BOARDS[0].body()
    assert yaml.load(yaml.dump(made)) == made


def test_boards_are_of_the_types_that_grafana_publishes(tmp_path: Path) -> None:
    packages = grafana_types.installed()
    boards = {board.file: board.body() for board in BOARDS}
    assert grafana_types.complaints(packages, tmp_path, boards) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("panels", 0, "fieldConfig", "defaults", "thresholds", "mode"), "relative"),
        (("panels", 0, "gridPos", "w"), "wide"),
        (("panels", 0, "options", "reduceOptions", "calc"), ["last"]),
        (("templating", "list", 0, "kind"), "datasource"),
    ],
    ids=["a word that there is not", "no number", "an option that there is not", "a field that there is not"],
)
def test_what_is_not_of_these_types_is_seen(tmp_path: Path, place: tuple[str | int, ...], value: object) -> None:
    packages = grafana_types.installed()
    board = json.loads(json.dumps(BOARDS[0].body()))
    at = board
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    assert any("error TS" in line for line in grafana_types.complaints(packages, tmp_path, {"board": board}))
