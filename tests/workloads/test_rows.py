"""What people call operands is understood, and nothing else is."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError
from kgpu.formats.operands import OPERANDS
from kgpu.workloads.rows import WORKLOADS, workload


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("device-plugin", "device-plugin"), ("deviceplugin", "device-plugin"), ("Device-Plugin", "device-plugin"),
        ("nvidia-device-plugin-daemonset", "device-plugin"), ("ds/nvidia-device-plugin-daemonset", "device-plugin"),
        ("gpu-feature-discovery", "gfd"), ("labels", "gfd"), ("exporter", "dcgm-exporter"), ("kgpu-agent", "agent"),
        ("deploy/gpu-operator", "operator"), ("usage", "usage"), ("kgpu-usage", "usage-history"),
        ("nvidia-operator-validator", "validator"),
    ],
)  # fmt: skip
def test_names_of_both_systems_and_roles_are_understood(word: str, name: str) -> None:
    assert workload(word).name == name


@pytest.mark.parametrize("row", OPERANDS, ids=lambda row: row.name)
def test_every_operand_is_known_by_its_name(row: object) -> None:
    assert workload(row.name).name == row.name  # type: ignore[attr-defined]


def test_names_are_unique() -> None:
    assert len({row.name for row in WORKLOADS}) == len(WORKLOADS)


@pytest.mark.parametrize("word", ["device-plugn", "pods/x", "", "\x1b[2J"])
def test_what_is_not_known_is_refused_with_what_is(word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        workload(word)
    assert "device-plugin" in caught.value.expected
    assert "\x1b" not in str(caught.value)
    if word == "device-plugn":
        assert 'did you mean "device-plugin"?' in caught.value.what
