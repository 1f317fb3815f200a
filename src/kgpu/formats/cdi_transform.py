"""Changes of whole CDI specs, pure: move a root, merge into one device ``all``, simplify.

Promises: paths are rewritten only at a component boundary (``/driver`` never touches ``/driver-old``); a result
declares the lowest version that has what it uses; simplifying twice is simplifying once. Rules: the container toolkit's
spec transforms, and OCI's rule which hooks run in which namespace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from kgpu.base.errors import ConfigError
from kgpu.formats.cdi import (
    ALL_DEVICE,
    CdiDeviceNode,
    ContainerEdits,
    Hook,
    Spec,
    SpecDevice,
    minimal_version,
    ordered,
    without,
)

RelativeTo = Literal["host", "container"]
RELATIVE_TO: Final = ("host", "container")

# OCI: these run in the container's namespaces, so their arguments are paths of the container.
_IN_CONTAINER: Final = frozenset({"createContainer", "startContainer"})
# OCI: only this one's program is looked up in the container as well.
_PROGRAM_IN_CONTAINER: Final = "startContainer"
_PAIR: Final = "::"
_FLAG: Final = re.compile(r"(--?[A-Za-z][A-Za-z0-9._-]*=)(/.*)", re.DOTALL)

Rewrite = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class RootMove:
    """A root that moves: what lies at or below ``old`` is at or below ``new`` afterwards."""

    old: str
    new: str

    def __call__(self, path: str) -> str:
        """The path after the move; the same text when it does not lie below ``old`` or is not absolute."""
        if not path.startswith("/"):
            return path
        if self.old == "/":
            rest = path
        elif path == self.old or path.startswith(self.old + "/"):
            rest = path[len(self.old) :]
        else:
            return path
        if self.new == "/":
            return rest or "/"
        return self.new if rest == "/" else self.new + rest


def move(old: str, new: str) -> RootMove:
    """A move between two absolute folders; ``""`` is ``/``, slashes at the end don't count. Raises ConfigError."""
    return RootMove(_root("the old root", old), _root("the new root", new))


def transform_root(spec: Spec, moved: RootMove, relative_to: RelativeTo = "host") -> Spec:
    """The spec after a root moved on the host or in the container.

    ``host``: host paths of device nodes (their path when there is none) and mounts, programs of hooks except
    startContainer's, arguments of hooks that run on the host. ``container``: paths of device nodes and mounts in the
    container, startContainer's program, arguments of hooks that run in the container. In an argument both halves of
    ``a::b`` and the path of ``--flag=/path`` move too.
    """
    edit = _on_host if relative_to == "host" else _in_container
    return _each_edits(spec, lambda edits: edit(edits, moved))


def simplify(spec: Spec) -> Spec:
    """The same devices, said shorter.

    Duplicates go; a device loses what the common edits already bring, unless that would leave it without edits; devices
    are ordered by name, device nodes and mounts by (path depth, path); env and hooks keep their order.
    """
    common = ordered(spec.container_edits)
    devices = tuple(
        msgspec.structs.replace(device, container_edits=without(ordered(device.container_edits), common))
        for device in sorted(spec.devices, key=lambda device: natural(device.name))
    )
    return _versioned(msgspec.structs.replace(spec, devices=devices, container_edits=common))


def with_all_device(spec: Spec, name: str = ALL_DEVICE) -> Spec:
    """Adds the union of every device under ``name`` and simplifies; a spec that has that device stays as it is."""
    if any(device.name == name for device in spec.devices):
        return spec
    union = union_of(device.container_edits for device in spec.devices)
    if union.empty:
        return spec
    return simplify(
        msgspec.structs.replace(spec, devices=(*spec.devices, SpecDevice(name=name, container_edits=union)))
    )


