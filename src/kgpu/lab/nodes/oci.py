"""What a container is started with, and how CDI devices change it; pure, as a container engine does it.

Rules are the Container Device Interface's: the edits of a spec are applied once, then those of each of its devices that
are asked for; later environment entries win; a name that no spec has refuses the container.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kgpu.base.errors import LabError
from kgpu.formats.cdi import CdiDeviceNode, CdiMount, ContainerEdits, Hook, Spec, SpecDevice, qualified_name
from kgpu.kubelet import model


class CdiError(LabError):
    """Devices that no spec has; ``what`` is containerd's wording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OciConfig:
    """The part of an OCI runtime configuration that devices change. Later mounts lie over earlier ones."""

    env: Mapping[str, str]
    devices: tuple[CdiDeviceNode, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    gids: tuple[int, ...] = ()


def apply_edits(config: OciConfig, edits: ContainerEdits) -> OciConfig:
    """The configuration with one set of edits; a device or mount at the same path replaces the earlier one."""
    paths = {node.path for node in edits.device_nodes}
    targets = {mount.container_path for mount in edits.mounts}
    return OciConfig(
        env={**config.env, **dict(entry.split("=", 1) for entry in edits.env)},
        devices=(*(node for node in config.devices if node.path not in paths), *edits.device_nodes),
        mounts=(*(mount for mount in config.mounts if mount.container_path not in targets), *edits.mounts),
        hooks=(*config.hooks, *edits.hooks),
        gids=tuple(dict.fromkeys((*config.gids, *edits.additional_gids))),
    )


def inject(config: OciConfig, specs: Sequence[Spec], names: Iterable[str]) -> OciConfig:
    """The configuration with the named devices (``vendor/class=device``) of the specs; CdiError for unknown ones.

    Of two specs with the same device the later one in ``specs`` counts, as of two folders the later one.
    """
    known: dict[str, tuple[Spec, SpecDevice]] = {
        qualified_name(spec.kind, device.name): (spec, device) for spec in specs for device in spec.devices
    }
    wanted = list(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise CdiError(
            f"CDI device injection failed: unresolvable CDI devices {', '.join(unknown)}",
            f"devices of the node's CDI specs: {', '.join(sorted(known)) or 'there are none'}",
            "look into the node's CDI folder and at the agent that writes it",
        )
    used: list[Spec] = []
    for name in wanted:
        spec, device = known[name]
        if all(spec is not used_spec for used_spec in used):
            used.append(spec)
            config = apply_edits(config, spec.container_edits)
        config = apply_edits(config, device.container_edits)
    return config


def allocate(config: OciConfig, allocations: Iterable[model.ContainerAllocation]) -> OciConfig:
    """The configuration with what device plugins answered, CDI names apart."""
    for answer in allocations:
        config = replace(
            config,
            env={**config.env, **answer.envs},
            devices=(
                *config.devices,
                *(CdiDeviceNode(path=node.container_path, host_path=node.host_path) for node in answer.devices),
            ),
            mounts=(
                *config.mounts,
                *(
                    CdiMount(
                        host_path=mount.host_path,
                        container_path=mount.container_path,
                        options=("ro",) if mount.read_only else (),
                    )
                    for mount in answer.mounts
                ),
            ),
        )
    return config


def cdi_names(allocations: Iterable[model.ContainerAllocation], annotation_prefix: str) -> list[str]:
    """The CDI devices that device plugins answered, in their field or in annotations."""
    names: list[str] = []
    for answer in allocations:
        names += answer.cdi_devices
        for key, value in answer.annotations.items():
            if key.startswith(annotation_prefix):
                names += [name for name in value.split(",") if name]
    return list(dict.fromkeys(names))
