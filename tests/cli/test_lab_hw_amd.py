"""``kgpu lab hw`` on AMD's simulated GPUs: made, listed, shown, broken, parted, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kgpu.base.errors import ConfigError
from kgpu.cli.lab_hw import hw_group


def kgpu(*words: object) -> Result:
    return CliRunner().invoke(hw_group, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    done = kgpu("create", "mi300x", "--gpus", 2, "--root", tmp_path / "node")
    assert done.exit_code == 0
    assert "2 x AMD Instinct MI300X OAM, driver 6.10.5" in done.output
    assert f"export KGPU_HW_STATE={tmp_path / 'node'}/state" in done.output
    assert "LD_LIBRARY_PATH" not in done.output
    return tmp_path / "node"


def test_the_list_has_both_vendors() -> None:
    rows = {row["name"]: row for row in json.loads(kgpu("list", "-o", "json").output)}
    assert rows["mi300x"]["cuda_version"] is None
    assert rows["hgx-h100"]["cuda_version"] == "12.8"


def test_faults_and_modes_are_shown(root: Path) -> None:
    assert kgpu("inject", "ecc", "--gpu", 1, "--root", root).exit_code == 0
    assert kgpu("partition", "--gpu", "all", "--mode", "cpx", "--memory", "nps4", "--root", root).exit_code == 0
    shown = kgpu("show", "--root", root).output.splitlines()
    assert "CUDA" not in shown[0]
    assert "CPX/NPS4" in shown[2]
    assert "1 uncorrectable errors, needs reset" in shown[3]
    assert kgpu("clear", "--root", root).exit_code == 0
    assert "errors" not in kgpu("show", "--root", root).output


def test_the_driver_is_unloaded_and_loaded_as_another(root: Path) -> None:
    assert kgpu("driver", "unload", "--root", root).exit_code == 0
    assert "NOT LOADED" in kgpu("show", "--root", root).output
    assert kgpu("driver", "load", "6.12.12", "--root", root).output == "driver 6.12.12 is loaded\n"
    assert (root / "sys/module/amdgpu/version").read_text() == "6.12.12\n"


def test_the_kernels_own_driver_has_no_version(tmp_path: Path) -> None:
    assert "driver of the kernel" in kgpu("create", "w7900", "--root", tmp_path / "node").output
    assert not (tmp_path / "node/sys/module/amdgpu/version").exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("mig", "--gpu", "0", "--off"), "has AMD GPUs"),
        (("set", "temperature=80"), "has AMD GPUs"),
        (("inject", "xid", "79", "--gpu", "0"), "no fault"),
        (("partition", "--gpu", "x", "--mode", "cpx"), "--gpu"),
    ],
)
def test_what_amd_gpus_do_not_have_is_refused(root: Path, words: tuple[str, ...], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        kgpu(*words, "--root", root)


def test_nvidias_gpus_are_not_parted_so(sim_root) -> None:
    with pytest.raises(ConfigError, match="has no AMD GPUs"):
        kgpu("partition", "--gpu", "0", "--mode", "cpx", "--root", sim_root("l4"))


def test_a_topology_file_is_nothing_for_them(tmp_path: Path) -> None:
    (tmp_path / "topo.yaml").write_text("numa: ['0-1']\n")
    with pytest.raises(ConfigError, match="--topology with AMD GPUs"):
        kgpu("create", "mi210", "--root", tmp_path / "node", "--topology", tmp_path / "topo.yaml")
