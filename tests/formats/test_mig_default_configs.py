"""The configs that come with NVIDIA's programs: all names, and each fits the GPUs that it is for."""

from __future__ import annotations

import json

import pytest

from kgpu.formats.mig_config import parse_mig_configs
from kgpu.formats.mig_default_configs import default_configs
from kgpu.formats.mig_geometry import GEOMETRIES, Geometry, find, fits
from kgpu.formats.yaml import dump

CONFIGS = parse_mig_configs(dump(default_configs())).configs
IDS = {
    0x20B0: "a100-40gb", 0x20B2: "a100-80gb", 0x20B7: "a30", 0x2330: "h100-80gb", 0x2321: "h100-94gb",
    0x2342: "gh200-96gb", 0x2335: "h200", 0x2348: "gh200-144gb", 0x2901: "b200", 0x2941: "gb200", 0x3182: "b300",
    0x31C2: "gb300", 0x2BB5: "rtx-pro-6000",
}  # fmt: skip


def test_there_are_81_and_the_file_is_read_as_it_was_written() -> None:
    assert len(CONFIGS) == 81
    assert parse_mig_configs(json.dumps(default_configs())).configs == CONFIGS
    assert {"all-disabled", "all-enabled", "all-balanced", "all-1g.24gb.me.all", "all-1g.24gb-me"} <= CONFIGS.keys()


@pytest.mark.parametrize(("model", "name"), IDS.items(), ids=IDS.values())
def test_each_profile_of_a_model_has_a_config_that_fills_it(model: int, name: str) -> None:
    geometry = GEOMETRIES[name]
    filled = {
        profile for config in CONFIGS if config.startswith("all-") for profile in _filled(config, model, geometry)
    }
    # Drivers of GB200 have no name of their own for these two in the published list.
    assert filled >= {row.name for row in geometry.rows}


def _filled(config: str, model: int, geometry: Geometry) -> set[str]:
    """The profile of which the GPU takes as many as the config says and no more, if it is such a config."""
    entries = [one for one in CONFIGS[config] if one.is_about(0, model << 16 | 0x10DE, 0)]
    if len(entries) != 1 or len(entries[0].profiles) != 1:
        return set()
    [(profile, count)] = entries[0].profiles
    row = next((row for row in geometry.rows if row.name == str(profile)), None)
    if row is None:
        return set()
    assert fits(geometry, [row] * count)
    assert not fits(geometry, [row] * (count + 1))
    return {row.name}


@pytest.mark.parametrize(("model", "name"), IDS.items(), ids=IDS.values())
def test_balanced_fits_and_leaves_no_room(model: int, name: str) -> None:
    geometry = GEOMETRIES[name]
    [entry] = [one for one in CONFIGS["all-balanced"] if one.is_about(0, model << 16 | 0x10DE, 0)]
    rows = [row for profile, count in entry.profiles if (row := find(geometry, profile)) for _ in range(count)]
    assert len(rows) == sum(count for _, count in entry.profiles)
    assert fits(geometry, rows)
    assert not fits(geometry, [*rows, geometry.smallest])
