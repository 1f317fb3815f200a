"""The status server under its old place; it is ``kgpu.base.http``, so that the operator has it too."""

from __future__ import annotations

from kgpu.base.http import (
    DEADLINE,
    LINGER,
    MAX_CONNECTIONS,
    MAX_HEAD,
    REASONS,
    Address,
    Response,
    Routes,
    StatusServer,
    answer,
    encode,
    parse_address,
)

__all__ = [
    "DEADLINE",
    "LINGER",
    "MAX_CONNECTIONS",
    "MAX_HEAD",
    "REASONS",
    "Address",
    "Response",
    "Routes",
    "StatusServer",
    "answer",
    "encode",
    "parse_address",
]
