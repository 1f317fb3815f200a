"""The role ``device-config-manager``: parts AMD GPUs by the modes of the profile that the Node's label names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgpu.agent.host import Closing, Host, Role
from kgpu.agent.options import AgentOptions
from kgpu.base.errors import ConfigError
from kgpu.base.supervise import RoleHandle
from kgpu.formats import names
from kgpu.kube.port import KubeApi

if TYPE_CHECKING:
    from kgpu.hw.partitioning import ModePartitioner

NAME: Final = "device-config-manager"
SERVICES_FILE: Final = "config-stopped-services.json"


async def _device_config_manager(host: Host, handle: RoleHandle) -> None:
    from kgpu.agent.config_file import FileConfigSource
    from kgpu.agent.layout_manager import make_context
    from kgpu.base.service import first_end, running
    from kgpu.formats.device_config_flags import PROFILES, PROFILES_FILE
    from kgpu.formats.settings import resolve
    from kgpu.mig.manager.host_services import ClientServices, host_call
    from kgpu.mig.manager.memory import MODES_FILE_NAME
    from kgpu.mig.manager.run import run
    from kgpu.mig.modes.kind import PartitionModes, ProfileLookup

    options = host.options
    if not (options.has_api_server and options.node_name):
        raise ConfigError(
            "the device config manager has no Node to follow", "an API server, and this node's name", "set NODE_NAME"
        )
    settings = resolve(_flags(), flags=options.overrides_of(NAME), env=options.env)
    file = Path(settings.values["profiles_file"])
    source = FileConfigSource(file, f"{PROFILES.flag} ({PROFILES.envs[0]})")
    usual = str(file) == PROFILES_FILE  # one that somebody has named has to be there
    lookup = ProfileLookup(given=source, absent=lambda: usual and not file.exists())
    call = host_call(options.host_root)
    services = ClientServices(clients=lookup.services, record=options.state_dir / SERVICES_FILE, call=call)
    kind = PartitionModes(open_driver=_opener(options), lookup=lookup)
    view = host.reader.view()
    async with contextlib.aclosing(Closing(view)):
        context = make_context(
            host, handle, view, kind, file=MODES_FILE_NAME, sources=(source,), services=services
        )  # fmt: skip
        async with running(device_config_manager=run(context), profiles_file=source.run()) as tasks:
            await first_end(tasks)


def _flags() -> tuple[Any, ...]:
    from kgpu.formats.device_config_flags import FLAGS

    return FLAGS


def _opener(options: AgentOptions) -> Callable[[], ModePartitioner]:
    """Opens the driver; the same each time, so that what hangs in it is known to hang."""
    from kgpu.hw.open import open_modes
    from kgpu.mig.manager.host_services import host_call
    from kgpu.mig.modes.kernel import node_kernel

    root = Path(options.root or "/")
    kernel = node_kernel(root, host_call(options.host_root))
    kept: list[ModePartitioner] = []

    def opened() -> ModePartitioner:
        found = open_modes(driver_root=root, kernel=kernel)
        kept.extend([] if kept else [found])
        return kept[0]

    return opened


async def _withdraw(api: KubeApi, options: AgentOptions) -> None:
    """Remove what was said of the label. Raises KubeError."""
    from kgpu.mig.manager.publish import withdraw

    await withdraw(api, options.node_name, names.AMD_PROFILE_FIELD_MANAGER)


ROLE: Final = Role(
    NAME, _device_config_manager, flags=_flags, withdraw=_withdraw, cuts=names.AMD
)  # fmt: skip
