"""The roles that an agent can host: one row each, and the function that fits the row's component to this node.

A component's modules are imported when its role starts, so that an agent pays only for what it hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kgpu.agent import health_role, node_roles
from kgpu.agent.host_files import HostFiles
from kgpu.agent.options import AgentOptions, LabelsSink
from kgpu.agent.remembered import FollowedConfig
from kgpu.agent.shared import SharedReader
from kgpu.base.advice import AdviceSink
from kgpu.base.errors import ConfigError, Reason
from kgpu.base.http import Page
from kgpu.base.suggest import did_you_mean
from kgpu.base.supervise import RoleHandle
from kgpu.kube.port import KubeApi

if TYPE_CHECKING:
    from kgpu.agent.plugin_specs import PluginSpecs
    from kgpu.deviceplugin.config import Settings
    from kgpu.deviceplugin.run import CdiChanges, CdiWriter
    from kgpu.hw.port import Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the agent shares among its roles. ``api`` connects on first use and raises KubeError when it can't.

    ``files`` takes down what a role writes on the host outside ``state_dir``, for the day kgpu leaves. ``pages`` are
    served beside the status pages, by path. ``offered`` is what the device plugin offers, healthy devices by resource,
    empty while it does not. ``stopped(role)`` is why a role does not run on this node, "" when it does or nothing is
    known of it; ``off(role)`` the same where the policy or a node label says so. ``lost(labels)`` returns once one of
    these labels has been on the Node and is there no more; None where nobody follows the Node.
    """

    options: AgentOptions
    reader: SharedReader
    config: FollowedConfig
    decide: AdviceSink
    api: Callable[[], KubeApi]
    files: HostFiles | None = None
    pages: dict[str, Page] = field(default_factory=dict)
    offered: dict[str, int] = field(default_factory=dict)
    stopped: Callable[[str], str] = lambda _: ""
    off: Callable[[str], str] = lambda _: ""
    lost: Callable[[Mapping[str, str]], Awaitable[None]] | None = None


