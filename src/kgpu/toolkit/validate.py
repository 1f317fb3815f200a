"""Holds CDI specs against CDI's rules and against the node they are on. Pure: specs and facts in, flaws out.

An error is what makes a container fail, get the wrong device, or endanger the host; a warning is what will surprise
later. Each thing is looked at once, however many devices share it; the flaw says which.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from kgpu.base.errors import PlacedError
from kgpu.formats.cdi import CdiDeviceNode, CdiMount, ContainerEdits, Hook, Spec, qualified_name
from kgpu.formats.names import CDI_BOOT_ANNOTATION, CDI_DRIVER_ANNOTATION
from kgpu.host.dev_nodes import Numbers
from kgpu.hw.port import Inventory
from kgpu.toolkit.flaws import AGAIN, Flaw, FlawSeverity
from kgpu.toolkit.specs import FoundSpec, SpecFacts
from kgpu.toolkit.validate_layout import layout_flaws

# Linux gives these character majors out at boot, so they may change (Documentation/admin-guide/devices.txt).
DYNAMIC_MAJORS: Final = (range(234, 255), range(384, 512))
_DRIVER_LIBRARY: Final = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.([0-9]+\.[0-9]+(?:\.[0-9]+)?)")
_SHARED: Final = frozenset({"shared", "rshared"})
_COMMON: Final = "every device"

T = TypeVar("T", CdiDeviceNode, CdiMount, Hook)


@dataclass(frozen=True, slots=True)
class Validation:
    """The result: files looked at, names that a runtime can resolve, flaws, and what could not be checked."""

    files: tuple[str, ...]
    names: tuple[str, ...]
    flaws: tuple[Flaw, ...]
    notes: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """True when something was checked and nothing is an error."""
        return bool(self.files) and all(flaw.severity is not FlawSeverity.ERROR for flaw in self.flaws)


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What the rules know beside the entry that they check."""

    node: SpecFacts
    lasting: bool  # the folder survives a reboot
    version: str
    majors: frozenset[int]


_Said = tuple[FlawSeverity, str, str]


def validate_specs(
    specs: Sequence[FoundSpec],
    node: SpecFacts | None,
    *,
    static_dirs: Iterable[str] = (),
    inventory: Inventory | None = None,
) -> Validation:
    """Every flaw of these files. Without ``node`` only the files themselves and their names are looked at.

    ``static_dirs`` are the folders that survive a reboot. ``inventory``: the GPUs and MIG slices that there are now;
    without it those of the specs are not compared.
    """
    flaws: list[Flaw] = []
    lasting = tuple(f"{folder.rstrip('/')}/" for folder in static_dirs)
    resolvable = frozenset(name for spec in specs for name in spec.names)
    for spec in specs:
        flaws += _file_flaws(spec, resolvable)
    notes: list[str] = []
    if node is None:
        notes.append("the node was not looked at")
    else:
        version, majors = node.driver_version(), frozenset(node.majors().values())
        notes += [] if version else ["the running driver's version is not known: versions were not compared"]
        for spec in specs:
            if spec.spec is not None:
                place = _Surroundings(node, spec.path.startswith(lasting), version, majors)
                flaws += [
                    Flaw(severity=how, path=spec.path, what=what, remedy=remedy)
                    for how, what, remedy in _made_for(spec.spec, place)
                ]
                flaws += [
                    Flaw(severity=how, path=spec.path, where=where, what=what, remedy=remedy)
                    for where, (how, what, remedy) in _node_flaws(spec.spec, place)
                ]
    if inventory is not None:
        flaws += layout_flaws(specs, inventory)
    holders = _holders(specs)
    flaws += _name_flaws(holders)
    names = dict.fromkeys(name for spec in specs for name in spec.names if len(_winners(holders[name])) == 1)
    flaws.sort(key=lambda flaw: flaw.severity is not FlawSeverity.ERROR)
    return Validation(tuple(spec.path for spec in specs), tuple(names), tuple(dict.fromkeys(flaws)), tuple(notes))


def _file_flaws(file: FoundSpec, resolvable: frozenset[str]) -> Iterator[Flaw]:
    """``resolvable``: the devices that runtimes find in any file."""
    if file.problem is not None:
        what = file.problem.said if isinstance(file.problem, PlacedError) else file.problem.what
        yield Flaw(severity=FlawSeverity.ERROR, path=file.path, what=what, remedy=file.problem.remedy)
    if file.ignored:
        lost = file.spec is not None and any(
            qualified_name(file.spec.kind, device.name) not in resolvable for device in file.spec.devices
        )
        yield Flaw(
            severity=FlawSeverity.ERROR if lost else FlawSeverity.WARNING,
            path=file.path,
            what="runtimes don't read it: they read *.yaml and *.json"
            + (", so its devices can't be given" if lost else ""),
            remedy="rename or remove it",
        )
    if file.open_to_all:
        yield Flaw(
            severity=FlawSeverity.ERROR,
            path=file.path,
            what="every user of the node may change it, and with it mount anything into containers",
            remedy="take the right to write from others (chmod o-w) for the file and its folder",
        )


def _holders(files_read: Sequence[FoundSpec]) -> Mapping[str, Sequence[FoundSpec]]:
    """The files that have each device's name."""
    holders: dict[str, list[FoundSpec]] = defaultdict(list)
    for spec in files_read:
        for name in spec.names:
            holders[name].append(spec)
    return holders


