"""The toolkit check: can a container engine on this node inject every usable device into a container through CDI?

Each device has to resolve to one spec, under any of its usual names, whose device nodes and files exist on the host;
and the engine has to support CDI.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from kgpu.formats.cdi import kind_of, qualified_name
from kgpu.formats.names import CDI_NVIDIA_KIND, CDI_PLUGIN_VENDOR
from kgpu.formats.validation_report import CheckTrouble
from kgpu.hw.port import Accelerator, Inventory
from kgpu.validator.checks.driver import gpu_name
from kgpu.validator.look import CdiFacts, CdiName
from kgpu.validator.model import Check, CheckResult, DeviceResult, Status, failed, of_devices, waiting

KINDS: Final = (CDI_NVIDIA_KIND, kind_of(CDI_PLUGIN_VENDOR, "gpu"))
REGENERATE: Final = "see why the toolkit on this node does not write it; by hand: `kgpu cdi generate --output "
REGENERATE_END: Final = "/nvidia.com-gpu.json`"
_VERSION: Final = re.compile(r"(?P<name>[a-z-]+)://v?(?P<major>\d{1,6})\.(?P<minor>\d{1,6})", re.ASCII)
# engine -> first version that can inject CDI devices, first that does so without being configured
ENGINES: Final[Mapping[str, tuple[tuple[int, int], tuple[int, int]]]] = {
    "containerd": ((1, 7), (2, 0)),
    "cri-o": ((1, 23), (1, 23)),
}


def judge(facts: CdiFacts, inventory: Inventory, runtime: str) -> CheckResult:
    """Judge the CDI specs. ``runtime`` is the Node's ``containerRuntimeVersion``, "" if it is not known."""
    unable = _engine_trouble(runtime)
    evidence = (f"spec folders {', '.join(facts.folders)}", *([f"container runtime {runtime}"] if runtime else []))
    if unable is not None:
        return failed(Check.TOOLKIT, unable, evidence=evidence)
    usable = [gpu for gpu in inventory.accelerators if gpu.usable]
    ours = [name for name in facts.names if name.partition("=")[0] in KINDS]
    notes = (*facts.problems, *_engine_notes(runtime))
    if not ours:
        return waiting(
            Check.TOOLKIT,
            CheckTrouble(
                what=f"no CDI spec for NVIDIA GPUs is in {' or '.join(facts.folders)}"
                + (f" ({facts.problems[0]})" if facts.problems else ""),
                expected=f"a spec of kind {CDI_NVIDIA_KIND}",
                remedy=f"{REGENERATE}{facts.folders[-1]}{REGENERATE_END}",
            ),
            evidence=evidence,
        )
    devices = tuple(result for gpu in usable for result in _devices(gpu, facts))
    files = sorted({facts.names[name].file for name in ours})
    return of_devices(Check.TOOLKIT, devices, evidence=(*evidence, f"spec {', '.join(files)}"), notes=notes)


def _devices(gpu: Accelerator, facts: CdiFacts) -> Iterator[DeviceResult]:
    if not gpu.mig_enabled:
        yield _device(gpu.uuid, gpu, gpu_name(gpu), (str(gpu.index), f"gpu{gpu.index}", gpu.uuid), facts)
        return
    for part in gpu.partitions:
        names = (part.index, f"mig{part.index}", part.uuid)
        yield _device(part.uuid, gpu, f"MIG {part.index} ({part.profile})", names, facts)


def _device(uuid: str, gpu: Accelerator, name: str, names: tuple[str, ...], facts: CdiFacts) -> DeviceResult:
    wanted = [qualified_name(kind, alias) for kind in KINDS for alias in names]
    entries = [(qualified, facts.names[qualified]) for qualified in wanted if qualified in facts.names]
    trouble = _trouble(entries, wanted, facts)
    # A missing spec may be about to be written: hardware changes reach the toolkit and this check at the same time.
    status = Status.PASSED if trouble is None else Status.FAILED if entries else Status.WAITING
    evidence = (
        () if trouble else tuple(qualified for qualified, entry in entries if not (entry.twice or entry.missing))[:1]
    )
    return DeviceResult(
        uuid=uuid, gpu=gpu.uuid, name=name, index=gpu.index if uuid == gpu.uuid else None, status=status,
        evidence=evidence, trouble=trouble,
    )  # fmt: skip


def _trouble(entries: list[tuple[str, CdiName]], wanted: list[str], facts: CdiFacts) -> CheckTrouble | None:
    folder = facts.folders[-1]
    if not entries:
        return CheckTrouble(
            what=f"no CDI spec names it ({' or '.join(wanted[:3])})",
            expected="every usable device in a spec",
            remedy=f"{REGENERATE}{folder}{REGENERATE_END}",
        )
    # A stale spec of one kind does not affect a valid one of the other kind.
    for name, entry in entries if all(entry.twice or entry.missing for _, entry in entries) else ():
        if entry.twice:
            return CheckTrouble(
                what=f"{name} is defined in {' and in '.join(entry.twice)}, so that engines resolve neither",
                expected="each name in one spec",
                remedy=f"remove one of the files, {entry.twice[0]} or {entry.twice[1]}",
            )
        if entry.missing:
            more = f" and {len(entry.missing) - 3} more" if len(entry.missing) > 3 else ""
            return CheckTrouble(
                what=f"{entry.file} refers to what the host does not have: {', '.join(entry.missing[:3])}{more}",
                expected="device nodes and files that exist (a spec of an earlier driver names that one's libraries)",
                remedy=f"{REGENERATE}{folder}{REGENERATE_END}",
            )
    return None


def _engine(runtime: str) -> tuple[str, tuple[int, int]] | None:
    match = _VERSION.match(runtime)
    return (match["name"], (int(match["major"]), int(match["minor"]))) if match else None


def _engine_trouble(runtime: str) -> CheckTrouble | None:
    engine = _engine(runtime)
    if engine is None:
        return None
    name, version = engine
    if name == "docker":
        return CheckTrouble(
            what=f"{runtime}: cri-dockerd ignores CDI devices",
            expected="containerd 1.7 or CRI-O 1.23, or newer",
            remedy="run this node with containerd",
        )
    if name in ENGINES and version < ENGINES[name][0]:
        first = ".".join(map(str, ENGINES[name][0]))
        return CheckTrouble(
            what=f"{runtime} can't inject CDI devices", expected=f"{name} {first} or newer", remedy=f"upgrade {name}"
        )
    return None


def _engine_notes(runtime: str) -> Iterator[str]:
    engine = _engine(runtime)
    if engine is not None and engine[0] in ENGINES and engine[1] < ENGINES[engine[0]][1]:
        yield f"{runtime} injects CDI devices only when its configuration says `enable_cdi = true`"
