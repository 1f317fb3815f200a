"""The port through which selectors are evaluated: CEL lives behind it, so that what decides here needs no engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kgpu.fit.devices.model import DeviceKey, SliceDevice


@dataclass(frozen=True, slots=True)
class SelectorFault:
    """Why a selector gives no answer. ``compiling`` when it is wrong for every device, else it failed for one.

    ``missing`` is the attribute or capacity that the device lacks, where that is why.
    """

    message: str
    compiling: bool = False
    missing: str = ""

    def __str__(self) -> str:
        return f"CEL {'compile' if self.compiling else 'runtime'} error: {self.message}"


class SelectorEngine(Protocol):
    """Evaluates a selector for a device."""

    def evaluate(self, expression: str, key: DeviceKey, device: SliceDevice) -> bool | SelectorFault:
        """Never raises for what the expression does. The same device object may be asked about again and again."""
        ...


class GivenSelectors:
    """The fake: verdicts by expression and device name; what is not given is true."""

    def __init__(self, verdicts: Mapping[tuple[str, str], bool | SelectorFault]) -> None:
        self.verdicts = dict(verdicts)
        self.asked: list[tuple[str, str]] = []

    def evaluate(self, expression: str, key: DeviceKey, device: SliceDevice) -> bool | SelectorFault:
        self.asked.append((expression, device.name))
        return self.verdicts.get((expression, key.device), True)
