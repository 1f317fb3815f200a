"""Vendors are found by their packages, and what one says can be said of it everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.hw.vendor import vendor_of, vendors

ROOT = Path(__file__).resolve().parents[2]


def test_every_package_with_a_vendor_is_found_under_its_own_name() -> None:
    packages = {path.parent.name for path in (ROOT / "src/kgpu/hw").glob("*/vendor.py")}
    assert set(vendors()) == packages
    assert "nvidia" in packages
    assert all(row.name == name for name, row in vendors().items())


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        vendor_of("nobody")


def test_resources_are_below_the_domain_and_no_two_vendors_share_one() -> None:
    rows = list(vendors().values())
    for row in rows:
        assert row.resource.startswith(f"{row.domain}/")
        assert row.partition_resource("1x").startswith(f"{row.domain}/")
    for field in ("domain", "resource", "visible_devices", "cdi_vendor", "pci_id", "title"):
        said = [value for row in rows if (value := getattr(row, field))]
        assert len(set(said)) == len(said), field


def test_agents_may_label_with_every_domain() -> None:
    """The chart's admission policy keeps agents from writing any other label."""
    policy = (ROOT / "charts/kgpu/templates/admission.yaml").read_text()
    for row in vendors().values():
        assert f"k.startsWith('{row.domain}/')" in policy


def test_slices_of_nvidia_have_no_plus_in_their_resource() -> None:
    assert vendor_of("nvidia").partition_resource("1g.10gb+me") == "nvidia.com/mig-1g.10gb.me"
