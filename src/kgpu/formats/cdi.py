"""Container Device Interface specs, versions 0.3.0 to 1.1.0: types, a pure builder, validation, rendering.

Promises: a built spec declares the lowest ``cdiVersion`` that has what it uses, so that old engines accept it; the same
input gives the same bytes; nothing invalid is rendered. Names and version rules are the CDI specification's.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeVar

import msgspec

from kgpu.base.errors import ConfigError, PlacedError
from kgpu.base.suggest import did_you_mean
from kgpu.base.typed import convert
from kgpu.formats import yaml_text

_COMMON: Final = "containerEdits"
ALL_DEVICE: Final = "all"
FORMATS: Final = ("yaml", "json")
MOUNT_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS: Final = ("nosuid", "nodev", "rbind", "rprivate", "noexec")

# Two letters at least: the CDI library in containerd up to 2.1 panics, and containerd with it, on a kind such as "a/b".
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]", re.ASCII)
_DEVICE_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)
_HOOKS: Final = frozenset({"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"})
VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
GIDS_VERSION: Final = "0.7.0"
"""The first version with ``additionalGids``; engines of before refuse the whole file."""

# The wire types of the CDI library: a number that doesn't fit makes it refuse the whole file.
Uint32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_NODE_TYPES: Final = frozenset({"", "b", "c", "u", "p"})
_CLOS_ID: Final = re.compile(r"(?!\.{1,2}\Z)[^/\n]{0,4095}")

T = TypeVar("T", bound=Hashable)


class _CdiPart(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    pass


class CdiDeviceNode(_CdiPart, frozen=True):
    """A device node in the container; ``host_path`` only where it differs; the runtime reads type and numbers."""

    path: str
    host_path: str = ""
    type: str = ""
    major: Int64 = 0
    minor: Int64 = 0
    file_mode: Uint32 | None = None
    permissions: str = ""
    uid: Uint32 | None = None
    gid: Uint32 | None = None


class CdiMount(_CdiPart, frozen=True):
    """A bind mount."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class NetDevice(_CdiPart, frozen=True):
    """A network interface of the host that moves into the container under ``name``."""

    host_interface_name: str
    name: str


class IntelRdt(_CdiPart, frozen=True):
    """Intel's resource director: cache and memory bandwidth classes."""

    clos_id: str = msgspec.field(name="closID", default="")
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    enable_cmt: bool = msgspec.field(name="enableCMT", default=False)
    enable_mbm: bool = msgspec.field(name="enableMBM", default=False)
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False


class Hook(_CdiPart, frozen=True):
    """An OCI hook; ``timeout`` in seconds."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: Int64 | None = None


class ContainerEdits(_CdiPart, frozen=True):
    """What a device (or every device of the spec) changes in a container; ``env`` items are ``NAME=value``."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[CdiDeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[Uint32, ...] = ()

    @property
    def empty(self) -> bool:
        """True when nothing is changed."""
        return self == ContainerEdits()


class SpecDevice(_CdiPart, frozen=True):
    """One named device of a spec."""

    name: str
    annotations: dict[str, str] = {}
    container_edits: ContainerEdits = ContainerEdits()


