"""Host facts: a setting of the operator's, in the validator's pod where operands have pods of their own."""

from __future__ import annotations

from typing import Final

from kgpu.formats.operands import BY_ROLE
from kgpu.operator.operand_spec import OperandSpec

SPEC: Final = OperandSpec(operand=BY_ROLE["probe"], enabled=lambda _, settings: settings.host_facts)
