"""``kgpu lab run``, ``conform`` and ``reset``, and the scenario of the page about them, on labs that a test makes up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kgpu.base.errors import LabError
from kgpu.cli import lab, lab_run
from kgpu.cli.main import main
from kgpu.formats import gpu_report
from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL, REMEDIATION_REQUESTER
from kgpu.hw.simulator import operate
from kgpu.hw.simulator.create import create_root
from kgpu.lab import reset as lab_reset
from kgpu.lab.nodes import agents
from kgpu.lab.nodes.spec import NodeSpec
from kgpu.lab.port import EMBEDDED, REAL, NodeHardware
from kgpu.lab.scenarios.model import bundled, parse
from kgpu.lab.scenarios.run import CommandOutput
from tests.lab.fake_lab import FakeLab, ground_config

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGE = (HOW_TO / "write-a-scenario.md").read_text()
STORY = """
name: {name}
title: A tiny story
steps:
  - {{title: look, run: kubectl get nodes, expect: {{contains: [Ready]}}}}
"""
READY = {"kubectl get nodes": [CommandOutput(0, "n1 Ready")]}
AWAY = {"kubectl get nodes": [CommandOutput(0, "n1 NotR")], "kubectl get events": [CommandOutput(0, "what happened")]}


@pytest.fixture
def labs(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeLab]:
    """By kind; "" is the one that is asked for without a kind."""
    found: dict[str, FakeLab] = {"": FakeLab(), EMBEDDED: FakeLab(), REAL: FakeLab(REAL)}
    for module in (lab, lab_run):
        monkeypatch.setattr(module, "open_lab", lambda _name, _folder, kind="": found[kind])
    return found


@pytest.fixture
def story(tmp_path: Path) -> str:
    file = tmp_path / "tiny.yaml"
    file.write_text(STORY.format(name="tiny"))
    return str(file)


# write-a-scenario.md


def page_story() -> str:
    (found,) = re.findall(r"^```yaml\n# cordoned\.yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


def test_the_pages_scenario_is_a_complete_one() -> None:
    told = parse(page_story(), "cordoned.yaml")
    assert (told.name, len(told.steps), len(told.cleanup)) == ("cordoned", 7, 1)
    assert f"{told.name}: as expected, {len(told.steps)} steps" in PAGE


def test_a_wrong_key_is_told_as_on_the_page() -> None:
    with pytest.raises(LabError) as refused:
        parse(page_story().replace("within: 30", "withn: 30"), "typo.yaml")
    said = refused.value
    assert f"kgpu: {said.what}\n  expected: {said.expected}\n  to do: {said.remedy}\n" in PAGE


def test_a_lab_that_is_not_up_is_brought_up_before_it_is_played_on(labs: dict[str, FakeLab], story: str) -> None:
    labs[""] = away = FakeLab(up=False)
    away.playing.answers = dict(READY)
    assert main(["kgpu", "lab", "run", story]) == 0
    assert away.happened == ["up", "play"]
    assert main(["kgpu", "lab", "run", story]) == 0
    assert away.happened == ["up", "play", "play"]


def test_a_step_that_is_not_as_expected_is_code_3_and_shows_the_events(
    labs: dict[str, FakeLab], story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    labs[""].playing.answers = dict(AWAY)
    assert main(["kgpu", "lab", "run", story]) == 3
    out = capsys.readouterr().out
    assert "WRONG  look" in out
    assert "what happened" in out
    assert "tiny: NOT as expected, 1 step in" in out


@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_conform_takes_down_what_it_brought_up_and_nothing_else(
    labs: dict[str, FakeLab], story: str, up: bool, keep: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in (EMBEDDED, REAL):
        labs[kind] = FakeLab(kind, up=up)
        labs[kind].playing.answers = dict(READY)
    assert main(["kgpu", "lab", "conform", story, *(["--keep-labs"] if keep else [])]) == 0
    expected = ["play"] if up else ["up", "play"] if keep else ["up", "play", "down"]
    assert [labs[kind].happened for kind in (EMBEDDED, REAL)] == [expected] * 2
    out = capsys.readouterr().out
    assert re.search(r"^tiny: no difference in 1 step \(embedded \d+\.\d s, real \d+\.\d s\)$", out, re.MULTILINE)
    assert "1 scenario on both labs: no difference" in out


def test_conform_tells_where_two_labs_differ(
    labs: dict[str, FakeLab], story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    labs[EMBEDDED].playing.answers = dict(READY)
    labs[REAL].playing.answers = {"kubectl get nodes": [CommandOutput(0, "n2 Ready")]}
    assert main(["kgpu", "lab", "conform", story]) == 3
    out = capsys.readouterr().out
    assert "tiny: 1 step differs in 1 step (" in out
    assert "$ kubectl get nodes" in out
    assert "n2 Ready" in out


def test_conform_plays_all_of_kgpus_scenarios_where_none_is_named(
    labs: dict[str, FakeLab], monkeypatch: pytest.MonkeyPatch, story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from kgpu.lab.scenarios import model

    load = model.load
    for there in labs.values():
        there.playing.answers = dict(READY)
    monkeypatch.setattr(model, "load", lambda name: (load(name), load(story))[1])
    assert main(["kgpu", "lab", "conform"]) == 0
    assert f"{len(model.bundled())} scenarios on both labs" in capsys.readouterr().out
    assert labs[REAL].happened == ["play"] * len(model.bundled())


# nodes that a scenario is not for


def machine(name: str, profile: str, folder: Path) -> NodeHardware:
    root = folder / name
    agents.make_hardware(NodeSpec(name=name, profile=profile), root)
    return NodeHardware(node=name, root=root)


def test_a_scenario_is_refused_at_once_where_no_node_is_of_its_vendor(
    labs: dict[str, FakeLab], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labs[""] = there = FakeLab(hardware=(machine("gpu-node-1", "gaudi3", tmp_path),))
    for known in bundled():
        assert main(["kgpu", "lab", "run", known]) == 2
        said = capsys.readouterr().err
        assert f"{known} needs a node with 8 accelerators of NVIDIA: gpu-node-1 has 8 of Intel Gaudi" in said
        assert "kgpu lab node add hgx-h100 --wait" in said
    assert there.happened == []


def test_a_scenario_of_yours_may_say_whose_accelerators_it_is_about(
    labs: dict[str, FakeLab], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labs[""] = there = FakeLab(hardware=(machine("gpu-node-1", "gaudi3", tmp_path),))
    there.playing.answers = {"kubectl get nodes": [CommandOutput(0, "n1 Ready")]}
    file = tmp_path / "mine.yaml"
    for vendor, code in (("gaudi", 0), ("amd", 2), ("gaudy", 2)):
        file.write_text(f"vendor: {vendor}\n{STORY.format(name='mine')}")
        assert main(["kgpu", "lab", "run", str(file)]) == code
    assert there.happened == ["play"]
    said = capsys.readouterr().err
    assert "the scenario mine needs a node with 1 accelerator of AMD: gpu-node-1 has 8 of Intel Gaudi" in said
    assert 'vendor "gaudy"; did you mean "gaudi"' in said


# run-a-lab.md: put it back


def test_reset_puts_back_the_device_plugins_configuration_and_nothing_of_yours(
    labs: dict[str, FakeLab], capsys: pytest.CaptureFixture[str]
) -> None:
    there = labs[""]
    there.config = {"default": "version: v1\nsharing: {}\n", "mine": "version: v1\n"}
    there.node_labels = {DEVICE_PLUGIN_CONFIG_LABEL: "mine", "my": "label"}
    there.namespaces += ["demo-first-gpu-pod", "demo-of-mine", "mine"]
    assert main(["kgpu", "lab", "reset"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "  was: node gpu-node-1: label nvidia.com/device-plugin.config=mine",
        "  was: ConfigMap gpu-operator/device-plugin-config: not as the lab made it",
        "  was: namespace demo-first-gpu-pod",
        "The lab is as it was made.",
    ]
    assert there.config == ground_config()
    assert there.node_labels == {"my": "label"}
    assert there.namespaces == ["default", "gpu-operator", "demo-of-mine", "mine"]
    assert main(["kgpu", "lab", "reset"]) == 0
    assert "Nothing to do" in capsys.readouterr().out


def operation(by: str, result: str = "") -> dict[str, dict[str, str]]:
    return {"spec": {"requestedBy": by, "nodeName": "gpu-node-1"}, "status": {"result": result}}


def test_reset_ends_repairs_that_faults_have_called_for_once_no_agent_calls_for_them(
    labs: dict[str, FakeLab], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = labs[""]
    there.operations = {
        "by-a-fault": operation(REMEDIATION_REQUESTER),
        "by-a-fault-and-over": operation(REMEDIATION_REQUESTER, "Succeeded"),
        "by-a-person": operation("jane"),
    }
    ill = gpu_report.report([gpu_report.ReportedGpu(uuid="GPU-1", what="it is lost")], count=8)
    there.reports = [*map(gpu_report.encode, (ill, ill)), gpu_report.encode(gpu_report.report([], count=8))]
    assert main(["kgpu", "lab", "reset"]) == 0
    assert "  was: node gpu-node-1: operation by-a-fault, which a fault called for\n" in capsys.readouterr().out
    assert list(there.operations) == ["by-a-fault-and-over", "by-a-person"]
    assert len(there.reports) == 1
    there.operations["again"] = operation(REMEDIATION_REQUESTER)
    there.reports = [gpu_report.encode(ill)]
    monkeypatch.setattr(lab_reset, "WELL_S", 0.0)
    assert main(["kgpu", "lab", "reset"]) == 2
    assert "the agent of gpu-node-1 still calls for a repair" in capsys.readouterr().err
    assert "again" in there.operations


def test_reset_makes_a_configuration_that_is_gone(labs: dict[str, FakeLab]) -> None:
    labs[""].config = None
    assert main(["kgpu", "lab", "reset"]) == 0
    assert labs[""].config == ground_config()


def test_reset_ends_faults_and_says_so_as_on_the_page(
    labs: dict[str, FakeLab], sim_libs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del sim_libs
    root = create_root("hgx-h100", tmp_path / "hw")
    operate.inject(root, "xid", gpu=3, xid=79)
    labs[""] = FakeLab(hardware=(NodeHardware(node="gpu-node-1", root=root),))
    assert main(["kgpu", "lab", "reset"]) == 0
    assert f"$ kgpu lab reset\n{capsys.readouterr().out}```" in (HOW_TO / "run-a-lab.md").read_text()
    assert operate.snapshot(root)["gpus"][3]["faults"] == []
