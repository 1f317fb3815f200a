"""Which driver branches know a GPU: the table's ranges do not overlap, and the simulator's models are where they belong."""

from __future__ import annotations

from importlib import resources
from itertools import pairwise

import pytest
import yaml

from kgpu.formats.gpu_generations import GENERATIONS, generation_of

MODELS = yaml.safe_load(resources.files("kgpu.hw.simulator").joinpath("models.yaml").read_text())


@pytest.mark.parametrize("model", MODELS)
def test_every_simulated_model_is_of_its_own_generation(model: str) -> None:
    device = f"{MODELS[model]['pci']['device'] >> 16:04x}"
    row = generation_of(device)
    assert row is not None, device
    assert row.name.lower() == MODELS[model]["architecture"]


def test_no_id_is_of_two_generations() -> None:
    ranges = sorted(ids for row in GENERATIONS for ids in row.ids)
    assert all(low <= high for low, high in ranges)
    assert all(before[1] < after[0] for before, after in pairwise(ranges))


@pytest.mark.parametrize("device", ["", "ffff", "none", "0x", "1" * 5000])
def test_an_unknown_or_wrong_id_is_of_none(device: str) -> None:
    assert generation_of(device) is None


def test_a_last_branch_is_later_than_the_first() -> None:
    assert all(not row.last or row.first < row.last for row in GENERATIONS)