class Spec(_CdiPart, frozen=True):
    """One spec file. ``kind`` is ``vendor/class``."""

    cdi_version: str
    kind: str
    annotations: dict[str, str] = {}
    devices: tuple[SpecDevice, ...] = ()
    container_edits: ContainerEdits = ContainerEdits()


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiDevice:
    """What ``build_spec`` makes entries of: one entry per name, all alike. ``in_all``: it is part of device ``all``.

    ``gids`` are groups that the container's process needs beside its own to open the nodes.
    """

    names: tuple[str, ...]
    nodes: tuple[CdiDeviceNode, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    env: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    gids: tuple[int, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    in_all: bool = True

    @property
    def edits(self) -> ContainerEdits:
        """The same as edits."""
        return ContainerEdits(
            env=self.env, device_nodes=self.nodes, hooks=self.hooks, mounts=self.mounts, additional_gids=self.gids
        )


def kind_of(vendor: str, device_class: str) -> str:
    """``vendor/class``. Raises ConfigError when either is not a CDI name."""
    for what, text in (("vendor", vendor), ("class", device_class)):
        if not _NAME.fullmatch(text):
            raise ConfigError(
                f'"{text}" is not a CDI {what}',
                "two or more of letters, digits, '_', '-' and '.', a letter first and a letter or digit last",
                f"give another --{what}",
            )
    return f"{vendor}/{device_class}"


def qualified_name(kind: str, device: str) -> str:
    """``vendor/class=device``, as runtimes and the kubelet know it."""
    return f"{kind}={device}"


def build_spec(
    *,
    kind: str,
    devices: Iterable[CdiDevice],
    common: ContainerEdits | None = None,
    all_device: bool = True,
    annotations: Mapping[str, str] | None = None,
) -> Spec:
    """A valid spec with its lowest version.

    Duplicates go, what is common leaves the devices unless that would empty one, devices are ordered by name, nodes and
    mounts by depth and path. ``all_device`` adds the union under the name ``all`` unless a device has that name.
    Raises ConfigError when the result would be invalid (a bad name, a name twice, a device without edits, none at all).
    """
    shared = ordered(common or ContainerEdits())
    entries: list[SpecDevice] = []
    union = ContainerEdits()
    for device in devices:
        if device.in_all:
            union = merged(union, device.edits)
        own = without(ordered(device.edits), shared)
        entries += [
            SpecDevice(name=name, annotations=dict(device.annotations), container_edits=own) for name in device.names
        ]
    if all_device and not union.empty and all(entry.name != ALL_DEVICE for entry in entries):
        entries.append(SpecDevice(name=ALL_DEVICE, container_edits=without(ordered(union), shared)))
    entries.sort(key=lambda entry: _natural(entry.name))
    spec = Spec(
        cdi_version=VERSIONS[0],
        kind=kind,
        annotations=dict(annotations or {}),
        devices=tuple(entries),
        container_edits=shared,
    )
    spec = msgspec.structs.replace(spec, cdi_version=minimal_version(spec))
    validate(spec)
    return spec


def minimal_version(spec: Spec) -> str:
    """The lowest CDI version that has every feature that the spec uses."""
    every = [spec.container_edits, *(device.container_edits for device in spec.devices)]
    rdts = [edits.intel_rdt for edits in every if edits.intel_rdt is not None]
    needs = (
        ("0.4.0", any(mount.type for edits in every for mount in edits.mounts)),
        ("0.5.0", any(node.host_path for edits in every for node in edits.device_nodes)),
        ("0.5.0", any(not device.name[:1].isalpha() for device in spec.devices)),
        ("0.6.0", bool(spec.annotations) or any(device.annotations for device in spec.devices)),
        ("0.6.0", "." in spec.kind.partition("/")[2]),
        (GIDS_VERSION, bool(rdts) or any(edits.additional_gids for edits in every)),
        ("1.1.0", any(rdt.schemata or rdt.enable_monitoring for rdt in rdts)),
        ("1.1.0", any(edits.net_devices for edits in every)),
    )
    return max((version for version, needed in needs if needed), default=VERSIONS[0])


def ordered(edits: ContainerEdits) -> ContainerEdits:
    """Each thing once; nodes and mounts by depth and path, the rest in the order in which it was found."""
    return msgspec.structs.replace(
        edits,
        env=_unique(edits.env),
        device_nodes=tuple(sorted(_unique(edits.device_nodes), key=lambda node: _depth(node.path))),
        net_devices=_unique(edits.net_devices),
        hooks=_unique(edits.hooks),
        mounts=tuple(sorted(_unique(edits.mounts), key=lambda mount: _depth(mount.container_path))),
        additional_gids=_unique(edits.additional_gids),
    )


def merged(first: ContainerEdits, second: ContainerEdits) -> ContainerEdits:
    """Both, one after the other; duplicates stay until ``ordered``."""
    return ContainerEdits(
        env=first.env + second.env,
        device_nodes=first.device_nodes + second.device_nodes,
        net_devices=first.net_devices + second.net_devices,
        hooks=first.hooks + second.hooks,
        mounts=first.mounts + second.mounts,
        intel_rdt=first.intel_rdt or second.intel_rdt,
        additional_gids=first.additional_gids + second.additional_gids,
    )


def without(edits: ContainerEdits, common: ContainerEdits) -> ContainerEdits:
    """What is not in ``common``; all of it when nothing would be left, since a device may not be empty."""
    rest = ContainerEdits(
        env=_less(edits.env, common.env),
        device_nodes=_less(edits.device_nodes, common.device_nodes),
        net_devices=_less(edits.net_devices, common.net_devices),
        hooks=_less(edits.hooks, common.hooks),
        mounts=_less(edits.mounts, common.mounts),
        intel_rdt=None if edits.intel_rdt == common.intel_rdt else edits.intel_rdt,
        additional_gids=_less(edits.additional_gids, common.additional_gids),
    )
    return edits if rest.empty else rest


def validate(spec: Spec, *, source: str = "the CDI spec") -> None:
    """Raises ConfigError for the first thing that a CDI library would refuse."""
    problem = next(_problems(spec), None)
    if problem is not None:
        what, expected = problem
        raise PlacedError(source, what, expected, "correct the spec, or generate it again with `kgpu cdi generate`")


def parse_spec(text: str | bytes, *, source: str = "CDI spec") -> Spec:
    """A spec from YAML or JSON. Raises ConfigError naming the place; unknown keys are errors."""
    from kgpu.formats import yaml  # PyYAML: whoever only writes specs does without

    value = yaml.load(text, source=source)
    try:
        spec = convert(value, Spec)
    except msgspec.ValidationError as error:
        raise PlacedError(source, f"{error}{_hint(str(error))}", "a CDI spec", "correct or regenerate it") from error
    validate(spec, source=source)
    return spec


def dump_spec(spec: Spec, form: str = "yaml") -> str:
    """YAML (begins with ``---``) or one compact line of JSON."""
    if form == "json":
        return json.dumps(msgspec.to_builtins(spec), separators=(",", ":"), ensure_ascii=False)
    own = msgspec.to_builtins(msgspec.structs.replace(spec, container_edits=ContainerEdits()))
    own.pop(_COMMON, None)
    return f"---\n{yaml_text.write(own)}{_common_text(spec.container_edits)}"


@functools.lru_cache(maxsize=2)
def _common_text(edits: ContainerEdits) -> str:
    """What all devices have in common: for each claim the same, and nearly all of a spec."""
    return yaml_text.write({_COMMON: msgspec.to_builtins(edits)})


def _problems(spec: Spec) -> Iterator[tuple[str, str]]:
    if spec.cdi_version not in VERSIONS:
        yield f'version "{spec.cdi_version}" is not known', f"one of {', '.join(VERSIONS)}"
    vendor, _, device_class = spec.kind.partition("/")
    if not _NAME.fullmatch(vendor) or not _NAME.fullmatch(device_class):
        yield f'kind "{spec.kind}" is not vendor/class', "such as nvidia.com/gpu"
    if not spec.devices:
        yield "it has no devices", "at least one device; a lost GPU or a GPU in MIG mode without slices gives none"
    known_names: set[str] = set()
    for device in spec.devices:
        if not _DEVICE_NAME.fullmatch(device.name):
            yield f'"{device.name}" is not a device name', "letters, digits, '_', '.', ':' and '-'"
        if device.name in known_names:
            yield f'device "{device.name}" is there twice', "each name once; a runtime resolves neither"
        known_names.add(device.name)
        if device.container_edits.empty:
            yield f'device "{device.name}" changes nothing', "at least one edit"
        yield from _edit_problems(device.container_edits, f'device "{device.name}"')
    yield from _edit_problems(spec.container_edits, "containerEdits")
    needed = minimal_version(spec)
    if spec.cdi_version in VERSIONS and VERSIONS.index(spec.cdi_version) < VERSIONS.index(needed):
        yield f"it says version {spec.cdi_version} but uses what {needed} brought", f"cdiVersion {needed}"


def _edit_problems(edits: ContainerEdits, where: str) -> Iterator[tuple[str, str]]:
    for env in (*edits.env, *(env for hook in edits.hooks for env in hook.env)):
        if not env.partition("=")[0] or "=" not in env:
            yield f'{where}: env "{env}" is not NAME=value', "NAME=value"
    if edits.intel_rdt is not None and not _CLOS_ID.fullmatch(edits.intel_rdt.clos_id):
        yield f'{where}: closID "{edits.intel_rdt.clos_id}"', "the name of a file"
    for node in edits.device_nodes:
        if node.type not in _NODE_TYPES or set(node.permissions) - set("rwm"):
            what = f'type "{node.type}" and permissions "{node.permissions}"'
            yield f"{where}: device node {node.path} has {what}", "b, c, u or p, and some of r, w and m"
        if not node.path.startswith("/"):
            yield f'{where}: device node "{node.path}" is not an absolute path', "an absolute path"
    for mount in edits.mounts:
        if not mount.container_path.startswith("/") or not mount.host_path.startswith("/"):
            yield f'{where}: mount "{mount.host_path}" to "{mount.container_path}"', "two absolute paths"
    for net in edits.net_devices:
        if not net.host_interface_name or not net.name:
            yield f"{where}: a network device without a name", "hostInterfaceName and name"
    for hook in edits.hooks:
        if hook.hook_name not in _HOOKS:
            yield f'{where}: there is no hook "{hook.hook_name}"', f"one of {', '.join(sorted(_HOOKS))}"
        if not hook.path.startswith("/"):
            yield f'{where}: hook path "{hook.path}" is not absolute', "an absolute path"


def _hint(message: str) -> str:
    match = re.search(r"unknown field `([^`]*)`", message)
    kinds = (Spec, SpecDevice, ContainerEdits, CdiDeviceNode, CdiMount, Hook, NetDevice, IntelRdt)
    fields = {name for kind in kinds for name in _wire_names(kind)}
    hint = did_you_mean(match[1], fields) if match else ""
    return f"; {hint}" if hint else ""


def _wire_names(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return kind.__struct_encode_fields__


def _less(values: tuple[T, ...], common: tuple[T, ...]) -> tuple[T, ...]:
    known = set(common)
    return tuple(value for value in values if value not in known)


def _unique(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _depth(path: str) -> tuple[int, str]:
    return path.count("/"), path


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """``2`` before ``10``; numbers before words."""
    return tuple((int(part), "") if part.isdigit() else (1 << 62, part) for part in re.split(r"(\d+)", name) if part)
