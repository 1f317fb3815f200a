"""Finds and reads the container toolkit's config.toml on a host, with its defaults there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError
from kgpu.formats.toolkit_config import DEFAULT_PATH, MAX_BYTES, HostDefaults, ToolkitConfig, parse_config
from kgpu.host.bounded import read_regular
from kgpu.host.root import Tree

ENV_FILE: Final = "NVIDIA_CTK_CONFIG_FILE_PATH"
ENV_XDG: Final = "XDG_CONFIG_HOME"
_REAL_LDCONFIG: Final = "/sbin/ldconfig.real"  # Debian's and Ubuntu's ldconfig is a script around it
_SUSE_USER: Final = "root:video"


def config_path(env: Mapping[str, str]) -> str:
    """The file that counts: the environment's, else the user's own if it exists, else the system's."""
    if env.get(ENV_FILE):
        return env[ENV_FILE]
    own = os.path.join(env.get(ENV_XDG, ""), *DEFAULT_PATH.split("/")[-2:])
    return own if env.get(ENV_XDG) and os.path.isfile(own) else DEFAULT_PATH


def host_defaults(root: Path | str = "/") -> HostDefaults:
    """The defaults that depend on the system under ``root``."""
    tree = Tree.at(root)
    release = tree.read("/etc/os-release", 1 << 16).decode("utf-8", "replace")
    suse = any(
        "suse" in value for key, _, value in (line.partition("=") for line in release.splitlines()) if key in _IDS
    )
    ldconfig = _REAL_LDCONFIG if tree.is_file(_REAL_LDCONFIG) else "/sbin/ldconfig"
    return HostDefaults(ldconfig=f"@{ldconfig}", user=_SUSE_USER if suse else "")


def read_config(path: str, *, host: HostDefaults | None = None) -> ToolkitConfig:
    """The settings of a file; defaults if it is missing. Raises HostError if it can't be read,
    ConfigError if invalid.
    """
    where = host or host_defaults()
    try:
        text, _ = read_regular(path, MAX_BYTES, what="a config.toml")
    except HostError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return ToolkitConfig(host=where)
        raise
    return parse_config(text, source=path, host=where)


_IDS: Final = frozenset({"ID", "ID_LIKE"})
