"""Which extended resources count accelerators, whose they are, and under which names: every vendor's, and users' own.

A name that only looks like one of a device (memory, cores, metrics, network) counts none.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from kgpu.formats.names import AMD, GAUDI, INTEL, NVIDIA

OTHER: Final = "other"

_VENDORS: Final = (
    (NVIDIA, re.compile(r"(?:[\w.-]+\.)?nvidia\.com/.*")),
    (AMD, re.compile(r"amd\.com/.*")),
    (GAUDI, re.compile(r"habana\.ai/.*")),
    (INTEL, re.compile(r"(?:gpu\.)?intel\.com/(?:i915|xe|gpu|gaudi).*")),
    (
        OTHER,
        re.compile(
            r"[\w.-]+/(?:.*[^a-z])?(?:v?gpus?|npus?|xpus?|tpus?|gcus?|mlus?|neuron\w*|ascend\w*|accelerators?|qaic)"
            r"(?:[^a-z].*)?",
            re.IGNORECASE,
        ),
    ),
)
# Of the same domains, but no devices to compute on.
_NO_DEVICE: Final = re.compile(
    r"nvidia\.com/(?:gpumem|gpumem-percentage|gpucores|hostdev|cuda|rdma|mlnx).*|.*monitoring$|.*/(?:roce|ib).*"
)


@functools.lru_cache(maxsize=4096)  # a cluster has a few names, which rules ask a hundred thousand times
def vendor_of(resource: str) -> str:
    """Whose accelerators a resource counts, "" when it counts none."""
    if "/" not in resource or resource.startswith(("kubernetes.io/", "hugepages-", "rdma/")):
        return ""
    if _NO_DEVICE.fullmatch(resource):
        return ""
    return next((vendor for vendor, pattern in _VENDORS if pattern.fullmatch(resource)), "")


def is_accelerator(resource: str) -> bool:
    """Whether a resource counts accelerators, parts or shares of them, under any vendor's or a user's name."""
    return bool(vendor_of(resource))
