"""``kgpu status``: the screen, JSON, exit codes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from click.testing import CliRunner

from kgpu.cli import status as module
from kgpu.cli.main import main
from kgpu.formats import names
from kgpu.kube.fake import FakeApi
from kgpu.operator.model import Observed
from kgpu.operator.overview import Operator, Overview, overview
from tests.operator.test_breakages import library_missing, quota, taint
from tests.operator.test_overview import cluster, written
from tests.operator.world import SETTINGS, healthy_node, node_object, world


def seen(observed: Observed) -> Overview:
    return overview(
        written(observed), SETTINGS, operator=Operator(said="operator gpu-operator/gpu-operator: 1 of 1 ready")
    )


def screen(observed: Observed, width: int = 140) -> str:
    return module.render(seen(observed), width=width, color=False)


def test_all_well_fits_on_few_lines() -> None:
    lines = screen(world(*(healthy_node(f"n{index}") for index in range(500)))).splitlines()
    assert (lines[0], len(lines) < 10) == ("ClusterPolicy cluster-policy is ready: 500 GPU nodes, all validated", True)


def test_nodes_that_are_alike_are_one_row() -> None:
    assert "n0 (+2 alike)" in screen(world(*(healthy_node(f"n{index}") for index in range(3))))


@pytest.mark.parametrize("make", [library_missing, quota, taint], ids=lambda make: make.__name__)
def test_node_cause_and_remedy_are_on_the_screen(make: Any) -> None:
    case = make()
    shown = " ".join(screen(case.observed, width=400).split())
    assert [words for words in case.words if words not in shown] == []


def test_the_worst_nodes_come_first() -> None:
    bad = healthy_node("z-bad", validated=("False", "CudaFailed", "GPU 3 is gone"))
    shown = screen(world(healthy_node("a-good"), bad))
    assert shown.index("z-bad  ") < shown.index("a-good")


def test_a_thousand_different_nodes_still_fit_on_a_screen() -> None:
    nodes = (healthy_node(f"n{index}", gpus=1 + index % 40) for index in range(1000))
    assert len(screen(world(*nodes)).splitlines()) < 40


def test_very_long_names_are_cut_and_still_told_apart() -> None:
    long = [f"{'x' * 200}-{index}" for index in range(2)]
    shown = screen(world(*(healthy_node(name, gpus=1 + index) for index, name in enumerate(long))), width=300)
    assert [("…" + "x" * 21 + name[-2:]) in shown and name not in shown for name in long] == [True, True]


def test_the_column_of_what_a_label_switches_off_stays() -> None:
    shown = screen(world(healthy_node(labels={names.LABEL_DEPLOY_PREFIX + "device-plugin": "false"})))
    assert ("plugin" in shown.splitlines()[2], "! node n1: its GPUs are not offered" in shown) == (True, True)


def test_no_colours_where_nobody_sees_them() -> None:
    assert "\x1b" not in screen(world(healthy_node()))


def run(monkeypatch: pytest.MonkeyPatch, api: FakeApi, *words: str) -> Any:
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: api)
    return CliRunner().invoke(module.status, list(words))


def test_not_ready_is_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, cluster()).exit_code == 3


def test_ready_is_exit_code_0(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ready(*_args: Any) -> Overview:
        return seen(world(healthy_node()))

    monkeypatch.setattr(module, "read", ready)
    assert run(monkeypatch, cluster()).exit_code == 0


def test_json_has_nodes_operands_and_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(run(monkeypatch, cluster(), "-o", "json").output)
    assert (found["ready"], [row["name"] for row in found["nodes"]], bool(found["problems"])) == (False, ["n1"], True)


def test_an_api_server_that_is_away_is_told_in_three_parts(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    api = cluster()
    api.set_down(True)
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: api)
    code = main(["kgpu", "status"])
    assert (code, "to do:" in capsys.readouterr().err) == (2, True)


def test_what_could_not_be_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    api = cluster()
    api.refuse[("list", "events")] = 403
    assert "not known: events in namespace" in run(monkeypatch, api).output


def test_a_node_that_is_not_ready_is_marked() -> None:
    observed = world(node_object(ready=False))
    assert "n1 (not Ready)" in screen(dataclasses.replace(observed))
