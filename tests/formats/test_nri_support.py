"""Which runtimes give containers the CDI devices that NRI plugins ask for."""

from __future__ import annotations

import pytest

from kgpu.formats.nri_support import unsupported


@pytest.mark.parametrize(
    "version", ["v2.1.4", "2.1.0", "2.1.0-rc.1", "v2.2.1", "3.0.0", "v1.7.30", "1.7.31~ds1-0", "1.7.99+k3s1", "2.3"]
)
def test_supported_versions(version: str) -> None:
    assert unsupported("containerd", version) == ""


@pytest.mark.parametrize("version", ["v2.0.5", "2.0", "v1.7.29", "1.7", "1.6.99", "1.8.0"])
def test_versions_that_drop_the_devices(version: str) -> None:
    assert "drops" in unsupported("containerd", version)


def test_other_runtimes_and_odd_versions() -> None:
    assert "cri-o" in unsupported("cri-o", "1.34.0")
    assert "without a name" in unsupported("", "2.1.4")
    assert "no version" in unsupported("containerd", "unknown")
    assert len(unsupported("x" * 5000, "1")) < 200
    assert len(unsupported("containerd", "y" * 5000)) < 200
