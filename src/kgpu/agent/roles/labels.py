"""The role ``labels``: what a node's accelerators are, as labels of the Node, of a NodeFeature or in a file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from kgpu.agent.host import Closing, Host, Role, configured
from kgpu.agent.options import AgentOptions, LabelsSink
from kgpu.base.supervise import RoleHandle
from kgpu.kube.port import KubeApi


async def _labels(host: Host, handle: RoleHandle) -> None:
    from kgpu.discovery.node_facts import read_facts
    from kgpu.discovery.run import LabelsContext, run

    options = host.options
    await configured(host, handle)
    view = host.reader.view()
    publisher = _publisher(host)
    async with contextlib.aclosing(Closing(view)), contextlib.aclosing(Closing(publisher)):
        await run(
            LabelsContext(
                reader=view,
                config=host.config,
                publisher=publisher,
                report=host.decide,
                facts=lambda settings: read_facts(settings, str(options.root or "/")),
                overrides=options.overrides_of(ROLE.name),
                env=options.env,
                on_state=handle.report,
                outcome=_outcome(options),
            )
        )


def _outcome(options: AgentOptions) -> str:
    """The log line for a set of labels; %d is their number."""
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
        LabelsSink.NONE: publish.MemoryLabelPublisher,
    }
    return make[options.sink]()


async def _withdraw(api: KubeApi, options: AgentOptions) -> None:
    for sink in (LabelsSink.NODE, LabelsSink.NODE_FEATURE):
        await withdraw_sink(sink, api, options)


async def withdraw_sink(sink: LabelsSink, api: KubeApi, options: AgentOptions) -> None:
    """Remove kgpu's accelerator labels from one of the two places in the cluster. Raises KubeError."""
    from kgpu.discovery.publish import withdraw_feature, withdraw_labels

    if sink is LabelsSink.NODE:
        await withdraw_labels(api, node=options.node_name)
    else:
        await withdraw_feature(api, node=options.node_name, namespace=options.namespace)


async def _hand_over(sink: LabelsSink, api: KubeApi, options: AgentOptions) -> bool:
    """Remove the labels from ``sink`` once they come from the other place; False while some do not yet."""
    from kgpu.discovery.publish import hand_over_labels

    if sink is LabelsSink.NODE:
        return not await hand_over_labels(api, node=options.node_name)
    await withdraw_sink(sink, api, options)
    return True


def _flags() -> tuple[Any, ...]:
    from kgpu.discovery.config import OPTIONS

    return OPTIONS


ROLE: Final = Role(
    "labels",
    _labels,
    aliases=("gfd", "gpu-feature-discovery"),
    flags=_flags,
    orders=("labels_sink",),
    withdraw=_withdraw,
    hand_over=_hand_over,
    configured=True,
)
