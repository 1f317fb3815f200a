"""A simulated machine that reboots: what is cured, what stays, and that doing it twice changes nothing more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import HwError
from kgpu.hw.simulator import kernel_log, mig, operate, processes
from kgpu.hw.simulator.reboot import reboot

Roots = Callable[..., Path]


@pytest.fixture
def root(sim_root: Roots) -> Path:
    return sim_root("hgx-h100", gpus=2)


def gpu(root: Path, index: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = operate.snapshot(root)["gpus"][index]
    return found


def field(root: Path, name: str) -> int:
    with operate.opened(root, writable=False) as state:
        return int(getattr(state.gpu(0), name))


@pytest.mark.parametrize("xid", [48, 74, 79, 94, 119, 140])
def test_what_an_xid_brought_is_gone(root: Path, xid: int) -> None:
    before = gpu(root)
    operate.inject(root, "xid", gpu=0, xid=xid)
    assert gpu(root)["faults"]
    reboot(root)
    after = gpu(root)
    assert (after["faults"], after["recovery_action"], after["last_xid"]) == ([], "none", None)
    assert after["nvlinks"] == before["nvlinks"]


@pytest.mark.parametrize(
    ("fault", "options"),
    [("lost", {}), ("hang", {}), ("slow", {"us": 5}), ("init-error", {"code": "IN_USE"})],
)
def test_the_drivers_faults_are_gone(root: Path, fault: str, options: dict[str, Any]) -> None:
    operate.inject(root, fault, gpu=0, **options)
    if fault != "lost":
        operate.inject(root, fault, **options)
    reboot(root)
    assert gpu(root)["faults"] == operate.snapshot(root)["faults"] == []


def test_errors_are_counted_on_for_life_alone(root: Path) -> None:
    operate.inject(root, "ecc", gpu=0, count=3)
    operate.set_values(root, {"pcie-replays": 4, "pcie-errors": 5, "nvlink-crc-flit": 6})
    reboot(root)
    assert gpu(root)["ecc"] == {"enabled": True, "corrected": 0, "uncorrected": 0}
    assert field(root, "pcie_replays") == 0
    with operate.opened(root, writable=False) as state:
        assert sum(state.gpu(0).ecc_aggregate) == 3
        assert state.gpu(0).pcie_err[0] == state.gpu(0).link[0].err_crc_flit == 0


def test_a_repair_is_made_and_one_that_failed_stays_so(root: Path) -> None:
    operate.set_values(root, {"remap-pending": "on", "remapped-uncorrected": 2, "retired-pending": "on"})
    operate.set_values(root, {"remap-failed": "on", "unrepairable-memory": "on", "sram-exceeded": "on"})
    reboot(root)
    cured = ("remap_pending", "retired_pending")
    stay = {"remap_uncorrected": 2, "remap_failed": 1, "unrepairable_memory": 1, "sram_threshold_exceeded": 1}
    assert [field(root, name) for name in cured] == [0, 0]
    assert {name: field(root, name) for name in stay} == stay


def test_heat_and_missing_power_are_still_there(root: Path) -> None:
    operate.inject(root, "hot", gpu=0, celsius=95)
    operate.inject(root, "xid", gpu=1, xid=54)
    reboot(root)
    assert gpu(root)["temperature_c"] == 95
    assert gpu(root)["faults"] == ["hot"]
    with operate.opened(root, writable=False) as state:
        assert state.gpu(1).throttle_forced


def test_nothing_runs_any_more_and_what_was_set_meanwhile_is_forgotten(root: Path) -> None:
    processes.add(root, 0, pid=42, memory_mib=512, sm_percent=50)
    operate.set_values(
        root, {"utilization": 30, "memory-used": 100, "persistence": "off", "compute-mode": "prohibited"}
    )
    operate.set_values(root, {"power-limit": 400, "sm-clock": 900, "app-clock": 1000})
    reboot(root)
    after = gpu(root)
    assert (after["processes"], after["memory_used_mib"], after["utilization_percent"]) == ([], 0, 0)
    assert after["power_limit_w"] == 700
    assert (field(root, "persistence"), field(root, "compute_mode")) == (1, 0)
    with operate.opened(root, writable=False) as state:
        one = state.gpu(0)
        assert [*one.clock_lock] == [0, 0]
        assert [*one.clock_app] == [*one.clock_app_default]


def test_only_a_desktops_gpu_begins_without_persistence(sim_root: Roots) -> None:
    root = sim_root("geforce")
    operate.set_values(root, {"persistence": "on"})
    reboot(root)
    assert field(root, "persistence") == 0


@pytest.mark.parametrize(
    ("profile", "slices", "keeps"), [("hgx-h100", "1g.10gb", False), ("dgx-a100-80g", "1g.10gb", True)]
)
def test_slices_go_everywhere_and_the_mode_where_the_gpu_keeps_none(
    sim_root: Roots, profile: str, slices: str, keeps: bool
) -> None:
    root = sim_root(profile, gpus=1)
    mig.partition(root, 0, [slices] * 2)
    reboot(root)
    found = gpu(root)["mig"]
    assert (found["devices"], found["enabled"], found["pending"]) == ([], keeps, False)
    mig.partition(root, 0, [slices] * 2)
    assert len(gpu(root)["mig"]["devices"]) == 2


def test_a_mode_that_waits_for_a_reset_takes_effect(root: Path) -> None:
    with operate.opened(root) as state, state.locked():
        state.gpu(0).ecc_pending = 0
    reboot(root)
    assert not gpu(root)["ecc"]["enabled"]


def test_the_kernel_log_begins_anew(root: Path) -> None:
    operate.inject(root, "xid", gpu=0, xid=79)
    assert "Xid" in (root / kernel_log.PATH).read_text()
    reboot(root)
    assert (root / kernel_log.PATH).read_text() == ""
    (root / kernel_log.PATH).unlink()
    reboot(root)
    assert not (root / kernel_log.PATH).exists()


def test_twice_is_once(root: Path) -> None:
    operate.inject(root, "xid", gpu=0, xid=79)
    operate.inject(root, "hot", gpu=1)
    reboot(root)
    once = operate.snapshot(root)
    reboot(root)
    assert operate.snapshot(root) == once


def test_without_a_driver_root_it_is_told(root: Path) -> None:
    shutil.rmtree(root)
    with pytest.raises(HwError):
        reboot(root)
