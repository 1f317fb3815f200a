"""``kgpu mig plan --node``: what a config would do to a node of the cluster, by what the API server knows alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.base.printable import printable
from kgpu.cli._common import print_json
from kgpu.formats import names

if TYPE_CHECKING:
    from kgpu.formats.mig_config import MigConfigs, MigEntry
    from kgpu.kube.port import KubeApi, Object
    from kgpu.operations.mig_foresight import MigForesight, MigNodeView
    from kgpu.operations.requests import Preview

BUILT_IN: Final = "mig-parted's default configs, which kgpu has built in"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """What would become of the node, and where the config was read from."""

    source: str
    seen: MigForesight
    preview: Preview


async def plan_of(api: KubeApi, node: str, selected: str, given: MigConfigs | None, namespace: str) -> NodePlan:
    """``given`` are the configs of a file, None to take those of the cluster. Raises KubeError and ConfigError."""
    from kgpu.formats.crd.nodeoperation import MIG_DRAIN_SECONDS, OperationDrain
    from kgpu.operations.mig_foresight import foresee
    from kgpu.operations.requests import preview

    drain = OperationDrain(timeout_seconds=MIG_DRAIN_SECONDS)
    pods = await preview(api, node, drain, of_gpus=True)
    known = await _view(api, node)
    configs, source = (given, "the file") if given is not None else await _configs(api, node, namespace)
    name, entries = _chosen(configs, selected, source)
    return NodePlan(source=source, seen=foresee(known, name, entries), preview=pods)


async def _view(api: KubeApi, node: str) -> MigNodeView:
    from kgpu.kube.port import NODES
    from kgpu.operations.mig_foresight import mig_node_view

    return mig_node_view(await api.get(NODES, node) or {})


def _chosen(configs: MigConfigs, selected: str, source: str) -> tuple[str, Sequence[MigEntry]]:
    """Raises ConfigError, which says where the config was looked for."""
    try:
        return configs.chosen(selected)
    except ConfigError as error:
        raise ConfigError(f"{error.what} (in {source})", error.expected, error.remedy) from error


async def _configs(api: KubeApi, node: str, namespace: str) -> tuple[MigConfigs, str]:
    """The configs that the node goes by, and where they are: a ConfigMap, or the built-in ones."""
    from kgpu.formats.mig_config import parse_mig_configs
    from kgpu.formats.mig_default_configs import default_configs
    from kgpu.formats.yaml_text import write

    for name in (*await _named_by_policy(api), names.MIG_NODE_MAP.format(node=node), names.MIG_LAYOUTS_MAP):
        for obj in await _maps(api, name, namespace):
            data: Mapping[str, Any] = obj.get("data") or {}
            content = next((data[key] for key in names.MIG_LAYOUTS_KEYS if isinstance(data.get(key), str)), None)
            if content is not None:
                source = f"ConfigMap {obj['metadata'].get('namespace', '')}/{name}"
                return parse_mig_configs(content, source=source), source
    return parse_mig_configs(write(default_configs()), source=BUILT_IN), BUILT_IN


async def _named_by_policy(api: KubeApi) -> list[str]:
    """``migManager.config.name`` of the ClusterPolicy, if it has one and this user may read it."""
    from kgpu.base.plain import mapping, text
    from kgpu.kube.kinds import CLUSTER_POLICIES
    from kgpu.kube.port import KubeRefusedError

    try:
        listing = await api.list(CLUSTER_POLICIES)
    except KubeRefusedError:
        return []
    specs = (mapping(obj.get("spec")) for obj in listing.items)
    named = (text(mapping(mapping(spec.get("migManager")).get("config")).get("name")) for spec in specs)
    return [name for name in named if name]


async def _maps(api: KubeApi, name: str, namespace: str) -> list[Object]:
    from kgpu.kube.port import CONFIG_MAPS, KubeRefusedError, Selector

    try:
        return list((await api.list(CONFIG_MAPS, namespace=namespace, selector=Selector.named(name))).items)
    except KubeRefusedError:
        click.echo(f"warning: ConfigMaps can't be read, so {name} is not; give its file with -f", err=True)
        return []


def show(plan: NodePlan, output: str) -> None:
    """Print what would become of the node."""
    if output == "json":
        print_json(_data(plan))
    else:
        click.echo("\n".join(printable(line) for line in _lines(plan)))


def _lines(plan: NodePlan) -> list[str]:
    seen, pods = plan.seen, plan.preview.pods
    gpus = ", ".join(map(str, seen.concerned))
    lines = [f"{plan.preview.node.name}: {seen.config} ({plan.source}) is about GPU {gpus}"]
    keys = sorted(seen.before.keys() | (seen.after or {}).keys())
    for key in keys:
        later = seen.after.get(key, 0) if seen.after is not None else "not known"
        lines.append(f"  {key}: {seen.before.get(key, 0)} -> {later}")
    lines += [f"  note: {note}" for note in seen.notes]
    lines.append("  pods that hold one of the GPUs that change go first; of its pods with GPUs:" if pods
                 else "  no pod has a GPU of this node")  # fmt: skip
    for row in pods:
        why = row.why or plan.preview.why_held(row.pod)
        lines.append(f"    {_WORDS[str(row.fate)]:<15} {row.pod.where}{': ' + why if why else ''}")
    return lines


_WORDS: Final = {
    "evict": "would be evicted", "leave": "would stay", "refuse": "MAY NOT GO", "ask": "not known",
}  # fmt: skip


def _data(plan: NodePlan) -> dict[str, Any]:
    seen = plan.seen
    return {
        "node": plan.preview.node.name, "config": seen.config, "source": plan.source, "gpus": list(seen.concerned),
        "before": dict(seen.before), "after": None if seen.after is None else dict(seen.after),
        "notes": list(seen.notes),
        "pods": [
            {
                "namespace": row.pod.namespace, "name": row.pod.name, "fate": str(row.fate),
                "why": row.why or plan.preview.blocked.get(row.pod.where, ""),
            }
            for row in plan.preview.pods
        ],
    }  # fmt: skip
