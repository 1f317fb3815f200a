"""What the documents that kgpu follows promise their readers, held on simulated machines: one test for each row.

The ids in the names are those of the checklist of facts (A: bare metal module, B: provisioning module, C: scheduling
lesson, D: operator guide, E: operator lesson). Rows that only a cluster can show are in tests/lab/real.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from kgpu.base.errors import ConfigError
from kgpu.cli.labels import labels
from kgpu.cli.validate import validate
from kgpu.deviceplugin.allocate import allocate
from kgpu.deviceplugin.config import resolve
from kgpu.deviceplugin.model import HostDevices
from kgpu.deviceplugin.plan import plan
from kgpu.discovery.lines import from_lines
from kgpu.formats.plugin_config_parse import parse_config
from kgpu.hw.nvidia.client import NvidiaReader
from kgpu.hw.simulator import mig

MakeRoot = Callable[..., Path]
GPU = "nvidia.com/gpu"

TIME_SLICING = """
version: v1
flags:
  migStrategy: none
sharing:
  timeSlicing:
    renameByDefault: {rename}
    failRequestsGreaterThanOne: {refuse}
    resources:
      - name: {resource}
        replicas: {replicas}
"""


def sliced(replicas: int, *, resource: str = GPU, rename: str = "false", refuse: str = "false") -> str:
    return TIME_SLICING.format(replicas=replicas, resource=resource, rename=rename, refuse=refuse)


def printed(root: Path, tmp_path: Path, config: str = "version: v1", *words: str) -> dict[str, str]:
    file = tmp_path / "config.yaml"
    file.write_text(config)
    result = CliRunner().invoke(labels, ["--root", str(root), "--config-file", str(file), *words])
    assert result.exit_code == 0, result.output
    return from_lines(result.stdout)


async def offered(root: Path, config: str = "version: v1", env: Mapping[str, str] | None = None) -> dict[str, int]:
    settings = resolve(parse_config(config), overrides={}, env=env or {})
    reader = NvidiaReader(driver_root=root)
    try:
        accelerators = (await reader.inventory()).accelerators
    finally:
        await reader.close()
    return {resource.name: len(resource.devices) for resource in plan(accelerators, settings).resources}


@pytest.mark.parametrize("name", ["gpu/", "nvidia.com/", "nvidia.com/GPU", "a/b/c", "nvidia.com/" + "x" * 60])
def test_a12_resource_names_are_a_domain_and_a_name(name: str) -> None:
    with pytest.raises(ConfigError):
        parse_config(sliced(4, resource=name))


def test_a42_product_of_an_a100_40gb(sim_root: MakeRoot, tmp_path: Path) -> None:
    assert printed(sim_root("dgx-a100-40g"), tmp_path)["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"


async def test_a50_a_t4_shared_by_four(sim_root: MakeRoot) -> None:
    assert await offered(sim_root("t4"), sliced(4)) == {GPU: 4}


async def test_a83_the_lab_with_ten_replicas(sim_root: MakeRoot) -> None:
    assert await offered(sim_root("hgx-h100"), sliced(10)) == {GPU: 80}


def test_b11_and_e08_labels_of_a_dgx_a100(sim_root: MakeRoot, tmp_path: Path) -> None:
    found = printed(sim_root("dgx-a100-80g"), tmp_path)
    expected = {
        "gpu.product": "NVIDIA-A100-SXM4-80GB",
        "gpu.memory": "81920",
        "gpu.count": "8",
        "gpu.family": "ampere",
        "gpu.machine": "DGX-A100",
        "cuda.driver.major": "535",
        "mig.capable": "true",
    }
    assert expected.items() <= {key.removeprefix("nvidia.com/"): value for key, value in found.items()}.items()
    newer = printed(sim_root("dgx-a100-80g", driver="550.54.15"), tmp_path)
    assert (newer["nvidia.com/cuda.driver.major"], newer["nvidia.com/cuda.runtime.major"]) == ("550", "12")


@pytest.mark.parametrize(("profile", "product"), [("t4", "Tesla-T4"), ("geforce", "NVIDIA-GeForce-RTX-3060")])
def test_b02_small_cards_work_too(sim_root: MakeRoot, tmp_path: Path, profile: str, product: str) -> None:
    assert printed(sim_root(profile), tmp_path)["nvidia.com/gpu.product"] == product


async def test_c03_a_node_with_four_gpus_offers_four(sim_root: MakeRoot) -> None:
    assert await offered(sim_root("dgx-a100-80g", gpus=4)) == {GPU: 4}


@pytest.mark.parametrize(
    ("profile", "most"), [("1g.10gb", 7), ("2g.20gb", 3), ("3g.40gb", 2), ("4g.40gb", 1), ("7g.80gb", 1)]
)
async def test_c19_slices_of_an_a100_80gb(sim_root: MakeRoot, profile: str, most: int) -> None:
    root = sim_root("dgx-a100-80g", gpus=1)
    mig.partition(root, 0, [profile] * most)
    found = await offered(root, env={"MIG_STRATEGY": "mixed"})
    assert found[f"nvidia.com/mig-{profile}"] == most
    with pytest.raises(ConfigError):
        mig.partition(root, 0, [profile] * (most + 1))


def test_c22_mps_and_time_slicing_exclude_each_other() -> None:
    both = sliced(4) + "  mps:\n    resources:\n      - name: nvidia.com/gpu\n        replicas: 4\n"
    with pytest.raises(ConfigError, match="timeSlicing"):
        parse_config(both)


async def test_c23_and_c46_seven_slices_shared_by_four_are_28(sim_root: MakeRoot) -> None:
    root = sim_root("dgx-a100-80g", gpus=1)
    mig.partition(root, 0, ["1g.10gb"] * 7)
    config = sliced(4, resource="nvidia.com/mig-1g.10gb").replace("migStrategy: none", "migStrategy: mixed")
    found = await offered(root, config)
    assert found["nvidia.com/mig-1g.10gb"] == 28


@pytest.mark.parametrize(("strategy", "name"), [("single", GPU), ("mixed", "nvidia.com/mig-1g.10gb")])
async def test_d21_the_strategy_names_the_slices(sim_root: MakeRoot, strategy: str, name: str) -> None:
    root = sim_root("dgx-a100-80g", gpus=1)
    mig.partition(root, 0, ["1g.10gb"] * 7)
    found = await offered(root, env={"MIG_STRATEGY": strategy})
    assert {key: count for key, count in found.items() if count} == {name: 7}


async def test_d32_renamed_or_marked_as_shared(sim_root: MakeRoot, tmp_path: Path) -> None:
    root = sim_root("t4")
    renamed, plain = sliced(4, rename="true"), sliced(4)
    assert await offered(root, renamed) == {"nvidia.com/gpu.shared": 4}
    assert printed(root, tmp_path, renamed)["nvidia.com/gpu.product"] == "Tesla-T4"
    assert printed(root, tmp_path, plain)["nvidia.com/gpu.product"] == "Tesla-T4-SHARED"


def test_d36_labels_of_a_shared_t4(sim_root: MakeRoot, tmp_path: Path) -> None:
    found = printed(sim_root("t4"), tmp_path, sliced(4))
    assert found["nvidia.com/gpu.replicas"] == "4"
    assert found["nvidia.com/gpu.product"] == "Tesla-T4-SHARED"


async def test_d33_more_than_one_share_can_be_refused(sim_root: MakeRoot) -> None:
    settings = resolve(parse_config(sliced(4, refuse="true")), overrides={}, env={})
    reader = NvidiaReader(driver_root=sim_root("t4"))
    accelerators = (await reader.inventory()).accelerators
    await reader.close()
    (resource,) = plan(accelerators, settings).resources
    ids = [device.id for device in resource.devices[:2]]
    with pytest.raises(Exception, match="maximum request size for shared resources is 1; found 2"):
        allocate(resource, ids, settings, HostDevices(), unhealthy={})


def test_d81_both_80gb_cards_pass_the_memory_rule(sim_root: MakeRoot, tmp_path: Path) -> None:
    sizes = {
        profile: int(printed(sim_root(profile), tmp_path)["nvidia.com/gpu.memory"])
        for profile in ("dgx-a100-80g", "hgx-h100")
    }
    assert sizes == {"dgx-a100-80g": 81920, "hgx-h100": 81559}
    assert all(size > 79000 for size in sizes.values())


def test_b35_d09_validating_by_hand_prints_what_the_sample_prints(sim_root: MakeRoot) -> None:
    result = CliRunner().invoke(validate, ["--only", "driver,cuda", "--root", str(sim_root("hgx-h100", gpus=1))])
    assert result.exit_code == 0, result.output
    assert "[Vector addition of 50000 elements]" in result.output
    assert result.output.endswith("Test PASSED\n")
