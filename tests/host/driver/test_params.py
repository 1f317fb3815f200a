"""/proc/driver/nvidia/params: what it says, the prepared copy, and what the report tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.host.driver.find import find_driver_files
from kgpu.host.driver.model import Search
from kgpu.host.driver.params import modifies_device_files, prepared_params
from kgpu.host.root import DriverRoot
from tests.host.tree import driver, write

TEXT = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: {}\nDeviceFileUID: 0\nDeviceFileModeX: 1\n"


def test_only_the_one_line_changes() -> None:
    assert prepared_params(TEXT.format(1)) == TEXT.format(0)
    assert prepared_params(TEXT.format("1  ")) == TEXT.format(0)


@pytest.mark.parametrize("text", ["", TEXT.format(0), "XModifyDeviceFiles: 1\n", "ModifyDeviceFiles: yes\n", "x" * 99])
def test_nothing_to_prepare(text: str) -> None:
    assert not modifies_device_files(text)
    assert prepared_params(text) is None


@given(st.text())
def test_prepared_text_is_final(text: str) -> None:
    prepared = prepared_params(f"{text}\nModifyDeviceFiles: 1\n{text}")
    assert prepared is not None
    assert not modifies_device_files(prepared)
    assert prepared_params(prepared) is None


@pytest.mark.parametrize(("value", "told"), [(1, True), (0, False)])
def test_report_says_what_to_set(tmp_path, value: int, told: bool) -> None:
    write(driver(tmp_path), "/proc/driver/nvidia/params", TEXT.format(value))
    report = find_driver_files(DriverRoot.at(tmp_path), search=Search(proc=tmp_path / "proc")).report
    (item,) = [item for item in report.items if item.kind == "params"]
    assert item.found is not told
    assert ("NVreg_ModifyDeviceFiles=0" in item.breaks) is told
