"""Advice changes with what kgpu has. These tests say what it has: nothing of its own, unless they say otherwise."""

from __future__ import annotations

import pytest

from kgpu.advise import stands


@pytest.fixture(autouse=True)
def _kgpu_has_no_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stands, "provided", lambda _operand: False)
