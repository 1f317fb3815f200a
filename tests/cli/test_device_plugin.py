"""`kgpu device-plugin`: choices, config checks, and running on a simulated driver."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kgpu.cli.main import main
from kgpu.kubelet.fake import FakeKubelet

GPU = "nvidia.com/gpu"


@pytest.fixture
def folder() -> Iterator[Path]:
    # Unix socket names have at most 107 bytes, which pytest's own folders can exceed.
    with tempfile.TemporaryDirectory(prefix="kgpu") as name:
        yield Path(name)


def kgpu(*words: str) -> int:
    return main(["kgpu", "device-plugin", *words])


def test_a_good_config_is_printed_as_it_is_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 10}]}}")
    assert kgpu("check-config", str(file)) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["sharing"]["timeSlicing"]["resources"] == [{"name": GPU, "devices": "all", "replicas": 10}]
    assert kgpu("check-config", str(file), "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["valid"] is True


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "flags: {renameByDefault: true}\nversion: v2",
            ["flags.renameByDefault", "sharing.timeSlicing", "unknown version"],
        ),
        ("a: b: c", ["error parsing config file"]),
        ("sharing: {mps: {resources: [{name: gpu, replicas: 4}]}}", ["using MPS requires --mps-root"]),
        ("flags: {deviceDiscoveryStrategy: vfio}", ["invalid --device-discovery-strategy option vfio"]),
    ],
)
def test_every_problem_of_a_config_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: list[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert kgpu("check-config", str(file)) == 2
    told = capsys.readouterr()
    assert all(word in told.err for word in [*words, "expected:", "to do:"])
    assert "Traceback" not in told.err
    assert kgpu("check-config", str(file), "-o", "json") == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert all(problem["what"] and problem["expected"] and problem["todo"] for problem in problems)


def test_a_config_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for raw, code in ((b"version: v1\nflags: {migStrategy: mixed}", 0), (b"version: v3", 2), (b"\xff\xfe", 2)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
        assert kgpu("check-config", "-") == code
        out, err = capsys.readouterr()
        assert ("mixed" in out, "standard input" in err) == (code == 0, code == 2)


def test_a_manifest_is_not_taken_for_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "configmap.yaml"
    file.write_text("apiVersion: v1\nkind: ConfigMap\ndata: {default: 'version: v1'}")
    assert kgpu("check-config", str(file)) == 2
    err = capsys.readouterr().err
    assert "this is a Kubernetes manifest (kind ConfigMap)" in err
    assert "data.<key>" in err
    assert "unknown key" not in err


def test_a_missing_config_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kgpu("check-config", str(tmp_path / "none")) == 2
    assert "to do:" in capsys.readouterr().err


def test_linked_pairs_of_a_simulated_node_stay_together(
    sim_root: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(sim_root("rtx8000"))
    assert kgpu("prefer", "--root", root, "--available", "0,1,2,3", "--size", "2", "-o", "json") == 0
    pair = json.loads(capsys.readouterr().out)
    assert set(pair) == {"devices", "score", "why"}
    assert pair["score"] > 100
    first, second = pair["devices"]
    others = ",".join(str(index) for index in range(4) if index != second)
    # With its partner gone, the first one is the leftover for a request of one.
    assert kgpu("prefer", "--root", root, "--available", others, "--size", "1", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["devices"] == [first]
    assert kgpu("prefer", "--root", root, "--available", "0,1,2,3", "--must", str(second), "--size", "2") == 0
    assert f"devices: {first},{second}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--available", "0,x", "--size", "1"],
        ["--available", "0,99", "--size", "1"],
        ["--available", "0,1", "--must", "2", "--size", "1"],
        ["--available", "0,1", "--size", "one"],
        ["--available", "0,1", "--size", "3"],
        ["--available", "0,1", "--size", "0"],
        ["--available", "0,1", "--size", "-1"],
        ["--available", "0,0", "--size", "2"],
        ["--available", "0,1", "--must", "0,1", "--size", "1"],
        ["--available", "", "--size", "1"],
        ["--available", "0,1"],
    ],
)
def test_bad_requests_are_three_part_errors(
    sim_root: Callable[..., Path], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert kgpu("prefer", "--root", str(sim_root("l4", gpus=2)), *words) == 2
    told = capsys.readouterr().err
    assert "expected:" in told
    assert "to do:" in told


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--mig-strategy", "dual"], "unknown MIG strategy: dual"),
        (["run", "--device-list-strategy=foo"], "invalid --device-list-strategy option: invalid strategy: foo"),
        (["--config-file", "/does/not/exist"], "can't read the config file"),
        (["--mig-strateg", "none"], "--mig-strateg"),
    ],
)
def test_running_with_bad_flags_ends_at_once(capsys: pytest.CaptureFixture[str], words: list[str], text: str) -> None:
    assert kgpu(*words) == 2
    told = capsys.readouterr().err
    assert text in told
    assert "to do:" in told


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    from kgpu.deviceplugin.config import FLAGS

    assert kgpu("run", "--help") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for flag in FLAGS for name in (flag.flag, *flag.aliases))


async def start(folder: Path, root: Path, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kgpu", "device-plugin", "run",
        "--driver-root-ctr-path", str(root), "--driver-root", str(root), "--state-dir", str(folder / "state"),
        "--kubelet-socket", str(folder / "plugins" / "kubelet.sock"), "--cdi-dir", str(folder / "cdi"), *words,
        env={**os.environ, "KGPU_HW_STATE": str(root / "state")},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_the_plugin_alone_on_a_simulated_driver(sim_root: Callable[..., Path], folder: Path) -> None:
    root = sim_root("hgx-h100")
    config = folder / "config.yaml"
    config.write_text("flags: {plugin: {deviceListStrategy: cdi-cri, deviceIDStrategy: index}}")
    async with FakeKubelet(folder / "plugins") as kubelet:
        process = await start(folder, root, "--config-file", str(config))
        try:
            await kubelet.wait_for(lambda: kubelet.allocatable().get(GPU) == 8, seconds=300)
            answers = await kubelet.admit("pod", "main", {GPU: 1})
            assert answers[GPU].cdi_devices == ("k8s.device-plugin.nvidia.com/gpu=0",)
            spec = json.loads((folder / "cdi" / "k8s.device-plugin.nvidia.com-gpu.json").read_text())
            assert {device["name"] for device in spec["devices"]} >= {str(index) for index in range(8)}
            config.write_text("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 70}]}}")
            await kubelet.wait_for(lambda: kubelet.allocatable().get(GPU) == 560, seconds=300)
        finally:
            process.send_signal(signal.SIGTERM)
            _, told = await process.communicate()
        assert process.returncode == 0
        assert b"Running with config:" in told
        assert b"Traceback" not in told


async def test_without_a_driver_it_ends_unless_told_to_wait(folder: Path) -> None:
    process = await start(folder, folder)
    _, told = await process.communicate()
    assert process.returncode == 2
    assert b"ERROR_LIBRARY_NOT_FOUND" in told
    assert b"to do:" in told
    assert b"Traceback" not in told
