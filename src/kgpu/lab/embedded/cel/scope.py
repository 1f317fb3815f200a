"""What an expression may ask for while it runs: variables that are worked out when they are named, and who may do what.

A scope counts for the evaluations that are begun within it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Decide: TypeAlias = Callable[[Any, dict[str, str]], tuple[bool, str]]
"""May somebody do it, and why. The somebody is a scope's user, or what ``account`` has made of a namespace and name."""


@dataclass(frozen=True, slots=True)
class EvaluationScope:
    """``variable`` gives a variable's value by its name, or raises ValueError with what went wrong."""

    variable: Callable[[str], Any]
    user: Any = None
    account: Callable[[str, str], Any] | None = None
    decide: Decide | None = None


_SCOPE: Final[ContextVar[EvaluationScope | None]] = ContextVar("kgpu_cel_scope", default=None)


@contextlib.contextmanager
def within(scope: EvaluationScope) -> Iterator[None]:
    """What is evaluated meanwhile asks ``scope``."""
    token = _SCOPE.set(scope)
    try:
        yield
    finally:
        _SCOPE.reset(token)


def variable(name: str) -> Any:
    """A variable of the scope. Raises ValueError."""
    scope = _SCOPE.get()
    if scope is None:
        raise ValueError(f"no such attribute(s): variables.{name}")
    return scope.variable(name)


def decide(account: tuple[str, str] | None, attributes: dict[str, str]) -> tuple[bool, str]:
    """May the scope's user, or that service account (namespace, name), do it; and why. False without a scope."""
    scope = _SCOPE.get()
    if scope is None or scope.decide is None:
        return False, ""
    user = scope.user if account is None or scope.account is None else scope.account(*account)
    return scope.decide(user, attributes)
