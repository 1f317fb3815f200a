"""Host facts: an operator setting. In the layout ``operands`` the role runs in the validator's pod."""

from __future__ import annotations

from typing import Final

from kgpu.formats.operands import BY_ROLE
from kgpu.operator.operand_spec import OperandSpec

SPEC: Final = OperandSpec(operand=BY_ROLE["probe"], enabled=lambda _, settings: settings.host_facts)
