"""Which operands a policy wants: one rule for objects, agents and conditions."""

from __future__ import annotations

from kgpu.formats.operands import Operand
from kgpu.operator.model import Policy, Settings


def is_enabled(operand: Operand, policy: Policy, settings: Settings) -> bool:
    """True when the operand is asked for: ``enabled`` of its section, or the row's default where that is not given.

    The validator has no switch. Health, host facts and node features are settings of the operator; the last go on where
    another discovery works, because each node's own stands back label by label. The policy's driver is off where
    NVIDIADriver objects say which drivers there are.
    """
    if operand.name == "features":
        return settings.discovery
    if operand.name == "health":
        return settings.health
    if operand.name == "probe":
        return settings.host_facts
    if operand.name == "validator":
        return True
    section = getattr(policy.spec, operand.section)
    told: bool | None = section.enabled
    on = operand.on_when_nil if told is None else told
    return on and not (operand.name == "driver" and policy.spec.driver.use_nvidia_driver_crd)
