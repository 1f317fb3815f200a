"""Spec folders as an index: what changes is seen, what is broken is left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kgpu.base.files import write_atomic
from kgpu.formats.cdi import build_spec, dump_spec
from kgpu.toolkit.nri import specs
from kgpu.toolkit.nri.specs import SpecFolders

from . import support_nri as node


def one(number: int) -> str:
    return dump_spec(build_spec(kind="nvidia.com/gpu", devices=[node.gpu(number)]), "json")


def test_files_that_come_change_and_go(tmp_path: Path) -> None:
    folders = SpecFolders([tmp_path / "etc", tmp_path / "run"])
    assert folders.index().entries == {}
    (tmp_path / "run").mkdir()
    write_atomic(tmp_path / "run" / "a.json", one(0))
    assert "nvidia.com/gpu=0" in folders.index().entries
    write_atomic(tmp_path / "run" / "a.json", one(3))
    assert "nvidia.com/gpu=3" in folders.index().entries
    assert "nvidia.com/gpu=0" not in folders.index().entries
    (tmp_path / "run" / "a.json").unlink()
    assert folders.index().entries == {}


def test_the_later_folder_wins(tmp_path: Path) -> None:
    for folder, number in (("etc", 0), ("run", 1)):
        (tmp_path / folder).mkdir()
        text = one(number).replace(f'"{number}"', '"x"')
        write_atomic(tmp_path / folder / "a.json", text)
    both = SpecFolders([tmp_path / "etc", tmp_path / "run"]).index().entries
    other = SpecFolders([tmp_path / "run", tmp_path / "etc"]).index().entries
    assert both["nvidia.com/gpu=x"].units.gpus == {1}
    assert other["nvidia.com/gpu=x"].units.gpus == {0}


def test_unchanged_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    parse = specs.parse_spec
    monkeypatch.setattr(specs, "parse_spec", lambda text, *, source: read.append(source) or parse(text, source=source))
    write_atomic(tmp_path / "a.json", one(0))
    folders = SpecFolders([tmp_path])
    first = folders.index()
    assert folders.index() is first
    write_atomic(tmp_path / "b.yaml", one(1))
    assert sorted(folders.index().entries) == [  # both have "all", which is then no device
        *(f"nvidia.com/gpu={name}" for name in ("0", "1", "GPU-0", "GPU-1"))
    ]
    assert read == [str(tmp_path / "a.json"), str(tmp_path / "b.yaml")]


def test_broken_and_odd_files_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "good.json", one(0))
    write_atomic(tmp_path / "broken.json", "{")
    write_atomic(tmp_path / "other.txt", one(1))
    write_atomic(tmp_path / "strange.yaml", "kind: 7\n")
    (tmp_path / "folder.json").mkdir()
    os.symlink("nowhere", tmp_path / "dangling.json")
    os.mkfifo(tmp_path / "pipe.json")
    assert "nvidia.com/gpu=0" in SpecFolders([tmp_path]).index().entries
    assert "nvidia.com/gpu=1" not in SpecFolders([tmp_path]).index().entries
    monkeypatch.setattr(specs, "MAX_BYTES", 10)
    assert SpecFolders([tmp_path]).index().entries == {}
