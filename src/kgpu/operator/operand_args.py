"""``args`` of the policy's sections: which of them reach kgpu's role for the operand, and why others have no effect.

The replaced operator puts them in place of a container's arguments. Where these are a program's flags, kgpu's role
takes the same flags; where they are words of a shell, kgpu has no shell for them. Flags that a role does not know are
refused by the role, which says so on its node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kgpu.operator.model import Policy
from kgpu.operator.operand_env import section
from kgpu.operator.operand_spec import IdleArguments, OperandSpec

SHELL: Final = "the replaced operator gives them to a shell, and kgpu's pods have none"


def role_args(operand: OperandSpec, policy: Policy) -> tuple[str, ...]:
    """The policy's arguments that the role gets; none where the replaced container passes them to a shell."""
    return () if operand.instead_of_args else _given(operand, policy)


def idle_args(operand: OperandSpec, policy: Policy) -> Iterator[IdleArguments]:
    """The policy's arguments without effect."""
    args = _given(operand, policy)
    if args and operand.instead_of_args:
        yield IdleArguments(args, SHELL, f"remove args; {operand.instead_of_args}")
    else:
        yield from operand.idle_args(args)


def _given(operand: OperandSpec, policy: Policy) -> tuple[str, ...]:
    settings = section(operand.operand, policy.spec)
    args: tuple[str, ...] = settings.args if settings is not None else ()
    return args
