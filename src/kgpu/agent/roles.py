"""The roles that an agent can host: one row each, and the function that fits the row's component to this node.

A component's modules are imported when its role starts, so that an agent pays only for what it hosts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kgpu.agent.options import AgentOptions, LabelsSink
from kgpu.agent.remembered import FollowedConfig
from kgpu.agent.shared import SharedReader
from kgpu.base.decision import DecisionSink
from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.base.supervise import RoleHandle
from kgpu.kube.port import KubeApi

if TYPE_CHECKING:
    from kgpu.agent.plugin_specs import PluginSpecs
    from kgpu.deviceplugin.config import Settings
    from kgpu.deviceplugin.run import CdiWriter
    from kgpu.hw.port import Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the agent shares among its roles. ``api`` connects on first use and raises KubeError when it can't."""

    options: AgentOptions
    reader: SharedReader
    config: FollowedConfig
    decide: DecisionSink
    api: Callable[[], KubeApi]


RoleStart: TypeAlias = Callable[[Host, RoleHandle], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Role:
    """One row: what it is called, other names people know it by, and how it is run."""

    name: str
    start: RoleStart
    aliases: tuple[str, ...] = ()


def _on_state(handle: RoleHandle) -> Callable[[bool, str], None]:
    def tell(ready: bool, reason: str) -> None:
        if ready:
            handle.running(reason)
        else:
            handle.waiting(reason)

    return tell


async def _configured(host: Host, handle: RoleHandle) -> None:
    """Return once there is a configuration; say so while there is none."""
    if host.config.current() is None:
        error = host.config.error
        handle.waiting("its configuration is not known yet" + (f": {error.one_line()}" if error else ""))
        await host.config.next(None)


def _spec_writer(options: AgentOptions) -> CdiWriter:
    writers: list[PluginSpecs] = []

    def write(inventory: Inventory, settings: Settings) -> None:
        if not writers:  # imported only where answers refer to CDI
            from kgpu.agent.plugin_specs import PluginSpecs

            writers.append(PluginSpecs(options.root or Path("/"), options.cdi_dir))
        writers[0](inventory, settings)

    return write


async def _device_plugin(host: Host, handle: RoleHandle) -> None:
    from kgpu.deviceplugin.run import DevicePluginContext, run

    options = host.options
    await _configured(host, handle)
    view = host.reader.view()
    async with _closing(view):
        await run(
            DevicePluginContext(
                reader=view,
                config=host.config,
                report=host.decide,
                state_dir=options.state_dir,
                kubelet_socket=options.kubelet_socket,
                cdi_dir=options.cdi_dir,
                overrides=options.plugin_overrides,
                env=options.env,
                cdi_writer=_spec_writer(options),
                on_state=_on_state(handle),
            )
        )


async def _labels(host: Host, handle: RoleHandle) -> None:
    from kgpu.discovery.node_facts import read_facts
    from kgpu.discovery.run import LabelsContext, run

    options = host.options
    await _configured(host, handle)
    view = host.reader.view()
    publisher = _publisher(host)
    async with _closing(view), _closing(publisher):
        await run(
            LabelsContext(
                reader=view,
                config=host.config,
                publisher=publisher,
                report=host.decide,
                facts=lambda settings: read_facts(settings, str(options.root or "/")),
                overrides=options.labels_overrides,
                env=options.env,
                on_state=_on_state(handle),
                outcome=_outcome(options),
            )
        )


def _outcome(options: AgentOptions) -> str:
    """What is logged of a set of labels; %d is their number."""
    if options.sink is not LabelsSink.NONE:
        return "%d labels published"
    if options.labels_sink is LabelsSink.NONE:
        why = "--labels-sink none"
    elif options.has_api_server:
        why = "no node name: give --node-name, or set NODE_NAME"
    else:
        why = "no API server configured; --labels-sink file writes them"
    return f"%d labels made; there is nowhere to publish them ({why})"


def _publisher(host: Host) -> Any:
    from kgpu.discovery import publish

    options = host.options
    make: dict[LabelsSink, Callable[[], Any]] = {
        LabelsSink.NODE_FEATURE: lambda: publish.NodeFeaturePublisher(
            host.api(),
            node=options.node_name,
            namespace=options.namespace,
            pod=options.env.get("POD_NAME", ""),
        ),
        LabelsSink.FILE: lambda: publish.FilePublisher(str(options.labels_file)),
        LabelsSink.NODE: lambda: publish.NodeLabelsPublisher(host.api(), node=options.node_name),
        LabelsSink.NONE: publish.MemoryPublisher,
    }
    return make[options.sink]()


ROLES: Final = (
    Role("deviceplugin", _device_plugin, aliases=("device-plugin", "nvidia-device-plugin")),
    Role("labels", _labels, aliases=("gfd", "gpu-feature-discovery")),
)


def choose_roles(words: Iterable[str]) -> tuple[Role, ...]:
    """The rows that the words name, each once, in the table's order. Raises ConfigError."""
    by_word = {word: role for role in ROLES for word in (role.name, *role.aliases)}
    chosen: set[str] = set()
    for word in words:
        if word not in by_word:
            hint = did_you_mean(word, by_word)
            raise ConfigError(
                f'there is no role "{word}"' + (f"; {hint}" if hint else ""),
                f"one or more of: {', '.join(role.name for role in ROLES)}",
                "correct --roles (KGPU_ROLES)",
            )
        chosen.add(by_word[word].name)
    if not chosen:
        raise ConfigError(
            "the agent has no role",
            f"one or more of: {', '.join(role.name for role in ROLES)}",
            "name them in --roles (KGPU_ROLES)",
        )
    return tuple(role for role in ROLES if role.name in chosen)


@contextlib.asynccontextmanager
async def _closing(thing: Any) -> Any:
    try:
        yield thing
    finally:
        await thing.close()
