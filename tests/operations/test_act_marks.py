"""Marks: once per ID, locked while somebody is at work, and nothing in them is trusted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.operations.act_marks import MAX_TEXT, ActResult, Marks, check_id
from tests.child import child

DONE = ActResult(code=0, text="done")


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    return Marks(tmp_path / "run" / "acts")


@pytest.mark.parametrize("act", ["", "../x", "a/b", "A", "x" * 101, "-a", "a\n", "a.result"])
def test_an_id_is_a_plain_name(act: str) -> None:
    with pytest.raises(HostError, match="not the ID of an act"):
        check_id(act)
    check_id("0b9c7c1e-1")


def test_only_the_first_begins(marks: Marks) -> None:
    assert not marks.exists("op-1")
    with marks.begin("op-1", ("a", "b")) as first:
        assert first is not None
        assert marks.exists("op-1")
        with marks.begin("op-1", ()) as second:
            assert second is None
    with marks.begin("op-2", ()) as other:
        assert other is not None
    assert sorted(os.listdir(marks.folder)) == ["op-1", "op-2"]


def test_what_is_left_is_given_only_when_nobody_is_at_work(marks: Marks) -> None:
    with marks.begin("op-1", ("a", "b")) as lock, marks.left_over("op-1") as left:
        assert (lock is not None, left) == (True, None)
    with marks.left_over("op-1") as left, marks.left_over("op-1") as second:
        assert (left, second) == (("a", "b"), None)
    with marks.left_over("op-2") as left:
        assert left == ()


def test_a_program_that_inherited_the_lock_keeps_it(marks: Marks) -> None:
    with marks.begin("op-1", ("a",)) as lock:
        assert lock is not None
        process = child(["/bin/cat"], stdin=subprocess.PIPE, pass_fds=(lock,))
        started = process.__enter__()
    try:
        with marks.left_over("op-1") as left:
            assert left is None
    finally:
        assert started.stdin is not None
        started.stdin.close()
        process.__exit__(None, None, None)
    with marks.left_over("op-1") as left:
        assert left == ("a",)


def test_a_link_is_a_mark_and_is_not_followed(marks: Marks, tmp_path: Path) -> None:
    marks.folder.mkdir(parents=True)
    (marks.folder / "op-1").symlink_to(tmp_path / "elsewhere")
    (marks.folder / "op-1.result").symlink_to(tmp_path / "result")
    (tmp_path / "result").write_text('{"code": 0, "text": "done"}')
    assert marks.exists("op-1")
    with marks.begin("op-1", ()) as begun, marks.left_over("op-1") as left:
        assert (begun, left) == (None, ())
    assert marks.result("op-1") is None
    assert not (tmp_path / "elsewhere").exists()


def test_a_result_is_read_back(marks: Marks) -> None:
    assert marks.result("op-1") is None
    marks.record("op-1", DONE)
    assert marks.result("op-1") == DONE
    marks.record("op-1", ActResult(code=1, text="a\nb\x1b" + "c" * 2000))
    read = marks.result("op-1")
    assert read is not None
    assert read.text.startswith("a b\ufffdc")
    assert len(read.text) == MAX_TEXT


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"code": "0", "text": ""}', b"[]", b"x" * 20_000, b"\xff", b'{"code":0}']
)
def test_a_result_of_another_form_is_none(marks: Marks, content: bytes) -> None:
    marks.folder.mkdir(parents=True)
    (marks.folder / "op-1.result").write_bytes(content)
    assert marks.result("op-1") is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1}', b"\xff", b"[1]"])
def test_a_mark_of_another_form_has_nothing_left(marks: Marks, content: bytes) -> None:
    marks.folder.mkdir(parents=True)
    (marks.folder / "op-1").write_bytes(content)
    with marks.left_over("op-1") as left:
        assert left == ()


def test_a_folder_that_cant_be_written(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    marks = Marks(tmp_path / "run" / "acts")
    with pytest.raises(HostError, match="can't be made"), marks.begin("op-1", ()):
        pytest.fail("begun")
    marks.record("op-1", DONE)
    assert marks.result("op-1") is None
