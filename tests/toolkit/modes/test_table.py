"""The table of modes: every mode that can be asked for is there under its own name, with a kind."""

from __future__ import annotations

import pytest

from kgpu.toolkit.config import AUTO, MODES, GenerateConfig
from kgpu.toolkit.modes.table import MODULES, mode_named

KINDS = {
    "csv": "nvidia.com/gpu",
    "gdrcopy": "nvidia.com/gdrcopy",
    "gds": "nvidia.com/gds",
    "imex": "nvidia.com/imex-channel",
    "management": "management.nvidia.com/gpu",
    "mofed": "nvidia.com/mofed",
    "nvml": "nvidia.com/gpu",
    "nvswitch": "nvidia.com/nvswitch",
    "wsl": "nvidia.com/gpu",
}


def test_every_mode_that_can_be_asked_for_is_in_the_table() -> None:
    assert {AUTO, *MODULES} == set(MODES)


@pytest.mark.parametrize("name", KINDS)
def test_mode_has_its_name_and_kind(name: str) -> None:
    mode = mode_named(name)
    assert mode.name == name
    assert mode.kind(GenerateConfig()) == KINDS[name]
    assert mode.help
