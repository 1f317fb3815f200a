"""The roles that an agent can host: each is a module here with one ``ROLE``, found automatically.

A module sets up a component of kgpu on this node. It imports that component only when the role starts, so that an agent
pays only for what it hosts.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from typing import Final

from kgpu.agent.host import Role
from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.operands import BY_ROLE


def _found() -> tuple[Role, ...]:
    """All roles in the order of the table of operands; roles without an operand come last."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    roles: list[Role] = [module.ROLE for module in modules]
    order = {name: number for number, name in enumerate(BY_ROLE)}
    return tuple(sorted(roles, key=lambda role: (order.get(role.name, len(order)), role.name)))


ROLES: Final = _found()


def choose_roles(words: Iterable[str]) -> tuple[Role, ...]:
    """The roles that the words name, each once, in the table's order. Raises ConfigError."""
    by_word = {word: role for role in ROLES for word in (role.name, *role.aliases)}
    chosen: set[str] = set()
    for word in words:
        if word not in by_word:
            hint = did_you_mean(word, by_word)
            raise ConfigError(
                f'there is no role "{word}"' + (f"; {hint}" if hint else ""),
                f"one or more of: {', '.join(role.name for role in ROLES)}",
                "correct --roles (KGPU_ROLES)",
            )
        chosen.add(by_word[word].name)
    if not chosen:
        raise ConfigError(
            "the agent has no role",
            f"one or more of: {', '.join(role.name for role in ROLES)}",
            "name them in --roles (KGPU_ROLES)",
        )
    return tuple(role for role in ROLES if role.name in chosen)
