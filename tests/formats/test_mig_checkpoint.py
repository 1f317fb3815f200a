"""mig-parted's checkpoint: written as Go writes it, and refused as a whole where it says anything else."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.mig_checkpoint import SavedGpu, SavedInstance, parse_checkpoint, write_checkpoint

# As Go's encoding/json writes the structs of mig-parted's api/checkpoint/v1 and pkg/types, which have no tags.
TEXT = (
    '{"Version":"v1","MigState":{"Devices":['
    '{"UUID":"GPU-1","MigMode":0,"GpuInstances":null},'
    '{"UUID":"GPU-2","MigMode":1,"GpuInstances":['
    '{"ProfileID":2,"Placement":{"Start":4,"Size":4},"ComputeInstances":['
    '{"ProfileID":0,"EngProfileID":0},{"ProfileID":1,"EngProfileID":0}]},'
    '{"ProfileID":0,"Placement":{"Start":0,"Size":1},"ComputeInstances":null}]}]}}'
)
GPUS = (
    SavedGpu(uuid="GPU-1", enabled=False),
    SavedGpu(
        uuid="GPU-2",
        enabled=True,
        instances=(
            SavedInstance(profile=2, start=4, size=4, compute=(0, 1)),
            SavedInstance(profile=0, start=0, size=1),
        ),
    ),
)


def test_it_is_what_mig_parted_writes() -> None:
    assert write_checkpoint(GPUS) == TEXT
    assert parse_checkpoint(TEXT.encode()) == GPUS
    assert write_checkpoint(()) == '{"Version":"v1","MigState":{"Devices":null}}'
    assert parse_checkpoint(write_checkpoint(()).encode()) == ()


def changed(**members: Any) -> bytes:
    """A GPU's checkpoint with other members."""
    gpu = {"UUID": "GPU-1", "MigMode": 1, "GpuInstances": None, **members}
    return json.dumps({"Version": "v1", "MigState": {"Devices": [gpu]}}).encode()


def instance(**members: Any) -> list[dict[str, Any]]:
    return [{"ProfileID": 0, "Placement": {"Start": 0, "Size": 1}, "ComputeInstances": None, **members}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "truncated"),
        (b"version: v1\nmig-configs: {}\n", "malformed"),
        (b"\xff\xfe", "malformed"),
        (b"[" * 100_000, "malformed|recursion|truncated|Expected"),
        (b"{}", "missing required field `Version`"),
        (b'{"Version":"v2","MigState":{"Devices":null}}', "unknown version: v2"),
        (b'{"Version":"v1","MigState":{"Devices":null},"More":1}', "unknown field `More`"),
        (TEXT.encode()[:-1], "truncated"),
        (changed(MigMode=2), r"MigMode"),
        (changed(MigMode=True), r"MigMode"),
        (changed(UUID="../../etc"), r"UUID"),
        (changed(UUID="GPU-1\n"), r"UUID"),
        (changed(MigMode=0, GpuInstances=instance()), "GPU-1 has GPU instances with MIG off"),
        (changed(GpuInstances=instance(ProfileID=-1)), "ProfileID"),
        (changed(GpuInstances=instance(ProfileID=1 << 70)), "ProfileID|range"),
        (changed(GpuInstances=instance(ProfileID=1.5)), "ProfileID"),
        (changed(GpuInstances=instance(Placement=None)), "Placement"),
        (changed(GpuInstances=instance() * 65), "GpuInstances"),
        (changed(GpuInstances=instance(ComputeInstances=[{"ProfileID": 0, "EngProfileID": 3}])), "engine profile 3"),
        (TEXT.replace("GPU-2", "GPU-1").encode(), "it has GPU-1 twice"),
    ],
)
def test_anything_else_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        parse_checkpoint(content, source="before.json")
    assert refused.value.what.startswith("error parsing checkpoint file: before.json: ")
    assert refused.value.remedy


@given(st.binary(max_size=200))
def test_no_content_gives_another_error(content: bytes) -> None:
    with contextlib.suppress(ConfigError):
        parse_checkpoint(content)
