"""MIG slices on a simulated GPU, made through the simulated NVML itself so that the driver's rules hold.

``partition`` starts a child process with the root's library; the child (``python -m kgpu.hw.simulator.mig``) speaks
NVML by ctypes: existing instances go, the mode is set, then one GPU instance and one compute instance for each profile
name. It does so on a copy of the state first: what the driver refuses half-way would else have cost the slices there.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import ConfigError, HwError
from kgpu.base.parent import end_with
from kgpu.base.suggest import did_you_mean
from kgpu.formats import names
from kgpu.hw.simulator.create import environment
from kgpu.hw.simulator.operate import opened

TIMEOUT_S: Final = 120
IN_USE: Final = 19
INSUFFICIENT_RESOURCES: Final = 23
MAX_INSTANCES: Final = 16
GRAMMAR: Final = "PROFILE[:COUNT] such as 1g.10gb:7, or 1c.3g.40gb for a compute instance smaller than its GPU instance"


def partition(root: Path, gpu: int, profiles: Sequence[str]) -> None:
    """Turn MIG on and replace the GPU's slices by ``profiles`` (``1g.10gb``; ``1c.3g.40gb`` makes a smaller CI).

    No profiles: MIG on, no slices. Slices are placed in the order given. Raises ConfigError for an unknown profile
    or a layout that does not fit, HwError when the driver refuses, such as for a slice in use; nothing is changed then.
    """
    plan = [_rows(root, gpu, name) for name in profiles]
    _change(root, gpu, {"mode": 1, "plan": plan, "names": list(profiles)})


def disable(root: Path, gpu: int) -> None:
    """Remove the GPU's slices and turn MIG off. Raises as ``partition``."""
    _rows(root, gpu, "")
    _change(root, gpu, {"mode": 0, "plan": [], "names": []})


def expand(items: Iterable[str]) -> list[str]:
    """``["1g.10gb:2", "3g.40gb"]`` as ``["1g.10gb", "1g.10gb", "3g.40gb"]``. Raises ConfigError."""
    expanded: list[str] = []
    for item in items:
        name, _, count = item.strip().partition(":")
        if not name or (count and not (count.isdigit() and 1 <= int(count) <= MAX_INSTANCES)):
            raise ConfigError(f'"{item:.80}" is no MIG profile', GRAMMAR, "correct it")
        expanded += [name] * int(count or 1)
    if len(expanded) > MAX_INSTANCES:
        raise ConfigError(f"{len(expanded)} slices", f"at most {MAX_INSTANCES}", "ask for fewer")
    return expanded


def _rows(root: Path, gpu: int, name: str) -> tuple[int, int]:
    """(GPU instance profile number, compute instance profile number) of a name; the numbers are NVML's enums."""
    with opened(root, writable=False) as state:
        if not 0 <= gpu < state.gpu_count:
            known = f"an index from 0 to {state.gpu_count - 1}"
            raise ConfigError(f"there is no GPU {gpu} on this node", known, "list them with `kgpu lab hw show`")
        target = state.gpu(gpu)
        if not target.mig_capable:
            what = f"GPU {gpu} ({target.name.decode()}) has no MIG"
            raise ConfigError(what, "a GPU with MIG, such as those of hgx-h100", "choose another GPU or profile")
        choices: dict[str, tuple[int, int]] = {}
        for row in target.gi_profile[: target.gi_profile_count]:
            for ci in row.ci:
                if ci.used:  # of two with one name, the later one holds the whole instance: the driver's default
                    choices[ci.name.decode()] = (int(row.enum_id), int(ci.enum_id))
    if name and name not in choices:
        hint = did_you_mean(name, choices)
        what = f'GPU {gpu} has no MIG profile "{name:.80}"{"; " if hint else ""}{hint}'
        raise ConfigError(what, f"one of: {', '.join(choices)}", "choose one of these")
    return choices.get(name, (0, 0))


def _change(root: Path, gpu: int, job: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="kgpu-mig-") as folder:
        copy = Path(folder) / "state"
        with opened(root, writable=True) as state, state.locked():
            shutil.copyfile(state.path, copy)
        if (root / "dev").is_dir():
            (Path(folder) / "dev").symlink_to((root / "dev").resolve())
        _child(root, gpu, job, copy)


def _child(root: Path, gpu: int, job: dict[str, Any], copy: Path) -> None:
    command = [sys.executable, "-m", "kgpu.hw.simulator.mig", str(gpu), json.dumps(job), str(copy)]
    state, paths = root / "state", os.pathsep.join(filter(None, sys.path))
    try:
        result = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": paths, **environment(root), names.ENV_HW_STATE: str(state)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        what = f"GPU {gpu} did not answer within {TIMEOUT_S} s"
        raise HwError(what, "a driver that answers", "clear the faults with `kgpu lab hw clear`") from error
    if result.returncode == 0:
        return
    try:
        answer = json.loads(result.stdout)
    except ValueError as error:
        what = f"the MIG helper failed: {result.stderr.strip()[-300:]}"
        raise HwError(what, "a root made by this version of kgpu", "make the root again") from error
    kind = ConfigError if answer["code"] == INSUFFICIENT_RESOURCES else HwError
    raise kind(f"GPU {gpu}: {answer['step']}: {answer['text']}", answer["expected"], answer["todo"])


