"""Reads the device plugin's config file v1. Stricter than the replaced program, and every problem has path and line.

Unknown and misplaced keys, duplicate entries, and two kinds of sharing at once are errors; the replaced program takes
them silently. The error texts that its users know stay inside the messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kgpu.base.errors import ConfigError, PlacedError
from kgpu.formats.duration import parse_duration
from kgpu.formats.plugin_config import (
    MPS_CLIENTS,
    DeviceSelection,
    NamePattern,
    PluginConfig,
    SharedResource,
    Sharing,
    SharingKind,
    full_resource_name,
    resource_name_problem,
)
from kgpu.formats.strict import FileKeyError, Problems, Table, boolean, choice, raw, read_table, text, whole
from kgpu.formats.yaml import Path, load_document

KNOWN_BAD: Final = "unable to parse config file: "
MAX_REPLICAS: Final = 65_535
SHOWN: Final = 5  # problems in one message
_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_REF: Final = re.compile(
    rf"[0-9]{{1,4}}(:[0-9]{{1,4}})?|GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/[0-9]+/[0-9]+", re.ASCII
)


def parse_config(content: str, *, source: str = "config file") -> PluginConfig:
    """The file's content. Raises ConfigError for the first problem, with the next few and how many more there are."""
    config, problems = examine(content, source=source)
    if problems:
        first = problems[0]
        rest = [problem.said for problem in problems[1:SHOWN] if isinstance(problem, FileKeyError)]
        more = f"; and {len(problems) - SHOWN} more problems" if len(problems) > SHOWN else ""
        raise ConfigError("; ".join([first.what, *rest]) + more, first.expected, first.remedy)
    return config


def examine(content: str, *, source: str = "config file") -> tuple[PluginConfig, Sequence[ConfigError]]:
    """What could be read, and every problem in the file: a ``FileKeyError`` each, or one that it can't be read."""
    try:
        document = load_document(content, source=source)
    except ConfigError as problem:
        said = f"{problem.place}: {problem.said}" if isinstance(problem, PlacedError) else problem.what
        known = f"{KNOWN_BAD}error parsing config file: {said}"
        return PluginConfig(), [ConfigError(known, problem.expected, problem.remedy)]
    problems = Problems(source, document, KNOWN)
    tree = read_table(problems, (), document.value, TOP)
    sharing = tree.get("sharing", {})
    resources = tree.get("resources", {})
    imex = tree.get("imex", {})
    blocks = [block for block in (sharing.get("timeSlicing"), sharing.get("mps")) if block is not None]
    if len(blocks) > 1:
        problems.add(
            ("sharing",),
            "timeSlicing and mps are both given",
            "one kind of sharing: an accelerator is shared either in time or by MPS",
            "remove sharing.timeSlicing or sharing.mps",
        )
    config = PluginConfig(
        version="v1",
        flags=dict(_flat("flags", tree.get("flags", {}))) | dict(_flat("imex", imex)),
        gpus=resources.get("gpus", ()),
        mig=resources.get("mig", ()),
        sharing=blocks[0] if blocks else None,
        imex_channel_ids=imex.get("channelIDs"),
        imex_required=imex.get("required"),
    )
    return config, problems.found


def _flat(above: str, tree: Mapping[str, Any]) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in tree.items():
        path = f"{above}.{key}"
        rows += _flat(path, value) if isinstance(value, dict) else [(path, value)]
    return rows


def _version(problems: Problems, path: Path, value: Any) -> str | None:
    if not (isinstance(value, str) and value in {"", "v1"}):
        problems.add(path, f"unknown version: {value if isinstance(value, str) else raw(value)}", "v1")
    return "v1"


def _strategies(problems: Problems, path: Path, value: Any) -> tuple[str, ...] | None:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        problems.add(path, f"invalid deviceListStrategy: {raw(value)}", "a strategy, or a list of them")
        return None
    known = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
    read = choice("invalid --device-list-strategy option: invalid strategy: ", *known)
    names = [read(problems, path, item.strip()) for item in items]
    if not names:
        problems.add(path, "invalid deviceListStrategy: []", f"at least one of {', '.join(known)}")
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _sleep(problems: Problems, path: Path, value: Any) -> int | None:
    number = whole(value)
    if number is not None:
        return number
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except ConfigError as problem:
            problems.add(path, problem.what, problem.expected)
            return None
    problems.add(path, f"invalid duration {raw(value)}", "a duration such as 60s, or nanoseconds")
    return None


