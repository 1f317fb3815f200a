"""The role ``features``: a node's PCI devices, system and kernel, as labels of node feature discovery."""

from __future__ import annotations

from typing import Final

from kgpu.agent.host import Host, Role
from kgpu.agent.options import AgentOptions
from kgpu.base.supervise import RoleHandle
from kgpu.kube.port import KubeApi


async def _features(host: Host, handle: RoleHandle) -> None:
    from functools import partial

    from kgpu.agent.metrics_page import on_page
    from kgpu.discovery.features.metrics import WorkerFigures
    from kgpu.discovery.features.publish import MemoryFeatures, NodeFeatureLabels
    from kgpu.discovery.features.run import FeaturesContext, run
    from kgpu.discovery.features.sources import read_node
    from kgpu.formats.names import ENV_FEATURES_CONFIG

    options = host.options
    known = options.has_api_server and options.node_name
    tell_operator = None
    if known and options.feature_rules:
        from kgpu.discovery.features.feature_object import NodeFeatureObject

        tell_operator = NodeFeatureObject(host.api(), node=options.node_name, namespace=options.namespace).publish
    figures = WorkerFigures(options.node_name)
    with on_page(host, ROLE.name, figures.text):
        await run(
            FeaturesContext(
                publisher=NodeFeatureLabels(host.api(), node=options.node_name) if known else MemoryFeatures(),
                roots=options.pci_roots,
                report=host.decide,
                on_state=handle.report,
                foreign=options.foreign_nfd,
                take_over=options.take_over_features,
                lost=host.lost,
                read=partial(
                    read_node, node_name=options.node_name, cluster_config=options.env.get(ENV_FEATURES_CONFIG, "")
                ),
                measured=figures.durations.add,
                tell_operator=tell_operator,
            )
        )


async def _withdraw(api: KubeApi, options: AgentOptions) -> None:
    from kgpu.discovery.features.publish import NodeFeatureLabels
    from kgpu.discovery.features.run import withdraw

    await withdraw(NodeFeatureLabels(api, node=options.node_name))
    if options.feature_rules:
        from kgpu.discovery.features.feature_object import NodeFeatureObject

        await NodeFeatureObject(api, node=options.node_name, namespace=options.namespace).withdraw()


ROLE: Final = Role(
    "features",
    _features,
    aliases=("nfd", "node-features"),
    hardware=False,
    orders=("driver_install_dir", "foreign_nfd", "take_over_features", "feature_rules"),
    withdraw=_withdraw,
)
