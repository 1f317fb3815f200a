"""Building the native parts: once per content, whole or not at all, and clear errors."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kgpu.base.errors import HwError
from kgpu.hw.simulator import build


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small source tree in place of the real one, with a cache of its own."""
    folder = tmp_path / "native"
    (folder / "nvml").mkdir(parents=True)
    (folder / "nvml" / "one.c").write_text("int one(void);\nint one(void) { return 1; }\n")
    monkeypatch.setattr(build, "source_dir", lambda: folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_a_second_call_builds_nothing(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.native_dir()
    assert os.listdir(first) == ["libnvidia-ml.so.1"], "targets without sources are left out"

    def never(_: list[str]) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(build, "_compile", never)
    assert build.native_dir() == first


def test_other_content_is_another_build(sources: Path) -> None:
    first = build.native_dir()
    (sources / "nvml" / "two.h").write_text("#define TWO 2\n")
    second = build.native_dir()
    assert first != second
    assert first.is_dir()


def test_sources_that_do_not_compile_are_a_three_part_error(sources: Path, tmp_path: Path) -> None:
    (sources / "nvml" / "one.c").write_text("int one(void) { return unknown; }\n")
    with pytest.raises(HwError) as caught:
        build.native_dir()
    assert "unknown" in caught.value.what
    assert os.listdir(tmp_path / "cache" / "kgpu" / "native") == []


def test_no_compiler_is_a_three_part_error(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(HwError, match="no C compiler") as caught:
        build.native_dir()
    assert "apt-get install" in caught.value.remedy


def test_a_cache_that_cannot_be_written_is_a_three_part_error(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(HwError, match="can't be written") as caught:
        build.native_dir()
    assert "XDG_CACHE_HOME" in caught.value.remedy


def test_the_real_sources_build_and_load_by_name(sim_libs: Path) -> None:
    programs = {"nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "vectoradd", "gpu-load"}
    assert {"libnvidia-ml.so.1", "libcuda.so.1", "libhlml.so", *programs} == set(os.listdir(sim_libs))
    assert shutil.which("nvidia-smi", path=str(sim_libs))
