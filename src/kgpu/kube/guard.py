"""A check just before a write is sent, which a caller can set for its own calls.

Between the decision to write and the first byte there may be a wait, for a free connection or for a second attempt on a
new one, and what was true before it need not be true after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final

_GUARD: Final[ContextVar[Callable[[], None] | None]] = ContextVar("write guard", default=None)


@contextlib.contextmanager
def guarded(guard: Callable[[], None]) -> Iterator[None]:
    """While this block runs, ``guard`` is called before each write of this task; what it raises, the write raises."""
    token = _GUARD.set(guard)
    try:
        guard()
        yield
    finally:
        _GUARD.reset(token)


def check() -> None:
    """Call the guard, if there is one. Clients do so at the last moment before they send."""
    guard = _GUARD.get()
    if guard is not None:
        guard()
