"""mig-parted's checkpoint of how GPUs are cut, version v1: JSON with the field names of its program, on one line.

Only GPUs with MIG are in it, by UUID. Profiles are NVML's numbers, not the ids that ``nvidia-smi mig -lgip`` prints;
starts and sizes are in memory slices. Of compute instances it has no places. A file that says anything else is refused
as a whole: what is not understood would not be restored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from kgpu.base import typed
from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line

VERSION: Final = "v1"
SHARED_ENGINES: Final = 0
"""The only profile of engines that NVML has."""
MAX_BYTES: Final = 1 << 20
_REMEDY: Final = "give a file that `checkpoint` of this program or of mig-parted has written"

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=255)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedInstance:
    """A GPU instance at its place; ``compute`` are the numbers of its compute instances' profiles."""

    profile: int
    start: int
    size: int
    compute: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGpu:
    """A GPU with MIG. ``enabled`` is its mode in force."""

    uuid: str
    enabled: bool
    instances: tuple[SavedInstance, ...] = ()


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="pascal"):
    """A part of the file."""


class _Compute(_Part, frozen=True):
    profile_id: _Number = msgspec.field(name="ProfileID")
    engine_profile_id: _Number = msgspec.field(name="EngProfileID")


class _Placement(_Part, frozen=True):
    start: _Number
    size: _Number


class _Instance(_Part, frozen=True):
    profile_id: _Number = msgspec.field(name="ProfileID")
    placement: _Placement
    compute_instances: Annotated[list[_Compute], msgspec.Meta(max_length=64)] | None


class _SavedDevice(_Part, frozen=True):
    uuid: Annotated[str, msgspec.Meta(pattern=r"^GPU-[0-9A-Za-z-]{1,60}\Z")] = msgspec.field(name="UUID")
    mig_mode: Annotated[int, msgspec.Meta(ge=0, le=1)]
    gpu_instances: Annotated[list[_Instance], msgspec.Meta(max_length=64)] | None


class _MigState(_Part, frozen=True):
    devices: Annotated[list[_SavedDevice], msgspec.Meta(max_length=1024)] | None


class _Checkpoint(_Part, frozen=True):
    version: str
    mig_state: _MigState


def write_checkpoint(gpus: tuple[SavedGpu, ...]) -> str:
    """The file's content. What is empty is null, as Go writes lists that nothing was added to."""
    devices = [
        {
            "UUID": gpu.uuid,
            "MigMode": int(gpu.enabled),
            "GpuInstances": [_written(one) for one in gpu.instances] or None,
        }
        for gpu in gpus
    ]
    return json.dumps({"Version": VERSION, "MigState": {"Devices": devices or None}}, separators=(",", ":"))


def _written(one: SavedInstance) -> dict[str, Any]:
    compute = [{"ProfileID": profile, "EngProfileID": SHARED_ENGINES} for profile in one.compute]
    place = {"Start": one.start, "Size": one.size}
    return {"ProfileID": one.profile, "Placement": place, "ComputeInstances": compute or None}


def parse_checkpoint(content: bytes, *, source: str = "checkpoint file") -> tuple[SavedGpu, ...]:
    """The GPUs of a checkpoint. Raises ConfigError."""
    try:
        read = typed.decode(content, _Checkpoint)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise _foreign(source, one_line(str(error), 200)) from error
    if read.version != VERSION:
        raise _foreign(source, f"unknown version: {one_line(read.version, 40)}")
    gpus = tuple(_gpu(one, source) for one in read.mig_state.devices or ())
    seen: set[str] = set()
    for gpu in gpus:
        if gpu.uuid in seen:
            raise _foreign(source, f"it has {gpu.uuid} twice")
        seen.add(gpu.uuid)
    return gpus


def _gpu(device: _SavedDevice, source: str) -> SavedGpu:
    if device.gpu_instances and not device.mig_mode:
        raise _foreign(source, f"{device.uuid} has GPU instances with MIG off")
    return SavedGpu(
        uuid=device.uuid, enabled=device.mig_mode == 1,
        instances=tuple(_saved(one, device.uuid, source) for one in device.gpu_instances or ()),
    )  # fmt: skip


def _saved(one: _Instance, uuid: str, source: str) -> SavedInstance:
    compute = one.compute_instances or ()
    other = next((ci.engine_profile_id for ci in compute if ci.engine_profile_id != SHARED_ENGINES), None)
    if other is not None:
        raise _foreign(source, f"{uuid} has a compute instance of the unknown engine profile {other}")
    return SavedInstance(
        profile=one.profile_id, start=one.placement.start, size=one.placement.size,
        compute=tuple(ci.profile_id for ci in compute),
    )  # fmt: skip


def _foreign(source: str, why: str) -> ConfigError:
    return ConfigError(f"error parsing checkpoint file: {source}: {why}", "a checkpoint of version v1", _REMEDY)
