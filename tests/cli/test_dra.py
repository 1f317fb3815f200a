"""``kgpu dra slices`` from the outside, over the simulated driver: every form, what is refused, and what a shell offers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from kgpu.base.boot import boot_id
from kgpu.cli.dra import dra
from kgpu.cli.main import cli, main
from kgpu.dra.gates import GATES
from kgpu.dra.xids import read_xids
from kgpu.hw.simulator import mig
from kgpu.hw.verdicts import GpuVerdict, VerdictFile, verdicts_path

MakeRoot = Callable[..., Path]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("KGPU_", "KUBE")) or name in {"NODE_NAME", "FEATURE_GATES", "ADDITIONAL_XIDS_TO_IGNORE"}:
            monkeypatch.delenv(name)


def invoke(*words: object) -> str:
    result = CliRunner().invoke(dra, ["slices", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def printed(*words: object) -> list[dict[str, Any]]:
    found: dict[str, Any] = json.loads(invoke(*words, "--node-name", "gpu-1", "-o", "json"))
    assert found["kind"] == "List"
    items: list[dict[str, Any]] = found["items"]
    return items


def device_names(items: list[dict[str, Any]]) -> list[str]:
    return [device["name"] for one in items for device in one["spec"].get("devices") or ()]


@pytest.mark.parametrize(
    ("profile", "driver", "row"),
    [
        ("mi300x", "gpu.amd.com", "gpu-0-128 AMD_Instinct_MI300X_OAM spx_nps1 196592Mi -"),
        ("gaudi3", "gaudi.intel.com", "0000-19-00-0-0x1060 Gaudi3 - - -"),
    ],
)
def test_other_vendors_nodes(sim_root: MakeRoot, profile: str, driver: str, row: str) -> None:
    root = sim_root(profile)
    lines = invoke("--root", root).splitlines()
    assert lines[0] == f"8 devices of {driver} in 1 ResourceSlice"
    assert lines[2].split() == row.split()
    words = ["slices", "--root", str(root), "--feature-gates", "DynamicMIG=true"]
    told = CliRunner().invoke(dra, words, catch_exceptions=False)
    assert f"the gate DynamicMIG changes nothing with the driver {driver}" in told.stderr


def test_a_simulated_nodes_slices(sim_root: MakeRoot) -> None:
    (one,) = printed("--root", sim_root("hgx-h100"))
    kubernetes_validate.validate(one, "1.35", strict=True)
    assert one["spec"]["nodeName"] == "gpu-1"
    assert device_names([one]) == [f"gpu-{minor}" for minor in range(8)]
    attributes = one["spec"]["devices"][0]["attributes"]
    assert {name: next(iter(value)) for name, value in attributes.items()} == {
        "type": "string", "uuid": "string", "productName": "string", "brand": "string", "architecture": "string",
        "cudaComputeCapability": "version", "driverVersion": "version", "cudaDriverVersion": "version",
        "resource.kubernetes.io/pciBusID": "string", "resource.kubernetes.io/pcieRoot": "string",
    }  # fmt: skip
    assert attributes["architecture"] == {"string": "Hopper"}
    assert attributes["resource.kubernetes.io/pcieRoot"]["string"].startswith("pci0000:")


def test_the_addressing_mode_where_the_driver_tells_it(sim_root: MakeRoot) -> None:
    (one,) = printed("--root", sim_root("hgx-h100", gpus=1, driver="580.95.05"))
    attributes = one["spec"]["devices"][0]["attributes"]
    assert attributes["addressingMode"]["string"] in {"None", "HMM", "ATS"}
    assert attributes["driverVersion"] == {"version": "580.95.5"}


def test_mig_devices_with_and_without_the_gate(sim_root: MakeRoot) -> None:
    root = sim_root("hgx-h100", gpus=2)
    mig.partition(root, 0, ["3g.40gb", "2g.20gb", "1c.2g.20gb"])
    found = device_names(printed("--root", root))
    assert found[-1] == "gpu-1"
    assert len(found) == 4
    assert {name.rsplit("-", 2)[0] for name in found[:-1]} == {
        "gpu-0-mig-3g40gb", "gpu-0-mig-2g20gb", "gpu-0-mig-1c2g20gb-ci0",
    }  # fmt: skip
    items = printed("--root", root, "--feature-gates", "DynamicMIG=true")
    assert set(found) < set(device_names(items))
    for one in items:
        kubernetes_validate.validate(one, "1.35", strict=True)


def test_what_health_says_shows(sim_root: MakeRoot) -> None:
    root = sim_root("t4", gpus=2)
    (one,) = printed("--root", root)
    uuid = one["spec"]["devices"][1]["attributes"]["uuid"]["string"]
    path = verdicts_path(root, {})
    path.parent.mkdir(parents=True)
    VerdictFile(path, boot=boot_id()).write((GpuVerdict(uuid=uuid, withdraws=True, causes=("xid:79",)),))
    (one,) = printed("--root", root)
    assert [device.get("taints") for device in one["spec"]["devices"]] == [
        None, [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}],
    ]  # fmt: skip
    assert "gpu.nvidia.com/xid=79:NoSchedule" in invoke("--root", root)
    (one,) = printed("--root", root, "--additional-xids-to-ignore", "13,79")
    assert one["spec"]["devices"][1]["taints"][0]["effect"] == "None"


def test_a_table_for_people(sim_root: MakeRoot) -> None:
    lines = invoke("--root", sim_root("rtx-pro-6000", gpus=1), "--feature-gates", "DynamicMIG=true").splitlines()
    assert lines[0] == "31 devices of gpu.nvidia.com in 2 ResourceSlices"
    assert lines[1].split() == ["DEVICE", "PRODUCT", "PROFILE", "MEMORY", "TAINTS"]
    assert len(lines) == 2 + 31
    assert "1g.24gb+me.all" in "\n".join(lines)


def test_yaml_is_what_json_is(sim_root: MakeRoot) -> None:
    root = sim_root("t4", gpus=1)
    text = invoke("--root", root, "--node-name", "gpu-1", "-o", "yaml")
    assert yaml.safe_load(text)["items"] == printed("--root", root)


def test_other_versions(sim_root: MakeRoot) -> None:
    root = sim_root("hgx-h100", gpus=2)
    words = ("--root", root, "--feature-gates", "DynamicMIG=true", "--kubernetes", "1.34")
    old = printed(*words, "--api-version", "v1beta1")
    assert [one["apiVersion"] for one in old] == ["resource.k8s.io/v1beta1"] * 2
    assert all("basic" in device for one in old for device in one["spec"]["devices"])
    assert all(one["spec"]["sharedCounters"] for one in old)


def test_a_gate_that_changes_nothing_is_told(sim_root: MakeRoot) -> None:
    words = ["slices", "--root", str(sim_root("t4", gpus=1)), "--feature-gates", "ComputeDomainCliques=true"]
    result = CliRunner().invoke(dra, words, catch_exceptions=False)
    assert "ComputeDomainCliques changes nothing here" in result.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--feature-gates", "DynamicMig=1"], 'did you mean "DynamicMIG"?'),
        (["--feature-gates", "PassthroughSupport=true"], "can't be turned on"),
        (["--kubernetes", "1.20"], '"1.20" is no version'),
        (["--additional-xids-to-ignore", "13;31"], '"13;31" is no Xid'),
        (["--api-version", "v2"], "v2"),
        (["--node-name", "Node_1"], "Node_1"),
        (["--root", "/nowhere"], "no accelerator driver was found"),
    ],
)
def test_what_is_refused(words: list[str], says: str, sim_root: MakeRoot, capsys: pytest.CaptureFixture[str]) -> None:
    root = [] if "--root" in words else ["--root", str(sim_root("t4", gpus=1))]
    assert main(["kgpu", "dra", "slices", *root, *words]) == 2
    assert says in capsys.readouterr().err


def test_xids() -> None:
    assert read_xids(" 13, 31,,") == {13, 31}


def test_help_has_examples() -> None:
    text = CliRunner().invoke(dra, ["slices", "--help"]).stdout
    assert "kgpu dra slices --feature-gates DynamicMIG=true" in text


def offered(*words: str) -> set[str]:
    *before, last = words
    found = ShellComplete(cli, {}, "kgpu", "_KGPU_COMPLETE").get_completions(list(before), last)
    return {one.value for one in found}


def test_a_shell_offers_gates_that_have_an_effect() -> None:
    assert offered("dra", "") == {"slices"}
    gates = {"DynamicMIG", "NVMLDeviceHealthCheck", "TimeSlicingSettings", "MPSSupport"}
    assert offered("dra", "slices", "--feature-gates", "") == {f"{gate}=true" for gate in gates}
    assert offered("dra", "slices", "--feature-gates", "DynamicMIG=true,N") == {
        "DynamicMIG=true,NVMLDeviceHealthCheck=true"
    }
    assert {name for gate in GATES if gate.unbuilt for name in offered("dra", "slices", "--feature-gates", gate.name)} == set()  # fmt: skip
    assert offered("dra", "slices", "--api-version", "v1b") == {"v1beta1", "v1beta2"}
