"""The driver's files in a container, with or without hooks: what modes nvml and management have in common."""

from __future__ import annotations

import posixpath

import msgspec

from kgpu.formats.cdi import ContainerEdits
from kgpu.formats.names import ENV_LIBCUDA_DIR
from kgpu.host.driver.edits import driver_edits, host_edits, library_folders, link_pairs
from kgpu.host.driver.model import DriverFiles
from kgpu.toolkit.model import ModeInput
from kgpu.toolkit.modes.base import VOID, gids


def common_edits(look: ModeInput, files: DriverFiles, *, whole: bool = True) -> ContainerEdits:
    """The edits for every container. ``whole``: with the control nodes and the hooks about single GPUs."""
    edits = host_edits(look.root, files) if look.hooks.wanted else driver_edits(look.root, files, machine=look.machine)
    nodes = edits.device_nodes if whole else ()
    env = [variable for variable in edits.env if variable != VOID and not variable.startswith(f"{ENV_LIBCUDA_DIR}=")]
    if folders := _libcuda_folders(edits):
        env.insert(0, f"{ENV_LIBCUDA_DIR}={':'.join(folders)}")
    hooks = look.hooks
    return msgspec.structs.replace(
        edits,
        env=(*env, VOID),
        device_nodes=nodes,
        hooks=(
            *edits.hooks,
            *hooks.create_symlinks(link_pairs(files) if hooks.wanted else ()),
            *hooks.enable_cuda_compat(driver=files.version),
            *hooks.update_ldcache(library_folders(files) if hooks.wanted else ()),
            *(hooks.make("disable-device-node-modification") if whole else ()),
            *(hooks.make("update-application-profile") if whole else ()),
        ),
        additional_gids=gids(look, nodes),
    )


def _libcuda_folders(edits: ContainerEdits) -> tuple[str, ...]:
    """The container's folders with the driver's libcuda, which programs of CUDA's compatibility package ask for."""
    places = (posixpath.split(mount.container_path) for mount in edits.mounts)
    return tuple(dict.fromkeys(folder for folder, name in places if name.startswith("libcuda.so.")))
