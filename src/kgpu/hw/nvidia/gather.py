"""What the hardware child reads about one GPU, as plain dicts and lists: facts, pulse, topology, telemetry.

Promise: a reading that the GPU doesn't have is None; a reading that failed is None and named in ``errors``. Only an
error that says the whole GPU is unreachable is raised (``NvmlError``). No judgement here; that is ``facts.py`` in the
parent.
"""

from __future__ import annotations

import os

from kgpu.hw.nvidia import gpu_processes
from kgpu.hw.nvidia.codes import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    VERSION_MISMATCH,
)
from kgpu.hw.nvidia.fallbacks import Calls, Nvml, NvmlError
from kgpu.hw.nvidia.peers import peer_states
from kgpu.hw.nvidia.slices import SKIPPED, GpuSlices
from kgpu.hw.nvidia.telemetry import Telemetry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kgpu.hw.nvidia.activity import GpuActivity

ABSENT = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, VERSION_MISMATCH})
MAX_LINKS = 36
GI_PROFILES = 18
CI_PROFILES = 9
RECOVERY_ACTION_FIELD = 230
FABRIC_COMPLETED = 3
ADDRESSING_ATS = 2


class Gatherer:
    """Reads GPUs by their NVML index through one initialised library; keeps what can't change while it is loaded."""

    def __init__(self, nvml: Nvml, proc: str, sysfs: str) -> None:
        self.nvml = nvml
        self.proc = proc
        self.sysfs = sysfs
        calls = Calls(nvml)
        self.slices = GpuSlices(nvml, calls)
        self.telemetry = Telemetry(nvml, calls, self.slices)
        self._activity: GpuActivity | None = None
        self._gi_kinds: dict[tuple[str, int], tuple[int, int] | None] = {}
        self._ci_kinds: dict[tuple[str, int, int], int | None] = {}
        self._caps: tuple[object, dict[str, int]] = (None, {})

    def pulse(self, index: int) -> dict[str, Any]:
        """The few readings whose change means "read the inventory again"."""
        handle = self.nvml.call("handle", index)
        uuid = self.nvml.call("uuid", handle)
        return self._pulse(handle, uuid, [], lambda: self.slices.of(handle, uuid))

    def gpu(self, index: int) -> dict[str, Any]:
        """Everything that identifies and describes the GPU at this index, its MIG devices included."""
        errors: list[list[Any]] = []
        handle = self.nvml.call("handle", index)
        uuid = self.nvml.call("uuid", handle)
        slices: list[Any] = []

        def list_slices() -> list[Any]:
            current, trouble = self.slices.now(handle, uuid)
            if trouble is not None:
                errors.append(["mig_handle", trouble.code, trouble.text])
            slices.extend(current)
            return current

        pulse = self._pulse(handle, uuid, errors, list_slices)
        pci = self._soft(errors, "pci", handle)
        bus_id = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0" if pci is not None else ""
        memory = self._soft(errors, "memory", handle)
        total = memory.total if memory is not None else None
        minor = self._soft(errors, "minor", handle)
        addressing = self._soft(errors, "addressing", handle)
        return {
            "index": index,
            "pulse": pulse,
            "name": self._soft(errors, "name", handle) or "",
            "serial": self._soft(errors, "serial", handle) or "",
            "minor": minor,
            "bus_id": bus_id,
            "pci_device_id": pci.pciDeviceId if pci is not None else 0,
            "pci_class": self._pci_number(bus_id, "class", 16) or 0,
            "numa_node": self._pci_number(bus_id, "numa_node", 10),
            "memory_bytes": total,
            "compute_capability": self._soft(errors, "compute_capability", handle),
            "fabric": self._fabric(handle, errors),
            "addressing": addressing.value if addressing is not None else None,
            "coherent": addressing is not None and addressing.value == ADDRESSING_ATS,
            "brand": self._soft(errors, "brand", handle),
            "migs": self._migs((handle, uuid, minor), slices, errors),
            "errors": errors,
        }

    def topology(self, index: int, others: list[int]) -> dict[str, Any]:
        """The common-ancestor level to each other index (None when unreadable) and live NVLinks per remote bus id."""
        handle = self.nvml.call("handle", index)
        levels: dict[int, int | None] = {}
        for peer in (candidate for candidate in others if candidate > index):
            try:
                levels[peer] = self.nvml.call("topology", handle, self.nvml.call("handle", peer))
            except NvmlError:
                levels[peer] = None
        lanes: dict[str, int] = {}
        for link in range(MAX_LINKS):
            try:
                if self.nvml.call("link_state", handle, link) == 1:
                    pci = self.nvml.call("link_remote", handle, link)
                    remote = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
                    lanes[remote] = lanes.get(remote, 0) + 1
            except NvmlError as error:
                if error.code in (GPU_IS_LOST, RESET_REQUIRED):
                    raise
                if link == 0 and error.code == NOT_SUPPORTED:
                    break
        return {"levels": levels, "lanes": lanes}

    def peers(self, index: int, others: list[int]) -> str:
        """How it reaches the others' memory."""
        return peer_states(self.nvml, self.nvml.call("handle", index), (other for other in others if other != index))

    def readings(self, index: int, keys: list[str] | None = None) -> dict[str, Any]:
        """Telemetry of the GPU, its instances and its links: what ``keys`` names, or all."""
        self.telemetry.want(keys)
        handle = self.nvml.call("handle", index)
        return self.telemetry.readings(handle, self.nvml.call("uuid", handle))

    def processes(self, index: int) -> dict[str, Any]:
        """Who uses the GPU."""
        handle = self.nvml.call("handle", index)
        uuid = self.nvml.call("uuid", handle)
        slices = self.slices.of(handle, uuid) if self._mig_on(handle) else None
        return {"uuid": uuid, "processes": gpu_processes.processes(self.nvml, handle, slices)}

    def activity(self, index: int, keys: list[str]) -> dict[str, Any]:
        """What the GPU has done since the call before; ``keys`` are the averages that are wanted."""
        if self._activity is None:
            from kgpu.hw.nvidia.activity import GpuActivity  # most children are never asked

            self._activity = GpuActivity(self.nvml, self.slices)
        handle = self.nvml.call("handle", index)
        uuid = self.nvml.call("uuid", handle)
        return self._activity.read(handle, uuid, keys, self.slices.of(handle, uuid) if self._mig_on(handle) else None)

    def _mig_on(self, handle: Any) -> bool:
        mode = self._soft([], "mig_mode", handle)
        return mode is not None and mode[0] == 1

    def _soft(self, errors: list[list[Any]], name: str, *arguments: Any) -> Any:
        try:
            return self.nvml.call(name, *arguments)
        except NvmlError as error:
            if error.code in (GPU_IS_LOST, RESET_REQUIRED):
                raise
            if error.code not in ABSENT:
                errors.append([name, error.code, error.text])
            return None

    def _pulse(
        self, handle: Any, uuid: str, errors: list[list[Any]], slices: Callable[[], list[Any]]
    ) -> dict[str, Any]:
        mode = self._soft(errors, "mig_mode", handle)
        on = mode is not None and mode[0] == 1
        return {
            "uuid": uuid,
            "mig_capable": mode is not None,
            "mig": on,
            "mig_pending": mode is not None and mode[1] == 1,
            "instances": [list(ids) for _, *ids in slices()] if on else [],
            "recovery": self._recovery(handle),
        }

    def _recovery(self, handle: Any) -> int | None:
        function = self.nvml.function("nvmlDeviceGetFieldValues")
        if function is None:
            return None
        values = (self.nvml.structs.c_nvmlFieldValue_t * 1)()
        values[0].fieldId = RECOVERY_ACTION_FIELD
        code = function(handle, 1, values)
        if code in (GPU_IS_LOST, RESET_REQUIRED):
            raise NvmlError(code, "recovery", self.nvml.error_text(code))
        return values[0].value.uiVal if code == 0 and values[0].nvmlReturn == 0 else None

    def _fabric(self, handle: Any, errors: list[list[Any]]) -> list[Any] | None:
        info = self._soft(errors, "fabric", handle)
        # A machine whose GPUs meet in their own switches has registered too, with nothing in the cluster's place.
        if info is None or info.state != FABRIC_COMPLETED or info.status != 0 or not any(info.clusterUuid):
            return None
        raw = bytes(info.clusterUuid).hex()
        uuid = "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
        return [uuid, info.cliqueId, info.status]

    def _migs(self, gpu: tuple[Any, str, int | None], slices: list[Any], errors: list[list[Any]]) -> list[Any]:
        caps = self._cap_minors()
        migs = []
        for mig, position, _, _ in slices:
            try:
                migs.append(self._mig(gpu, mig, position, caps))
            except NvmlError as error:
                # A slice that is destroyed while it is being read is simply gone.
                if error.code not in SKIPPED:
                    errors.append([f"mig {position}: {error.call}", error.code, error.text])
        return migs

    def _mig(self, gpu: tuple[Any, str, int | None], mig: Any, position: int, caps: dict[str, int]) -> dict[str, Any]:
        handle, parent, minor = gpu
        call = self.nvml.call
        gi_id, ci_id = call("gi_id", mig), call("ci_id", mig)
        attributes = call("attributes", mig)
        gi = call("gi", handle, gi_id)
        gi_info = call("gi_info", gi)
        ci_info = call("ci_info", call("ci", gi, ci_id))
        gi_kind = self._gi_kind(handle, parent, gi_info.profileId)
        gi_path = f"gpu{minor}/gi{gi_id}/"
        return {
            "uuid": call("uuid", mig),
            "position": position,
            "name": call("name", mig),
            "gi": gi_id,
            "ci": ci_id,
            "gi_kind": gi_kind[0] if gi_kind else None,
            "gi_memory_mib": gi_kind[1] if gi_kind else None,
            "ci_kind": self._ci_kind(gi, parent, gi_info.profileId, ci_info.profileId),
            "start": gi_info.placement.start,
            "size": gi_info.placement.size,
            "memory_mib": attributes.memorySizeMB,
            "multiprocessors": attributes.multiprocessorCount,
            "slices": [attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount],
            "engines": [
                attributes.sharedCopyEngineCount,
                attributes.sharedDecoderCount,
                attributes.sharedEncoderCount,
                attributes.sharedJpegCount,
                attributes.sharedOfaCount,
            ],
            "caps": [caps.get(f"{gi_path}access"), caps.get(f"{gi_path}ci{ci_id}/access")],
        }

    def _gi_kind(self, handle: Any, uuid: str, profile_id: int) -> tuple[int, int] | None:
        """NVML's enumeration behind a profile id, and the profile's MiB: ids differ between GPUs, kinds don't."""
        key = (uuid, profile_id)
        if key not in self._gi_kinds:
            self._gi_kinds[key] = None
            for kind in range(GI_PROFILES):
                try:
                    profile = self.nvml.call("gi_profile", handle, kind)
                except NvmlError:
                    continue
                if profile.id == profile_id:
                    self._gi_kinds[key] = (kind, profile.memorySizeMB)
                    break
        return self._gi_kinds[key]

    def _ci_kind(self, gi: Any, uuid: str, gi_profile: int, profile_id: int) -> int | None:
        key = (uuid, gi_profile, profile_id)
        if key not in self._ci_kinds:
            self._ci_kinds[key] = None
            for kind in range(CI_PROFILES):
                try:
                    profile = self.nvml.call("ci_profile", gi, kind, 0)
                except NvmlError:
                    continue
                if profile.id == profile_id:
                    self._ci_kinds[key] = kind
                    break
        return self._ci_kinds[key]

    def _cap_minors(self) -> dict[str, int]:
        """``gpu0/gi1/ci0/access`` -> minor of /dev/nvidia-caps/nvidia-cap<minor>; read again when the file changes."""
        path = os.path.join(self.proc, "driver", "nvidia-caps", "mig-minors")
        try:
            status = os.stat(path)
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if self._caps[0] != stamp:
                with open(path, encoding="ascii", errors="replace") as lines:
                    rows = (line.split() for line in lines)
                    self._caps = (stamp, {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()})
        except OSError:
            return {}
        return self._caps[1]

    def _pci_number(self, bus_id: str, name: str, base: int) -> int | None:
        if not bus_id:
            return None
        try:
            with open(os.path.join(self.sysfs, "bus", "pci", "devices", bus_id, name), encoding="ascii") as file:
                number = int(file.read().strip(), base)
        except (OSError, ValueError):
            return None
        return number if number >= 0 else None
