"""The role ``mig-manager``: cuts this node's GPUs into the MIG slices that its Node's label names."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgpu.agent.host import Closing, Host, Role
from kgpu.agent.options import AgentOptions
from kgpu.base.errors import ConfigError
from kgpu.base.supervise import RoleHandle
from kgpu.formats import names
from kgpu.kube.port import KubeApi

if TYPE_CHECKING:
    from kgpu.agent.config_file import FileConfigSource
    from kgpu.hw.port import Reader
    from kgpu.mig.manager.configs import ConfigLookup
    from kgpu.mig.manager.host_services import ClientServices
    from kgpu.mig.manager.run import MigManagerContext

NAME: Final = "mig-manager"


async def _mig_manager(host: Host, handle: RoleHandle) -> None:
    from kgpu.base.service import first_end, running
    from kgpu.formats.settings import resolve, without_effect
    from kgpu.mig.manager.configs import ConfigLookup
    from kgpu.mig.manager.run import run

    options = host.options
    if not (options.has_api_server and options.node_name):
        raise ConfigError(
            "the MIG manager has no Node to follow", "an API server, and this node's name", "set NODE_NAME"
        )
    settings = resolve(_flags(), flags=options.overrides_of(NAME), env=options.env)
    for advice in without_effect(_flags(), settings):
        host.decide(advice)
    given = _sources(settings.values["config_file"])
    defaults = _sources(settings.values["default_config_file"])
    lookup = ConfigLookup(given=given, defaults=defaults)
    view = host.reader.view()
    async with contextlib.aclosing(Closing(view)):
        context = _context(host, handle, settings.values, lookup, view)
        following = {f"mig_file_{number}": source.run() for number, source in enumerate((*given, *defaults))}
        async with running(mig_manager=run(context), **following) as tasks:
            await first_end(tasks)


def _flags() -> tuple[Any, ...]:
    from kgpu.formats.mig_manager_flags import ROLE_FLAGS

    return ROLE_FLAGS


def _sources(path: str) -> tuple[FileConfigSource, ...]:
    """The file, and the same under the other key that its ConfigMap may have."""
    from kgpu.agent.config_file import FileConfigSource

    if not path:
        return ()
    file = Path(path)
    keys = names.MIG_LAYOUTS_KEYS
    others = [file.with_name(name) for name in keys if name != file.name] if file.name in keys else []
    return tuple(FileConfigSource(one) for one in (file, *others))


def _context(
    host: Host, handle: RoleHandle, values: Mapping[str, Any], lookup: ConfigLookup, view: Reader
) -> MigManagerContext:
    from kgpu.agent.layout_manager import make_context
    from kgpu.mig.gpu_users import open_driver
    from kgpu.mig.manager.memory import FILE_NAME
    from kgpu.mig.manager.slices import MigSlices

    root = str(host.options.root or "/")
    return make_context(
        host, handle, view, MigSlices(open_driver=partial(open_driver, root), lookup=lookup), file=FILE_NAME,
        sources=(*lookup.given, *lookup.defaults), services=_services(host.options, values),
    )  # fmt: skip


def _services(options: AgentOptions, values: Mapping[str, Any]) -> ClientServices | None:
    """The host's services that are to be stopped for a reset, None if none are."""
    from kgpu.mig.manager.host_services import FILE_NAME, ClientServices, host_call, read_clients

    if not (values["stop_clients"] and values["clients_file"]):
        return None
    given = Path(values["host_root"])
    root = given if given.is_dir() else options.host_root
    return ClientServices(
        clients=partial(read_clients, values["clients_file"]), record=options.state_dir / FILE_NAME,
        call=host_call(root),
    )  # fmt: skip


async def _withdraw(api: KubeApi, options: AgentOptions) -> None:
    """Remove what was said of the label. Raises KubeError."""
    from kgpu.mig.manager.publish import withdraw

    await withdraw(api, options.node_name)


ROLE: Final = Role(
    NAME, _mig_manager, aliases=("nvidia-mig-manager",), flags=_flags, withdraw=_withdraw, cuts=names.NVIDIA
)
