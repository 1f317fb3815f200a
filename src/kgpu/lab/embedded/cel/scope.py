"""What an expression may request while it runs: lazy variables, and authorization decisions.

A scope applies to the evaluations that are started within it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Decide: TypeAlias = Callable[[Any, dict[str, str]], tuple[bool, str]]
"""Decides whether a user (a scope's, or ``account``'s of a namespace and name) may do it; returns that and why."""


@dataclass(frozen=True, slots=True)
class EvaluationScope:
    """``variable`` returns a variable's value by its name, or raises ValueError with the reason."""

    variable: Callable[[str], Any]
    user: Any = None
    account: Callable[[str, str], Any] | None = None
    decide: Decide | None = None


_SCOPE: Final[ContextVar[EvaluationScope | None]] = ContextVar("kgpu_cel_scope", default=None)


@contextlib.contextmanager
def within(scope: EvaluationScope) -> Iterator[None]:
    """Evaluations in the with block use ``scope``."""
    token = _SCOPE.set(scope)
    try:
        yield
    finally:
        _SCOPE.reset(token)


def variable(name: str) -> Any:
    """The value of a variable of the scope. Raises ValueError."""
    scope = _SCOPE.get()
    if scope is None:
        raise ValueError(f"no such attribute(s): variables.{name}")
    return scope.variable(name)


def decide(account: tuple[str, str] | None, attributes: dict[str, str]) -> tuple[bool, str]:
    """Whether the scope's user, or that service account (namespace, name), may; and why. False without a scope."""
    scope = _SCOPE.get()
    if scope is None or scope.decide is None:
        return False, ""
    user = scope.user if account is None or scope.account is None else scope.account(*account)
    return scope.decide(user, attributes)
