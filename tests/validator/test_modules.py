"""Kernel modules beside the driver's own: what is asked for, what is loaded, and what is told of the difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kgpu.formats.validation_report import CheckTrouble
from kgpu.host.root import DriverRoot
from kgpu.validator import plan
from kgpu.validator.checks import driver
from kgpu.validator.look import look_at_driver
from kgpu.validator.model import Check, NodeValidation, Status
from kgpu.validator.modules import ASKED_FILE, SIDE_MODULES, asked_modules, missing_modules, mofed_trouble
from tests.validator.made import driver_facts, inventory, passed

GDS, GDRCOPY, PEERMEM = ("nvidia_fs", "gdrdrv", "nvidia_peermem")
REPORT = NodeValidation(results=(passed(Check.DRIVER),), driver_version="570.1", boot="b")


def test_the_components_are_the_replaced_programs() -> None:
    assert {row.component: row.module for row in SIDE_MODULES} == {
        "nvidia-fs": GDS, "gdrcopy": GDRCOPY, "nvidia-peermem": PEERMEM,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("GDRCOPY_ENABLED: true\nGDS_ENABLED: false\nGPU_DIRECT_RDMA_ENABLED: true\n", {GDRCOPY, PEERMEM}),
        ("GDS_ENABLED: true", {GDS}),
        ("GDS_ENABLED:true\r\n", {GDS}),
        ("GDS_ENABLED: TRUE\nGDS_ENABLED=true\nOTHER: true\n: true\n\0", set()),
        ("", set()),
    ],
)
def test_what_the_drivers_container_says(text: str, asked: set[str]) -> None:
    assert asked_modules(text) == asked


def test_only_what_is_asked_for_is_missed() -> None:
    missing = missing_modules({GDS, PEERMEM}, {PEERMEM})
    assert list(missing) == ["nvidia-fs"]
    assert missing["nvidia-fs"].what == "the kernel module nvidia_fs is not loaded"
    assert "kubectl logs -c nvidia-fs-ctr" in missing["nvidia-fs"].remedy
    assert missing_modules((), ()) == {}


def test_the_node_is_read(tmp_path: Path) -> None:
    validations = tmp_path / "validations"
    validations.mkdir()
    for module, file in (("nvidia_fs", "refcnt"), ("gdrdrv", "version")):
        (tmp_path / "sys/module" / module).mkdir(parents=True)
        (tmp_path / "sys/module" / module / file).write_text("0\n")
    (validations / ASKED_FILE).write_text("GDS_ENABLED: true\nGDRCOPY_ENABLED: true\n")
    facts = look_at_driver(DriverRoot.at(tmp_path), sys=str(tmp_path / "sys"), validations=validations)
    assert (facts.asked, facts.loaded) == ({GDS, GDRCOPY}, {GDS})
    (validations / ASKED_FILE).unlink()
    (validations / ASKED_FILE).symlink_to("/proc/self/environ")
    assert look_at_driver(DriverRoot.at(tmp_path), sys="/nowhere", validations=validations).asked == frozenset()


def test_a_module_that_is_missing_is_a_remark_and_takes_no_gpu_away() -> None:
    found = inventory(2)
    result = driver.judge(driver_facts(found, asked=frozenset({GDS})), found, None)
    assert result.status is Status.PASSED
    assert any("nvidia_fs is not loaded" in note for note in result.notes)
    well = driver.judge(driver_facts(found, asked=frozenset({GDS}), loaded=frozenset({GDS})), found, None)
    assert not any("nvidia_fs" in note for note in well.notes)


def test_files_say_what_is_loaded_and_why_not() -> None:
    written = plan.files_of(replace(REPORT, asked_modules=(GDS, GDRCOPY), loaded_modules=(GDRCOPY, PEERMEM)))
    assert written["gdrcopy-ready"] == written["nvidia-peermem-ready"] == b""
    assert written["gdrcopy-not-ready"] is written["nvidia-peermem-not-ready"] is written["nvidia-fs-ready"] is None
    assert (written["nvidia-fs-not-ready"] or b"").startswith(b"the kernel module nvidia_fs is not loaded")
    nothing = plan.files_of(REPORT)
    assert {nothing[f"{row.component}-{end}"] for row in SIDE_MODULES for end in ("ready", "not-ready")} == {None}


def test_a_module_that_goes_is_told_and_one_that_is_to_come_is_not() -> None:
    waits = replace(REPORT, asked_modules=(GDS,))
    works = replace(waits, loaded_modules=(GDS,))
    assert list(plan.advice(REPORT, waits)) == list(plan.advice(waits, works)) == []
    (gone,) = plan.advice(works, waits)
    assert (gone.reason, gone.subject) == ("ModuleGone", "nvidia-fs")
    assert "gds.enabled is no longer in force" in gone.what
    assert list(plan.advice(waits, waits)) == []


def test_the_network_cards_driver() -> None:
    assert mofed_trouble(loaded=True, on_host=False) is None
    for on_host, word in ((True, "mlx5_core is not loaded"), (False, ".driver-ready is missing")):
        trouble = mofed_trouble(loaded=False, on_host=on_host)
        assert isinstance(trouble, CheckTrouble)
        assert word in trouble.what
        assert "useHostMofed" in trouble.remedy
