"""Which boot it is: the kernel's, or a simulated machine's where the environment has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.base.boot import BOOT_ID, ENV_BOOT_ID, boot_id


def test_a_simulated_machine_has_a_boot_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_BOOT_ID, raising=False)
    kernels = BOOT_ID.read_text().strip()
    assert boot_id() == kernels
    monkeypatch.setenv(ENV_BOOT_ID, "another")
    assert boot_id() == "another"
    monkeypatch.setenv(ENV_BOOT_ID, "")
    assert boot_id() == kernels


def test_a_path_is_asked_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENV_BOOT_ID, "another")
    (tmp_path / "id").write_text("one\n")
    assert boot_id(tmp_path / "id") == "one"
    assert boot_id(BOOT_ID) == BOOT_ID.read_text().strip()
    assert boot_id(tmp_path / "missing") == ""