def _name(problems: Problems, path: Path, value: Any) -> str | None:
    raw_name = text(problems, path, value)
    if raw_name is None:
        return None
    if not raw_name:
        problems.add(path, "no resource name specified", "domain/name, e.g. nvidia.com/gpu")
        return None
    name = full_resource_name(raw_name)
    if problem := resource_name_problem(name):
        problems.add(path, problem, "domain/name, e.g. nvidia.com/gpu, or a name below nvidia.com", "correct the name")
        return None
    return name


def _listed(problems: Problems, path: Path, value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    problems.add(path, f"{raw(value)} is not a list", "a list, each entry after a '-'")
    return []


def _patterns(problems: Problems, path: Path, value: Any) -> tuple[NamePattern, ...]:
    rows: list[NamePattern] = []
    for position, item in enumerate(_listed(problems, path, value)):
        item_path = (*path, position)
        fields = read_table(problems, item_path, item, PATTERN)
        for key in PATTERN:
            if not fields.get(key) and not (isinstance(item, dict) and key in {str(k).lower() for k in item}):
                problems.add(item_path, f"resources must have a '{key}' field set", "pattern and name")
        if fields.get("pattern") == "":
            problems.add(item_path, "resources must have a 'pattern' field set", "pattern and name")
        elif "pattern" in fields and "name" in fields:
            if any(row.pattern == fields["pattern"] for row in rows):
                problems.add(
                    (*item_path, "pattern"), f"pattern {raw(fields['pattern'])} is there twice", "every pattern once"
                )
            rows.append(NamePattern(pattern=fields["pattern"], name=fields["name"]))
    return tuple(rows)


def _sharing(kind: SharingKind) -> Any:
    def read(problems: Problems, path: Path, value: Any) -> Sharing | None:
        before = len(problems.found)
        fields = read_table(problems, path, value, SHARING, exact=True)
        if isinstance(value, dict) and not value.get("resources"):
            problems.add(path, "no resources specified", "resources with at least one entry of name and replicas")
        if len(problems.found) > before and not fields:
            return Sharing(kind=kind)
        block = Sharing(
            kind=kind,
            rename_by_default=fields.get("renameByDefault", False),
            fail_requests_greater_than_one=fields.get("failRequestsGreaterThanOne"),
            resources=fields.get("resources", ()),
        )
        _check_entries(problems, (*path, "resources"), block)
        return block

    return read


def _entries(problems: Problems, path: Path, value: Any) -> tuple[SharedResource, ...]:
    rows: list[SharedResource] = []
    for position, item in enumerate(_listed(problems, path, value)):
        item_path = (*path, position)
        fields = read_table(problems, item_path, item, ENTRY, exact=True)
        if isinstance(item, dict):
            for key, known in (("name", "no resource name specified"), ("replicas", "no replicas specified")):
                if item.get(key) is None:
                    problems.add(item_path, known, "name and replicas in every entry", f"add {key}")
        if "name" in fields and "replicas" in fields:
            where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item_path).lstrip(".")
            rows.append(SharedResource(**fields, where=where))
    return tuple(rows)


def _replicas(problems: Problems, path: Path, value: Any) -> int | None:
    number = whole(value)
    if number is None:
        problems.add(path, f"{raw(value)} is not a whole number", "a number of replicas, e.g. 4")
    elif number < 2:
        problems.add(
            path, f"number of replicas must be >= 2; found {number}", "2 or more", "remove the entry to share nothing"
        )
    elif number > MAX_REPLICAS:
        problems.add(path, f"{number} replicas are too many", f"at most {MAX_REPLICAS}")
    else:
        return number
    return None


def _devices(problems: Problems, path: Path, value: Any) -> DeviceSelection | None:
    forms = "all, a count, or a list of indices (0, 0:1) and UUIDs"
    number = whole(value)
    if isinstance(value, str):
        if value == "all":
            return DeviceSelection()
        problems.add(path, f"devices set as '{value}' but the only valid string input is 'all'", forms)
    elif number is not None:
        if number > 0:
            return DeviceSelection(count=number)
        problems.add(path, f"devices set as '{number}' but a count of devices must be > 0", forms)
    elif isinstance(value, list):
        refs = [_ref(problems, (*path, position), item) for position, item in enumerate(value)]
        if not refs:
            problems.add(path, "the list of devices is empty", forms)
        for ref in dict.fromkeys(ref for ref in refs if ref is not None and refs.count(ref) > 1):
            problems.add(path, f"device {ref} is there twice", "every device once")
        if refs and None not in refs:
            return DeviceSelection(refs=tuple(dict.fromkeys(ref for ref in refs if ref is not None)))
    else:
        problems.add(path, f"unrecognized type for devices spec: {raw(value)}", forms)
    return None


