"""What tests of the kubelet's users share."""

from __future__ import annotations

import pytest

from kgpu.exporter.users import kubelet_users


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What answers is waited for, however busy the machine is: those waits are by its clock, not by the test's."""
    monkeypatch.setattr(kubelet_users, "WAIT", 60.0)
    monkeypatch.setattr(kubelet_users, "FIRST_WAIT", 80.0)
