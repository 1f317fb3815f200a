"""Asks kube-scheduler's own allocator (a small Go program, ``program/main.go``), and this one in the same words.

The program is built once into the cache of what is built for labs, from the module files of the real lab.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kgpu.base.quantity import Quantity
from kgpu.fit.devices import read
from kgpu.fit.devices.allocate import DeviceAllocator, DeviceOutcome
from kgpu.fit.devices.cel import CelSelectors
from kgpu.fit.devices.held import HeldDevices
from kgpu.fit.devices.model import AllocationGates
from kgpu.lab.program_cache import cache_root
from kgpu.lab.real import build
from kgpu.lab.real.components import MODULES_DIR
from tests.fit.devices.generate import LABELS, NODE, held_claims

Json = dict[str, Any]
_SOURCE: Final = Path(__file__).parent / "program" / "main.go"
_MODULES: Final = ("go.mod", "go.sum")
_GATES: Final = {
    "AdminAccess": "admin_access",
    "ConsumableCapacity": "consumable_capacity",
    "DeviceBindingAndStatus": "binding_conditions",
    "DeviceTaints": "device_taints",
    "PartitionableDevices": "partitionable_devices",
    "PrioritizedList": "prioritized_list",
}
CRASHED: Final = "the scheduler crashes"
LATE: Final = "the scheduler gives up"
_MAX_STEPS: Final = 5000  # rarely more are needed, and then the scheduler gives up as well


class NoOracleError(Exception):
    """The program can't be built here."""


def program() -> Path:
    """The program, built when it is not there. Raises NoOracleError, and LabError where there is no Go."""
    toolchain = build.find_toolchain()
    digest = hashlib.sha256(toolchain.version.encode() + _SOURCE.read_bytes())
    for name in _MODULES:
        digest.update((MODULES_DIR / "kubernetes" / name).read_bytes())
    out = cache_root() / f"dra-oracle-{digest.hexdigest()[:16]}" / "dra-oracle"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        _build(toolchain.go, out)
    return out


def _build(go: Path, out: Path) -> None:
    env = {**os.environ, "GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local", "GO111MODULE": "on"}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(_SOURCE, folder)
        for name in _MODULES:
            shutil.copy(MODULES_DIR / "kubernetes" / name, folder)
        made = Path(folder, "dra-oracle")
        command = [str(go), "build", "-p", "2", "-trimpath", "-buildvcs=false", "-mod=readonly", "-o", str(made), "."]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoOracleError(f"go build: {done.stderr.strip()[-500:]}")
        beside = out.with_suffix(f".{os.getpid()}")
        shutil.copy(made, beside)
        beside.replace(out)


class Oracle:
    """The running program."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen([str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, case: Mapping[str, Any], times: int = 1) -> list[Any]:
        """What the scheduler's allocator decides, each of several times: it is not the same each time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**case, "Times": times}).encode() + b"\n")
        self._process.stdin.flush()
        return [_answer(answer) for answer in json.loads(self._process.stdout.readline())]

    def close(self) -> None:
        assert self._process.stdin is not None
        with self._process:
            self._process.stdin.close()


def _answer(said: Json) -> Any:
    if said.get("panic"):
        return CRASHED
    if said.get("late"):
        return LATE
    if said.get("error"):
        return "fault on the node" if said.get("onNode") else "fault"
    return None if said["results"] is None else [_plain(result) for result in said["results"]]


def _plain(status: Json) -> Json:
    """Without what is different each time, and quantities as numbers."""
    found = json.loads(json.dumps(status))
    for result in found.get("devices", {}).get("results") or []:
        if "shareID" in result:
            result["shareID"] = "share"
        for name, amount in (result.get("consumedCapacity") or {}).items():
            result["consumedCapacity"][name] = Quantity.parse(amount).nanos
    return found


def gates(case: Mapping[str, Any]) -> AllocationGates:
    return AllocationGates(**{ours: case["Features"].get(theirs, False) for theirs, ours in _GATES.items()})


def allocator(case: Mapping[str, Any], slices: Sequence[Json] | None = None) -> DeviceAllocator:
    ours = gates(case)
    made = [read.device_slice(obj) for obj in (case["Slices"] if slices is None else slices)]
    classes = [read.class_rules(obj["metadata"]["name"], obj["spec"]) for obj in case["Classes"]]
    return DeviceAllocator(
        slices=[piece for piece in made if piece is not None],
        classes={rules.name: rules for rules in classes},
        held=HeldDevices.of(read.taken_devices(held_claims(case)), ours),
        selectors=CelSelectors(),
        gates=ours,
        max_steps=_MAX_STEPS,
    )


def decided(case: Mapping[str, Any], slices: Sequence[Json] | None = None) -> DeviceOutcome:
    claims = [
        read.claim_demand(obj["metadata"]["namespace"], obj["metadata"]["name"], obj["spec"]["devices"])
        for obj in case["Claims"]
    ]
    return allocator(case, slices).allocate(claims, NODE, LABELS)


def ours(case: Mapping[str, Any], slices: Sequence[Json] | None = None) -> Any:
    """The same for this allocator."""
    outcome = decided(case, slices)
    if outcome.unfinished:
        return LATE
    if outcome.fault:
        return "fault on the node" if outcome.on_node else "fault"
    if outcome.allocations is None:
        return None
    return [_plain(found.to_status(lambda: "share")) for found in outcome.allocations]


def in_all_orders(case: Mapping[str, Any]) -> Iterator[Any]:
    """What this one decides for each order of the pools; the scheduler takes any."""
    pools: dict[tuple[str, str], list[Json]] = {}
    for piece in case["Slices"]:
        pools.setdefault((piece["spec"]["driver"], piece["spec"]["pool"]["name"]), []).append(piece)
    for order in itertools.permutations(pools.values()):
        yield ours(case, [piece for pool in order for piece in pool])
