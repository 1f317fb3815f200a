"""AMD's ``config.json``: what is taken, what is refused with its place, and the default profiles."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.partition_mode import COMPUTE, MEMORY, PartitionMode, parse_mode
from kgpu.formats.partition_profiles import (
    AssignedMode,
    default_profiles,
    fitted,
    parse_profiles,
)
from tests.budget import tries

ROW = {"computePartition": "CPX", "memoryPartition": "NPS4", "numGPUsAssigned": 8}


def of(*rows: dict[str, Any], **more: Any) -> str:
    """A file with one profile."""
    return json.dumps({"gpu-config-profiles": {"one": {"profiles": list(rows), **more}}})


def row(compute: str, memory: str, gpus: Any) -> dict[str, Any]:
    return {"computePartition": compute, "memoryPartition": memory, "numGPUsAssigned": gpus}


def test_a_profile_is_read_with_its_modes_and_skipped_gpus() -> None:
    found = parse_profiles(of(row("CPX", "NPS1", 5), row("SPX", "NPS1", 2), skippedGPUs={"ids": [7]})).chosen("one")
    assert found.rows == (
        AssignedMode(PartitionMode("CPX", "NPS1"), 5), AssignedMode(PartitionMode("SPX", "NPS1"), 2),
    )  # fmt: skip
    assert (found.skipped, found.gpus) == ((7,), 8)


def test_the_defaults_are_the_replaced_operators_and_fit_any_number_of_gpus() -> None:
    names = ["default", "cpx_nps1_all", "cpx_nps4_all", "dpx_nps2_all", "qpx_nps1_all", "heterogeneous_example"]
    for count in (1, 4, 8, 16):
        profiles = parse_profiles(json.dumps(default_profiles(count))).profiles
        assert list(profiles) == names
        assert {profile.gpus for profile in profiles.values()} == {count}


def test_services_are_units_of_systemd() -> None:
    text = json.dumps({
        "gpu-config-profiles": {"one": {"profiles": [ROW]}},
        "gpuClientSystemdServices": {"names": ["amd-metrics-exporter", "gpuagent.service", "gpuagent"]},
    })  # fmt: skip
    assert parse_profiles(text).services == ("amd-metrics-exporter.service", "gpuagent.service")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there are no gpu-config-profiles"),
        ("[]", "is not a mapping"),
        ("{", "config.json"),
        ('{"gpu-config-profiles": []}', "is no mapping"),
        ('{"gpu-config-profile": {}}', 'did you mean "gpu-config-profiles"?'),
        (of(), "missing required field: profiles"),
        (of({"computePartition": "CPX"}), "missing required field: memoryPartition"),
        (of(row("CPZ", "NPS1", 8)), 'did you mean "CPX"?'),
        (of(row("cpx", "NPS1", 8)), 'did you mean "CPX"?'),
        (of(row("CPX", "NPS3", 8)), "there is no memory partition mode NPS3"),
        (of(row("SPX", "NPS4", 8)), "SPX with NPS4"),
        (of(row("CPX", "NPS1", -1)), "is no number of GPUs"),
        (of(row("CPX", "NPS1", "8")), "is no number of GPUs"),
        (of(row("CPX", "NPS1", True)), "is no number of GPUs"),
        (of(row("CPX", "NPS4", 4), row("CPX", "NPS1", 4)), "NPS4 and NPS1 in one profile"),
        (of(row("CPX", "NPS4", 4), row("QPX", "NPS4", 4)), "CPX and QPX with NPS4"),
        (of(ROW, skippedGPUs={"ids": [0, 0]}), "names no GPUs"),
        (of(ROW, skippedGPUs={"ids": [-1]}), "names no GPUs"),
        (of(ROW, skippedGPUs=[0]), "is not a mapping"),
        (of(ROW, bogus=1), 'unknown key "bogus"'),
        ('{"gpu-config-profiles": {"a": {"profiles": []}, "a": {"profiles": []}}}', "a"),
        ('{"gpuClientSystemdServices": {"names": ["rm -rf /"]}}', "names no services"),
        ('{"gpuClientSystemdServices": {"names": ["--now"]}}', "names no services"),
    ],
)
def test_what_is_wrong_is_said_in_three_parts(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_profiles(text)
    error = refused.value
    assert said in error.one_line()
    assert all((error.what, error.expected, error.remedy))


def test_amds_own_profiles_fit_any_number_of_gpus_and_a_persons_stay_as_they_are() -> None:
    content = default_profiles()
    mine = {"mine": json.loads(of(row("CPX", "NPS1", 8)))["gpu-config-profiles"]["one"]}
    content["gpu-config-profiles"] |= mine | {"qpx_nps1_all": mine["mine"]}
    given_profiles = parse_profiles(json.dumps(content | {"gpuClientSystemdServices": {"names": ["exporter"]}}))
    made = fitted(given_profiles, 4)
    counts = {name: profile.gpus for name, profile in made.profiles.items()}
    assert counts == {
        "default": 4, "cpx_nps1_all": 4, "cpx_nps4_all": 4, "dpx_nps2_all": 4, "heterogeneous_example": 4,
        "mine": 8, "qpx_nps1_all": 8,
    }  # fmt: skip
    assert made.services == ("exporter.service",)
    assert fitted(given_profiles, 8) == given_profiles


def test_a_profile_that_is_not_there_is_asked_back() -> None:
    with pytest.raises(ConfigError, match="did you mean") as refused:
        parse_profiles(json.dumps(default_profiles())).chosen("cpx_nps4")
    assert "cpx_nps4_all" in refused.value.expected


@tries(300)
@given(st.text(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["gpu-config-profiles", "profiles", "skippedGPUs", "ids", "computePartition", "x"]), inner,
        max_size=4,
    ),
    max_leaves=20,
).map(json.dumps))  # fmt: skip
def test_no_file_does_anything_but_be_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_profiles(text).profiles


def test_modes_have_the_names_of_resources() -> None:
    for compute in COMPUTE:
        for memory in MEMORY:
            mode = PartitionMode(compute, memory)
            assert parse_mode(mode.name) == mode
    assert [parse_mode(name) for name in ("", "cpx", "CPX_NPS4", "cpx_nps4\n", "1g.10gb")] == [None] * 5
