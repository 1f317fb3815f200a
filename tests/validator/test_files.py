"""The folder: whole files, the replaced program's text, and nothing that is put there does harm."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import HostError
from kgpu.validator import files
from kgpu.validator.files import Folder
from kgpu.validator.model import Check, NodeValidation, Roots, Status
from tests.validator.made import cuda, device, passed

REPORT = NodeValidation(
    results=(passed(Check.DRIVER), cuda(device("a"), device("b", Status.FAILED))),
    driver_version="570.1",
    boot="boot",
    times=(("driver", 12.0),),
)


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path / "validations")


def test_files_come_and_go_and_nothing_is_left_beside_them(folder) -> None:
    assert folder.apply({"driver-ready": b"A=b\n", "cuda-ready": None})
    assert folder.read("driver-ready") == b"A=b\n"
    assert not folder.apply({"driver-ready": b"A=b\n"})
    assert folder.apply({"driver-ready": None, "cuda-ready": b""})
    assert os.listdir(folder.path) == ["cuda-ready"]


def test_clear_takes_only_what_is_ours(folder) -> None:
    folder.apply(dict.fromkeys(files.OURS, b"x"))
    (folder.path / ".driver-ctr-ready").write_text("")
    folder.clear()
    assert os.listdir(folder.path) == [".driver-ctr-ready"]


def test_a_link_in_a_files_place_is_replaced_not_followed(folder, tmp_path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    folder.path.mkdir()
    (folder.path / "driver-ready").symlink_to(target)
    folder.apply({"driver-ready": b"new"})
    assert (target.read_text(), (folder.path / "driver-ready").is_symlink()) == ("precious", False)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/proc/self/environ", path)])
def test_what_is_no_plain_file_is_not_read_and_gives_way(folder, make) -> None:
    folder.path.mkdir()
    make(folder.path / files.REPORT)
    assert folder.report() is None
    folder.apply({files.REPORT: files.encode_report(REPORT)})
    assert folder.report() == REPORT


def test_a_folder_that_is_a_link_is_refused(folder, tmp_path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostError):
        folder.apply({"driver-ready": b""})
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_full_folder_in_a_files_place_is_told(folder) -> None:
    (folder.path / "driver-ready" / "x").mkdir(parents=True)
    with pytest.raises(HostError, match="can't be written"):
        folder.apply({"driver-ready": b""})
    assert os.listdir(folder.path) == ["driver-ready"]


@pytest.mark.skipif(os.geteuid() != 0, reason="files of other users are made by root")
def test_a_file_of_another_user_is_not_believed(folder) -> None:
    folder.apply({files.REPORT: files.encode_report(REPORT)})
    os.chown(folder.path / files.REPORT, 1234, 1234)
    assert folder.report() is None


def test_a_file_that_is_too_large_is_not_read(folder) -> None:
    folder.apply({"x": b"12345"})
    assert (folder.read("x", limit=4), folder.read("x", limit=5)) == (None, b"12345")


def test_driver_ready_is_what_a_shell_may_source(folder) -> None:
    roots = Roots(host_driver=False, driver="/run/with space", driver_here="/d;$(id)", dev="/'quote", dev_here="/dev")
    folder.apply({"driver-ready": files.driver_ready_text(roots).encode()})
    script = f'. {folder.path}/driver-ready; echo "$IS_HOST_DRIVER|$NVIDIA_DRIVER_ROOT|$DRIVER_ROOT_CTR_PATH|$NVIDIA_DEV_ROOT"'
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown == "false|/run/with space|/d;$(id)|/'quote\n"


PATHS = st.text(st.characters(codec="utf-8", exclude_characters="\x00\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"))


@given(st.builds(Roots, host_driver=st.booleans(), driver=PATHS, driver_here=PATHS, dev=PATHS, dev_here=PATHS))
def test_driver_ready_reads_back(roots) -> None:
    found = files.parse_driver_ready(files.driver_ready_text(roots))
    assert found == {
        "IS_HOST_DRIVER": str(roots.host_driver).lower(),
        "NVIDIA_DRIVER_ROOT": roots.driver,
        "DRIVER_ROOT_CTR_PATH": roots.driver_here,
        "NVIDIA_DEV_ROOT": roots.dev,
        "DEV_ROOT_CTR_PATH": roots.dev_here,
    }


@given(st.text())
def test_any_text_can_be_read_as_driver_ready(text) -> None:
    assert all(key.isidentifier() for key in files.parse_driver_ready(text))


@given(
    st.binary() | st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x)).map(repr).map(str.encode)
)
def test_any_bytes_are_a_report_or_none(raw) -> None:
    assert files.decode_report(raw) is None


def test_a_report_reads_back_and_one_of_another_format_does_not() -> None:
    raw = files.encode_report(REPORT)
    assert files.decode_report(raw) == REPORT
    assert files.decode_report(raw.replace(b'"format": 1', b'"format": 2')) is None


def test_deep_nesting_is_no_report() -> None:
    assert files.decode_report(b'{"format":1,"report":' + b"[" * 100_000) is None
