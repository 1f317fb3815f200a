"""The API server below HTTP: every verb with the real one's rules, synchronous, in memory. ``ApiCore`` is all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgpu.lab.embedded.core.verbs import ApiCore, CommitListener

__all__ = ["ApiCore", "CommitListener"]


def __getattr__(name: str) -> Any:
    # The store is built on core.model and ApiCore on the store; loading ApiCore only when asked for keeps that a line.
    if name in __all__:
        from kgpu.lab.embedded.core import verbs

        return getattr(verbs, name)
    raise AttributeError(name)
