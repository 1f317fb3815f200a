"""What the validator proves of AMD, Gaudi and Intel: their drivers answer, and their device nodes are there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from kgpu.agent.gate import judge
from kgpu.cli.validate import validate
from kgpu.hw.simulator import create, modules, operate
from kgpu.hw.vendor import vendors
from kgpu.validator.checks import file_driver, plugin
from kgpu.validator.checks.plugin import NodeResources
from kgpu.validator.model import Check, NodeValidation, Status, of_devices, skipped

PROFILES = ("mi300x", "gaudi2", "arc", "max1550")
TITLES = {"mi300x": "AMD", "gaudi2": "Intel Gaudi", "arc": "Intel", "max1550": "Intel"}


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str], Path]:
    return lambda profile: create.create_root(profile, tmp_path / profile, gpus=2)


def validated(root: Path) -> tuple[int, str]:
    result = CliRunner().invoke(validate, ["--root", str(root)])
    return result.exit_code, result.output


@pytest.mark.parametrize("profile", PROFILES)
def test_a_healthy_node_passes_and_nobody_calls_compute_proven(*, profile: str, made: Callable[[str], Path]) -> None:
    code, said = validated(made(profile))
    assert code == 0
    assert f"2 {TITLES[profile]} devices; the driver answers; that a program computes is not tested" in said
    assert "cuda     skipped" in said
    assert "toolkit  skipped" in said
    assert said.splitlines()[-1] == "passed"
    assert "Test PASSED" not in said


@pytest.mark.parametrize("profile", PROFILES)
def test_a_driver_that_is_not_loaded_fails_under_its_own_name(*, profile: str, made: Callable[[str], Path]) -> None:
    root = made(profile)
    modules.unload(root)
    code, said = validated(root)
    assert code == 3
    assert f"the driver of the {TITLES[profile]} devices on the PCI bus is not loaded" in said
    assert "nvidia" not in said.replace("nvidia.com", "").lower()


@pytest.mark.parametrize(
    ("profile", "fault", "what"),
    [
        ("mi300x", "lost", "it has fallen off the bus"),
        ("mi300x", "ecc", "uncorrectable memory error"),
        ("mi300x", "hang", "did not end in time"),
        ("gaudi2", "needs-reset", "its driver says: Malfunction"),
        ("arc", "lost", "it has fallen off the bus"),
    ],
)
def test_a_fault_fails_one_device(*, profile: str, fault: str, what: str, made: Callable[[str], Path]) -> None:
    root = made(profile)
    operate.inject(root, fault, gpu=1)
    code, said = validated(root)
    assert code == 3
    assert what in said
    assert said.count(": failed") == 1


@pytest.mark.parametrize(
    ("profile", "node"), [("mi300x", "dev/kfd"), ("gaudi2", "dev/accel/accel1"), ("arc", "dev/dri/renderD129")]
)
def test_a_device_node_that_is_not_there(*, profile: str, node: str, made: Callable[[str], Path]) -> None:
    root = made(profile)
    (root / node).unlink()
    code, said = validated(root)
    assert code == 3
    assert f"/{node} is not there" in said


def test_the_gate_opens_for_devices_that_only_the_driver_proves() -> None:
    skips = file_driver.skips(vendors()["amd"])
    results = (of_devices(Check.DRIVER, ()), *(skipped(check, why) for check, why in skips.items()))
    report = NodeValidation(results=results, driver_version="6.10.5", boot="b")
    assert judge(report, boot="b", driver_version="6.10.5", folder="/x").open


@pytest.mark.parametrize("vendor", ["amd", "gaudi", "intel"])
def test_the_plugin_check_asks_for_the_vendors_resources(vendor: str) -> None:
    row = vendors()[vendor]
    facts = NodeResources(capacity={row.resource: 8}, allocatable={row.resource: 7})
    assert plugin.judge(facts, usable=8, domain=row.domain).status is Status.PASSED
    assert plugin.judge(NodeResources(), usable=8, domain=row.domain).trouble is not None
    assert row.domain in (plugin.judge(NodeResources(), usable=8, domain=row.domain).reason())
    gone = plugin.judge(NodeResources(capacity={row.resource: 8}), usable=8, domain=row.domain)
    assert (gone.status, "the driver check" in gone.reason()) == (Status.FAILED, True)