RoleStart: TypeAlias = Callable[[Host, RoleHandle], Awaitable[None]]
Withdraw: TypeAlias = Callable[[KubeApi, AgentOptions], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Role:
    """One row: what it is called, other names people know it by, and how it is run.

    ``hardware``: it reads accelerators through ``Host.reader``, so it starts again when the driver's place changes, and
    the hardware child runs only while such a role does. ``flags`` gives the rows of the flags that it can be told in
    ``RoleConfig.args``, by the name of the field of ``AgentOptions`` that takes them. ``withdraw`` takes away what the
    role has published in the cluster, when the policy wants it on no node any more; ``finish`` is how many seconds
    that may take when the process is told to end meanwhile.
    """

    name: str
    start: RoleStart
    aliases: tuple[str, ...] = ()
    hardware: bool = True
    flags: Callable[[], tuple[str, tuple[Any, ...]]] | None = None
    withdraw: Withdraw | None = None
    finish: float = 3.0


def _on_state(handle: RoleHandle) -> Callable[..., None]:
    def tell(ready: bool, reason: Reason, why: str = "") -> None:
        if ready:
            handle.running(reason, why)
        else:
            handle.waiting(reason, why)

    return tell


async def _configured(host: Host, handle: RoleHandle) -> None:
    """Return once there is a configuration; say so while there is none."""
    if host.config.current() is None:
        error = host.config.error
        handle.waiting("its configuration is not known yet" + (f": {error.one_line()}" if error else ""))
        await host.config.next(None)


def _specs(options: AgentOptions, files: HostFiles | None) -> tuple[CdiWriter, CdiChanges]:
    """What brings the CDI specs of answers in line, and what tells that they may be no longer."""
    writers: list[PluginSpecs] = []
    written, loop = asyncio.Event(), asyncio.get_running_loop()

    def write(inventory: Inventory, settings: Settings) -> None:
        if not writers:  # imported only where answers refer to CDI
            from kgpu.agent.plugin_specs import PluginSpecs

            writers.append(
                PluginSpecs(options.root or Path("/"), options.cdi_dir, on_write=files.wrote if files else None)
            )
            loop.call_soon_threadsafe(written.set)
        writers[0](inventory, settings)

    async def changes() -> AsyncIterator[None]:
        await written.wait()
        async for change in writers[0].changes():
            yield change

    return write, changes


async def _device_plugin(host: Host, handle: RoleHandle) -> None:
    from kgpu.deviceplugin.run import DevicePluginContext, run

    options = host.options
    await _configured(host, handle)
    view = host.reader.view()

    def offer(healthy: Mapping[str, int]) -> None:
        host.offered.clear()
        host.offered.update(healthy)

    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(_closing(view))
        reader = await stack.enter_async_context(node_roles.behind_gate(host, handle, view))
        stack.callback(host.offered.clear)
        write, changes = _specs(options, host.files)
        await run(
            DevicePluginContext(
                reader=reader,
                config=host.config,
                report=host.decide,
                state_dir=options.state_dir,
                kubelet_socket=options.kubelet_socket,
                cdi_dir=options.cdi_dir,
                overrides=options.plugin_overrides,
                env=options.env,
                cdi_writer=write,
                cdi_changes=changes,
                verdicts=health_role.verdicts(options),
                on_state=_on_state(handle),
                on_offer=offer,
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


async def _features(host: Host, handle: RoleHandle) -> None:
    from kgpu.discovery.features.publish import MemoryFeatures, NodeFeatureLabels
    from kgpu.discovery.features.run import FeaturesContext, run

    options = host.options
    known = options.has_api_server and options.node_name
    await run(
        FeaturesContext(
            publisher=NodeFeatureLabels(host.api(), node=options.node_name) if known else MemoryFeatures(),
            roots=options.pci_roots,
            report=host.decide,
            on_state=_on_state(handle),
            foreign=options.foreign_nfd,
            take_over=options.take_over_features,
            lost=host.lost,
        )
    )


async def _exporter(host: Host, handle: RoleHandle) -> None:
    from kgpu.agent import exporter_role

    await exporter_role.exporter(host, handle)


async def _probe(host: Host, handle: RoleHandle) -> None:
    from kgpu.agent import probe_role

    await probe_role.probe(host, handle)


async def _withdraw_features(api: KubeApi, options: AgentOptions) -> None:
    from kgpu.discovery.features.publish import NodeFeatureLabels
    from kgpu.discovery.features.run import withdraw

    await withdraw(NodeFeatureLabels(api, node=options.node_name))


async def _withdraw_labels(api: KubeApi, options: AgentOptions) -> None:
    for sink in (LabelsSink.NODE, LabelsSink.NODE_FEATURE):
        await withdraw_sink(sink, api, options)


async def withdraw_sink(sink: LabelsSink, api: KubeApi, options: AgentOptions) -> None:
    """Take kgpu's accelerator labels away from one of the two places in the cluster. Raises KubeError."""
    from kgpu.discovery.publish import withdraw_feature, withdraw_labels

    if sink is LabelsSink.NODE:
        await withdraw_labels(api, node=options.node_name)
    else:
        await withdraw_feature(api, node=options.node_name, namespace=options.namespace)


async def hand_over_sink(sink: LabelsSink, api: KubeApi, options: AgentOptions) -> bool:
    """As ``withdraw_sink``, once the labels come from the other place; False while some do not come from there yet."""
    from kgpu.discovery.publish import hand_over_labels

    if sink is LabelsSink.NODE:
        return not await hand_over_labels(api, node=options.node_name)
    await withdraw_sink(sink, api, options)
    return True


def _plugin_flags() -> tuple[str, tuple[Any, ...]]:
    from kgpu.deviceplugin.config import FLAGS

    return "plugin_overrides", FLAGS


def _exporter_flags() -> tuple[str, tuple[Any, ...]]:
    from kgpu.exporter.options import OPTIONS
    from kgpu.formats.exporter_flags import REFUSED, WITHOUT

    return "exporter_overrides", (*OPTIONS, *WITHOUT, *REFUSED)


def _label_flags() -> tuple[str, tuple[Any, ...]]:
    from kgpu.discovery.config import OPTIONS

    return "labels_overrides", OPTIONS


ROLES: Final = (
    Role("deviceplugin", _device_plugin, aliases=("device-plugin", "nvidia-device-plugin"), flags=_plugin_flags),
    Role("labels", _labels, aliases=("gfd", "gpu-feature-discovery"), flags=_label_flags, withdraw=_withdraw_labels),
    # A container engine may have to be restarted.
    Role(
        "toolkit",
        node_roles.toolkit,
        aliases=("container-toolkit",),
        withdraw=node_roles.withdraw_toolkit,
        finish=12.0,
    ),
    Role("validator", node_roles.validator, aliases=("operator-validator",), withdraw=node_roles.withdraw_validator),
    Role("health", health_role.health, withdraw=health_role.withdraw),
    Role("exporter", _exporter, aliases=("dcgm-exporter", "nvidia-dcgm-exporter"), flags=_exporter_flags),
    Role("probe", _probe),
    Role("node-status", node_roles.node_status, aliases=("node-status-exporter",), hardware=False),
    Role("features", _features, aliases=("nfd", "node-features"), hardware=False, withdraw=_withdraw_features),
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
