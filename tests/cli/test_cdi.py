"""``kgpu cdi`` from the outside, over the simulated driver."""

from __future__ import annotations

import json
import os
import stat

import pytest
from click.testing import CliRunner

from kgpu.base.errors import ConfigError, HostError
from kgpu.cli.cdi import cdi
from kgpu.cli.main import main
from kgpu.formats.cdi import parse_spec
from kgpu.hw.simulator import mig


def run(*arguments: object):
    return CliRunner().invoke(cdi, [str(argument) for argument in arguments], catch_exceptions=False)


def test_spec_of_a_simulated_node(sim_root) -> None:
    root = sim_root("hgx-h100")
    result = run("generate", "--driver-root", root)
    assert result.exit_code == 0
    spec = parse_spec(result.stdout)
    assert spec.kind == "nvidia.com/gpu"
    by_name = {device.name: device for device in spec.devices}
    assert {str(index) for index in range(8)} | {"all"} <= set(by_name)
    assert sum(name.startswith("GPU-") for name in by_name) == 8
    (node,) = by_name["3"].container_edits.device_nodes
    assert node.host_path == f"{root}{node.path}"
    targets = {mount.container_path: mount.host_path for mount in spec.container_edits.mounts}
    assert targets["/usr/bin/nvidia-smi"] == f"{root}/usr/bin/nvidia-smi"
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" in targets
    assert targets["/run/kgpu/hw/state"] == f"{root}/state"
    assert {node.path for node in spec.container_edits.device_nodes} >= {"/dev/nvidiactl", "/dev/nvidia-uvm"}
    for mount in spec.container_edits.mounts:
        assert os.path.exists(mount.host_path)


def test_slices_by_index_and_uuid(sim_root) -> None:
    root = sim_root("hgx-h100", gpus=2)
    mig.partition(root, 1, ["1g.10gb"] * 2)
    spec = parse_spec(run("generate", "--driver-root", root).stdout)
    by_name = {device.name: device.container_edits for device in spec.devices}
    assert {"0", "1:0", "1:1", "all"} <= set(by_name)
    assert "1" not in by_name
    assert sum(name.startswith("MIG-") for name in by_name) == 2
    assert len(by_name["1:1"].device_nodes) == 3
    assert len(by_name["all"].device_nodes) == 1 + 1 + 4


def test_file_is_written_whole_and_readable(sim_root, tmp_path) -> None:
    root = sim_root("t4", gpus=1)
    target = tmp_path / "cdi/nvidia.json"
    result = run("generate", "--root", root, "--output", target, "--device-name-strategy", "type-index")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert [device["name"] for device in json.loads(target.read_text())["devices"]] == ["all", "gpu0"]
    listed = run("list", "--spec-dir", target.parent)
    assert listed.stdout.splitlines() == ["nvidia.com/gpu=all", "nvidia.com/gpu=gpu0"]


def test_generating_twice_gives_the_same_bytes(sim_root) -> None:
    root = sim_root("hgx-h100", gpus=3)
    assert run("generate", "--driver-root", root).stdout == run("generate", "--driver-root", root).stdout


def test_broken_spec_is_a_warning_of_list(tmp_path) -> None:
    (tmp_path / "bad.yaml").write_text("cdiVersion: [")
    (tmp_path / "note.txt").write_text("not a spec")
    result = run("list", "--spec-dir", tmp_path, "--spec-dir", tmp_path / "none")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "bad.yaml" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--device-name-strategy", "uid"], ["--class", "g pu"], ["--format", "xml"], ["--output", "/proc/x.yaml"]],
)
def test_bad_input_is_explained(sim_root, arguments: list[str]) -> None:
    with pytest.raises((ConfigError, HostError)) as caught:
        run("generate", "--driver-root", sim_root("t4", gpus=1), *arguments)
    assert caught.value.remedy


def test_no_driver_exits_with_two(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("kgpu.hw.nvidia.vendor.LOADER_CACHE", str(tmp_path / "none"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert main(["kgpu", "cdi", "generate", "--driver-root", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "no accelerator driver was found" in error
    assert "to do:" in error
