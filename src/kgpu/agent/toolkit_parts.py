"""Sets up the toolkit on this node: its spec, the container engine, links to device nodes, the NRI plugin.

An agent that runs directly on the host changes the host's engine only if told which one (``RUNTIME``): it may be one of
several on a machine that is not a node. A simulated driver's device nodes get no links, as they are not the host's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgpu.agent.host import Closing, driver_root
from kgpu.agent.options import AgentOptions
from kgpu.base.service import StateSink
from kgpu.base.supervise import RoleHandle
from kgpu.formats.names import CDI_STATIC_DIR, POD_RESOURCES_SOCKET
from kgpu.host.root import DriverRoot, Tree
from kgpu.hw.port import Reader
from kgpu.kube.port import KubeApi

if TYPE_CHECKING:
    from kgpu.agent.host import Host
    from kgpu.toolkit.nri.config import NriConfig
    from kgpu.toolkit.role import Part, RuntimePart
    from kgpu.toolkit.settings import ToolkitSettings

log = logging.getLogger(__name__)


async def toolkit(host: Host, handle: RoleHandle) -> None:
    """Run the role ``toolkit``. Raises ConfigError for invalid settings."""
    from kgpu.toolkit.cdi_support import find_engines
    from kgpu.toolkit.nri.config import config_from_env
    from kgpu.toolkit.role import ToolkitContext, run
    from kgpu.toolkit.settings import toolkit_settings

    options = host.options
    nri = config_from_env(options.env, namespace=options.namespace)
    settings = toolkit_settings(options.env, nri=nri is not None)
    for advice in settings.without_effect:
        host.decide(advice)
    root = driver_root(options)
    view = host.reader.view()
    files = host.files
    parts: dict[str, Part] = {}
    if _has_links(root, settings):
        parts["links"] = _links(host, settings, root.files.host)
    if nri is not None:
        parts["nri"] = _nri(host, nri, view)
    async with contextlib.aclosing(Closing(view)):
        await run(
            ToolkitContext(
                reader=view,
                root=root,
                report=host.decide,
                cdi_dir=options.cdi_dir,
                on_state=handle.report,
                on_write=files.wrote if files is not None else lambda _: None,
                remove=files.remove if files is not None else lambda _: None,
                engines=lambda: find_engines(Tree.at(options.host_root, "/")),
                management=nri is not None,
                runtime=_runtime(host, settings) if _has_engine(options, settings) else None,
                parts=parts,
            )
        )


async def withdraw(_api: KubeApi, options: AgentOptions) -> None:
    """Remove the spec if it is kgpu's, and restore the container engine's config. Raises HostError."""
    from kgpu.agent.host_files import HostFiles
    from kgpu.toolkit.memory import EngineMemory
    from kgpu.toolkit.spec_keeper import MANAGEMENT_NAME, SPEC_NAME

    for name in (SPEC_NAME, MANAGEMENT_NAME):
        HostFiles(options.state_dir).remove(options.cdi_dir / name)
    if EngineMemory(options.state_dir).engines():
        from kgpu.toolkit.host_engines import HostEngines

        await HostEngines(options.host_root, options.state_dir).release()


def _has_engine(options: AgentOptions, settings: ToolkitSettings) -> bool:
    return options.host_root != Path("/") or settings.engine is not None


def _has_links(root: DriverRoot, settings: ToolkitSettings) -> bool:
    return root.state_file is None and settings.links


def _runtime(host: Host, settings: ToolkitSettings) -> RuntimePart:
    async def part(tell: StateSink, looked: Callable[[], None]) -> None:
        from kgpu.toolkit.host_engines import HostEngines
        from kgpu.toolkit.runtime import RuntimeContext, run

        engines = HostEngines(host.options.host_root, host.options.state_dir)
        await run(RuntimeContext(engines=engines, settings=settings, report=host.decide, looked=looked), tell)

    return part


def _links(host: Host, settings: ToolkitSettings, driver: str) -> Part:
    async def part(tell: StateSink) -> None:
        from kgpu.toolkit.links import LinksContext, run

        context = LinksContext(
            host_root=host.options.host_root,
            driver_root=driver,
            report=host.decide,
            control=settings.control_nodes,
        )
        await run(context, tell)

    return part


def honoured(config: NriConfig, options: AgentOptions) -> NriConfig:
    """The NRI config with the settings of the host's container toolkit (config.toml), if there is one.

    Raises HostError and ConfigError.
    """
    from kgpu.formats.toolkit_config import DEFAULT_PATH
    from kgpu.host.engines.paths import MountedPaths
    from kgpu.host.toolkit_files import ENV_FILE, read_config
    from kgpu.toolkit.nri.config import honouring

    path = options.env.get(ENV_FILE) or DEFAULT_PATH
    toolkit_config = read_config(str(MountedPaths.at(options.host_root).local(path)))
    return dataclasses.replace(config, policy=honouring(config.policy, toolkit_config))


def _nri(host: Host, config: NriConfig, reader: Reader) -> Part:
    async def part(tell: StateSink) -> None:
        from kgpu.host.engines.paths import MountedPaths
        from kgpu.kubelet.pod_resources import PodResources
        from kgpu.toolkit.nri.ports import KubeAccounts
        from kgpu.toolkit.nri.run import NriContext, run

        options = host.options
        paths = MountedPaths.at(options.host_root)
        accounts: Any = KubeAccounts(host.api()) if options.has_api_server else None
        await run(
            NriContext(
                config=dataclasses.replace(honoured(config, options), socket=paths.local(str(config.socket))),
                reader=reader,
                holdings=PodResources(Path(POD_RESOURCES_SOCKET)),
                report=host.decide,
                accounts=accounts,
                cdi_dirs=(paths.local(CDI_STATIC_DIR), options.cdi_dir),
                on_state=tell,
            )
        )

    return part
