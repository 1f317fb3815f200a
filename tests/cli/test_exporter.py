"""``kgpu exporter --once`` from the outside, over the simulated driver: text that Prometheus reads, and refusals."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kgpu.cli.exporter import exporter
from kgpu.cli.main import main
from kgpu.hw.simulator import mig, operate

MakeRoot = Callable[..., Path]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("DCGM_", "KGPU_", "KUBERNETES_", "NVIDIA_")) or name == "NODE_NAME":
            monkeypatch.delenv(name)


def run(*words: object, env: dict[str, str] | None = None):
    result = CliRunner().invoke(exporter, ["--once", *map(str, words)], catch_exceptions=False, env=env)
    assert result.exit_code == 0, result.output
    return result


def samples(text: str, name: str) -> dict[str, float]:
    rows = [sample for family in parse_text(text) for sample in family.samples if sample.name == name]
    return {row.labels["gpu"]: row.value for row in rows}


def test_it_prints_what_the_simulated_gpus_do(sim_root: MakeRoot):
    root = sim_root("dgx-h100", gpus=2)
    result = run("--root", root, env={"NODE_NAME": "node-7"})
    power = samples(result.stdout, "DCGM_FI_DEV_POWER_USAGE")
    assert set(power) == {"0", "1"}
    assert all(20 < watts < 800 for watts in power.values())
    assert 'hostname="node-7",DCGM_FI_DRIVER_VERSION="' in result.stdout
    assert samples(result.stdout, "kgpu_gpu_up") == {"0": 1, "1": 1}


def test_profiling_fields_are_there_from_hopper_on(sim_root: MakeRoot):
    """Older GPUs have PCIe's from elsewhere; the others are counted as absent."""
    for profile, has in (("dgx-h100", True), ("dgx-a100-80g", False), ("t4", False)):
        text = run("--root", sim_root(profile, gpus=1)).stdout
        found = {name for name in ("GR_ENGINE_ACTIVE", "DRAM_ACTIVE") if samples(text, f"DCGM_FI_PROF_{name}")}
        assert found == ({"GR_ENGINE_ACTIVE", "DRAM_ACTIVE"} if has else set())
        assert samples(text, "DCGM_FI_PROF_PCIE_TX_BYTES")
        assert ('kgpu_exporter_field_absent{field="DCGM_FI_PROF_DRAM_ACTIVE"' in text) is not has


def test_openmetrics_has_the_same_series(sim_root: MakeRoot):
    root = sim_root("dgx-h100", gpus=1)
    text = run("--root", root, "--openmetrics").stdout
    names = {sample.name for family in parse_openmetrics(text) for sample in family.samples}
    assert {"DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "kgpu_gpu_up"} <= names
    assert text.endswith("# EOF\n")


def test_a_gpu_with_mig_is_counted_once(sim_root: MakeRoot):
    root = sim_root("dgx-h100", gpus=2)
    mig.partition(root, 0, ["1g.10gb"])
    text = run(
        "--root", root, "-f", counters(root.parent, "DCGM_FI_DEV_POWER_USAGE, gauge, P\nDCGM_FI_DEV_FB_TOTAL, gauge, T")
    )
    rows = [s for f in parse_text(text.stdout) for s in f.samples if s.name == "DCGM_FI_DEV_FB_TOTAL"]
    assert [(row.labels["gpu"], row.labels.get("GPU_I_PROFILE")) for row in rows] == [("0", "1g.10gb"), ("1", None)]
    assert set(samples(text.stdout, "DCGM_FI_DEV_POWER_USAGE")) == {"0", "1"}


def test_a_lost_gpu_is_down_and_the_other_goes_on(sim_root: MakeRoot):
    root = sim_root("dgx-h100", gpus=2)
    operate.inject(root, "lost", gpu=1)
    text = run("--root", root).stdout
    assert set(samples(text, "DCGM_FI_DEV_POWER_USAGE")) == {"0"}
    assert samples(text, "kgpu_gpu_up") == {"0": 1, "1": 0}


def test_a_gpu_that_waits_for_a_reset_is_up_and_has_its_series(sim_root: MakeRoot):
    root = sim_root("dgx-h100", gpus=2)
    operate.inject(root, "xid", gpu=1, xid=48)
    text = run("--root", root).stdout
    assert set(samples(text, "DCGM_FI_DEV_POWER_USAGE")) == {"0", "1"}
    assert samples(text, "kgpu_gpu_up") == {"0": 1, "1": 1}


def counters(folder: Path, text: str) -> Path:
    path = folder / "counters.csv"
    path.write_text(text)
    return path


def test_a_counters_file_decides_and_its_problems_go_to_standard_error(sim_root: MakeRoot, tmp_path: Path):
    root = sim_root("dgx-h100", gpus=1)
    path = counters(tmp_path, "DCGM_FI_DEV_GPU_TEMP, gauge, T.\nDCGM_FI_DEV_GPU_TEMPP, gauge, T.\n")
    result = run("--root", root, "-f", path)
    assert "# HELP DCGM_FI_DEV_GPU_TEMP T.\n" in result.stdout
    assert "DCGM_FI_DEV_POWER_USAGE" not in result.stdout
    assert 'line 2: there is no field "DCGM_FI_DEV_GPU_TEMPP"' in result.stderr


def test_flags_that_do_nothing_are_told(sim_root: MakeRoot):
    result = run("--root", sim_root("dgx-h100", gpus=1), "-r", "localhost:5555", "-rbmn", "-d", "g:0")
    assert "--remote-hostengine-info has no effect" in result.stderr
    assert 'modelName="NVIDIA-H100-80GB-HBM3"' in result.stdout


def test_without_a_kubelet_metrics_are_printed_all_the_same(sim_root: MakeRoot, tmp_path: Path):
    socket = tmp_path / "none.sock"
    result = run("--root", sim_root("dgx-h100", gpus=1), "--kubernetes", "--pod-resources-kubelet-socket", socket)
    assert "pods are not shown" in result.stderr
    assert samples(result.stdout, "DCGM_FI_DEV_POWER_USAGE")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--once", "--devices", "x"], "--devices: 'x'"),
        (["--once", "--device", "g"], "No such option"),
        (["--once", "-f", "/nowhere/counters.csv"], "/nowhere/counters.csv can't be read"),
        (["--once", "--root", "/nowhere"], "no accelerator driver was found"),
    ],
)
def test_what_is_wrong_is_said_in_three_parts(words, what, capsys):
    assert main(["kgpu", "exporter", *words]) == 2
    error = capsys.readouterr().err
    assert what in error
    assert "expected:" in error
    assert "to do:" in error


def test_no_gpu_at_all_is_well_where_that_was_asked_for(tmp_path: Path):
    assert "kgpu_exporter_series" in run("--root", tmp_path, "--fake-gpus").stdout
