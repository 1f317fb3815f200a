"""``kgpu status``: the screen, JSON, exit codes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from kgpu.base.errors import ConfigError
from kgpu.cli import status as module
from kgpu.cli.main import main
from kgpu.formats import agent_report, gpu_report, names
from kgpu.formats.gpu_remedies import REBOOT, words
from kgpu.formats.gpu_report import ReportedGpu
from kgpu.formats.xid.action import Action
from kgpu.kube.fake import FakeApi
from kgpu.lab import operator
from kgpu.operator.model import ObservedCluster
from kgpu.operator.overview import OperatorState, Overview, overview
from kgpu.toolkit.settings import toolkit_settings
from tests.operator.test_breakages import CASES, library_missing, quota, taint
from tests.operator.test_overview import UNBUILT, cluster, written
from tests.operator.world import SETTINGS, healthy_node, node_object, policy, report, world

README = Path(__file__).parents[2] / "README.md"


def seen(observed: ObservedCluster) -> Overview:
    return overview(
        written(observed), SETTINGS, operator=OperatorState(said="operator gpu-operator/gpu-operator: 1 of 1 ready")
    )


def screen(observed: ObservedCluster, width: int = 140) -> str:
    return module.render(seen(observed), width=width, color=False)


def test_all_well_fits_on_few_lines() -> None:
    lines = screen(world(*(healthy_node(f"n{index}") for index in range(500)))).splitlines()
    assert (lines[0], len(lines) < 10) == ("ClusterPolicy cluster-policy is ready: 500 GPU nodes, all validated", True)


def test_what_there_is_not_is_told_in_two_lines() -> None:
    shown = screen(world(healthy_node("n1"))).splitlines()
    absent = next(line for line in shown if line.startswith("not provided by kgpu yet: "))
    assert absent == "not provided by kgpu yet: DCGM", "MPS and MIG have their operands"
    off = next(line for line in shown if line.startswith("switched off: "))
    assert "node status exporter" in off


def test_the_readme_names_what_there_is_not_in_the_operators_lab() -> None:
    objects = yaml.safe_load_all(operator.OBJECTS.read_text())
    spec = next(one["spec"] for one in objects if one["kind"] == "ClusterPolicy")
    shown = screen(world(healthy_node("n1"), policies=(policy(spec=spec),))).splitlines()
    told = [line for line in shown if line.startswith(("not provided by kgpu yet: ", "switched off: "))]
    assert len(told) == 1, "the chart asks for nothing that there is not"
    assert [line for line in told if line not in README.read_text().splitlines()] == []


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


LOST = ReportedGpu(
    uuid="GPU-0a", index=3, action=Action.REBOOT, reason="GPUNeedsReboot", what="handle: GPU is lost (NVML error 15)",
    remedy_key=REBOOT,
)  # fmt: skip
HOT = ReportedGpu(uuid="GPU-0b", index=4, action=Action.INSPECT, what="it is hot", works=True)


def with_gpus(*gpus: ReportedGpu, name: str = "n1") -> ObservedCluster:
    node, said = healthy_node(name), gpu_report.report(gpus, count=8)
    shown = gpu_report.rendered(said)
    row = {
        "type": names.GPUS_HEALTHY_CONDITION,
        "status": shown.status,
        "reason": shown.reason,
        "message": shown.message,
    }
    node["status"]["conditions"].append(row)
    node["metadata"].setdefault("annotations", {})[names.GPUS_ANNOTATION] = gpu_report.encode(said)
    return world(node, healthy_node("n2"))


def test_gpus_that_are_not_well_are_counted_named_and_said_what_to_do_about() -> None:
    shown = screen(with_gpus(LOST, HOT))
    first = shown.splitlines()[0]
    assert first.endswith("; 1 GPU is not well (node n1)")
    row = next(line for line in shown.splitlines() if line.startswith("n1 "))
    assert "1 ILL" in row
    assert "✘ node n1: GPU 3 (GPU-0a) is not well: handle: GPU is lost (NVML error 15)" in shown
    # Quoted: whoever has a node's token must not give orders.
    said = f'its agent says: "{words(REBOOT)}"; kgpu doctor node n1 checks it'
    assert f"    to do: {said}" in shown.splitlines()
    assert "! node n1: GPU 4 (GPU-0b) works, and should be looked at: it is hot" in shown
    assert [line for line in shown.splitlines() if line.startswith("n2 ") and "ILL" in line] == []


def test_a_gpu_that_only_wants_a_look_is_no_alarm() -> None:
    shown = screen(with_gpus(HOT))
    assert "1 look" in next(line for line in shown.splitlines() if line.startswith("n1 "))
    assert "not well" not in shown


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_screen_keeps_every_nodes_name_and_what_fails(width: int) -> None:
    shown = screen(with_gpus(LOST, name="gpu-node-1"), width=width)
    assert all(len(line) <= width for line in shown.splitlines() if "to do: " not in line)
    assert "gpu-node-1" in shown
    assert "health 1 ILL" in " ".join(shown.split())
    assert "all " in shown, "n2 is well"


def test_a_remedy_is_never_broken_and_cause_lines_hang() -> None:
    lines = screen(with_gpus(LOST), width=60).splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("✘"))
    assert lines[at + 1].startswith("  ")
    said = words(REBOOT)
    assert f'    to do: its agent says: "{said}"; kgpu doctor node n1 checks it' in lines


def test_a_pipe_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = screen(with_gpus(LOST, name="n" * 60), width=module._width())
    assert "plugin" in shown.splitlines()[2]
    assert max(map(len, shown.splitlines())) < 400


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_every_problem_has_a_remedy_of_its_own(make: Any) -> None:
    problems = seen(make().observed).problems
    assert problems
    for problem in problems:
        assert problem.remedy, problem.what
        assert "to do: " not in problem.what


def test_a_wrong_setting_of_the_toolkit_is_told_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as refused:
        toolkit_settings({"RUNTIME_RESTART_MODE": "system"})
    waits = report(toolkit=agent_report.role("waiting", refused.value.statement, "", refused.value.remedy))
    observed = world(*(healthy_node(name, report=waits) for name in ("gpu-node-1", "l4-1")))
    page = (README.parent / "docs/how-to/configure-a-container-engine.md").read_text()
    told = page.partition("$ kgpu status\n...\n")[2].partition("```")[0].splitlines()
    assert len(told) == 2
    assert [line for line in told if line not in screen(observed, width=200).splitlines()] == []

    async def read(*_: Any) -> Overview:
        return seen(observed)

    monkeypatch.setattr(module, "read", read)
    assert run(monkeypatch, cluster()).exit_code == 3


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


def test_fields_of_which_nothing_comes_yet_are_shown_and_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = policy(spec={**UNBUILT, "vgpuManager": {"enabled": True}})
    observed = dataclasses.replace(world(healthy_node()), policies=(asked,))
    shown = screen(observed)
    assert "2 fields ask for what this version can't do:" in shown
    assert "  ClusterPolicy/cluster-policy spec.vgpuManager.enabled: nothing for virtual machines is provided" in shown
    assert "can't do:" not in screen(world(healthy_node()))

    async def read(*_: Any) -> Overview:
        return seen(observed)

    monkeypatch.setattr(module, "read", read)
    told = json.loads(run(monkeypatch, cluster(), "-o", "json").output)["fields"]
    assert told[1] == {
        "object": "ClusterPolicy/cluster-policy", "field": "spec.vgpuManager.enabled",
        "instead": "nothing for virtual machines is provided; keep NVIDIA's operator where GPUs go to them",
    }  # fmt: skip


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
