"""Hooks in specs, for those who choose them: each runs the host's ``nvidia-cdi-hook`` before the container starts.

Promise: every hook carries an environment of its own. A hook without one would inherit the container's, and with it
LD_PRELOAD, as root on the host (CVE-2025-23266). Arguments and order are the replaced program's, so that a spec works
with its helper; what would have nothing to do is not emitted.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.errors import HostError
from kgpu.formats.cdi import Hook
from kgpu.formats.names import ENV_HOOK_DEBUG
from kgpu.host.root import Tree
from kgpu.toolkit.config import ALL, HookConfig

HELPER: Final = "nvidia-cdi-hook"
CTK: Final = "nvidia-ctk"
FOLDERS: Final = (
    "/usr/local/nvidia/toolkit",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/opt/bin",
)
OFF_BY_DEFAULT: Final = frozenset({"chmod"})
CHMOD_FOLDERS: Final = ("/dev/dri", "/dev/nvidia-caps")


@dataclass(frozen=True, slots=True)
class Hooks:
    """Makes the hooks that a configuration wants; every method gives none or one. Without a path: none at all."""

    path: str = ""
    config: HookConfig = field(default_factory=HookConfig)

    @property
    def wanted(self) -> bool:
        """Whether the specs have hooks."""
        return bool(self.path)

    def make(self, name: str, *arguments: str) -> tuple[Hook, ...]:
        """The hook of this name, unless it is switched off."""
        off = self.config.disabled | OFF_BY_DEFAULT
        if not self.path or (name not in self.config.enabled and (name in off or ALL in off)):
            return ()
        program = posixpath.basename(self.path)
        through = ("hook",) if program == CTK else ()
        return (
            Hook(
                hook_name="createContainer",
                path=self.path,
                args=(program, *through, name, *arguments),
                env=(f"{ENV_HOOK_DEBUG}=false",),
            ),
        )

    def create_symlinks(self, links: Iterable[str]) -> tuple[Hook, ...]:
        """``links`` are ``TARGET::LINK``."""
        found = [part for link in dict.fromkeys(links) for part in ("--link", link)]
        return self.make("create-symlinks", *found) if found else ()

    def enable_cuda_compat(self, *, driver: str = "", cuda: tuple[int, int] | None = None, root: str = ""
    ) -> tuple[Hook, ...]:  # fmt: skip
        """The hook for CUDA's compatibility libraries, by the driver's version, else by the CUDA version."""
        arguments = [f"--host-driver-version={driver}"] if driver else []
        if not driver and cuda is not None:
            arguments = [f"--host-cuda-version={cuda[0]}.{cuda[1]}"]
        if not arguments:
            return ()
        return self.make("enable-cuda-compat", *arguments, *([f"--cuda-compat-container-root={root}"] if root else ()))

    def update_ldcache(self, folders: Iterable[str]) -> tuple[Hook, ...]:
        """``folders`` are the container's folders of libraries."""
        found = [part for folder in dict.fromkeys(folders) for part in ("--folder", folder)]
        ldconfig = ("--ldconfig-path", self.config.ldconfig) if self.config.ldconfig else ()
        return self.make("update-ldcache", *ldconfig, *found) if found else ()

    def chmod(self, nodes: Iterable[str]) -> tuple[Hook, ...]:
        """The hook that lets users other than root enter the folders of these device nodes."""
        folders = [folder for folder in CHMOD_FOLDERS if any(node.startswith(f"{folder}/") for node in nodes)]
        return self.make("chmod", "--mode", "755", *(part for folder in folders for part in ("--path", folder))) \
            if folders else ()  # fmt: skip


def find_hooks(config: HookConfig | None, tree: Tree) -> Hooks:
    """The hooks that are wanted, with the helper's path on the host ``tree``.

    Raises HostError when the helper is to be looked for and is not there.
    """
    if config is None:
        return Hooks()
    if "/" in config.path:
        return Hooks(config.path, config)
    name = config.path or HELPER
    for folder in FOLDERS:
        path = f"{folder}/{name}"
        resolved = tree.resolve(path)
        if resolved is not None and tree.local(resolved).is_file():
            return Hooks(path, config)
    raise HostError(
        f"there is no {name} on this node",
        f"the program that the spec's hooks would run, in one of {', '.join(FOLDERS)}",
        "leave --hooks out (a spec needs no hooks), install the NVIDIA Container Toolkit, or give its path with "
        "--nvidia-cdi-hook-path",
    )
