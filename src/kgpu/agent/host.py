"""What roles are fitted to this node with: folders, addresses, the driver's place, and how a role says how it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kgpu.agent.options import AgentOptions
from kgpu.base.errors import Reason
from kgpu.base.supervise import RoleHandle
from kgpu.formats.names import ENV_LAB_POD_ADDRESS, VALIDATIONS_DIR
from kgpu.host.root import DriverRoot


def validations_dir(options: AgentOptions) -> Path:
    """The folder of the validator's results."""
    return options.validations_dir or Path(VALIDATIONS_DIR)


def driver_root(options: AgentOptions) -> DriverRoot:
    """Where the driver is, here and on the host, as the device plugin is told it. Raises ConfigError."""
    from kgpu.deviceplugin.config import resolve
    from kgpu.formats.plugin_config import PluginConfig

    settings = resolve(PluginConfig(), overrides=options.plugin_overrides, env=options.env)
    seen = options.root or Path("/")
    return DriverRoot.at(seen, driver_host=settings.driver_root, dev_host=settings.dev_root)


def on_state(handle: RoleHandle, ready: bool, reason: Reason) -> None:
    """Tell the supervisor how a role is."""
    (handle.running if ready else handle.waiting)(reason)


def own_address(options: AgentOptions) -> str:
    """What "every address" is here: "", or the one that a simulated node's pod has on a machine of many nodes."""
    return options.env.get(ENV_LAB_POD_ADDRESS, "")


class Closing:
    """``aclose`` for what has ``close``."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    async def aclose(self) -> None:
        await self._thing.close()
