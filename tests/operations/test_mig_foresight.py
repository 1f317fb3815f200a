"""What a MIG config would make of a node, by the Node's labels: tables of resources before and after, and what can't be."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.formats.mig_config import MigEntry, parse_mig_configs
from kgpu.formats.mig_default_configs import default_configs
from kgpu.formats.yaml_text import write
from kgpu.operations.mig_foresight import MigForesight, foresee, mig_node_view

CONFIGS = parse_mig_configs(write(default_configs())).configs
GPU = "nvidia.com/gpu"
H100 = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8", "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.strategy": "mixed",
}  # fmt: skip
HALF = parse_mig_configs("""\
version: v1
mig-configs:
  half:
  - {devices: [0, 1], mig-enabled: true, mig-devices: {3g.40gb: 2}}
  none:
  - {devices: [9], mig-enabled: true, mig-devices: {3g.40gb: 2}}
  wrong:
  - {devices: all, mig-enabled: true, mig-devices: {5g.50gb: 1}}
  much:
  - {devices: all, mig-enabled: true, mig-devices: {3g.40gb: 3}}
  two:
  - {devices: all, mig-enabled: true, mig-devices: {3g.40gb: 2}}
  - {devices: [7], mig-enabled: false}
  parts:
  - {devices: all, mig-enabled: true, mig-devices: {1c.3g.40gb: 2, 3g.40gb: 1}}
""").configs


def look(
    config: str, entries: tuple[MigEntry, ...] | None = None, offered: dict[str, int] | None = None, **labels: str
) -> MigForesight:
    known = {**H100, **{f"nvidia.com/{key}".replace("_", "."): value for key, value in labels.items()}}
    allocatable = {key: str(count) for key, count in ({GPU: 8} if offered is None else offered).items()}
    node = {"metadata": {"name": "n1", "labels": known}, "status": {"allocatable": allocatable}}
    return foresee(mig_node_view(node), config, entries if entries is not None else (CONFIGS | HALF)[config])


@pytest.mark.parametrize(
    ("config", "labels", "after"),
    [
        ("all-1g.10gb", {}, {"nvidia.com/mig-1g.10gb": 56}),
        ("all-1g.10gb", {"mig_strategy": "single"}, {GPU: 56}),
        ("all-1g.10gb", {"gpu_product": "NVIDIA-A100-SXM4-40GB"}, {"nvidia.com/mig-1g.10gb": 32}),
        ("all-disabled", {}, {GPU: 8}),
        ("all-enabled", {}, {}),
        ("all-balanced", {},
         {"nvidia.com/mig-1g.10gb": 16, "nvidia.com/mig-2g.20gb": 8, "nvidia.com/mig-3g.40gb": 8}),
        ("half", {}, {GPU: 6, "nvidia.com/mig-3g.40gb": 4}),
        ("two", {}, {GPU: 1, "nvidia.com/mig-3g.40gb": 14}),
        ("parts", {}, {"nvidia.com/mig-3g.40gb": 8}),
    ],
)  # fmt: skip
def test_the_resources_after(config: str, labels: dict[str, str], after: dict[str, int]) -> None:
    found = look(config, **labels)
    assert (found.before, found.after) == ({GPU: 8}, after)


def test_gpus_that_the_config_is_not_about_are_none_of_its() -> None:
    assert look("half").concerned == (0, 1)
    assert len(look("all-disabled").concerned) == 8


@pytest.mark.parametrize(
    ("config", "offered", "labels", "why"),
    [
        ("half", {"nvidia.com/mig-1g.10gb": 56}, {}, "how the GPUs that the config is not about are cut"),
        ("half", None, {"mig_strategy": "single"}, "how the GPUs that the config is not about are cut"),
        ("all-1g.10gb", None, {"mig_strategy": "none"}, "the node's MIG strategy is none"),
        ("all-1g.10gb", None, {"mig_strategy": ""}, "the node's MIG strategy is not said"),
        ("all-balanced", None, {"mig_strategy": "single"}, "all GPUs have to be cut alike"),
        ("two", None, {"mig_strategy": "single"}, "all GPUs have to be cut alike"),
        ("all-1g.10gb", None, {"gpu_replicas": "4"}, "shared 4 times"),
    ],
)
def test_what_is_not_known_is_said(
    config: str, offered: dict[str, int] | None, labels: dict[str, str], why: str
) -> None:
    found = look(config, offered=offered, **labels)
    assert found.after is None
    assert why in " ".join(found.notes)


def test_an_unknown_product_is_told_and_a_filter_is_a_guess() -> None:
    assert "kgpu has no table of New-GPU" in look("all-1g.20gb", gpu_product="New-GPU").notes[0]
    assert "taken from their product's name" in " ".join(look("all-balanced").notes)


@pytest.mark.parametrize(
    ("config", "labels", "why"),
    [
        ("wrong", {}, "has no profile 5g.50gb"),
        ("much", {}, "has no room for 3 of 3g.40gb"),
        ("none", {}, "is about none of the 8 GPUs"),
        ("all-balanced", {"gpu_product": "New-GPU"}, "is about none of the 8 GPUs"),
        ("all-1g.10gb", {"gpu_product": ""}, "don't say which GPUs it has"),
        ("all-1g.10gb", {"gpu_count": "many"}, "don't say which GPUs it has"),
        ("all-1g.10gb", {"mig_capable": "false"}, "they have no MIG"),
    ],
)
def test_what_can_not_be_is_refused_in_three_parts(config: str, labels: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        look(config, **labels)
    error: Any = refused.value
    assert why in error.what
    assert error.expected
    assert error.remedy


def test_a_node_of_a_thousand_gpus_is_bounded() -> None:
    assert len(look("all-disabled", gpu_count="99999").concerned) == 64
