"""How one GPU reaches the memory of others over NVLink, as a reading. Part of the hardware child.

Calls are about pairs: which of the two hangs is for the parent to find out, as with the topology.
"""

from __future__ import annotations

from kgpu.hw.nvidia.fallbacks import Nvml, NvmlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

NVLINK = 2  # NVML_P2P_CAPS_INDEX_NVLINK


def peer_states(nvml: Nvml, handle: Any, others: Iterable[int]) -> str:
    """``1:0 2:5``: NVML's index of each other GPU, and nvmlGpuP2PStatus_t; a peer that can't be asked is left out."""
    states = []
    for index in others:
        try:
            states.append(f"{index}:{nvml.call('p2p', handle, nvml.call('handle', index), NVLINK)}")
        except NvmlError:
            continue  # it may be the peer's trouble; the GPU's own shows at its other readings
    return " ".join(states)
