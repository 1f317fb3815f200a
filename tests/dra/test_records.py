"""Records of prepared claims: cut short at any byte, damaged, from elsewhere; what is whole is kept."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kgpu.base.advice import Advice
from kgpu.base.errors import HostError
from kgpu.dra.records import ClaimRecord, ClaimRecords, RecordedDevice, RecordedSharing, RecordedSlice

DEVICE = RecordedDevice(request="r", pool="node-1", device="gpu-0-mig-1g10gb-19-3", gpu="GPU-1", start=3, size=1)
ONE = ClaimRecord(
    uid="uid-1", namespace="team", name="one", boot="boot-1", done=True, devices=(DEVICE,),
    made=(RecordedSlice(gpu="GPU-1", profile=0, start=3),), shared=(RecordedSharing(uuid="MIG-1", daemon=0, threads=50, memory_mib=1024),),
)  # fmt: skip


def opened(folder: Path, told: list[Advice] | None = None, boot: str = "boot-1", began: float = 0.0) -> ClaimRecords:
    made = ClaimRecords(folder, boot=boot, report=(told if told is not None else []).append, began=began)
    made.load()
    return made


def test_what_was_put_is_there_for_the_next_process(tmp_path: Path) -> None:
    records = opened(tmp_path / "claims")
    records.put(ONE)
    assert dict(opened(tmp_path / "claims").all) == {"uid-1": ONE}
    records.drop("uid-1")
    records.drop("uid-1")
    assert dict(opened(tmp_path / "claims").all) == {}


def test_a_file_that_is_cut_short_or_changed_is_set_aside_and_told(tmp_path: Path) -> None:
    records = opened(tmp_path)
    records.put(ONE)
    path = tmp_path / "uid-1.json"
    whole = path.read_bytes()
    other = ClaimRecord(uid="uid-2", namespace="team", name="two", boot="boot-1")
    records.put(other)
    damaged = [whole[:length] for length in range(len(whole) - 1)]
    damaged += [
        whole.replace(b"GPU-1", b"GPU-2"),
        b"\x00" * 50,
        b"[]",
        b"{" * 5000,
        b'{"version": 2}',
        b"x" * 2_000_000,
    ]
    for data in damaged:
        path.write_bytes(data)
        told: list[Advice] = []
        assert dict(opened(tmp_path, told).all) == {"uid-2": other}
        (advice,) = told
        assert "uid-1.json.unreadable" in advice.what
        assert not path.exists()
        assert (tmp_path / "uid-1.json.unreadable").read_bytes() == data


def test_one_of_a_later_version_with_more_fields_is_read(tmp_path: Path) -> None:
    records = opened(tmp_path)
    records.put(ONE)
    path = tmp_path / "uid-1.json"
    document = json.loads(path.read_bytes())
    document["claim"]["later"] = {"a": 1}
    from kgpu.dra.records import _checksum

    document["checksum"] = _checksum(document["claim"])
    path.write_text(json.dumps(document))
    assert dict(opened(tmp_path).all) == {"uid-1": ONE}


def test_records_of_another_boot_are_gone(tmp_path: Path) -> None:
    opened(tmp_path).put(ONE)
    assert dict(opened(tmp_path, boot="boot-2").all) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_one_from_before_the_boot_is_no_news(tmp_path: Path) -> None:
    """A machine that stops may leave files of which nothing was on the disk yet."""
    opened(tmp_path).put(ONE)
    path = tmp_path / "uid-1.json"
    path.write_bytes(b"")
    os.utime(path, (1000.0, 1000.0))
    told: list[Advice] = []
    records = opened(tmp_path, told, boot="boot-2", began=1001.0)
    assert (dict(records.all), records.former, told) == ({}, ["uid-1"], [])
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"")
    os.utime(path, (1002.0, 1002.0))
    assert opened(tmp_path, told, boot="boot-2", began=1001.0).former == []
    assert [advice.reason for advice in told] == ["ClaimRecordUnreadable"]


def test_nobody_waits_for_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts for this boot alone has to hold against a kill, not against a machine that stops."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: pytest.fail("a record is flushed"))
    opened(tmp_path).put(ONE)
    assert dict(opened(tmp_path).all) == {"uid-1": ONE}


def test_a_file_under_another_name_counts_for_nothing(tmp_path: Path) -> None:
    opened(tmp_path).put(ONE)
    (tmp_path / "uid-1.json").rename(tmp_path / "uid-9.json")
    told: list[Advice] = []
    assert dict(opened(tmp_path, told).all) == {}
    assert "another claim" in told[0].why


@pytest.mark.parametrize("uid", ["", "../../etc/passwd", ".hidden", "a/b", "a\0b"])
def test_a_uid_that_is_none_never_becomes_a_path(tmp_path: Path, uid: str) -> None:
    with pytest.raises(HostError, match="is not the uid of a claim"):
        opened(tmp_path).put(ClaimRecord(uid=uid, namespace="n", name="n", boot="boot-1"))


def test_a_folder_that_can_not_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "claims").write_text("a file")
    records = ClaimRecords(tmp_path / "claims", boot="boot-1", report=lambda _advice: None)
    records.load()
    with pytest.raises(HostError, match="can't be written"):
        records.put(ONE)
    assert dict(records.all) == {}


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ((0, 0), (0, 0), True),
        ((0, 0), (3, 1), True),
        ((0, 4), (3, 1), True),
        ((0, 4), (4, 4), False),
        ((2, 2), (1, 1), False),
    ],
)
def test_parts_of_a_gpu_that_overlap(first: tuple[int, int], second: tuple[int, int], overlap: bool) -> None:
    one, other = (
        RecordedDevice(request="r", pool="p", device="d", gpu="GPU-1", start=start, size=size)
        for start, size in (first, second)
    )
    assert one.overlaps(other) is other.overlaps(one) is overlap
    elsewhere = RecordedDevice(request="r", pool="p", device="d", gpu="GPU-2")
    assert not one.overlaps(elsewhere)