def _winners(specs: Sequence[FoundSpec]) -> Sequence[FoundSpec]:
    """Those of the highest priority; a runtime resolves a name only where there is one."""
    top = max(spec.priority for spec in specs)
    return [spec for spec in specs if spec.priority == top]


def _name_flaws(holders: Mapping[str, Sequence[FoundSpec]]) -> Iterator[Flaw]:
    for name, specs in holders.items():
        winners = _winners(specs)
        if len(winners) > 1:
            files = ", ".join(spec.path for spec in winners)
            yield Flaw(
                severity=FlawSeverity.ERROR,
                path=winners[-1].path,
                where=name,
                what=f"this name is in {files}: no runtime resolves it",
                remedy="remove all files but one",
            )
    shadowed: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, specs in holders.items():
        winner = max(specs, key=lambda spec: spec.priority)
        for spec in specs:
            if spec.priority < winner.priority:
                shadowed[spec.path, winner.path].append(name)
    for (path, winner_path), names in shadowed.items():
        yield Flaw(
            severity=FlawSeverity.WARNING,
            path=path,
            where=_some(names),
            what=f"not used: {winner_path} has the same names and more priority",
            remedy="remove the copy, or it comes back with an old state when the other file goes",
        )


def _made_for(spec: Spec, place: _Surroundings) -> Iterator[_Said]:
    """Compare with what ``kgpu cdi generate --annotate`` has recorded."""
    version = spec.annotations.get(CDI_DRIVER_ANNOTATION, "")
    if version and place.version and version != place.version:
        yield FlawSeverity.ERROR, f"it was made for driver {version}, but {place.version} runs", AGAIN
    boot, now = spec.annotations.get(CDI_BOOT_ANNOTATION, ""), place.node.boot_id()
    if boot and now and boot != now:
        yield (
            FlawSeverity.WARNING,
            "it was made before this boot: device numbers and MIG slices may be others now",
            AGAIN,
        )


def _node_flaws(spec: Spec, place: _Surroundings) -> Iterator[tuple[str, _Said]]:
    tables: tuple[tuple[Callable[[ContainerEdits], Iterable[object]], Callable[..., Iterator[_Said]]], ...] = (
        (lambda edits: edits.device_nodes, _device),
        (lambda edits: edits.mounts, _mount),
        (lambda edits: edits.hooks, _hook),
    )
    for entries_of, rule in tables:
        owners: dict[object, list[str]] = defaultdict(list)
        for edit in entries_of(spec.container_edits):
            owners[edit].append(_COMMON)
        for device in spec.devices:
            for edit in dict.fromkeys(entries_of(device.container_edits)):
                owners[edit].append(device.name)
        for edit, names in owners.items():
            where = _COMMON if _COMMON in names else f"device {_some(names)}"
            yield from ((where, complaint) for complaint in rule(edit, place))


def _device(node: CdiDeviceNode, place: _Surroundings) -> Iterator[_Said]:
    host = node.host_path or node.path
    kind = place.node.kind(host)
    if kind not in {"char", "block", "pipe"}:
        state = f"is a {kind} and no device node" if kind else "is not there"
        yield FlawSeverity.ERROR, f"{host} {state}", f"load the driver, or {AGAIN}"
        return
    real = place.node.numbers(host)
    recorded = Numbers(node.major, node.minor)
    has_numbers = recorded != Numbers(0, 0)
    if has_numbers and real is not None and recorded != real:
        yield FlawSeverity.ERROR, f"it says {recorded} for {host}, which is {real}", AGAIN
    elif real is not None and kind == "char" and place.majors and real.major not in place.majors:
        yield (
            FlawSeverity.ERROR,
            f"{host} is stale: no driver has its major {real.major}",
            "make the node again, or reboot",
        )
    if has_numbers and place.lasting and any(recorded.major in numbers for numbers in DYNAMIC_MAJORS):
        yield (
            FlawSeverity.WARNING,
            f"it records the major {recorded.major} of {host}, which may be another after a reboot",
            "write specs to /var/run/cdi, which is made anew",
        )


def _mount(mount: CdiMount, place: _Surroundings) -> Iterator[_Said]:
    if not place.node.kind(mount.host_path):
        yield FlawSeverity.ERROR, f"{mount.host_path} is not there", AGAIN
    match = _DRIVER_LIBRARY.fullmatch(mount.host_path.rpartition("/")[2])
    if match and place.version and match[1] != place.version:
        yield FlawSeverity.ERROR, f"it is for driver {match[1]}, but {place.version} runs ({mount.host_path})", AGAIN
    if _SHARED & set(mount.options):
        yield (
            FlawSeverity.WARNING,
            f"the mount at {mount.container_path} is shared: what a container mounts below it shows on the host",
            "use rprivate",
        )


def _hook(hook: Hook, place: _Surroundings) -> Iterator[_Said]:
    # startContainer's program is looked up in the container.
    if hook.hook_name != "startContainer" and not place.node.executable(hook.path):
        yield FlawSeverity.ERROR, f"the hook {hook.path} is no program on this node", f"install it, or {AGAIN}"
    if not hook.env:
        yield (
            FlawSeverity.ERROR,
            f"the hook {hook.path} has no env and gets the container's: an image's LD_PRELOAD would run as root",
            "give the hook an env, such as NVIDIA_CTK_DEBUG=false",
        )
    if "chmod" in hook.args[1:3]:
        yield FlawSeverity.WARNING, "the hook chmod follows links of the image as root", "generate the spec without it"


def _some(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