class _Refused(Exception):  # noqa: N818 - the answer of the driver, never shown
    def __init__(self, step: str, code: int, text: str) -> None:
        super().__init__(step)
        self.step, self.code, self.text = step, code, text


class _Nvml:
    """The few NVML calls needed, by ctypes: the simulated library of this process's LD_LIBRARY_PATH."""

    def __init__(self, gpu: int) -> None:
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        self.lib.nvmlErrorString.restype = ctypes.c_char_p
        self.call("start NVML", "nvmlInit_v2")
        self.device = ctypes.c_void_p()
        self.call("find the GPU", "nvmlDeviceGetHandleByIndex_v2", gpu, ctypes.byref(self.device))

    def call(self, step: str, name: str, *args: object) -> None:
        code = getattr(self.lib, name)(*args)
        if code:
            raise _Refused(step, code, self.lib.nvmlErrorString(code).decode())

    def profile(self, kind: int, within: ctypes.c_void_p | None = None) -> int:
        """The printed profile id of an enum; ids are the first field of both info structs."""
        info = (ctypes.c_uint64 * 64)()
        if within is None:
            name, where = "nvmlDeviceGetGpuInstanceProfileInfo", [self.device, kind]
        else:
            name, where = "nvmlGpuInstanceGetComputeInstanceProfileInfo", [within, kind, 0]
        self.call("read the profile", name, *where, info)
        return int(ctypes.cast(info, ctypes.POINTER(ctypes.c_uint32))[0])

    def each(self, name: str, holder: ctypes.c_void_p, profile: int) -> list[ctypes.c_void_p]:
        handles, count = (ctypes.c_void_p * 128)(), ctypes.c_uint(0)
        self.call("list the instances", name, holder, profile, handles, ctypes.byref(count))
        return [ctypes.c_void_p(handles[i]) for i in range(count.value)]

    def mode(self) -> int:
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        self.call(
            "read the MIG mode", "nvmlDeviceGetMigMode", self.device, ctypes.byref(current), ctypes.byref(pending)
        )
        return current.value

    def set_mode(self, mode: int) -> None:
        status = ctypes.c_uint()
        self.call("set the MIG mode", "nvmlDeviceSetMigMode", self.device, mode, ctypes.byref(status))

    def remove_all(self) -> None:
        for row in self.known(18):
            for gi in self.each("nvmlDeviceGetGpuInstances", self.device, row):
                for inner in self.known(9, gi):
                    for ci in self.each("nvmlGpuInstanceGetComputeInstances", gi, inner):
                        self.call("destroy a compute instance", "nvmlComputeInstanceDestroy", ci)
                self.call("destroy a GPU instance", "nvmlGpuInstanceDestroy", gi)

    def known(self, kinds: int, within: ctypes.c_void_p | None = None) -> list[int]:
        """Printed ids of the profiles that this GPU (or instance) has."""
        ids = []
        for kind in range(kinds):
            try:
                ids.append(self.profile(kind, within))
            except _Refused:
                continue
        return ids

    def create(self, name: str, kind: int, inner: int) -> None:
        gi, ci = ctypes.c_void_p(), ctypes.c_void_p()
        self.call(f"create {name}", "nvmlDeviceCreateGpuInstance", self.device, self.profile(kind), ctypes.byref(gi))
        profile = self.profile(inner, gi)
        self.call(f"create {name}", "nvmlGpuInstanceCreateComputeInstance", gi, profile, ctypes.byref(ci))


def _work(gpu: int, job: dict[str, Any]) -> None:
    nvml = _Nvml(gpu)
    if nvml.mode():
        nvml.remove_all()
    if nvml.mode() != job["mode"]:
        nvml.set_mode(job["mode"])
        if nvml.mode() != job["mode"]:  # Ampere: the mode changes with a reset
            from kgpu.hw.simulator.state import DriverState

            with DriverState.open() as state:
                state.reset(gpu)
    try:
        for name, (kind, inner) in zip(job["names"], job["plan"], strict=True):
            nvml.create(name, kind, inner)
    except _Refused:
        nvml.remove_all()
        raise


def _main() -> int:
    gpu, job, copy = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    # Each in a process of its own, because the library reads its environment once; a fork spares starting Python again.
    own = os.getpid()
    trial = os.fork()
    if not trial:
        end_with(own)  # also in a driver that hangs
        os.environ[names.ENV_HW_STATE] = copy
        code = _answered(gpu, job)
        sys.stdout.flush()
        os._exit(code)
    refused = os.waitstatus_to_exitcode(os.waitpid(trial, 0)[1])
    return refused or _answered(gpu, job)


def _answered(gpu: int, job: dict[str, Any]) -> int:
    """Run the job and print a refusal as JSON; returns the exit status."""
    try:
        _work(gpu, job)
    except _Refused as refused:
        expected, remedy = {
            IN_USE: ("slices that nothing uses", "end the processes on the GPU (`kgpu lab hw show`), then try again"),
            INSUFFICIENT_RESOURCES: ("slices that fit the GPU together", "ask for fewer, or for smaller ones first"),
        }.get(refused.code, ("a healthy GPU", "clear its faults with `kgpu lab hw clear`"))
        answer = {"step": refused.step, "code": refused.code, "text": refused.text}
        print(json.dumps({**answer, "expected": expected, "todo": remedy}))  # noqa: T201 - the answer to the parent
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
