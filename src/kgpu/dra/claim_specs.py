"""CDI specs of claims: a file for each, without hooks, which goes with the claim.

The kind is that of the vendor's DRA driver (``drivers``); NVIDIA's files have that driver's names, so that an upgrade
overwrites them. Besides the nodes of its device each container gets what the vendor's software needs (the driver's
files, variables about all devices of the claim), and what sharing needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kgpu.base.errors import HostError
from kgpu.base.files import write_atomic
from kgpu.dra.drivers import ClaimCdi
from kgpu.dra.records import ClaimRecord
from kgpu.formats.cdi import (
    CdiDevice,
    CdiDeviceNode,
    ContainerEdits,
    build_spec,
    dump_spec,
    merged,
    qualified_name,
)

_NOTHING: Final = ContainerEdits()
NO_SHARING: Final[Mapping[str, ContainerEdits]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClaimSpecs:
    """The files in ``folder``. ``node`` makes the entry of a device node's path; ``common`` has what every container of
    a claim gets with any of its devices, whose UUIDs it is given. Calls block and raise HostError; ``common`` may raise
    others.
    """

    folder: Path
    cdi: ClaimCdi
    node: Callable[[str], CdiDeviceNode]
    common: Callable[[Sequence[str]], ContainerEdits]

    def names(self, uid: str, devices: Sequence[str]) -> dict[str, str]:
        """The name by which a container gets each device."""
        return {device: qualified_name(self.cdi.kind, f"{uid}-{device}") for device in devices}

    def has(self, uid: str) -> bool:
        """Whether the claim's file is there."""
        return self._path(uid).is_file()

    def write(
        self, record: ClaimRecord, nodes: Mapping[str, Sequence[str]],
        sharing: Mapping[str, ContainerEdits] = NO_SHARING,
    ) -> None:  # fmt: skip
        """The file of a claim: by device the paths of its nodes, the parent's first, and what sharing it takes."""
        uid = record.uid
        devices = [self._device(uid, device, paths, sharing.get(device, _NOTHING)) for device, paths in nodes.items()]
        common = merged(self.common([one.uuid for one in record.devices]), ContainerEdits(env=self.cdi.env))
        text = dump_spec(build_spec(kind=self.cdi.kind, devices=devices, common=common, all_device=False))
        path = self._path(uid)
        try:
            write_atomic(path, text, flush=False)  # it is written anew after a boot
        except OSError as error:
            raise _trouble(path, error) from error

    def _device(self, uid: str, device: str, paths: Sequence[str], sharing: ContainerEdits) -> CdiDevice:
        nodes = tuple(self.node(path) for path in paths)
        return CdiDevice(names=(f"{uid}-{device}",), nodes=nodes, env=sharing.env, mounts=sharing.mounts)

    def remove(self, uid: str) -> None:
        """Remove the claim's file, if there is one."""
        path = self._path(uid)
        try:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        except OSError as error:
            raise _trouble(path, error) from error

    def _path(self, uid: str) -> Path:
        return self.folder / f"{self.cdi.vendor}-{self.cdi.cls}_{uid}.yaml"


def _trouble(path: Path, error: OSError) -> HostError:
    return HostError(
        f"{path} can't be changed: {error.strerror or error}", "a CDI folder that may be written",
        f"see that {path.parent} is mounted and has room",
    )  # fmt: skip
