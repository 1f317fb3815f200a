"""The driver's own verdict about a GPU (NVML recovery action, Xid 154) in kgpu's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# A bus reset and a system reboot are the stronger forms of the same two.
RECOVERY_ACTIONS: Final[Mapping[int, str]] = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain",
    4: "drain-reset",
    5: "imex",
    6: "reset",
    7: "reboot",
}
"""By NVML_GPU_RECOVERY_ACTION_*, which is also what Xid 154 prints. A driver without this reading says ``unknown``."""

RECOVERY_CODES: Final[Mapping[str, int]] = {
    word: min(code for code, same in RECOVERY_ACTIONS.items() if same == word) for word in RECOVERY_ACTIONS.values()
}
"""The number of each word; of two, the milder form's."""
