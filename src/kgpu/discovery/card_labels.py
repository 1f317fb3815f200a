"""Labels of nodes with Gaudi accelerators and with Intel GPUs, as node feature discovery makes them of Intel's rules.

Pure; loaded only on such nodes. Labels of a resource (``habana.ai/gaudi.product``, ``.count``, ``.memory``) are those
of every vendor, in ``tables.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from kgpu.discovery.tables import LabelledNode
from kgpu.formats import names
from kgpu.hw.port import Accelerator

TRUE: Final = "true"
# By the PCI device ids of Intel's rules
FAMILIES: Final[Mapping[int, tuple[str, str]]] = {
    0x56C0: ("Flex_Series", "Flex_170"),
    0x56C1: ("Flex_Series", "Flex_140"),
    0x0BD5: ("Max_Series", "Max_1550"),
    0x0BD9: ("Max_Series", "Max_1100"),
    0x0BDA: ("Max_Series", "Max_1100"),
}


def gaudi_labels(_view: LabelledNode) -> Mapping[str, str]:
    """What Gaudi's operator and Intel's rule write. The rule knows three ids; here every Gaudi counts."""
    return {names.LABEL_GAUDI_PRESENT: TRUE, names.LABEL_INTEL_FEATURE_GAUDI: TRUE}


def intel_labels(view: LabelledNode) -> Mapping[str, str]:
    """What Intel's rules write: a feature, ids with their numbers, and family and product where they are known."""
    prefix = names.LABEL_INTEL_GPU_PREFIX
    labels = {names.LABEL_INTEL_FEATURE_GPU: TRUE, f"{prefix}device.count": str(len(view.gpus))}
    for kind, count in Counter(_kind(gpu) for gpu in view.gpus if gpu.pci_device_id).items():
        labels |= {f"{prefix}device-id.{kind}.present": TRUE, f"{prefix}device-id.{kind}.count": str(count)}
    known = {FAMILIES[number] for gpu in view.gpus if (number := gpu.pci_device_id >> 16) in FAMILIES}
    if len({family for family, _ in known}) == 1:
        labels[f"{prefix}family"] = next(iter(known))[0]
    if len(known) == 1:
        labels[f"{prefix}product"] = next(iter(known))[1]
    return labels


def _kind(gpu: Accelerator) -> str:
    return f"{gpu.pci_class >> 8:04x}-{gpu.pci_device_id >> 16:04x}"
