"""``kgpu labels`` from the outside, over the simulated driver: what is printed and written, and every way to be wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from kgpu.base.errors import ConfigError
from kgpu.cli.labels import choose_sink, labels
from kgpu.cli.main import main
from kgpu.discovery.config import resolve
from kgpu.discovery.lines import from_lines
from kgpu.formats.plugin_config import PluginConfig
from kgpu.hw.nvidia.client import NvidiaReader
from kgpu.hw.quick import QuickReading
from kgpu.hw.simulator import mig, operate

MakeRoot = Callable[..., Path]
GPU = "nvidia.com/gpu"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("GFD_", "MIG_", "KGPU_", "KUBE")) or name in {"CONFIG_FILE", "NODE_NAME", "NAMESPACE"}:
            monkeypatch.delenv(name)


def invoke(*words: object, env: dict[str, str] | None = None) -> str:
    result = CliRunner().invoke(labels, [str(word) for word in words], catch_exceptions=False, env=env)
    assert result.exit_code == 0
    return result.stdout


def printed(*words: object, env: dict[str, str] | None = None) -> dict[str, str]:
    return from_lines(invoke(*words, env=env))


def test_lines_of_a_simulated_node(sim_root: MakeRoot) -> None:
    text = invoke("--root", sim_root("dgx-a100-40g"))
    assert text.splitlines() == sorted(text.splitlines())
    assert all(re.fullmatch(r"[a-z.]+/[a-z.-]+=[A-Za-z0-9._-]*", line) for line in text.splitlines())
    found = from_lines(text)
    assert abs(int(found.pop("nvidia.com/gfd.timestamp")) - time.time()) < 600
    expected = {
        "cuda.driver.major": "550", "cuda.driver.minor": "54", "cuda.driver.rev": "15",
        "cuda.driver-version.major": "550", "cuda.driver-version.minor": "54", "cuda.driver-version.revision": "15",
        "cuda.driver-version.full": "550.54.15", "cuda.runtime.major": "12", "cuda.runtime.minor": "4",
        "cuda.runtime-version.major": "12", "cuda.runtime-version.minor": "4", "cuda.runtime-version.full": "12.4",
        "gpu.compute.major": "8", "gpu.compute.minor": "0", "gpu.count": "8", "gpu.family": "ampere",
        "gpu.machine": "DGX-A100", "gpu.memory": "40960", "gpu.mode": "compute",
        "gpu.product": "NVIDIA-A100-SXM4-40GB", "gpu.replicas": "1", "gpu.sharing-strategy": "none",
        "mig.capable": "true", "mps.capable": "false", "vgpu.present": "false",
    }  # fmt: skip
    assert found == {f"nvidia.com/{key}": value for key, value in expected.items()}


def test_json_has_the_same_labels(sim_root: MakeRoot) -> None:
    root = sim_root("t4", gpus=1)
    assert json.loads(invoke("--root", root, "--no-timestamp", "-o", "json")) == printed(
        "--root", root, "--no-timestamp"
    )


def test_mig_single_and_mixed_on_the_simulated_driver(sim_root: MakeRoot) -> None:
    root = sim_root("dgx-a100-40g", gpus=2)
    cut(root, 0, *["1g.5gb"] * 7)
    cut(root, 1, *["1g.5gb"] * 7)
    single = printed("--root", root, "--mig-strategy", "single")
    assert single["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    assert (single[f"{GPU}.count"], single[f"{GPU}.slices.gi"], single[f"{GPU}.memory"]) == ("14", "1", "4864")
    cut(root, 0, "3g.20gb", "1g.5gb", "1g.5gb")
    mig.disable(root, 1)
    invalid = printed("--root", root, env={"MIG_STRATEGY": "single"})
    assert invalid[f"{GPU}.product"] == "NVIDIA-A100-SXM4-40GB-MIG-INVALID"
    mixed = printed("--root", root, env={"MIG_STRATEGY": "single", "GFD_MIG_STRATEGY": "mixed"})
    assert (mixed[f"{GPU}.count"], mixed[f"{GPU}.replicas"]) == ("2", "1")
    assert mixed["nvidia.com/mig-3g.20gb.count"] == "1"
    assert mixed["nvidia.com/mig-1g.5gb.count"] == "2"


def test_config_file_and_several_models(sim_root: MakeRoot, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}")
    found = printed("--root", sim_root("mixed-models"), "--config-file", config)
    assert found[f"{GPU}.replicas"] == "10"
    assert found[f"{GPU}.product"].endswith("-SHARED")
    assert int(found["kgpu.dev/gpu.models"]) > 1


def test_feature_file(sim_root: MakeRoot, tmp_path: Path) -> None:
    path = tmp_path / "features.d" / "gfd"
    root = sim_root("l4", gpus=1)
    for words, env in ((["--output-file", path], {}), (["--output", path], {}), ([], {"GFD_OUTPUT_FILE": str(path)})):
        assert invoke("--root", root, *words, env=env) == ""
        assert from_lines(path.read_text())[f"{GPU}.product"] == "NVIDIA-L4"
        path.unlink()


def test_where_the_labels_went_is_told(sim_root: MakeRoot, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, root = tmp_path / "gfd", sim_root("l4", gpus=1)
    words = ["labels", "--root", str(root), "--output-file", str(path), "--no-timestamp"]
    for said in ("labels written to", "labels are already in"):
        assert main(["kgpu", *words]) == 0
        out, err = capsys.readouterr()
        assert not out
        assert re.search(rf"[1-9][0-9]* {said} {re.escape(str(path))}$", err.strip())


def test_a_feature_file_survives_a_driver_that_is_gone(sim_root: MakeRoot, tmp_path: Path) -> None:
    path, root = tmp_path / "gfd", sim_root("l4", gpus=1)
    invoke("--root", root, "--output-file", path)
    before = path.read_text()
    invoke("--root", tmp_path / "nowhere", "--output-file", path, "--fail-on-init-error=false")
    assert path.read_text() == before


async def test_the_quick_reading_is_the_reader_s(sim_root: MakeRoot) -> None:
    root = sim_root("dgx-a100-80g")
    cut(root, 2, "3g.40gb", "1g.10gb+me")
    reader = NvidiaReader(driver_root=root)
    try:
        expected = await reader.inventory()
    finally:
        await reader.close()
    with QuickReading(str(root)) as quick:
        assert quick.inventory() == expected


@pytest.mark.parametrize("fault", ["lost", "init-error", "no-library"])
def test_the_quick_reading_leaves_trouble_to_the_reader(fault: str, sim_root: MakeRoot) -> None:
    root = sim_root("t4", gpus=2)
    if fault == "no-library":
        for path in root.rglob("libnvidia-ml.so*"):
            path.unlink()
    else:
        break_it(root, fault)
    with QuickReading(str(root)) as quick:
        assert quick.inventory() is None


def test_a_lost_gpu_is_labelled_with_the_others(sim_root: MakeRoot) -> None:
    root = sim_root("t4", gpus=4)
    whole = printed("--root", root, "--no-timestamp")
    break_it(root, "lost")
    assert printed("--root", root, "--no-timestamp") == whole


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mig-strategy", "singlex"], 'did you mean "single"'),
        (["-o", "/some/file"], "--output-file /some/file"),
        (["-o", "yaml"], "-o text or -o json"),
        (["--sleep-interval", "60"], "invalid duration"),
        (["--no-timestamp=maybe"], "not a boolean"),
        (["--config-file", "/nonexistent"], "can't read the config file"),
        (["--root", "/nonexistent"], "ERROR_LIBRARY_NOT_FOUND"),
        (["--sink", "node"], "node-name not set"),
        (["--use-node-feature-api"], "node-name not set"),
        (["--sink", "file", "--output-file", ""], "--output-file PATH"),
        (["--oneshot=false", "-o", "json"], "printed once"),
        (["--nonsense"], "--nonsense"),
        (["--sink", "node", "--node-name", "n", "--kubeconfig", "/nonexistent"], "there is no file /nonexistent"),
        (["--kubeconfig", "/nonexistent"], "there is no file /nonexistent"),
        (["--output", "json"], "-o json"),
        (["--output-file", "text"], "./text"),
    ],
)
def test_bad_input_is_a_three_part_error(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "labels", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "\n  expected: " in error
    assert "\n  to do: " in error
    assert "Traceback" not in error


@pytest.mark.parametrize("text", ["flags: {migStrategi: single}", "{", "sharing: {timeSlicing: {}}"])
def test_bad_config_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        invoke("--config-file", path)


@pytest.mark.parametrize(
    ("given", "daemon", "node", "sink"),
    [
        ({}, False, "n", "stdout"),
        ({"output_file": "/f"}, False, "n", "file"),
        ({"output_file": ""}, False, "n", "stdout"),
        ({"use_node_feature_api": "true", "output_file": "/f"}, False, "n", "node-feature"),
        ({"use_node_feature_api": "false"}, False, "n", "stdout"),
        ({}, True, "n", "node-feature"),
        ({}, True, "", "file"),
        ({"use_node_feature_api": "true"}, True, "", "node-feature"),
        ({"use_node_feature_api": "false"}, True, "n", "file"),
        ({"use_node_feature_api": "false", "output_file": ""}, True, "n", "stdout"),
    ],
)
def test_sinks(given: dict[str, str], daemon: bool, node: str, sink: str) -> None:
    settings = resolve(PluginConfig(), overrides=given)
    assert choose_sink("auto", settings, daemon=daemon, node=node) == sink
    assert choose_sink("node", settings, daemon=daemon, node=node) == "node"


def test_a_daemon_follows_devices_and_configuration_and_takes_its_file_along(
    sim_root: MakeRoot, tmp_path: Path
) -> None:
    root, path, config = sim_root("dgx-a100-40g", gpus=1), tmp_path / "gfd", tmp_path / "config.yaml"
    config.write_text("flags: {migStrategy: none}")
    words = ["labels", "--root", root, "--output-file", path, "--config-file", config, "--oneshot=false"]
    process = subprocess.Popen([sys.executable, "-m", "kgpu", *map(str, words)], stderr=subprocess.PIPE, text=True)
    try:
        wait(lambda: path.exists())
        assert from_lines(path.read_text())[f"{GPU}.product"] == "NVIDIA-A100-SXM4-40GB"
        config.write_text("flags: {migStrategy: mixed}")
        wait(lambda: "nvidia.com/mig.strategy=mixed" in path.read_text())
        cut(root, 0, "1g.5gb")
        wait(lambda: "nvidia.com/mig-1g.5gb.count=1" in path.read_text())
        config.write_text("flags: {migStrategy: mixd}")
        process.send_signal(signal.SIGHUP)
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=300)
    assert process.returncode == 0, log
    assert "Traceback" not in log
    assert not path.exists()


def cut(root: Path, gpu: int, *profiles: str) -> None:
    mig.partition(root, gpu, list(profiles))


def break_it(root: Path, fault: str) -> None:
    if fault == "lost":
        operate.inject(root, "lost", gpu=1)
    else:
        operate.inject(root, "init-error", code="DRIVER_NOT_LOADED")


def wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_under_its_old_name_it_has_the_old_program_s_defaults(
    sim_root: MakeRoot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["/usr/bin/gpu-feature-discovery", "--oneshot", "--use-node-feature-api"]) == 2
    assert "node-name not set" in capsys.readouterr().err
    path = tmp_path / "gfd"
    words = [
        "--oneshot",
        "--use-node-feature-api=false",
        "--output-file",
        str(path),
        "--driver-root",
        str(sim_root("t4")),
    ]
    assert main(["gpu-feature-discovery", *words]) == 0
    assert from_lines(path.read_text())[f"{GPU}.family"] == "turing"
