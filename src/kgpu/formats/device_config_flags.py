"""The settings of the role ``device-config-manager``, as rows."""

from __future__ import annotations

from typing import Final

from kgpu.formats.settings import Restart, Setting

PROFILES_KEY: Final = "config.json"
"""The key of a ConfigMap of profiles."""
PROFILES_FILE: Final = f"/etc/config-manager/{PROFILES_KEY}"
"""Where AMD's operator mounts the ConfigMap of profiles."""

PROFILES: Final = Setting(
    attr="profiles_file", flag="--dcm-config-file", envs=("DCM_CONFIG_FILE",), default=PROFILES_FILE,
    metavar="VALUE", restart=Restart.NONE,
    help="Partition profiles by name, in the form of AMD's device config manager; followed. While there is no file at "
    "the default path, those of AMD's operator, for the number of GPUs that the node has.",
)  # fmt: skip
FLAGS: Final = (PROFILES,)
