"""``args`` of the policy's sections: which of them reach kgpu's program for the operand, and why others do nothing.

The replaced operator puts them in place of a container's arguments. Where these are a program's flags, kgpu's role
takes the same flags; where they are words of a shell, kgpu has no shell for them. Flags that a role does not know are
refused by the role, which says so on its node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.formats.exporter_flags import WITHOUT
from kgpu.operator.model import Policy
from kgpu.operator.objects.env import section

SHELL: Final = "the replaced operator gives them to a shell, and kgpu's pods have none"
# Roles whose containers ran a shell's script, and what to set instead. Source: the operator's assets.
OF_A_SHELL: Final = {
    "toolkit": "settings of the toolkit go into toolkit.env",
    "validator": "settings of one check go into its env, such as validator.cuda.env",
    "node-status": "there is nothing to set instead",
}


@dataclass(frozen=True, slots=True)
class Idle:
    """Arguments without effect, why, and what to do."""

    args: tuple[str, ...]
    why: str
    remedy: str


def role_args(role: str, policy: Policy) -> tuple[str, ...]:
    """The arguments that the role is told: the policy's, but for those that are not for a program."""
    return () if role in OF_A_SHELL else _given(role, policy)


def idle_args(role: str, policy: Policy) -> Iterator[Idle]:
    """What the policy gives and changes nothing."""
    args = _given(role, policy)
    if args and role in OF_A_SHELL:
        yield Idle(args, SHELL, f"remove args; {OF_A_SHELL[role]}")
    elif role == "exporter":
        yield from _idle_flags(args)


def _idle_flags(args: Sequence[str]) -> Iterator[Idle]:
    by_name = {name.lstrip("-"): row for row in WITHOUT for name in row.flags}
    found: dict[str, list[str]] = {}
    for word in args:
        row = by_name.get(word.lstrip("-").partition("=")[0]) if word.startswith("-") else None
        if row is not None:
            found.setdefault(row.idle, []).append(row.flag)
    for why, flags in found.items():
        yield Idle(tuple(dict.fromkeys(flags)), why, "remove them from args")


def _given(role: str, policy: Policy) -> tuple[str, ...]:
    told = section(role, policy.spec)
    args: tuple[str, ...] = told.args if told is not None else ()
    return args
