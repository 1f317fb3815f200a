"""What the accounts of operands may do, for tests of who has to have these rights."""

from __future__ import annotations

from typing import Final

from kgpu.operator.objects import rbac
from kgpu.operator.objects.common import Scene
from kgpu.operator.operand_spec import Rules
from kgpu.operator.operands import OF_ROLE, SPECS, exporter
from tests.operator.objects.scenes import Case, policy


def cluster_rules(text: str = "{}") -> Rules:
    """In all namespaces, of the accounts of all roles, for a policy with that spec."""
    case = Case(policy=policy(text))
    scene = Scene(case.policy, case.settings, case.observed)
    return tuple(rule for spec in OF_ROLE.values() for rule in spec.rules(scene))


def namespace_rules(text: str = "{}") -> Rules:
    """In the operator's namespace, of the accounts of all operands, for a policy with that spec."""
    case = Case(policy=policy(text))
    scene = Scene(case.policy, case.settings, case.observed)
    return tuple(rule for spec in SPECS.values() for rule in spec.namespace_rules(scene))


NAMESPACE_RULES: Final = namespace_rules()
OF_EXPORTER: Final = (*exporter.POD_METADATA_RULES, *exporter.SLICE_RULES)
PASSED_ON: Final = (*rbac.DRIVER_MANAGER_RULES, *OF_EXPORTER, *rbac.FEATURE_RULES, *cluster_rules(), *NAMESPACE_RULES)
"""What the operator gives to accounts of operands; it has to have it itself."""
