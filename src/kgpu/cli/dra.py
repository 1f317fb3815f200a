"""``kgpu dra``: the driver of Dynamic Resource Allocation; so far what a node would publish."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.printable import counted, in_columns
from kgpu.cli import _complete
from kgpu.cli._common import ExampleGroup, output_option, print_json, root_option, run_async

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgpu.dra.gates import DraGates
    from kgpu.dra.model import PublishedNode, PublishRules
    from kgpu.hw.port import Inventory
    from kgpu.hw.verdicts import GpuVerdict
    from kgpu.kube.port import Object

EXAMPLES: Final = """
kgpu dra slices
kgpu dra slices --node-name gpu-1 -o yaml
"""
SLICES_EXAMPLES: Final = """
kgpu dra slices
kgpu dra slices --node-name gpu-1 -o yaml
kgpu dra slices --feature-gates DynamicMIG=true
kgpu dra slices --root /tmp/node1 --kubernetes 1.34 --api-version v1beta1 -o json
"""
_PRODUCT: Final = ("productName", "model")
_PROFILE: Final = ("profile", "partitionProfile")
"""Attributes, as the vendors call them."""


@click.group("dra", cls=ExampleGroup, examples=EXAMPLES)
def dra() -> None:
    """Devices for Dynamic Resource Allocation: what a node would publish of its GPUs."""


@dra.command("slices", examples=SLICES_EXAMPLES)
@root_option
@click.option("--node-name", envvar="NODE_NAME", default="", metavar="NAME", shell_complete=_complete.nodes,
              help="The node whose slices they are to be. Default: this machine's host name.")  # fmt: skip
@click.option("--feature-gates", envvar="FEATURE_GATES", default="", metavar="NAME=BOOL,...",
              shell_complete=_complete.dra_gates, help="Gates of NVIDIA's DRA driver: DynamicMIG=true.")  # fmt: skip
@click.option("--additional-xids-to-ignore", "ignored", envvar="ADDITIONAL_XIDS_TO_IGNORE", default="",
              metavar="XID,...", help="Xids that keep no claim away, whatever health says.")  # fmt: skip
@click.option("--api-version", type=click.Choice(("v1", "v1beta2", "v1beta1")), default="v1", show_default=True,
              help="The version of resource.k8s.io.")  # fmt: skip
@click.option("--kubernetes", default="1.35", show_default=True, metavar="VERSION",
              help="For an API server of this version: since 1.35 counters have slices of their own.")  # fmt: skip
@output_option("table", "yaml", "json", default="table")
def slices(
    *, root: str, node_name: str, feature_gates: str, ignored: str, api_version: str, kubernetes: str, output: str
) -> None:
    """Print the ResourceSlices that this node would publish; write nothing.

    What health has found of the GPUs shows as taints. The slices get their owner, the Node, when they are published.
    """
    from kgpu.dra.api import read_api
    from kgpu.dra.gates import read_gates
    from kgpu.dra.slices import PoolOwner, pool_slices
    from kgpu.dra.xids import read_xids

    gates = read_gates(feature_gates)
    api = read_api(api_version, kubernetes)
    for note in gates.notes:
        click.echo(f"kgpu dra: {note}", err=True)
    owner = PoolOwner(name=node_name or os.uname().nodename.lower())
    node = run_async(_devices(root, gates, read_xids(ignored)))
    made = pool_slices(node, owner, api)
    for advice in node.advice:
        click.echo(f"kgpu dra: {advice.one_line()}", err=True)
    if output == "table":
        print_table(node, made)
        return
    items = {"apiVersion": "v1", "kind": "List", "items": list(made)}
    if output == "json":
        print_json(items)
        return
    from kgpu.formats import yaml_text

    click.echo(yaml_text.write(items), nl=False)


async def _devices(root: str, gates: DraGates, ignored: frozenset[int]) -> PublishedNode:
    from kgpu.dra.devices import node_devices
    from kgpu.dra.drivers import driver_of, unused_gates

    inventory = await _inventory(root)
    driver = driver_of(inventory.vendor)
    for gate in unused_gates(driver, gates):
        click.echo(f"kgpu dra: the gate {gate} changes nothing with the driver {driver.name}", err=True)
    return node_devices(inventory, _rules(root, gates, ignored, inventory), _verdicts(root))


async def _inventory(root: str) -> Inventory:
    from pathlib import Path

    from kgpu.hw.open import open_reader

    reader = open_reader(driver_root=Path(root) if root else None)
    try:
        return await reader.inventory()
    finally:
        await reader.close()


def _rules(root: str, gates: DraGates, ignored: frozenset[int], inventory: Inventory) -> PublishRules:
    from kgpu.dra.host_facts import read_pcie_roots
    from kgpu.dra.model import PublishRules

    return PublishRules(
        dynamic=gates.dynamic_mig, monitored=gates.health_check, ignored_xids=ignored,
        pcie_roots=read_pcie_roots(root or "/", inventory),
    )  # fmt: skip


def _verdicts(root: str) -> Mapping[str, GpuVerdict] | None:
    from kgpu.hw.verdicts import VerdictFile, verdicts_path

    found = VerdictFile(verdicts_path(root or "/", os.environ)).read()
    return None if found is None else found.by_uuid


def print_table(node: PublishedNode, made: Sequence[Object]) -> None:
    """A line for each device, below one that says how many slices there are."""
    devices = node.devices
    word = "ResourceSlice" if len(made) == 1 else "ResourceSlices"
    click.echo(f"{counted(len(devices), 'device')} of {node.driver} in {len(made)} {word}")
    if not devices:
        return
    rows: list[tuple[str, ...]] = [("DEVICE", "PRODUCT", "PROFILE", "MEMORY", "TAINTS")]
    for device in devices:
        facts = [
            next((str(device.attributes[key].value) for key in keys if key in device.attributes), "")
            for keys in (_PRODUCT, _PROFILE)
        ]
        taints = ",".join(f"{one.key}{f'={one.value}' if one.value else ''}:{one.effect}" for one in device.taints)
        rows.append((device.name, *facts, device.capacity.get("memory", ""), taints or "-"))
    click.echo("\n".join(in_columns([[text or "-" for text in row] for row in rows])))