def _ref(problems: Problems, path: Path, value: Any) -> str | None:
    number = whole(value)
    if number is not None and number >= 0:
        return str(number)
    if isinstance(value, str) and _REF.fullmatch(value):
        return value
    problems.add(
        path,
        f"unsupported type for device in devices list: {raw(value)}, {type(value).__name__}",
        "an index (0), a MIG index (0:1), GPU-<uuid>, MIG-<uuid> or MIG-GPU-<uuid>/gi/ci",
    )
    return None


def _check_entries(problems: Problems, path: Path, block: Sharing) -> None:
    """Entries that contradict each other."""
    for position, entry in enumerate(block.resources):
        entry_path = (*path, position)
        offered = block.offered_name(entry)
        if block.kind is SharingKind.MPS and entry.replicas > MPS_CLIENTS:
            problems.add(
                (*entry_path, "replicas"),
                "invalid MPS configuration: invalid device maximum allowed replicas exceeded: "
                f"{entry.replicas} > {MPS_CLIENTS}",
                f"at most {MPS_CLIENTS} shares of a GPU: its MPS server takes no more clients",
                f"lower it to {MPS_CLIENTS}, or share by timeSlicing",
            )
        if problem := resource_name_problem(offered):
            problems.add(entry_path, problem, "a shorter name: .shared is added to it", "give a shorter rename")
        for earlier in block.resources[:position]:
            same = earlier.name == entry.name
            disjoint = (
                earlier.devices.refs and entry.devices.refs and not {*earlier.devices.refs} & {*entry.devices.refs}
            )
            if same and not disjoint:
                problems.add(
                    (*entry_path, "name"),
                    f"{entry.name} is shared twice",
                    "one entry for each resource, or entries with lists of different devices",
                    "remove one of the two, or give both a devices list",
                )
            elif not same and block.offered_name(earlier) == offered:
                problems.add(
                    entry_path,
                    f"{earlier.name} and {entry.name} would both be offered as {offered}",
                    "different names for different resources",
                    "correct rename",
                )


def _channels(problems: Problems, path: Path, value: Any) -> tuple[int, ...] | None:
    items = [whole(item) for item in _listed(problems, path, value)]
    if items not in ([], [0]):
        shown = " ".join(raw(item) for item in value) if isinstance(value, list) else raw(value)
        problems.add(
            path,
            f"invalid IMEX channel IDs: invalid IMEX config: channelIDs must be [] or [0]; found [{shown}]",
            "no channel, or channel 0",
        )
        return None
    return tuple(item for item in items if item is not None)


PATTERN: Final[Table] = {"pattern": text, "name": _name}
ENTRY: Final[Table] = {"name": _name, "replicas": _replicas, "rename": _name, "devices": _devices}
SHARING: Final[Table] = {
    "renameByDefault": boolean,
    "failRequestsGreaterThanOne": boolean,
    "resources": _entries,
}
FLAGS: Final[Table] = {
    "migStrategy": choice("unknown MIG strategy: ", "none", "single", "mixed"),
    "failOnInitError": boolean,
    "mpsRoot": text,
    "nvidiaDriverRoot": text,
    "nvidiaDevRoot": text,
    "gdrcopyEnabled": boolean,
    "gdsEnabled": boolean,
    "mofedEnabled": boolean,
    "useNodeFeatureAPI": boolean,
    "deviceDiscoveryStrategy": choice("invalid --device-discovery-strategy option ", "auto", "nvml", "tegra", "vfio"),
    "plugin": {
        "passDeviceSpecs": boolean,
        "deviceListStrategy": _strategies,
        "deviceIDStrategy": choice("invalid --device-id-strategy option: ", "uuid", "index"),
        "cdiAnnotationPrefix": text,
        "nvidiaCTKPath": text,
        "containerDriverRoot": text,
        "sharedDevicesAllocationPolicy": choice(
            "invalid --shared-devices-allocation-policy option: ", "distributed", "packed"
        ),
    },
    "gfd": {
        "oneshot": boolean,
        "noTimestamp": boolean,
        "sleepInterval": _sleep,
        "outputFile": text,
        "machineTypeFile": text,
    },
}
TOP: Final[Table] = {
    "version": _version,
    "flags": FLAGS,
    "resources": {"gpus": _patterns, "mig": _patterns},
    "sharing": {"timeSlicing": _sharing(SharingKind.TIME_SLICING), "mps": _sharing(SharingKind.MPS)},
    "imex": {"channelIDs": _channels, "required": boolean},
}
_BLOCK: Final[Table] = {**SHARING, "resources": ENTRY}
KNOWN: Final[Table] = {
    **TOP,
    "resources": {"gpus": PATTERN, "mig": PATTERN},
    "sharing": {"timeSlicing": _BLOCK, "mps": _BLOCK},
}
"""The whole format with the entries of lists unfolded: where a misplaced key may belong."""