def union_of(every: Iterable[ContainerEdits]) -> ContainerEdits:
    """What all of these change together, in their order, nothing twice."""
    parts = list(every)  # in one pass: a spec may have thousands of devices
    return ordered(
        ContainerEdits(
            env=tuple(item for part in parts for item in part.env),
            device_nodes=tuple(item for part in parts for item in part.device_nodes),
            net_devices=tuple(item for part in parts for item in part.net_devices),
            hooks=tuple(item for part in parts for item in part.hooks),
            mounts=tuple(item for part in parts for item in part.mounts),
            intel_rdt=next((part.intel_rdt for part in parts if part.intel_rdt is not None), None),
            additional_gids=tuple(item for part in parts for item in part.additional_gids),
        )
    )


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key: ``2`` before ``10``, numbers before words. Never converts: a name may be a million digits long."""
    parts = [part for part in re.split(r"([0-9]+)", name) if part]
    return tuple(_number(part) if part[0] in "0123456789" else (1, 0, part) for part in parts)


def _number(digits: str) -> tuple[int, int, str]:
    shown = digits.lstrip("0")
    return (0, len(shown), shown)


def _on_host(edits: ContainerEdits, rewrite: Rewrite) -> ContainerEdits:
    return msgspec.structs.replace(
        edits,
        device_nodes=tuple(_node_on_host(node, rewrite) for node in edits.device_nodes),
        mounts=tuple(msgspec.structs.replace(mount, host_path=rewrite(mount.host_path)) for mount in edits.mounts),
        hooks=tuple(_hook(hook, rewrite, inside=False) for hook in edits.hooks),
    )


def _in_container(edits: ContainerEdits, rewrite: Rewrite) -> ContainerEdits:
    return msgspec.structs.replace(
        edits,
        device_nodes=tuple(_node_in_container(node, rewrite) for node in edits.device_nodes),
        mounts=tuple(
            msgspec.structs.replace(mount, container_path=rewrite(mount.container_path)) for mount in edits.mounts
        ),
        hooks=tuple(_hook(hook, rewrite, inside=True) for hook in edits.hooks),
    )


def _node_on_host(node: CdiDeviceNode, rewrite: Rewrite) -> CdiDeviceNode:
    return _node(node, node.path, rewrite(node.host_path or node.path))


def _node_in_container(node: CdiDeviceNode, rewrite: Rewrite) -> CdiDeviceNode:
    # Without a host path the path says both, and only the container's side moves.
    return _node(node, rewrite(node.path), node.host_path or node.path)


def _node(node: CdiDeviceNode, path: str, host_path: str) -> CdiDeviceNode:
    # hostPath costs version 0.5.0, so it is there only where it says something.
    return msgspec.structs.replace(node, path=path, host_path="" if host_path == path else host_path)


def _hook(hook: Hook, rewrite: Rewrite, *, inside: bool) -> Hook:
    program_inside = hook.hook_name == _PROGRAM_IN_CONTAINER
    arguments_inside = hook.hook_name in _IN_CONTAINER
    path = rewrite(hook.path) if program_inside is inside else hook.path
    args = tuple(_argument(arg, rewrite) for arg in hook.args) if arguments_inside is inside else hook.args
    return msgspec.structs.replace(hook, path=path, args=args)


def _argument(text: str, rewrite: Rewrite) -> str:
    if _PAIR in text:
        return _PAIR.join(_argument(half, rewrite) for half in text.split(_PAIR))
    flag = _FLAG.fullmatch(text)
    return flag[1] + rewrite(flag[2]) if flag else rewrite(text)


def _each_edits(spec: Spec, change: Callable[[ContainerEdits], ContainerEdits]) -> Spec:
    devices = tuple(
        msgspec.structs.replace(device, container_edits=change(device.container_edits)) for device in spec.devices
    )
    return _versioned(msgspec.structs.replace(spec, devices=devices, container_edits=change(spec.container_edits)))


def _versioned(spec: Spec) -> Spec:
    return msgspec.structs.replace(spec, cdi_version=minimal_version(spec))


def _root(what: str, text: str) -> str:
    parts = [part for part in text.split("/") if part not in {"", "."}]
    if text and (not text.startswith("/") or ".." in parts):
        raise ConfigError(f'{what} "{text}" can not be moved', "an absolute path without ..", f"correct {what}")
    return "/" + "/".join(parts)
