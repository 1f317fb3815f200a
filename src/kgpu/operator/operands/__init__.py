"""The operands that kgpu replaces: each is a module here with one ``SPEC``, found automatically.

An operand's name for users is in its row of ``kgpu.formats.operands``; a row without a module here is reported as not
provided.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

from kgpu.formats.operands import OPERANDS, Operand
from kgpu.operator.model import OperatorSettings, Policy
from kgpu.operator.operand_spec import OperandSpec, section_enabled


def _found() -> dict[str, OperandSpec]:
    """All specs by the operand's name, in the order of the table of operands."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    specs: dict[str, OperandSpec] = {module.SPEC.operand.name: module.SPEC for module in modules}
    return {operand.name: specs[operand.name] for operand in OPERANDS if operand.name in specs}


SPECS: Final = _found()
OF_ROLE: Final = {spec.operand.role: spec for spec in SPECS.values() if spec.operand.role}


def is_enabled(operand: Operand, policy: Policy, settings: OperatorSettings) -> bool:
    """Whether the policy asks for an operand, whether kgpu provides it or not."""
    spec = SPECS.get(operand.name)
    return spec.is_enabled(policy, settings) if spec is not None else section_enabled(operand, policy)
