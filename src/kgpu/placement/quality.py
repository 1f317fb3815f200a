"""How the devices of a pod, or the pods of a gang, are connected where they land, as labels and slices say. Pure.

Which devices of a node a pod gets the kubelet decides when it starts there: what is said here is what the node has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from kgpu.base.plain import items, mapping, text
from kgpu.base.printable import counted, one_line
from kgpu.fit.model import NodeView, PodView
from kgpu.formats import names
from kgpu.formats.accelerators import is_accelerator
from kgpu.formats.product_label import gpu_product
from kgpu.placement.state import PlacementState

_BRIDGES: Final = "(whether NVLink bridges join pairs is not known)"
LINKS: Final = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"GB200|GB300", "NVLink 5, 1800 GB/s, in the whole NVLink domain"),
        (r"B200|B300", "NVLink 5, 1800 GB/s, between all GPUs of the node"),
        (r"H100-80GB-HBM3|H100-SXM|H200(?!-NVL)|H800(?!-PCIe)", "NVLink 4, 900 GB/s, between all GPUs of the node"),
        (r"A100-SXM4", "NVLink 3, 600 GB/s, between all GPUs of the node"),
        (r"H100-PCIe|H800-PCIe|H100-NVL|H200-NVL", f"PCIe 5.0, 128 GB/s {_BRIDGES}"),
        (r"A100-PCI[eE]|-A10$|-A10G$|-A30$|-A40$", f"PCIe 4.0, 64 GB/s {_BRIDGES}"),
        (r"-L4$|-L40S?$", "PCIe 4.0, 64 GB/s"),
        (r"Tesla-T4$", "PCIe 3.0, 32 GB/s"),
        (r"PCIe|PCIE|A2$", f"PCIe {_BRIDGES}"),
    )
)
"""By product label, the first that matches. Rates are both ways together, of NVLink as of PCIe with 16 lanes: the
vendor's data sheets."""
_CLIQUE: Final = names.LABEL_GPU_CLIQUE
_LINK_LAYERS: Final = {"infiniband": "InfiniBand", "ethernet": "RDMA over Ethernet"}
_COUNT: Final = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_NUMA: Final = ("numaNode", "resource.kubernetes.io/numaNode")


def devices_of(pod: PodView) -> int:
    """How many devices it asks for by resources."""
    return sum(many for name, many in pod.requests.items() if is_accelerator(name))


def of_pod(state: PlacementState, pod: PodView, node: NodeView) -> str:
    """For a pod of several whole devices; "" where nothing is known, or there is nothing to connect."""
    whole = sum(
        many for name, many in pod.requests.items()
        if is_accelerator(name) and not name.startswith(names.MIG_RESOURCE_PREFIX)
        and not name.endswith(names.SHARED_SUFFIX)
    )  # fmt: skip
    if whole < 2:
        return ""
    return "; ".join(part for part in (_linked(node), _numa(state, node, whole)) if part)


def _linked(node: NodeView) -> str:
    product = gpu_product(node.labels.get(names.LABEL_GPU_PRODUCT, ""))
    if product.profile or product.shared:
        return ""  # slices and shares are not linked
    return next((words for pattern, words in LINKS if pattern.search(product.model)), "")


def _numa(state: PlacementState, node: NodeView, whole: int) -> str:
    """By the NUMA nodes of its devices, where slices have them."""
    cells = Counter(cell for cell in _cells(state, node.name) if cell is not None)
    if not cells:
        return ""
    most = max(cells.values())
    if whole <= most:
        return f"its {whole} devices fit one NUMA node"
    return f"its {whole} devices span NUMA nodes: one has at most {most}"


def _cells(state: PlacementState, node: str) -> Iterable[int | None]:
    for piece in state.objects.get("ResourceSlice", {}).values():
        spec = mapping(piece.get("spec"))
        if text(spec.get("nodeName")) != node:
            continue
        for device in map(mapping, items(spec.get("devices"))):
            attributes = mapping(device.get("attributes")) or mapping(mapping(device.get("basic")).get("attributes"))
            found = next((mapping(attributes[key]).get("int") for key in _NUMA if key in attributes), None)
            yield found if isinstance(found, int) else None


def of_gang(nodes: Iterable[NodeView]) -> tuple[str, ...]:
    """Over how many nodes, NVLink domains and zones the pods of a gang are spread, and what connects the nodes."""
    landed = list(nodes)
    by_name = {node.name: node for node in landed}
    rows = [f"{len(landed)} pods on {len(by_name)} nodes"]
    for key, words in ((_CLIQUE, "NVLink domain"), (names.LABEL_ZONE, "zone")):
        counts = Counter(node.labels[key] for node in landed if node.labels.get(key))
        if counts:
            listed = ", ".join(f"{one_line(name, 60)} ({many})" for name, many in counts.most_common(4))
            rows.append(f"in {len(counts)} {words}{'s' if len(counts) > 1 else ''}: {listed}")
    return (*rows, *_network(by_name.values()))


def _network(nodes: Collection[NodeView]) -> Iterator[str]:
    """What connects several nodes, where the labels of some say it: a gang is as fast as its slowest node."""
    found = [rdma for node in nodes if (rdma := _rdma(node))]
    if len(nodes) < 2 or not found:
        return
    link, gbps, ports = min(found, key=lambda rdma: rdma[1] * rdma[2])
    others = len(nodes) - len(found)
    rest = f"; {counted(others, 'node')} of them without a known port" if others else ""
    yield f"between nodes: {_LINK_LAYERS[link]}, {gbps} Gbit/s on {counted(ports, 'port')} of each node at least{rest}"


def _rdma(node: NodeView) -> tuple[str, int, int] | None:
    """The link layer, Gbit/s of a port, and how many ports are so fast."""
    keys = (names.KGPU_LABEL_RDMA_LINK, names.KGPU_LABEL_RDMA_RATE, names.KGPU_LABEL_RDMA_PORTS)
    link, gbps, ports = (node.labels.get(key, "") for key in keys)
    if link not in _LINK_LAYERS or not _COUNT.fullmatch(gbps) or not _COUNT.fullmatch(ports):
        return None
    return link, int(gbps), int(ports)


def domains(labels: Iterable[tuple[str, Mapping[str, str]]], key: str) -> dict[str, set[str]]:
    """The nodes by the value of a label."""
    found: dict[str, set[str]] = {}
    for node, own in labels:
        if own.get(key):
            found.setdefault(own[key], set()).add(node)
    return found
